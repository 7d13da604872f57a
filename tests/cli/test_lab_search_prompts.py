"""`wm lab search-prompts` from flags to a family that `wm data build` reads, with both models behind a server."""

import json
import re

import pytest

from support.openai_server import OpenAIServer, verdict
from support.predictions import PROMPTS, grid_transitions, save_tiny
from wm_plugin.data.write import write_transitions
from wm_plugin.lab.evaluation.measures import read_result, read_rows

STYLES = {"plain": "Say it plainly.", "listed": "Say it in a list.", "odd": "Say it oddly."}
PLAIN = "The board is shown as it was."


def propose(body):
    style = next(name for name, told in STYLES.items() if f"The style: {told}" in body["messages"][0]["content"])
    number = int(re.search(r"This is round (\d+)", body["messages"][1]["content"])[1])
    system = {"plain": PLAIN if number == 2 else "The board moves.", "listed": "- a board", "odd": "{{ 7 * 7 }}"}[style]
    user = "${context}\n\n$history\n\nNow: $action\n\n$answer" if (style, number) != ("odd", 1) else "$action costs $5"
    return f"<system_template>{system}</system_template>\n<user_template>{user}</user_template>"


def predict(body):
    """The board before the action, if the prompt says so."""
    if body["messages"][0]["content"] != PLAIN:
        return "<next_state>nothing</next_state>"
    board = body["messages"][-1]["content"].split("Now:")[0].partition("\n")[2].strip()
    return f"<next_state>{board}</next_state>"


def reply(body):
    return propose(body) if body["model"] == "proposer" else verdict(4) if body["model"] == "judge" else predict(body)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.yaml").write_text(PROMPTS)
    (tmp_path / "styles.yaml").write_text(json.dumps(STYLES))
    write_transitions(grid_transitions(6), tmp_path / "grid.jsonl")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    return tmp_path


COMMAND = ("lab", "search-prompts", "grid.jsonl", "--prompts", "./grid.yaml", "--styles", "styles.yaml", "--out", "found",
           "--rounds", 2, "--limit", 4, "--server-model", "world", "--proposer-model", "proposer", "--direct")  # fmt: skip


def test_from_transitions_to_training_data(wm, folder):
    with OpenAIServer(reply) as server:
        command = (*COMMAND, "--server", server.base_url)
        result = wm.json(*command)
        assert result["stages"] == {"rl": ["plain"], "cpt": ["listed"], "sft": ["odd"]}
        assert result["settings"]["chosen"] == {"plain": 2, "listed": 1, "odd": 2}
        assert result["failures"] == {"proposal: stray dollar sign": 1}
        assert result["asked"]["proposer"] == 6
        asked = len(server.bodies)
        assert {body["temperature"] for body in server.bodies if body["model"] == "world"} == {0.0}
        before = {path.name: path.read_bytes() for path in (folder / "found").iterdir() if path.is_file()}
        printed = wm.text(*command)  # once more, for people
        assert len(server.bodies) == asked
    assert {path.name: path.read_bytes() for path in (folder / "found").iterdir() if path.is_file()} == before
    assert sorted(before) == ["evaluation.json", "grid.yaml", "result.json", "rows.jsonl"]
    lines = [line.split() for line in printed.splitlines()]
    assert lines[0][:5] == ["style", "stage", "round", "search", "test"]
    assert [line[0] for line in lines[1:5]] == ["start", "plain", "listed", "odd"]
    assert "wm lab prompts found/grid.yaml --data SRC" in printed
    evaluation = read_result(folder / "found")
    assert evaluation.measure("gain", "style", "plain").value > 0.3
    assert {row["variant"] for row in read_rows(folder / "found")} == {"start", "plain", "listed", "odd"}

    build = ("data", "build", "grid.jsonl", "--as", "rwml", "--host", "trl", "--prompts", "found/grid.yaml")
    wm.text(*build, "--out", "train.jsonl")
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 18
    assert {row["prompt"][0]["content"] for row in rows} == {PLAIN}


def test_a_judge_is_asked_once(wm, folder):
    with OpenAIServer(reply) as server:
        judge = json.dumps({"server": {"base_url": server.base_url, "model": "judge"}})
        command = (*COMMAND, "--server", server.base_url, "--reward", "rubric", "--reward-args", judge)
        wm.json(*command)
        asked = len(server.bodies)
        assert "judge" in {body["model"] for body in server.bodies}
        result = wm.json(*command)
        assert len(server.bodies) == asked
    assert result["asked"] == {"proposer": 0, "world model": 0}
    assert (folder / "found" / "work" / "judge.sqlite").is_file()


def test_without_a_usable_template_there_is_no_family(wm, folder):
    with OpenAIServer(lambda body: "no" if body["model"] == "proposer" else predict(body)) as server:
        printed = wm.text(*COMMAND, "--server", server.base_url, code=1)
    assert "No answer could be used in the style plain, listed, odd." in printed
    assert not (folder / "found" / "grid.yaml").exists()
    assert read_result(folder / "found").failures == {"proposal: no template": 6}


def test_what_somebody_changed_stays(wm, folder):
    with OpenAIServer(reply) as server:
        command = (*COMMAND, "--server", server.base_url)
        wm.text(*command)
        path = folder / "found" / "grid.yaml"
        path.write_text(path.read_text() + "# read, and approved\n")
        line = wm.error(*command)
    assert "found/grid.yaml: holds something else than the prompts that a search wrote; move it" in line
    assert path.read_text().endswith("approved\n")


SERVER = "--server http://localhost:1/v1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "name one model: --model or --server"),
        (f"{SERVER} --model m", "name one model"),
        (f"{SERVER} --variant v9", "grid: there is no variant 'v9'"),
        (f"{SERVER} --prompts grd", "there are no prompts 'grd'"),
        (f"{SERVER} --styles none.yaml", "none.yaml: cannot be read (No such file"),
        (f"{SERVER} --reward ruge", "there is no 'ruge'; did you mean 'rouge'?"),
        (f"{SERVER} --reward rwml", "needs a model: write --embedding-model"),
        (f"{SERVER} --reward-args [", "--reward-args is no JSON"),
        (f"{SERVER} --proposer-server nowhere", "base_url is 'nowhere'"),
        (f"{SERVER} --proposer-temperature nan", "--proposer-temperature is nan"),
        (f"{SERVER} --out .", "grid.yaml is the source grid.yaml; name another file"),
        (f"{SERVER} --out other", "holds files, but no evaluation.json"),
        (f"{SERVER} --out grid.jsonl", "grid.jsonl"),
    ],
)
def test_mistakes_are_one_line(wm, folder, arguments, message):
    before = sorted(path.name for path in folder.iterdir())
    assert message in wm.error(*COMMAND, *arguments.split())
    assert (folder / "grid.yaml").read_text() == PROMPTS
    left = sorted(path.name for path in folder.iterdir())
    assert left == before or left == sorted([*before, "found"])


@pytest.mark.host
def test_a_world_model_in_this_process(wm, folder):
    own = [one for one in COMMAND if one not in ("--server-model", "world")]
    assert "--proposer-server URL is missing" in wm.error(*own, "--model", "m")
    with OpenAIServer(reply) as server:
        own += ["--model", save_tiny(folder / "tiny"), "--proposer-server", server.base_url, "--rounds", 1]
        command = (*own, "--limit", 2, "--max-new-tokens", 4, "--batch-size", 3)
        first = wm.json(*command, code=1)  # the third style has no template in the first round
        again = wm.json(*command, code=1)
    assert first["asked"] == {"proposer": 3, "world model": 2 + 2 * 2 + 3 * 2}
    assert again["asked"] == {"proposer": 0, "world model": 0}
    assert again["measures"] == first["measures"]
