"""`wm data synthesize`, `mix`, `alternatives` and `reflect` from flags to files: the data of agents that are fine-tuned."""

import json
import random

import pytest

from support.openai_server import OpenAIServer
from support.templates import make_tokenizer
from support.world_models import RealWorld
from wm_plugin.cli import main
from wm_plugin.data import parquet, read
from wm_plugin.data.transitions import read_transitions
from wm_plugin.worlds.grid import GridEnvironment, expert
from wm_plugin.worlds.worlds import load

pytest.importorskip("transformers")

pytestmark = pytest.mark.host

GRID = load("grid")
MODEL = RealWorld(GRID, GRID.rows(8, seed=0))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wm(capsys, *arguments):
    code = main.main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]) if "--json" in arguments and code < 2 else out + err


def walker(body):
    texts = [message["content"] for message in body["messages"] if message["role"] in ("user", "tool")]
    environment = GridEnvironment()
    environment.reset(texts[-1].rstrip(">!"))
    chosen = expert()(environment)
    if chosen is None:
        return "I see no way."
    call = {"id": "x", "type": "function", "function": {"name": "move", "arguments": json.dumps(chosen[1])}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def simulation(folder, server, **fields):
    (folder / "sim.yaml").write_text(json.dumps({"url": server.base_url, "model": "world", "patience": 20, **fields}))


def test_from_episodes_in_both_worlds_to_rows_of_a_mixture(capsys, folder):
    with OpenAIServer(lambda body: MODEL.answer(body["messages"]).text) as world, OpenAIServer(walker) as policy:
        simulation(folder, world)
        agent = ("--policy", policy.base_url, "--model", "walker", "--max-new-tokens", "64")
        made = ("data", "synthesize", "grid", *agent, "--simulation", "sim.yaml", "--count", 4, "--tasks", 8)
        code, result = wm(capsys, *made, "--out", "synthetic.jsonl", "--json")
        assert (code, result["kept"], result["attempts"], result["left_out"]) == (0, 4, 4, {})
        code, text = wm(capsys, *made, "--most", 4, "--out", "synthetic.jsonl")
        assert code == 0
        assert "4 synthetic trajectories of grid (4 tasks, " in text
        assert not (folder / "synthetic.work").exists()
        assert wm(capsys, "env", "rollout", "grid", *agent, "--count", 8, "--out", "real.jsonl")[0] == 0
    code, result = wm(
        capsys,
        *("data", "mix", "real.jsonl", "synthetic.jsonl", "--successful", "--count", 3, "--count", 2),
        *("--out", "half.jsonl", "--json"),
    )
    assert (code, result["drawn"], result["synthetic"]) == (0, 5, 2)
    code, text = wm(capsys, "data", "mix", "real.jsonl", "synthetic.jsonl", "--count", "all", "--out", "both.jsonl")
    assert code == 0
    assert "both.jsonl: 12 trajectories, 4 of them synthetic" in text
    built = ("data", "build", "half.jsonl", "--as", "imitation", "--host", "trl", "--out", "rows.jsonl", "--json")
    assert wm(capsys, *built)[1]["rows"] == 5
    tried = ("data", "alternatives", "synthetic.jsonl", "--world", "grid", "--propose", "random", "--out", "T.jsonl")
    code, text = wm(capsys, *tried)
    assert code == 2
    assert "4 trajectories read; 4 left out: synthetic" in text


def test_fewer_than_were_asked_for_is_no_success_of_the_command(capsys, folder):
    with OpenAIServer(lambda body: MODEL.answer(body["messages"]).text) as world:
        simulation(folder, world)
        made = ("data", "synthesize", "grid", "--policy", "random", "--simulation", "sim.yaml", "--max-turns", 1)
        code, text = wm(capsys, *made, "--count", 4, "--most", 5, "--out", "x.jsonl")
    assert code == 1
    assert "left out: " in text
    assert "fewer than --count: raise --most" in text


@pytest.mark.parametrize(
    ("flags", "yaml", "message"),
    [
        (
            ["--policy", "expert"],
            None,
            "--policy expert looks into its environment, and in a world model there is nothing",
        ),
        (["--policy", "expart"], None, "--policy 'expart' is no folder with a model"),
        (["--keep", "best"], None, "--keep is 'best'"),
        (["--count", "0"], None, "--count is 0; write a number from 1"),
        (["--most", "1"], None, "--most is 1, which is less than --count (2)"),
        (["--max-turns", "-1"], None, "--max-turns is -1"),
        ([], "- 1", "sim.yaml: simulation is"),
        ([], "simulation: {url: 'http://h/v1', model: m, sucess: rule}", "has no field 'sucess'"),
        ([], "{url: 'http://h/v1'}", "model is missing"),
        ([], "a: [", "sim.yaml is not YAML"),
        (
            [],
            "{url: 'http://h/v1', model: m, worlds: [maze]}",
            "simulation.worlds is of maze; add grid, or leave it out",
        ),
        ([], "{url: 'http://h/v1', model: m, scenarios: true}", "--scenarios FILE and `scenarios: true`"),
        (["--simulation", "no.yaml"], None, "no.yaml' cannot be read"),
        (["--out", "sim.yaml"], None, "sim.yaml"),
    ],
)
def test_mistakes_are_one_line(capsys, folder, flags, yaml, message):
    (folder / "sim.yaml").write_text(yaml or "{url: 'http://localhost:1/v1', model: m}")
    made = [
        "data",
        "synthesize",
        "grid",
        "--policy",
        "random",
        "--simulation",
        "sim.yaml",
        "--count",
        "2",
        "--out",
        "x.jsonl",
    ]
    code, text = wm(capsys, *made, *flags)
    assert (code, text.count("\n")) == (2, 1)
    assert message in text


def test_scenarios_are_played_where_there_is_no_world_of_theirs(capsys, folder):
    lines = [
        {
            "id": f"s{n}",
            "query": "Go.",
            "initial_state": f"A room with {n} doors.",
            "columns": {"board": "A...\n....\n....\n...G"},
        }
        for n in range(9)
    ]
    (folder / "scenarios.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with OpenAIServer(lambda body: "You are out. [SUCCESS]") as world:
        simulation(folder, world, scenarios=True)
        made = (
            "data",
            "synthesize",
            "grid",
            "--policy",
            "random",
            "--simulation",
            "sim.yaml",
            "--scenarios",
            "scenarios.jsonl",
        )
        code, result = wm(capsys, *made, "--count", 3, "--out", "x.jsonl", "--json")
    assert (code, result["kept"]) == (0, 3)
    assert all("A room with" in one.context.initial_state for one in read("x.jsonl"))


def experts(capsys, count=4):
    made = ("env", "rollout", "grid", "--policy", "expert", "--count", count, "--out", "experts.jsonl")
    assert wm(capsys, *made)[0] == 0


def test_alternatives_of_a_wanderer_and_the_expert_mix(capsys, folder):
    experts(capsys)
    made = ("data", "alternatives", "experts.jsonl", "--world", "grid", "--propose", "random", "--out")
    code, result = wm(capsys, *made, "T.jsonl", "--json")
    turns = sum(len(one.turns) for one in read("experts.jsonl"))
    assert (code, result["expert"], result["alternative"], result["left_out"]) == (0, turns, 3 * turns, {})
    assert len(list(read_transitions("T.jsonl"))) == 4 * turns == result["transitions"]
    wm(capsys, *made, "again.jsonl")
    assert (folder / "again.jsonl").read_bytes() == (folder / "T.jsonl").read_bytes()
    from wm_plugin.lab.tiny.__main__ import main as make_policy

    make_policy(["--out", "policy", "--random"])
    tokens = ("--host", "trl", "--tokenizer", "policy")
    assert wm(capsys, "data", "build", "T.jsonl", "--as", "rwml-sft", *tokens, "--out", "world.jsonl")[0] == 0
    assert wm(capsys, "data", "build", "experts.jsonl", "--as", "imitation", *tokens, "--out", "own.jsonl")[0] == 0
    mixed = ("data", "mix", "world.jsonl", "own.jsonl", "--count", "all", "--out", "iwm.jsonl", "--json")
    assert wm(capsys, *mixed)[1]["drawn"] == 4 * turns + 4


def test_without_a_transition_the_file_stays_as_it_was(capsys, folder):
    experts(capsys)
    (folder / "T.jsonl").write_text("mine")
    made = ("data", "alternatives", "experts.jsonl", "--world", "shop", "--propose", "random", "--out", "T.jsonl")
    code, text = wm(capsys, *made)
    assert (code, text.count("\n")) == (2, 1)
    assert "T.jsonl is as it was; 4 trajectories read; 4 left out: of another environment. They must be of" in text
    assert (folder / "T.jsonl").read_text() == "mine"


def mover(body):
    """Proposes a move, or says something; by the seed."""
    draw = random.Random(body["seed"])
    if draw.random() < 0.2:
        return "I would rather wait."
    call = {
        "id": "x",
        "type": "function",
        "function": {"name": "move", "arguments": json.dumps({"direction": draw.choice("UDLR")})},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_alternatives_of_a_model_are_asked_for_once(capsys, folder):
    experts(capsys)
    with OpenAIServer(mover, latency=0.05) as server:
        made = ("data", "alternatives", "experts.jsonl", "--world", "grid", "--propose", server.base_url)
        made = (*made, "--propose-model", "m", "--draws", 8, "--alternatives", 2, "--json", "--out", "T.jsonl")
        code, result = wm(capsys, *made)
        asked = len(server.bodies)
        assert code == 0
        assert result["expert"] < result["alternative"] <= 2 * result["expert"]
        assert result["left_out"]["proposal without a call"] > 0
        assert asked == 8 * result["expert"]
        assert server.most_at_once > 8  # all states of the trajectories together
        before = (folder / "T.jsonl").read_bytes()
        assert wm(capsys, *made)[1] == result
        assert (len(server.bodies), (folder / "T.jsonl").read_bytes()) == (asked, before)


def test_reflections_are_rows_of_either_host(capsys, folder):
    experts(capsys)
    make_tokenizer("qwen2_5").save_pretrained("qwen")

    def answer(body):
        chosen = json.loads(body["messages"][1]["content"])["chosen"]["action"]["calls"][0]["arguments"]["direction"]
        return f"Going {chosen} leads on." if chosen != "L" else ("Going", "length")

    with OpenAIServer(answer) as server:
        made = ("data", "reflect", "experts.jsonl", "--world", "grid", "--propose", "random", "--json")
        made = (*made, "--server", server.base_url, "--server-model", "strong")
        code, result = wm(capsys, *made, "--out", "rows.jsonl")
        moves = [turn.action.calls[0].arguments["direction"] for one in read("experts.jsonl") for turn in one.turns]
        left = moves.count("L")
        assert (code, result["rows"], result["left_out"]) == (0, len(moves) - left, {"no reply": left} if left else {})
        asked = len(server.bodies)
        rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
        assert all(row["completion"][0]["reasoning_content"].startswith("Going ") for row in rows)
        assert {row["construction"] for row in rows} == {"reflection"}
        tokens = (*made, "--tokenizer", "qwen", "--inline", "--work", "rows.work")
        code, result = wm(capsys, *tokens, "--host", "verl", "--out", "rows.parquet")
        assert (code, result["rows"]) == (0, len(rows))
        assert len(server.bodies) == asked  # the same questions
        assert {"input_ids", "loss_mask"} == next(parquet.rows(folder / "rows.parquet")).keys()
        code, text = wm(capsys, *tokens, "--max-tokens", 1, "--out", "none.jsonl")
        assert (code, "no sample is left to write" in text) == (2, True)
        # Qwen2.5's template leaves reasoning out: nobody trains without it unasked
        code, text = wm(capsys, *(flag for flag in tokens if flag != "--inline"), "--out", "none.jsonl")
        assert (code, "the chat template changes message" in text) == (2, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--propose", "expert"], "--propose expert: its actions are those of the trajectories"),
        (["--propose", "http://localhost:1/v1"], "name its model with --propose-model"),
        (["--propose", "nobody"], "--propose 'nobody' is no folder with a model"),
        (["--alternatives", "0"], "--alternatives is 0"),
        (["--world", "gird"], "did you mean 'grid'"),
        (["--out", "experts.jsonl"], "is the source"),
        (["--out", "x.txt"], "write a name that ends in .jsonl"),
    ],
)
def test_mistakes_with_alternatives(capsys, folder, flags, message):
    (folder / "experts.jsonl").write_text("{}\n")
    made = ["data", "alternatives", "experts.jsonl", "--world", "grid", "--propose", "random", "--out", "x.jsonl"]
    code, text = wm(capsys, *made, *flags)
    assert (code, text.count("\n")) == (2, 1)
    assert message in text


def test_verl_needs_tokens_of_reflections(capsys, folder):
    (folder / "experts.jsonl").write_text("{}\n")
    made = ("data", "reflect", "experts.jsonl", "--world", "grid", "--propose", "random", "--host", "verl")
    code, text = wm(capsys, *made, "--server", "http://localhost:1/v1", "--server-model", "m", "--out", "x.parquet")
    assert code == 2
    assert "give a --tokenizer, and the rows are tokens" in text
