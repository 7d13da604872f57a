"""`wm lab synthesize`, `mix`, `alternatives` and `reflect` from flags to files: the data of agents that are fine-tuned."""

import json
import random

import pytest

from support.openai_server import OpenAIServer
from support.templates import make_tokenizer
from support.world_models import RealWorld
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


def moves(arguments):
    call = {"id": "x", "type": "function", "function": {"name": "move", "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def walker(body):
    texts = [message["content"] for message in body["messages"] if message["role"] in ("user", "tool")]
    environment = GridEnvironment()
    environment.reset(texts[-1].rstrip(">!"))
    chosen = expert()(environment)
    if chosen is None:
        return "I see no way."
    return moves(chosen[1])


def simulation(folder, server, **fields):
    (folder / "sim.yaml").write_text(json.dumps({"url": server.base_url, "model": "world", "patience": 20, **fields}))


MADE = ("lab", "synthesize", "grid", "--policy", "random", "--simulation", "sim.yaml", "--count", 2, "--out", "x.jsonl")


def test_from_episodes_in_both_worlds_to_rows_of_a_mixture(wm, folder):
    with OpenAIServer(lambda body: MODEL.answer(body["messages"]).text) as world, OpenAIServer(walker) as policy:
        simulation(folder, world)
        agent = ("--policy", policy.base_url, "--model", "walker", "--max-new-tokens", "64")
        made = (*MADE, *agent, "--count", 4, "--tasks", 8, "--out", "synthetic.jsonl")
        result = wm.json(*made)
        assert (result["kept"], result["attempts"], result["left_out"]) == (4, 4, {})
        assert "kept: 4\n" in wm.text(*made, "--most", 4)
        assert not (folder / "synthetic.work").exists()
        wm.text("env", "rollout", "grid", *agent, "--count", 8, "--out", "real.jsonl")
    mixed = ("lab", "mix", "real.jsonl", "synthetic.jsonl")
    result = wm.json(*mixed, "--successful", "--count", 3, "--count", 2, "--out", "half.jsonl")
    assert (result["drawn"], result["synthetic"]) == (5, 2)
    result = wm.json(*mixed, "--count", "all", "--out", "both.jsonl")
    assert (result["drawn"], result["synthetic"]) == (12, 4)
    built = ("data", "build", "half.jsonl", "--as", "imitation", "--host", "trl", "--out", "rows.jsonl")
    assert wm.json(*built)["rows"] == 5
    tried = ("lab", "alternatives", "synthetic.jsonl", "--world", "grid", "--propose", "random", "--out", "T.jsonl")
    assert "4 trajectories read; 4 left out: synthetic" in wm.error(*tried)


def test_fewer_than_were_asked_for_is_no_success_of_the_command(wm, folder):
    with OpenAIServer(lambda body: MODEL.answer(body["messages"]).text) as world:
        simulation(folder, world)
        text = wm.text(*MADE, "--max-turns", 1, "--count", 4, "--most", 5, code=1)
    assert "left out:\n" in text
    assert "fewer than --count: raise --most" in text


SERVED = "url: 'http://h/v1', model: m"


@pytest.mark.parametrize(
    ("flags", "yaml", "message"),
    [
        ("--policy expert", SERVED, "--policy expert looks into its environment"),
        ("--policy expart", SERVED, "--policy 'expart' is no folder with a model"),
        ("--keep best", SERVED, '"best" for --keep'),
        ("--most 1", SERVED, "--most is 1, which is less than --count (2)"),
        ("", f"simulation: {{{SERVED}, sucess: rule}}", "has no field 'sucess'"),
        ("", "a: [", "sim.yaml is not YAML"),
        ("", f"{SERVED}, worlds: [maze]", "--simulation: its worlds are maze; add grid, or leave worlds out"),
        ("", f"{SERVED}, scenarios: true", "--scenarios FILE and `scenarios: true`"),
        ("--simulation no.yaml", SERVED, "no.yaml' cannot be read"),
        ("--out sim.yaml", SERVED, "sim.yaml"),
    ],
)
def test_mistakes_are_one_line(wm, folder, flags, yaml, message):
    (folder / "sim.yaml").write_text(f"{{{yaml}}}" if yaml.startswith("url") else yaml)
    assert message in wm.error(*MADE, *flags.split())


def test_scenarios_are_played_where_there_is_no_world_of_theirs(wm, folder):
    board = {"board": "A...\n....\n....\n...G"}
    told = {"query": "Go.", "columns": board}
    lines = [{"id": f"s{n}", "initial_state": f"A room with {n} doors.", **told} for n in range(9)]
    (folder / "scenarios.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with OpenAIServer(lambda body: "You are out. [SUCCESS]") as world:
        simulation(folder, world, scenarios=True)
        assert wm.json(*MADE, "--scenarios", "scenarios.jsonl", "--count", 3)["kept"] == 3
    assert all("A room with" in one.context.initial_state for one in read("x.jsonl"))


@pytest.fixture
def experts(wm):
    wm.text("env", "rollout", "grid", "--policy", "expert", "--count", 4, "--out", "experts.jsonl")
    return list(read("experts.jsonl"))


TRY = ("lab", "alternatives", "experts.jsonl", "--world", "grid", "--propose", "random", "--out", "T.jsonl")


def test_alternatives_of_a_wanderer_and_the_expert_mix(wm, folder, experts):
    result = wm.json(*TRY)
    turns = sum(len(one.turns) for one in experts)
    assert (result["expert"], result["alternative"], result["left_out"]) == (turns, 3 * turns, {})
    assert len(list(read_transitions("T.jsonl"))) == 4 * turns == result["transitions"]
    wm.text(*TRY, "--out", "again.jsonl")
    assert (folder / "again.jsonl").read_bytes() == (folder / "T.jsonl").read_bytes()
    from wm_plugin.lab.tiny.__main__ import main as make_policy

    make_policy(["--out", "policy", "--random"])
    tokens = ("--host", "trl", "--tokenizer", "policy")
    wm("data", "build", "T.jsonl", "--as", "rwml-sft", *tokens, "--out", "world.jsonl")
    wm("data", "build", "experts.jsonl", "--as", "imitation", *tokens, "--out", "own.jsonl")
    mixed = ("lab", "mix", "world.jsonl", "own.jsonl", "--count", "all", "--out", "iwm.jsonl")
    assert wm.json(*mixed)["drawn"] == 4 * turns + 4


def test_without_a_transition_the_file_stays_as_it_was(wm, folder, experts):
    (folder / "T.jsonl").write_text("mine")
    line = wm.error(*TRY, "--world", "shop")
    assert "T.jsonl is as it was; 4 trajectories read; 4 left out: of another environment. They must be of" in line
    assert (folder / "T.jsonl").read_text() == "mine"


def mover(body):
    """Proposes a move, or says something; by the seed."""
    draw = random.Random(body["seed"])
    if draw.random() < 0.2:
        return "I would rather wait."
    return moves({"direction": draw.choice("UDLR")})


def test_alternatives_of_a_model_are_asked_for_once(wm, folder, experts):
    with OpenAIServer(mover, latency=0.05) as server:
        made = (*TRY, "--propose", server.base_url, "--propose-model", "m", "--draws", 8, "--alternatives", 2)
        result = wm.json(*made)
        asked = len(server.bodies)
        assert result["expert"] < result["alternative"] <= 2 * result["expert"]
        assert result["left_out"]["proposal without a call"] > 0
        assert asked == 8 * result["expert"]
        assert server.most_at_once > 8  # all states of the trajectories together
        before = (folder / "T.jsonl").read_bytes()
        assert wm.json(*made) == result
        assert (len(server.bodies), (folder / "T.jsonl").read_bytes()) == (asked, before)


def test_reflections_are_rows_of_either_host(wm, folder, experts):
    make_tokenizer("qwen2_5").save_pretrained("qwen")

    def answer(body):
        chosen = json.loads(body["messages"][1]["content"])["chosen"]["action"]["calls"][0]["arguments"]["direction"]
        return f"Going {chosen} leads on." if chosen != "L" else ("Going", "length")

    with OpenAIServer(answer) as server:
        made = ("lab", "reflect", "experts.jsonl", "--world", "grid", "--propose", "random")
        made = (*made, "--server", server.base_url, "--server-model", "strong")
        result = wm.json(*made, "--out", "rows.jsonl")
        moves = [turn.action.calls[0].arguments["direction"] for one in experts for turn in one.turns]
        left = moves.count("L")
        assert (result["rows"], result["left_out"]) == (len(moves) - left, {"no reply": left} if left else {})
        asked = len(server.bodies)
        rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
        assert all(row["completion"][0]["reasoning_content"].startswith("Going ") for row in rows)
        assert {row["construction"] for row in rows} == {"reflection"}
        tokens = (*made, "--tokenizer", "qwen", "--inline", "--work", "rows.work")
        assert wm.json(*tokens, "--host", "verl", "--out", "rows.parquet")["rows"] == len(rows)
        assert len(server.bodies) == asked  # the same questions
        assert {"input_ids", "loss_mask"} == next(parquet.rows(folder / "rows.parquet")).keys()
        assert "no sample is left to write" in wm.error(*tokens, "--max-tokens", 1, "--out", "none.jsonl")
        # Qwen2.5's template leaves reasoning out: nobody trains without it unasked
        tokens = (flag for flag in tokens if flag != "--inline")
        assert "the chat template changes message" in wm.error(*tokens, "--out", "none.jsonl")


REFLECT = ("lab", "reflect", "experts.jsonl", "--world", "grid", "--propose", "random")
REFLECT = (*REFLECT, "--server", "http://localhost:1/v1", "--server-model", "m", "--out", "x.parquet")


@pytest.mark.parametrize(
    ("verb", "flags", "message"),
    [
        (TRY, "--propose expert", "--propose expert: its actions are those of the trajectories"),
        (TRY, "--propose http://localhost:1/v1", "name its model with --propose-model"),
        (TRY, "--propose nobody", "--propose 'nobody' is no folder with a model"),
        (TRY, "--world gird", "did you mean 'grid'"),
        (TRY, "--out experts.jsonl", "is the source"),
        (TRY, "--out x.txt", "write a name that ends in .jsonl"),
        (REFLECT, "--host verl", "give a --tokenizer, and the rows are tokens"),
    ],
)
def test_mistakes_with_experts(wm, folder, verb, flags, message):
    (folder / "experts.jsonl").write_text("{}\n")
    assert message in wm.error(*verb, *flags.split())
