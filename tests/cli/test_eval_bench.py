import json

import pytest

from support.benchmark import checkout, row, write
from support.openai_server import OpenAIServer, careful, every, verdict
from wm_plugin.cli import main
from wm_plugin.data.schema import Action, Observation, Trajectory, Turn
from wm_plugin.data.write import write as write_trajectories
from wm_plugin.lab.evaluation.measures import read_result, read_rows

TURNS = (("echo alpha > f.txt", "$ "), ("cat f.txt", "alpha 4711"))
ROWS = [
    row(domain, number, turns=((TURNS[0][0], f"$ {number}"), TURNS[1]))
    for domain in ("terminal", "web")
    for number in range(3)
]
PERFECT = {"perfect": "alpha 4711", "wrong": "Segmentation fault", "so-so": "alpha beta"}


def reply(body):
    """World models by name, and three judges: one compares, one has one score for all, one is published's."""
    model, messages = body["model"], body["messages"]
    if model == "careful":
        return careful(body)
    if model == "flat":
        return verdict(3)
    if model == "theirs":
        right = "predicted [alpha 4711]" in messages[1]["content"]
        return f'{{"scores": {{"format": {5 if right else 1}, "quality": 3}}}}'
    if "The next action fails" in messages[0]["content"]:
        return PERFECT[model]
    return f"<think>hm</think>\n**Environment Observation:**\n{PERFECT[model]}"


def bench(capsys, *args, code=0):
    assert main.main(["lab", "bench", *map(str, args), "--json"]) == code
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def value(result, name, group):
    return next(one for one in result["measures"] if (one["name"], one["group"]) == (name, group))


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "bench", ROWS)


def model(server, name):
    return ["--server", server.base_url, "--server-model", name]


def judge(server, *names):
    return [word for name in names for word in ("--judge", f"{name}@{server.base_url}")]


def test_the_whole_way_with_two_judges_and_three_models(capsys, tmp_path, data):
    with OpenAIServer(reply) as server:
        judges = judge(server, "careful", "flat")
        for name in ("wrong", "so-so"):
            bench(capsys, data, *model(server, name), *judges, "--out", tmp_path / name)
        against = ["--against", tmp_path / "wrong", tmp_path / "so-so"]
        args = [
            data,
            *model(server, "perfect"),
            *judges,
            "--turing",
            "--rules",
            *against,
            "--out",
            tmp_path / "perfect",
        ]
        result = bench(capsys, *args)
        asked = len(server.bodies)
        assert server.bodies[0]["temperature"] == 0.6
        assert server.bodies[0]["max_tokens"] == 32768
        assert bench(capsys, *args) == result  # the same table
        assert len(server.bodies) == asked  # and nothing is asked twice
    assert value(result, "macro", "careful")["value"] == 100
    assert value(result, "macro", "flat")["value"] == 50
    assert value(result, "score", "careful/web")["value"] == 100
    assert value(result, "turing", "careful")["note"] == "6 equal pairs are left out"
    assert value(result, "spearman", "careful / flat")["value"] is None  # all the same for one of them
    assert value(result, "rules", "terminal/consistency")["value"] == 100
    groups = {one["group"] for one in result["measures"] if one["name"] == "rules"}
    assert "terminal/controllability" not in groups  # of one line no form could be asked for beside the word
    stored = read_result(tmp_path / "perfect")
    assert stored.measure("macro", "judge", "careful").value == 100
    scores = [one["scores"] for one in read_rows(tmp_path / "perfect")]
    assert scores[0]["careful/realism"] == 5
    assert {"rules": 1.0, "rules, judged": 1.0} in scores
    assert read_result(tmp_path / "wrong").measure("macro", "judge", "careful").value < 10


def test_a_world_of_ours_by_rules_alone(capsys, tmp_path):
    turns = tuple(
        Turn(action=Action(text=action), observations=(Observation(kind="environment", text=text),))
        for action, text in TURNS
    )
    write_trajectories((Trajectory(turns=turns, task_id=str(number)) for number in range(3)), tmp_path / "x.jsonl")

    def world(body):
        last = body["messages"][-1]["content"]
        return f"<predicted_observation>{'alpha 4711' if 'cat f.txt' in last else '$'}</predicted_observation>"

    with OpenAIServer(world) as server:
        result = bench(
            capsys,
            tmp_path / "x.jsonl",
            *model(server, "w"),
            "--rules",
            "--check",
            f"other@{server.base_url}",
            "--limit",
            2,
        )
    assert value(result, "rules", "general/consistency")["value"] == 100
    assert value(result, "rules", "general/consistency")["count"] == 2
    assert "checked with 1 models" in result["notes"][0]


def test_published_asks_as_the_checkout_does_and_sends_no_seed(capsys, tmp_path, data):
    repository = checkout(tmp_path / "repo")
    with OpenAIServer(reply) as server:
        result = bench(
            capsys, data, *model(server, "perfect"), *judge(server, "theirs"), "--published", repository, "--limit", 1
        )
        asked = [body for body in server.bodies if body["model"] == "theirs"]
    assert len(asked) == 2
    assert all(set(body) == {"model", "messages", "temperature", "max_tokens"} for body in server.bodies)
    assert asked[0]["temperature"] == 0.6
    assert asked[0]["messages"][0]["content"] == "You judge terminal.\n"
    assert asked[0]["messages"][1]["content"].startswith("Before:\n\n### Turn")
    assert value(result, "published micro", "theirs")["value"] == 75  # the mean of the scores that are there
    assert value(result, "micro", "theirs")["value"] is None  # five scores or none
    assert value(result, "micro", "theirs")["with_failed"] == 0
    assert result["failures"] == {"judge: no verdict": 2}


def test_a_killed_run_goes_on(capsys, tmp_path, data):
    with OpenAIServer(reply) as server:
        whole = bench(capsys, data, *model(server, "so-so"), *judge(server, "careful"), "--out", tmp_path / "a")
        bench(capsys, data, *model(server, "so-so"), *judge(server, "careful"), "--out", tmp_path / "b")
        for name in ("answers.jsonl", next((tmp_path / "b").glob("judge-careful-*")).name):
            lines = (tmp_path / "b" / name).read_text().splitlines(keepends=True)
            (tmp_path / "b" / name).write_text("".join(lines[:2]) + lines[2][:9])  # cut in the middle of a line
        (tmp_path / "b" / "result.json").unlink()
        before = len(server.bodies)
        again = bench(capsys, data, *model(server, "so-so"), *judge(server, "careful"), "--out", tmp_path / "b")
        assert len(server.bodies) - before < before / 2
    assert again == whole


def test_errors_of_servers_are_counted(capsys, data):
    with OpenAIServer(reply, faults=every(4, "400")) as server:  # the first, the fifth and the ninth
        result = bench(capsys, data, *model(server, "perfect"), *judge(server, "careful"), "--concurrency", 1)
    assert result["failures"]["refused"] == 2
    micro = value(result, "micro", "careful")
    assert micro["count"] + micro["failed"] == 6
    assert micro["value"] == 100
    assert micro["with_failed"] == pytest.approx(100 * micro["count"] / 6)


def test_predictions_of_a_file(capsys, tmp_path, data):
    lines = [one | {"gen": "alpha 4711"} for one in ROWS[:3]]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with OpenAIServer(reply) as server:
        result = bench(capsys, data, "--predictions", tmp_path / "p.jsonl", *judge(server, "careful"))
    assert (value(result, "score", "terminal")["value"], value(result, "score", "web")["value"]) == (100, None)
    assert result["failures"] == {"empty": 3}


def test_a_table_is_printed(capsys, tmp_path, data):
    with OpenAIServer(reply) as server:
        assert main.main(["lab", "bench", str(data), *model(server, "wrong"), *judge(server, "careful")]) == 0
    out = capsys.readouterr().out
    assert "macro" in out
    assert "factuality" in out
    assert "terminal" in out


SERVED = ["--server", "http://localhost:1/v1", "--server-model", "m"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (SERVED, "name what to score by"),
        ([*SERVED, "--judge", "nothing"], "write NAME@URL"),
        ([*SERVED, "--judge", "a@http://me:hunter2@h/v1"], "has a user or a password"),
        ([*SERVED, "--judge", "http://me:hunter2@h/v1"], "write NAME@URL"),
        ([*SERVED, "--judge", "a@http://h/v1", "--judge", "a@http://h/v1"], "named twice"),
        ([*SERVED, "--judge", "a@http://h/v1", "--judge-key-env", "A", "--judge-key-env", "B"], "2 times for 1"),
        ([*SERVED, "--judge", "a@http://h/v1", "--judge-key-env", "NOT_SET_1"], "NOT_SET_1 is not set"),
        ([*SERVED, "--rules", "--turing"], "--turing needs --judge"),
        ([*SERVED, "--judge", "a@http://h/v1", "--check", "a@http://h/v1"], "--check needs --rules"),
        ([*SERVED, "--judge", "a@http://h/v1", "--published", "nowhere"], "no checkout of"),
        (["--judge", "a@http://h/v1"], "name one model"),
        (["--predictions", "x.jsonl", "--rules"], "name a model"),
        ([*SERVED, "--rules", "--limit", "0"], "--limit is 0"),
        ([*SERVED, "--rules", "--prompts", "nonsense"], "--prompts has no effect"),
        (["--predictions", "x.jsonl", "--judge", "a@http://h/v1", "--temperature", "1"], "--temperature has no effect"),
        ([*SERVED, "--judge", "a@http://h/v1", "--against", "nowhere"], "cannot be read"),
    ],
)
def test_a_mistake_is_one_line(capsys, monkeypatch, data, args, message):
    monkeypatch.chdir(data.parent)
    assert main.main(["lab", "bench", "bench", *args]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert "hunter2" not in error


def test_a_turing_prompt_whose_verdicts_could_not_be_read_is_refused(capsys, tmp_path, data):
    """Such as the published ones, word for word."""
    prompt = tmp_path / "published.md"
    prompt.write_text("Which is real, A or B? Answer inside \\boxed{}.", encoding="utf-8")
    args = ["lab", "bench", str(data), *SERVED, "--judge", "a@http://h/v1", "--turing", "--turing-prompt", str(prompt)]
    assert main.main(args) == 2
    error = capsys.readouterr().err.strip()
    assert 'published.md: ask for the verdict in our form, {"real": "first"} in <final_evaluation>' in error
    assert "\n" not in error


def test_trajectories_are_no_rows_for_judges(capsys, tmp_path):
    write_trajectories([Trajectory(turns=())], tmp_path / "x.jsonl")
    args = ["lab", "bench", str(tmp_path / "x.jsonl"), *SERVED]
    assert main.main([*args, "--judge", "a@http://h/v1"]) == 2
    assert "--rules takes any trajectories" in capsys.readouterr().err
    assert main.main([*args, "--rules"]) == 2
    assert "no turn gives a case" in capsys.readouterr().err
