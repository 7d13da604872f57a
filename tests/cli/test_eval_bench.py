"""`wm lab bench`: AgentWorldBench by judges and by rules, with servers of the tests' own."""

import json

import pytest

from support.benchmark import checkout, row, write
from support.openai_server import OpenAIServer, careful, every, verdict
from wm_plugin.data.schema import Action, Observation, Trajectory, Turn
from wm_plugin.data.write import write as write_trajectories
from wm_plugin.lab.evaluation.measures import read_result, read_rows

VERB = ("lab", "bench")
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


def value(result, name, group):
    return next(one for one in result["measures"] if (one["name"], one["group"]) == (name, group))


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "bench", ROWS)


def asked(server, name, *judges):
    return (
        *("--server", server.base_url, "--server-model", name),
        *(word for judge in judges for word in ("--judge", f"{judge}@{server.base_url}")),
    )


def test_the_whole_way_with_two_judges_and_three_models(wm, tmp_path, data):
    with OpenAIServer(reply) as server:
        for name in ("wrong", "so-so"):
            wm.json(*VERB, data, *asked(server, name, "careful", "flat"), "--out", tmp_path / name)
        against = ("--against", tmp_path / "wrong", tmp_path / "so-so", "--out", tmp_path / "perfect")
        args = (*VERB, data, *asked(server, "perfect", "careful", "flat"), "--turing", "--rules", *against)
        result, count = wm.json(*args), len(server.bodies)
        assert (server.bodies[0]["temperature"], server.bodies[0]["max_tokens"]) == (0.6, 32768)
        assert wm.json(*args) == result  # the same table
        assert len(server.bodies) == count  # and nothing is asked twice
    assert value(result, "macro", "careful")["value"] == 100
    assert value(result, "macro", "flat")["value"] == 50
    assert value(result, "score", "careful/web")["value"] == 100
    assert value(result, "turing", "careful")["note"] == "6 equal pairs are left out"
    assert value(result, "spearman", "careful / flat")["value"] is None  # all the same for one of them
    assert value(result, "rules", "terminal/consistency")["value"] == 100
    groups = {one["group"] for one in result["measures"] if one["name"] == "rules"}
    assert "terminal/controllability" not in groups  # of one line no form could be asked for beside the word
    assert read_result(tmp_path / "perfect").measure("macro", "judge", "careful").value == 100
    scores = [one["scores"] for one in read_rows(tmp_path / "perfect")]
    assert scores[0]["careful/realism"] == 5
    assert {"rules": 1.0, "rules, judged": 1.0} in scores
    assert read_result(tmp_path / "wrong").measure("macro", "judge", "careful").value < 10


def test_trajectories_by_rules_alone(wm, tmp_path):
    turns = tuple(
        Turn(action=Action(text=action), observations=(Observation(kind="environment", text=text),))
        for action, text in TURNS
    )
    write_trajectories((Trajectory(turns=turns, task_id=str(number)) for number in range(3)), tmp_path / "x.jsonl")

    def world(body):
        last = body["messages"][-1]["content"]
        return f"<predicted_observation>{'alpha 4711' if 'cat f.txt' in last else '$'}</predicted_observation>"

    with OpenAIServer(world) as server:
        rules = ("--rules", "--check", f"other@{server.base_url}", "--limit", 2)
        result = wm.json(*VERB, tmp_path / "x.jsonl", *asked(server, "w"), *rules)
    consistency = value(result, "rules", "general/consistency")
    assert (consistency["value"], consistency["count"]) == (100, 2)
    assert "checked with 1 models" in result["notes"][0]
    write_trajectories([Trajectory(turns=())], tmp_path / "x.jsonl")
    for flags, said in (
        ("--judge a@http://h/v1", "--rules takes any trajectories"),
        ("--rules", "no turn gives a case"),
    ):
        assert said in wm.error(*VERB, tmp_path / "x.jsonl", *SERVED.split(), *flags.split())


def test_published_asks_as_the_checkout_does_and_sends_no_seed(wm, tmp_path, data):
    published = ("--published", checkout(tmp_path / "repo"), "--limit", 1)
    with OpenAIServer(reply) as server:
        result = wm.json(*VERB, data, *asked(server, "perfect", "theirs"), *published)
        bodies = [body for body in server.bodies if body["model"] == "theirs"]
    assert len(bodies) == 2
    assert all(set(body) == {"model", "messages", "temperature", "max_tokens"} for body in server.bodies)
    assert bodies[0]["temperature"] == 0.6
    assert bodies[0]["messages"][0]["content"] == "You judge terminal.\n"
    assert bodies[0]["messages"][1]["content"].startswith("Before:\n\n### Turn")
    assert value(result, "published micro", "theirs")["value"] == 75  # the mean of the scores that are there
    micro = value(result, "micro", "theirs")
    assert (micro["value"], micro["with_failed"]) == (None, 0)  # five scores or none
    assert result["failures"] == {"judge: no verdict": 2}


def test_a_killed_run_goes_on(wm, tmp_path, data):
    with OpenAIServer(reply) as server:
        args = (*VERB, data, *asked(server, "so-so", "careful"), "--out")
        whole = wm.json(*args, tmp_path / "a")
        wm.json(*args, tmp_path / "b")
        for name in ("answers.jsonl", next((tmp_path / "b").glob("judge-careful-*")).name):
            lines = (tmp_path / "b" / name).read_text().splitlines(keepends=True)
            (tmp_path / "b" / name).write_text("".join(lines[:2]) + lines[2][:9])  # cut in the middle of a line
        (tmp_path / "b" / "result.json").unlink()
        before = len(server.bodies)
        assert wm.json(*args, tmp_path / "b") == whole
        assert len(server.bodies) - before < before / 2


def test_errors_of_servers_are_counted(wm, data):
    with OpenAIServer(reply, faults=every(4, "400")) as server:  # the first, the fifth and the ninth
        result = wm.json(*VERB, data, *asked(server, "perfect", "careful"), "--concurrency", 1)
    assert result["failures"]["refused"] == 2
    micro = value(result, "micro", "careful")
    assert micro["count"] + micro["failed"] == 6
    assert micro["value"] == 100
    assert micro["with_failed"] == pytest.approx(100 * micro["count"] / 6)


def test_predictions_of_a_file_and_a_table(wm, tmp_path, data):
    lines = [one | {"gen": "alpha 4711"} for one in ROWS[:3]]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with OpenAIServer(reply) as server:
        command = (*VERB, data, "--predictions", tmp_path / "p.jsonl", "--judge", f"careful@{server.base_url}")
        result, printed = wm.json(*command), wm.text(*command)
    assert (value(result, "score", "terminal")["value"], value(result, "score", "web")["value"]) == (100, None)
    assert result["failures"] == {"empty": 3}
    assert all(word in printed for word in ("macro", "factuality", "terminal"))


SERVED = "--server http://localhost:1/v1 --server-model m"
JUDGED = f"{SERVED} --judge a@http://h/v1"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (SERVED, "name what to score by"),
        (f"{SERVED} --judge nothing", "write NAME@URL"),
        (f"{SERVED} --judge a@http://me:hunter2@h/v1", "has a user or a password"),
        (f"{SERVED} --judge http://me:hunter2@h/v1", "write NAME@URL"),
        (f"{JUDGED} --judge a@http://h/v1", "named twice"),
        (f"{JUDGED} --judge-key-env A --judge-key-env B", "2 times for 1"),
        (f"{JUDGED} --judge-key-env NOT_SET_1", "NOT_SET_1 is not set"),
        (f"{SERVED} --rules --turing", "--turing needs --judge"),
        (f"{JUDGED} --check a@http://h/v1", "--check needs --rules"),
        (f"{JUDGED} --published nowhere", "no checkout of"),
        ("--judge a@http://h/v1", "name one model"),
        ("--predictions x.jsonl --rules", "name a model"),
        (f"{SERVED} --rules --prompts nonsense", "--prompts has no effect"),
        ("--predictions x.jsonl --judge a@http://h/v1 --temperature 1", "--temperature has no effect"),
        (f"{JUDGED} --against nowhere", "cannot be read"),
        # such as the published one, word for word
        (f"{JUDGED} --turing --turing-prompt mine.md", 'ask for the verdict in our form, {"real": "first"}'),
    ],
)
def test_a_mistake_is_one_line(wm, monkeypatch, data, args, message):
    monkeypatch.chdir(data.parent)
    (data.parent / "mine.md").write_text("Which is real, A or B? Answer inside \\boxed{}.", encoding="utf-8")
    error = wm.error(*VERB, "bench", *args.split())
    assert message in error
    assert "hunter2" not in error
