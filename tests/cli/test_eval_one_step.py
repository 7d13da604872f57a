"""`wm eval one-step` from files and flags to tables, on a server and in this process."""

import pytest

from support.openai_server import OpenAIServer
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.data.transitions import expand
from wm_plugin.data.write import write, write_transitions
from wm_plugin.lab.evaluation.measures import read_result, read_rows

REAL = {"go": "a hall", "open": "a drawer", "take": "yours [SUCCESS]", "jump": "Nothing happens."}


def episode(task: str, *actions: str, success: bool) -> Trajectory:
    turns = [
        Turn(
            action=Action(text=action),
            observations=[Observation(kind="environment", text=REAL[action].removesuffix(" [SUCCESS]"))],
        )
        for action in actions
    ]
    context = Context(task=f"Take {task}.", world_context="It is in the drawer.")
    return Trajectory(turns=turns, context=context, task_id=task, success=success)


EPISODES = [episode("one", "go", "open", "take", success=True), episode("two", "jump", success=False)]


def answer(body):
    return REAL[body["messages"][-1]["content"]]


@pytest.fixture
def held_out(tmp_path):
    write(EPISODES, tmp_path / "held_out.jsonl")
    return tmp_path / "held_out.jsonl"


def command(server, source, *flags):
    named = ("--server", server.base_url, "--server-model", "m") if server else ()
    return ("eval", "one-step", source, *named, *flags)


def mean(result, name="exact", by="", group=""):
    keys = ("name", "by", "group")
    return next(one for one in result["measures"] if tuple(one[key] for key in keys) == (name, by, group))


def test_from_a_file_to_tables(wm, held_out, tmp_path):
    out = tmp_path / "out"
    with OpenAIServer(reply=lambda body: answer(body).replace("drawer", "wall")) as server:
        result = wm.json(*command(server, held_out, "--out", out))
        assert {body["temperature"] for body in server.bodies} == {0.0}
        assert all("It is in the drawer." in body["messages"][0]["content"] for body in server.bodies)
        assert (result["ok"], mean(result)["value"], mean(result)["count"]) == (True, 3 / 4, 4)
        assert mean(result, "success_flag")["value"] == 1.0
        count = len(server.bodies)
        printed = wm.text(*command(server, held_out, "--out", out))
        assert len(server.bodies) == count  # nothing is asked twice
    for text in ("held_out.jsonl", "95%", "75%", "success_flag", "turn", "not done", "nll: a server's"):
        assert text in printed
    assert read_result(out).measure("exact").value == 3 / 4
    assert [row["scores"]["exact"] for row in read_rows(out)] == [1.0, 0.0, 1.0, 1.0]


def test_failed_calls_are_counted_and_asked_again(wm, held_out, tmp_path):
    with OpenAIServer(reply=answer, faults=lambda number: "400" if number == 1 else None) as server:
        flags = ("--out", tmp_path / "out", "--concurrency", 1)
        result = wm.json(*command(server, held_out, *flags))
        assert (mean(result)["value"], mean(result)["failed"], mean(result)["with_failed"]) == (1.0, 1, 3 / 4)
        assert result["failures"] == {"refused": 1}
        assert "1 calls failed" in " ".join(result["notes"])
        result = wm.json(*command(server, held_out, *flags))
        assert (mean(result)["failed"], mean(result)["with_failed"], result["failures"]) == (0, 1.0, {})
        assert len(server.bodies) == 5
    with OpenAIServer(reply=answer, faults=lambda number: "400") as server:
        result = wm.json(*command(server, held_out), code=1)
        assert (result["ok"], mean(result)["value"], mean(result)["with_failed"]) == (False, None, 0.0)


def test_few_shot_without_the_hidden_state(wm, held_out, tmp_path):
    train = [episode(f"other {n}", "go", "take", success=True) for n in range(5)] + EPISODES
    write(train, tmp_path / "train.jsonl")
    with OpenAIServer(reply=answer) as server:
        flags = ("--demonstrations", tmp_path / "train.jsonl", "--no-world-context")
        result = wm.json(*command(server, held_out, *flags))
        systems = {body["messages"][0]["content"] for body in server.bodies if "Take one." in str(body["messages"][0])}
    assert result["settings"]["shots"] == 3
    (system,) = systems
    assert system.count("## Demonstration ") == 3
    assert system.count("Take one.") == 1
    assert "drawer." not in system


def test_transitions_of_rwml(wm, tmp_path):
    write_transitions(expand(EPISODES), tmp_path / "t.jsonl")
    with OpenAIServer(reply=lambda body: "<think></think><next_state>a hall</next_state>") as server:
        result = wm.json(*command(server, tmp_path / "t.jsonl", "--as", "rwml-sft", "--limit", 1))
    assert (mean(result)["value"], mean(result)["count"]) == (1 / 3, 3)
    assert result["settings"]["world_context"] is False
    line = wm.error(*command(None, tmp_path / "t.jsonl", *SERVED))
    assert "t.jsonl: holds transitions, but word2world is made of trajectories" in line


def test_embeddings_of_a_server(wm, held_out, monkeypatch):
    from wm_plugin import rewards

    made = []

    def embedding(model, *, base_url):
        made.append((model, base_url))
        return lambda predictions, targets: [0.25] * len(predictions)

    monkeypatch.setattr(rewards, "EmbeddingReward", embedding)
    with OpenAIServer(reply=answer) as server:
        flags = ("--embedding-model", "e", "--embedding-server", "http://localhost:1/v1")
        result = wm.json(*command(server, held_out, *flags))
    assert (made, mean(result, "embedding")["value"]) == ([("e", "http://localhost:1/v1")], 0.25)


SERVED = ["--server", "http://localhost:1/v1", "--server-model", "m"]
POLICY = "--as policy --model p"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "name one model: --model or --server"),
        ("--model /no/such/model", "--model /no/such/model: there is no such folder"),
        ("SERVED --shots 3", "name their file with --demonstrations"),
        ("SERVED --embedding-server http://localhost:1/v1", "--embedding-server needs --embedding-model"),
        ("SERVED --as agentworld-sft", "--as agentworld-sft needs --prompts"),
        ("SERVED --as rwml-sft --demonstrations /no/such.jsonl", "/no/such.jsonl"),
        ("SERVED --as rft", "no kind 'rft'"),
        ("SERVED --as polcy --prompts mcp", "no kind 'polcy' of a world model's data; did you mean 'policy'?"),
        ("SERVED --demonstrations FOLDER/held_out.jsonl", "has 2 tasks to demonstrate, fewer than 3"),
        ("SERVED --out FOLDER", "name another folder"),
        ("SERVED --as rwml-sft --prompts no.yaml", "no.yaml: cannot be read (No such file"),
        ("SERVED --chat-template x", "--chat-template is for --as policy"),
        ("SERVED --as policy", "has no way to go on with a tool's"),
        (f"{POLICY} --prompts rwml", "--prompts: not with --as policy"),
        (f"{POLICY} --no-world-context", "--world-context: not with --as policy"),
        (f"{POLICY} --demonstrations x", "--demonstrations: not with --as policy"),
        (f"{POLICY} --temperature 1", "--temperature: not with --as policy"),
        ("--as policy", "--model"),
    ],
)
def test_mistakes_are_one_line(wm, held_out, flags, message):
    words = flags.replace("SERVED", " ".join(SERVED)).replace("FOLDER", str(held_out.parent)).split()
    assert message in wm.error(*command(None, held_out, *words))


def test_names_of_tools_are_shown_as_text(wm, tmp_path):
    turns = [
        Turn(
            action=Action(calls=[Call(name=name)]),
            observations=[Observation(kind="tool", text="x", tool=name, call=0)],
        )
        for name in ("\x1b[31mred", "[bold]look")
    ]
    write([Trajectory(turns=turns, task_id="t")], tmp_path / "x.jsonl")
    with OpenAIServer(reply=lambda body: "x") as server:
        printed = wm.text(*command(server, tmp_path / "x.jsonl"))
    assert "\x1b" not in printed
    assert "[bold]look" in printed


@pytest.mark.host
def test_a_model_in_this_process(wm, held_out, tmp_path):
    from support.predictions import save_tiny

    flags = ("--model", save_tiny(tmp_path / "model"), "--max-new-tokens", "4")
    result = wm.json(*command(None, held_out, *flags))
    assert result == wm.json(*command(None, held_out, *flags))  # nothing is sampled
    assert (mean(result)["count"], mean(result)["failed"], result["failures"]) == (0, 4, {"cut": 4})
    assert mean(result, "nll")["value"] > 0
    assert 0 <= mean(result, "calibration_error")["value"] <= 1


@pytest.mark.host
def test_a_policy_is_asked_about_the_results_of_its_calls(wm, tmp_path):
    from wm_plugin.lab.tiny.__main__ import main as tiny

    tiny(["--out", str(tmp_path / "policy"), "--random"])
    tiny(["rollouts", "--out", str(tmp_path / "grid.jsonl"), "--count", "4", "--held-out"])
    flags = ("--as", "policy", "--model", tmp_path / "policy", "--out", tmp_path / "out", "--limit", 2)
    wm.capsys.readouterr()
    result = wm.json(*command(None, tmp_path / "grid.jsonl", *flags))
    assert (result["settings"]["kind"], mean(result)["value"], result["failures"]) == ("policy", 0.0, {})
    assert 3 < mean(result, "nll")["value"] < 7  # of 100 characters
    rows = list(read_rows(tmp_path / "out"))
    assert len(rows) == mean(result)["count"]
    assert all(len(row["predicted"]) <= 20 == len(row["real"]) for row in rows)
    kept = (tmp_path / "out" / "answers.jsonl").read_bytes()
    assert wm.json(*command(None, tmp_path / "grid.jsonl", *flags))["measures"] == result["measures"]
    assert (tmp_path / "out" / "answers.jsonl").read_bytes() == kept
    write_transitions(expand(EPISODES), tmp_path / "transitions.jsonl")
    line = wm.error(*command(None, tmp_path / "transitions.jsonl", *flags[:4]))
    assert "asked about whole trajectories" in line
