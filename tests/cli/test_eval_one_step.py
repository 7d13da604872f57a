"""`wm eval one-step` from files and flags to tables, on a server and in this process."""

import json

import pytest

from support.openai_server import OpenAIServer
from wm_plugin.cli.main import main
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


def wm(capsys, server, source, *flags):
    """The exit code, and the JSON that is printed."""
    named = ["--server", server.base_url, "--server-model", "m"] if server else []
    code = main(["eval", "one-step", str(source), *named, *map(str, flags), "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def mean(result, name="exact", by="", group=""):
    keys = ("name", "by", "group")
    return next(one for one in result["measures"] if tuple(one[key] for key in keys) == (name, by, group))


def test_from_a_file_to_tables(held_out, capsys, tmp_path):
    out = tmp_path / "out"
    with OpenAIServer(reply=lambda body: answer(body).replace("drawer", "wall")) as server:
        code, result = wm(capsys, server, held_out, "--out", out)
        assert {body["temperature"] for body in server.bodies} == {0.0}
        assert all("It is in the drawer." in body["messages"][0]["content"] for body in server.bodies)
        assert (code, result["ok"], mean(result)["value"], mean(result)["count"]) == (0, True, 3 / 4, 4)
        assert mean(result, "success_flag")["value"] == 1.0
        count = len(server.bodies)
        named = ["--server", server.base_url, "--server-model", "m", "--out", str(out)]
        assert main(["eval", "one-step", str(held_out), *named]) == 0
        assert len(server.bodies) == count  # nothing is asked twice
    printed = capsys.readouterr().out
    for text in ("held_out.jsonl", "95%", "75%", "success_flag", "turn", "not done", "nll: a server's"):
        assert text in printed
    assert read_result(out).measure("exact").value == 3 / 4
    assert [row["scores"]["exact"] for row in read_rows(out)] == [1.0, 0.0, 1.0, 1.0]


def test_failed_calls_are_counted_and_asked_again(held_out, capsys, tmp_path):
    with OpenAIServer(reply=answer, faults=lambda number: "400" if number == 1 else None) as server:
        flags = ("--out", tmp_path / "out", "--concurrency", 1)
        _, result = wm(capsys, server, held_out, *flags)
        assert (mean(result)["value"], mean(result)["failed"], mean(result)["with_failed"]) == (1.0, 1, 3 / 4)
        assert result["failures"] == {"refused": 1}
        assert "1 calls failed" in " ".join(result["notes"])
        _, result = wm(capsys, server, held_out, *flags)
        assert (mean(result)["failed"], mean(result)["with_failed"], result["failures"]) == (0, 1.0, {})
        assert len(server.bodies) == 5
    with OpenAIServer(reply=answer, faults=lambda number: "400") as server:
        code, result = wm(capsys, server, held_out)
        assert (code, result["ok"], mean(result)["value"], mean(result)["with_failed"]) == (1, False, None, 0.0)


def test_few_shot_without_the_hidden_state(held_out, capsys, tmp_path):
    train = [episode(f"other {n}", "go", "take", success=True) for n in range(5)] + EPISODES
    write(train, tmp_path / "train.jsonl")
    with OpenAIServer(reply=answer) as server:
        flags = ("--demonstrations", tmp_path / "train.jsonl", "--no-world-context")
        _, result = wm(capsys, server, held_out, *flags)
        systems = {body["messages"][0]["content"] for body in server.bodies if "Take one." in str(body["messages"][0])}
    assert result["settings"]["shots"] == 3
    (system,) = systems
    assert system.count("## Demonstration ") == 3
    assert system.count("Take one.") == 1
    assert "drawer." not in system


def test_transitions_of_rwml(capsys, tmp_path):
    write_transitions(expand(EPISODES), tmp_path / "t.jsonl")
    with OpenAIServer(reply=lambda body: "<think></think><next_state>a hall</next_state>") as server:
        code, result = wm(capsys, server, tmp_path / "t.jsonl", "--as", "rwml-sft", "--limit", 1)
    assert (code, mean(result)["value"], mean(result)["count"]) == (0, 1 / 3, 3)
    assert result["settings"]["world_context"] is False
    assert main(["eval", "one-step", str(tmp_path / "t.jsonl"), *SERVED]) == 2
    assert "t.jsonl: holds transitions, but word2world is made of trajectories" in capsys.readouterr().err


def test_embeddings_of_a_server(held_out, capsys, monkeypatch):
    from wm_plugin import rewards

    made = []

    def embedding(model, *, base_url):
        made.append((model, base_url))
        return lambda predictions, targets: [0.25] * len(predictions)

    monkeypatch.setattr(rewards, "EmbeddingReward", embedding)
    with OpenAIServer(reply=answer) as server:
        flags = ("--embedding-model", "e", "--embedding-server", "http://localhost:1/v1")
        _, result = wm(capsys, server, held_out, *flags)
    assert (made, mean(result, "embedding")["value"]) == ([("e", "http://localhost:1/v1")], 0.25)


SERVED = ["--server", "http://localhost:1/v1", "--server-model", "m"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "name one model: --model or --server"),
        (["--model", "/no/such/model"], "--model /no/such/model: there is no such folder"),
        ([*SERVED, "--limit", "0"], "--limit is 0"),
        ([*SERVED, "--shots", "3"], "name their file with --demonstrations"),
        ([*SERVED, "--embedding-server", "http://localhost:1/v1"], "--embedding-server needs --embedding-model"),
        ([*SERVED, "--as", "agentworld-sft"], "--as agentworld-sft needs --prompts"),
        ([*SERVED, "--as", "rwml-sft", "--demonstrations", "/no/such.jsonl"], "/no/such.jsonl"),
        ([*SERVED, "--as", "rft"], "no kind 'rft'"),
        (
            [*SERVED, "--as", "polcy", "--prompts", "mcp"],
            "no kind 'polcy' of a world model's data; did you mean 'policy'?",
        ),
        ([*SERVED, "--as", "wrod2world"], "did you mean 'word2world'?"),
        ([*SERVED, "--demonstrations", "{folder}/held_out.jsonl"], "has 2 tasks to demonstrate, fewer than 3"),
        ([*SERVED, "--out", "{folder}"], "name another folder"),
        ([*SERVED, "--as", "rwml-sft", "--prompts", "no.yaml"], "no.yaml: No such file or directory"),
    ],
)
def test_mistakes_are_one_line(held_out, capsys, flags, message):
    flags = [flag.replace("{folder}", str(held_out.parent)) for flag in flags]
    assert main(["eval", "one-step", str(held_out), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_names_of_tools_are_shown_as_text(capsys, tmp_path):
    turns = [
        Turn(
            action=Action(calls=[Call(name=name)]),
            observations=[Observation(kind="tool", text="x", tool=name, call=0)],
        )
        for name in ("\x1b[31mred", "[bold]look")
    ]
    write([Trajectory(turns=turns, task_id="t")], tmp_path / "x.jsonl")
    with OpenAIServer(reply=lambda body: "x") as server:
        named = ["--server", server.base_url, "--server-model", "m"]
        assert main(["eval", "one-step", str(tmp_path / "x.jsonl"), *named]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[bold]look" in printed


@pytest.mark.host
def test_a_model_in_this_process(held_out, capsys, tmp_path):
    from support.predictions import save_tiny

    flags = ("--model", save_tiny(tmp_path / "model"), "--max-new-tokens", "4")
    results = [wm(capsys, None, held_out, *flags)[1] for _ in range(2)]
    assert results[0] == results[1]  # nothing is sampled
    assert (mean(results[0])["count"], mean(results[0])["failed"], results[0]["failures"]) == (0, 4, {"cut": 4})
    assert mean(results[0], "nll")["value"] > 0
    assert 0 <= mean(results[0], "calibration_error")["value"] <= 1


@pytest.mark.host
def test_a_policy_is_asked_about_the_results_of_its_calls(tmp_path, capsys):
    from wm_plugin.lab.tiny.__main__ import main as tiny

    tiny(["--out", str(tmp_path / "policy"), "--random"])
    tiny(["rollouts", "--out", str(tmp_path / "grid.jsonl"), "--count", "4", "--held-out"])
    flags = ("--as", "policy", "--model", tmp_path / "policy", "--out", tmp_path / "out", "--limit", 2)
    capsys.readouterr()
    code, result = wm(capsys, None, tmp_path / "grid.jsonl", *flags)
    assert (code, result["settings"]["kind"], mean(result)["value"], result["failures"]) == (0, "policy", 0.0, {})
    assert 3 < mean(result, "nll")["value"] < 7  # of 100 characters
    rows = list(read_rows(tmp_path / "out"))
    assert len(rows) == mean(result)["count"]
    assert all(len(row["predicted"]) <= 20 == len(row["real"]) for row in rows)
    kept = (tmp_path / "out" / "answers.jsonl").read_bytes()
    assert wm(capsys, None, tmp_path / "grid.jsonl", *flags)[1]["measures"] == result["measures"]
    assert (tmp_path / "out" / "answers.jsonl").read_bytes() == kept
    write_transitions(expand(EPISODES), tmp_path / "transitions.jsonl")
    assert main(["eval", "one-step", str(tmp_path / "transitions.jsonl"), *map(str, flags[:4])]) == 2
    assert "asked about whole trajectories" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--as", "policy", "--server", "http://localhost:1/v1", "--server-model", "m"],
            "has no way to go on with a tool's",
        ),
        (["--as", "policy", "--model", "p", "--prompts", "rwml"], "--prompts: not with --as policy"),
        (["--as", "policy", "--model", "p", "--no-world-context"], "--world-context: not with --as policy"),
        (["--as", "policy", "--model", "p", "--demonstrations", "x"], "--demonstrations: not with --as policy"),
        (["--as", "policy", "--model", "p", "--temperature", "1"], "--temperature: not with --as policy"),
        (["--as", "policy"], "--model"),
        (["--model", "p", "--chat-template", "x"], "--chat-template is for --as policy"),
    ],
)
def test_what_a_policy_is_not_asked_with(held_out, capsys, flags, message):
    assert main(["eval", "one-step", str(held_out), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
