"""Validation sets that verl's tool loop plays looking ahead, with a policy that wanders and knows what follows."""

import asyncio
import json
import random
import re
from collections import Counter

import pytest
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.workers.rollout.replica import TokenOutput

from support.agent_loop import config, episode, make_tokenizer
from support.run_on_verl import run_recipe
from support.world_models import board_after
from wm_plugin.lab.agents.lookahead_values import read_sets
from wm_plugin.lab.tiny.__main__ import main as make_tiny
from wm_plugin.verl.data import verl_rows, write
from wm_plugin.verl.look_ahead import AheadServers
from wm_plugin.verl.names import INFO, TRAINING
from wm_plugin.worlds.grid import dataset_rows, make_boards

TOKENIZER = make_tokenizer(merges=False)
BOARD = re.compile(r"[#.AGP\n]{19}[>!]")
MOVE = re.compile(r'"direction": "([UDLR])"')
AHEAD = {"continuations": 12, "depth": 6, "marks": {"over": "!", "won": "P"}, "max_observation_tokens": 60}


class Wanderer:
    """An engine whose policy moves anywhere, and predicts what follows."""

    def __init__(self, seed, fails=None):
        self.seed, self.asked, self.fails, self.met = seed, [], fails, Counter()

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        text = TOKENIZER.decode(prompt_ids)
        result = text.endswith("<tool_response>\n")
        self.asked.append((result, sampling_params))
        if self.fails and self.fails(result, len(self.asked)):
            raise RuntimeError("the engine is out of room")
        if result:
            said = board_after(BOARD.findall(text)[-1], MOVE.findall(text)[-1]) + "\n</tool_response>"
        elif BOARD.findall(text)[-1][-1] == "!":
            said = "I am there."
        else:
            self.met[text] += 1  # luck that does not depend on the order of tasks
            direction = random.Random(f"{self.seed}/{text}/{self.met[text]}").choice("UDLR")
            arguments = {"name": "move", "arguments": {"direction": direction}}
            said = f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"
        ids = TOKENIZER.encode(said + "<|im_end|>", add_special_tokens=False)
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="completed", extra_fields={})


def play(board, source, seed=0, fails=None, training=False, ahead=AHEAD):
    engine = Wanderer(seed, fails)
    wm = {"environment": "grid", "max_turns": 7, "look_ahead": {"ahead": ahead}}
    row = {
        "raw_prompt": [{"role": "user", "content": "Go.\n"}],
        "extra_info": {"board": board},
        "data_source": source,
        **({TRAINING: 1.0} if training else {}),
    }
    output = asyncio.run(episode(TOKENIZER, engine, config(wm, response_length=3000), row))
    return output, engine


BOARDS = make_boards(6, 3)


def test_a_set_is_played_looking_ahead_and_others_as_they_are():
    won = {}
    for source in ("ahead", "plain"):
        played = [play(board, source, seed) for seed, board in enumerate(BOARDS)]
        won[source] = sum(output.reward_score for output, _ in played)
        asked = [result for _, engine in played for result, _ in engine.asked]
        assert any(asked) == (source == "ahead")
    assert won["ahead"] >= won["plain"] + 2
    _, engine = play(BOARDS[0], "ahead", training=True)
    assert not any(result for result, _ in engine.asked)


def test_what_goes_out_is_what_the_engine_gave_and_the_parameters_are_those_of_the_set():
    output, engine = play(BOARDS[0], "ahead")
    sampled = TOKENIZER.decode(
        [one for one, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    )
    assert MOVE.search(sampled)
    assert len(output.response_logprobs) == len(output.response_ids)
    assert output.extra_fields[INFO]
    for result, parameters in engine.asked:
        assert parameters["temperature"] == (0.0 if result else 1.0)
        assert ("stop" in parameters) == result
        assert not result or parameters["max_tokens"] == 60


def test_an_engine_that_fails_on_the_way_costs_that_episode_alone():
    output, _ = play(BOARDS[0], "ahead", fails=lambda result, number: result and number % 3 == 0)
    assert output.reward_score is not None
    output, _ = play(BOARDS[0], "ahead", fails=lambda result, _: result)  # nothing is imagined: it plays as it would
    assert output.reward_score is not None


class Calling:
    """A parser of turns that call `move` so often, with these arguments."""

    def __init__(self, count, arguments):
        self.calls = [FunctionCall(name="move", arguments=arguments)] * count

    async def extract_tool_calls(self, ids, schemas):
        return "", self.calls


def first_turn(parser, most):
    """The first turn, and how many results were imagined for it."""
    engine = Wanderer(0)
    fields = {**AHEAD, "continuations": 1, "depth": 1}
    servers = AheadServers(engine, read_sets({"a": fields})["a"], TOKENIZER, parser, None, most)
    prompt = TOKENIZER.encode(f"{BOARDS[0]}>", add_special_tokens=False)
    chosen = asyncio.run(servers.generate("id", prompt_ids=prompt, sampling_params={}))
    return chosen, sum(result for result, _ in engine.asked)


def test_what_follows_the_calls_that_the_loop_runs_is_imagined():
    parser = Calling(5, '{"direction": "U"}')
    assert [first_turn(parser, most)[1] for most in (1, 2, None)] == [1, 2, 5]


@pytest.mark.parametrize(
    "arguments", ["[" * 230 + "]" * 230, '{"direction": NaN}', "no JSON", '{"direction": "\\ud800"}']
)
def test_arguments_of_any_kind_are_some_call(arguments):
    assert first_turn(Calling(1, arguments), 4)[0].token_ids


def test_nothing_is_imagined_beyond_the_turns_that_the_episode_has_left():
    engine, fields = Wanderer(0), {**AHEAD, "continuations": 1, "depth": 6}
    parser = Calling(1, '{"direction": "U"}')
    servers = AheadServers(engine, read_sets({"a": fields})["a"], TOKENIZER, parser, None, 1, left=3)
    prompt = TOKENIZER.encode(f"{BOARDS[0]}>", add_special_tokens=False)
    results = []
    for _ in range(5):
        engine.asked.clear()
        asyncio.run(servers.generate("id", prompt_ids=prompt, sampling_params={}))
        results.append(sum(result for result, _ in engine.asked))
    assert results == [3, 2, 1, 1, 1]


@pytest.mark.nightly
def test_main_ppo_has_the_same_tasks_without_and_with_it(tmp_path):
    """A policy that predicts its world succeeds more often looking ahead; its training is that of a run without such a set."""
    assert make_tiny(["--out", str(tmp_path / "runs" / "tiny_random")]) == 0
    rows = dataset_rows(64, seed=1, held_out=True)
    for name in ("plain", "ahead"):
        write(verl_rows(rows, name), tmp_path / f"{name}.parquet")
    sets = f"data.val_files=[{tmp_path}/plain.parquet,{tmp_path}/ahead.parquet]"
    settings = "continuations: 16, depth: 6, observation_tokens: 20, max_new_tokens: 1, marks: {over: '!', won: P}"
    steps = ("trainer.total_training_steps=2", "trainer.test_freq=2", sets)
    plain = run_recipe("echo_grpo_tiny", tmp_path, *steps)
    ahead = run_recipe("echo_grpo_tiny", tmp_path, *steps, f"wm.look_ahead={{ahead: {{{settings}}}}}", timeout=1200)
    assert (plain.code, ahead.code) == (0, 0), plain.output[-2000:] + ahead.output[-3000:]
    for one, other in zip(plain.steps, ahead.steps, strict=True):
        names = [name for name in one if name.startswith(("wm/", "echo/", "critic/", "actor/")) and "perf/" not in name]
        assert len(names) > 20
        for name in names:
            assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name
    without, with_it = plain.steps[-1], ahead.steps[-1]
    success = "val-aux/{}/success/mean@1"
    assert without[success.format("plain")] == without[success.format("ahead")] == with_it[success.format("plain")]
    assert with_it[success.format("ahead")] > with_it[success.format("plain")]
