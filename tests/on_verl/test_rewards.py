"""Rewards in verl: through its own loading by config, its own managers and, once, its own Ray actors."""

import asyncio
import functools
import itertools
import os
import random
import threading
import time
import types
import zlib
from pathlib import Path

import pytest

pytest.importorskip("verl")

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.reward import load_reward_manager
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from support.openai_server import FAULTS, OpenAIServer, every
from support.verl_recipes import stock
from wm_plugin.errors import UserError
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.rewards.hosted import HostedReward, RewardError
from wm_plugin.verl.config import read_config
from wm_plugin.verl.micro_batch import MicroBatcher
from wm_plugin.verl.rewards import BatchedRewardManager, stop_reason
from wm_plugin.verl.sampler import RewardReplayBuffer, RewardReplayBufferAsync, figures, reward_workers
from wm_plugin.verl.support import check_config

TOKENIZER = make_tokenizer()
MODULE = "pkg://wm_plugin.verl.rewards"
MANAGER = (
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.name=BatchedRewardManager",
    f"reward.reward_manager.module.path={MODULE}",
)
ROUGE = "wm.reward={path: rouge, kwargs: {tag: next_state}}"
FUNCTION = (f"reward.custom_reward_function.path={MODULE}", "reward.custom_reward_function.name=compute_score")


# -- rewards, named in configs by this module ---------------------------------------------------------------------------------


def score_of(prediction, target, tag=None):
    return zlib.crc32(f"{prediction}|{target}|{tag}".encode()) % 1000 / 1000


def plain(predictions, targets):
    return [score_of(*row) for row in zip(predictions, targets, strict=True)]


def by_source(predictions, targets, data_source):
    return [score_of(*row) for row in zip(predictions, targets, data_source, strict=True)]


def tagged(predictions, targets, *, tag, level="unknown", **columns):
    """Not applicable to a prediction with a `!`."""
    rows = zip(predictions, targets, tag, strict=True)
    return [None if "!" in row[0] else score_of(*row) for row in rows]


async def tagged_async(predictions, targets, tag):
    await asyncio.sleep(0)
    return tagged(predictions, targets, tag=tag)


class Judge:
    """Has two ways to be called, of which the one for event loops is right here."""

    def __call__(self, predictions, targets, **columns):
        raise AssertionError("called from a thread")

    async def call_async(self, predictions, targets, **columns):
        return await tagged_async(predictions, targets, columns["tag"])


class Model:
    """Sleeps as a model computes, and remembers each call. Raises at a prediction with a `?`."""

    made = 0

    def __init__(self, *, scale=1.0, seconds=0.0):
        type(self).made += 1
        self.scale, self.seconds = scale, seconds
        self.calls, self.columns, self.threads, self.running = [], [], set(), 0

    def __call__(self, predictions, targets, **columns):
        assert self.running == 0, "two calls at the same time"
        self.running += 1
        try:
            self.calls.append(list(predictions))
            self.columns.append(columns)
            self.threads.add(threading.get_ident())
            time.sleep(self.seconds)
            if any("?" in text for text in predictions):
                raise LookupError("no such entry: ?")
            return [self.scale * score_of(*row) for row in zip(predictions, targets, strict=True)]
        finally:
            self.running -= 1


def named(reward):
    return f"{__name__}:{reward.__name__}"


# -- trajectories and managers ------------------------------------------------------------------------------------------------


def fields_of(**fields):
    """Columns of one row, made into arrays as verl's agent loop makes them."""
    return {key: np.array([value]) for key, value in fields.items()}


def trajectory(text, target="target", *, padding=0, after=(), **fields):
    """`after`: special tokens behind the text, that count; `padding`: tokens behind them, that do not."""
    prompt = torch.tensor([TOKENIZER.encode("go")])
    response = torch.tensor([TOKENIZER.encode(text) + list(after)], dtype=torch.long)
    junk = torch.full((1, padding), TOKENIZER.encode("x")[0])
    mask = torch.cat([torch.ones_like(prompt), torch.ones_like(response), torch.zeros_like(junk)], dim=1)
    tensors = {"prompts": prompt, "responses": torch.cat([response, junk], dim=1), "attention_mask": mask}
    row = {"data_source": "grid", "reward_model": {"ground_truth": target, "style": "rule"}, **fields}
    return DataProto(TensorDict(tensors, batch_size=1), fields_of(**row))


def make_manager(reward, **wm):
    config = stock(*MANAGER)
    config.wm.update(reward=reward if isinstance(reward, (str, dict)) else named(reward), **wm)
    return load_reward_manager(config, TOKENIZER)


def make_batcher(function, **options):
    return MicroBatcher(HostedReward("test.reward", function), **options)


def run(awaitables):
    """What became of each, errors included, of functions called inside one loop; of a batcher's, score and batch size."""

    async def all_of_them():
        return await asyncio.gather(*(start() for start in awaitables), return_exceptions=True)

    results = asyncio.run(all_of_them())
    return [(r[0], r[1]["reward_batch_size"]) if isinstance(r, tuple) else r for r in results]


def run_manager(manager, *rows):
    return run([functools.partial(manager.run_single, row) for row in rows])


# -- by config ----------------------------------------------------------------------------------------------------------------


def test_verl_finds_the_manager_by_config():
    spec = f'wm.reward={{path:"{named(Model)}",kwargs:{{scale:0.5}}}}'
    manager = load_reward_manager(stock(*MANAGER, spec, "wm.reward_batch=4", "wm.reward_wait_ms=0"), TOKENIZER)
    assert type(manager) is BatchedRewardManager
    assert (manager.batcher.batch, manager.batcher.wait, manager.batcher.reward.function.scale) == (4, 0.0, 0.5)
    [result] = run_manager(manager, trajectory("abc", "abd"))
    score = 0.5 * score_of("abc", "abd")
    assert result == {"reward_score": score, "reward_extra_info": {"acc": score, "reward_batch_size": 1}}
    config = stock(*MANAGER)
    config.wm = {"reward": named(plain)}  # a path alone, and without the group of ours
    manager = load_reward_manager(config, TOKENIZER)
    assert (manager.batcher.batch, manager.batcher.wait) == (32, 0.02)
    assert run_manager(manager, trajectory("abc"))[0]["reward_score"] == score_of("abc", "target")


def test_a_reward_of_ours_by_its_name_and_beside_the_objective():
    [result] = run_manager(make_manager({"path": "rouge", "kwargs": {"tag": ""}}), trajectory("a x y", "a b c"))
    assert result["reward_score"] == pytest.approx(1 / 3)  # of the three words of each, one is the same
    fields = ("path=rouge", "kwargs.variant=rouge1", "kwargs.tag=next_state")
    config = stock(*(f"+wm.reward.{field}" for field in fields), groups="reward")
    assert load_reward_manager(config, TOKENIZER).batcher.reward.function.variant == "rouge1"
    assert (config.reward.num_workers, "coeff" in config.wm) == (1, False)  # and verl's trainer is as it was
    assert config.trainer.v1.trainer_mode == "sync"
    for groups in ("echo,reward", "reward,echo"):
        config = stock(ROUGE, groups=f"[{groups}]")
        assert read_config(config).objective.coeff == 0.05
        assert load_reward_manager(config, TOKENIZER).batcher.reward.function.tag == "next_state"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("wm.reward=null", "wm.reward is None; write a name"),
        ("wm.reward=rouge", "reward rouge has no tag, and trainers pass whole outputs"),
        ("wm.reward_batch=0", "wm.reward_batch is 0; write a number of trajectories >= 1"),
        ("wm.reward_batch=true", "wm.reward_batch is True"),
        ("wm.reward_wait_ms=-1", "wm.reward_wait_ms is -1; write milliseconds >= 0"),
        ("wm.reward_wait_ms=inf", "wm.reward_wait_ms is inf"),
        (FUNCTION[0], "reward.custom_reward_function.path is set beside"),
        ("reward.reward_model.enable=true", "reward.reward_model.enable is set beside"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_the_start(override, message):
    overrides = [f"wm.reward={named(plain)}", override]
    with pytest.raises(UserError, match=message):
        load_reward_manager(stock(*MANAGER, *overrides), TOKENIZER)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["wm.reward=ruge"], "there is no 'ruge'; did you mean 'rouge'"),
        (["wm.reward={path: judge, kwargs: {server: {model: m}}}"], "reward judge has no tag, and trainers pass"),
        ([], "wm.reward is None; write a name"),
    ],
)
def test_a_reward_that_cannot_be_stops_the_run_before_it_starts(overrides, message):
    with pytest.raises(UserError, match=message):
        check_config(stock(*overrides, groups="reward"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        *(
            (f"{name}=true", f"{name} is true, which verl has for its own sampler only")
            for name in ("algorithm.filter_groups.enable", "trainer.v1.sampler.sync_refill_failed_groups")
        ),
        (
            "+wm.zero_variance_groups=refill",
            "zero_variance_groups is refill, by verl's own sampler, and the run has another",
        ),
    ],
)
def test_what_only_verls_own_sampler_does_is_refused_beside_ours(setting, message):
    check_config(stock(ROUGE, groups="reward"))
    with pytest.raises(UserError, match=message):
        check_config(stock(ROUGE, setting, groups="reward"))
    check_config(stock(ROUGE, setting, "trainer.v1.sampler.custom_sampler.path=null", groups="reward"))


def naive(reward_kwargs, *rows):
    """verl's manager with our function, made inside the loop that it keeps."""

    async def both():
        config = stock(*FUNCTION, f"+reward.custom_reward_function.reward_kwargs={reward_kwargs}")
        manager = load_reward_manager(config, TOKENIZER)
        assert type(manager) is NaiveRewardManager
        return await asyncio.gather(*map(manager.run_single, rows), return_exceptions=True)

    return asyncio.run(both())


def test_verl_calls_the_function_by_config():
    made = Model.made
    rows = [trajectory("abc", "abd", extra_info={"index": 3}), trajectory("xyz", extra_info={"index": 4})]
    results = naive(f'{{path:"{named(Model)}",kwargs:{{scale:0.25}}}}', *rows)
    scores = [0.25 * score_of("abc", "abd"), 0.25 * score_of("xyz", "target")]
    assert [result["reward_score"] for result in results] == scores
    assert [result["reward_extra_info"] for result in results] == [{"score": score, "acc": score} for score in scores]
    assert Model.made == made + 1  # a model is loaded once, not once a row


def test_the_function_keeps_the_environments_figures_and_takes_columns():
    info = {"success": 1.0, "score": 7.0}
    row = trajectory("abc", extra_info={"tag": "t"}, tool_extra_fields={"wm_info": info})
    [result] = naive(f'{{path:"{named(tagged)}"}}', row)
    score = score_of("abc", "target", "t")
    assert result == {"reward_score": score, "reward_extra_info": {"success": 1.0, "score": score, "acc": score}}
    [result] = naive(f'{{path:"{named(by_source)}"}}', row)
    assert result["reward_score"] == score_of("abc", "target", "grid")
    [result] = naive("{path:rouge,kwargs:{tag:next_state}}", trajectory(tagged_text("a b c"), "a b c", extra_info={}))
    figures_of_call = {"wm/rouge/no_prediction": 0, "wm/rouge/no_tokens": 0}
    assert result == {"reward_score": 1, "reward_extra_info": {"score": 1, "acc": 1, **figures_of_call}}


def test_the_function_says_what_is_wrong_with_its_settings():
    [error] = naive("{kwargs:{scale:1.0}}", trajectory("abc", extra_info={}))
    assert isinstance(error, UserError)
    assert "reward_kwargs is {'path': None" in str(error)
    [error] = naive(f'{{path:"{named(Model)}",scale:1.0}}', trajectory("abc", extra_info={}))
    assert "reward_kwargs has no field 'scale'; arguments of the reward itself go under kwargs" in str(error)


# -- what a reward is given ---------------------------------------------------------------------------------------------------


def test_the_prediction_is_the_valid_response_without_special_tokens():
    manager = make_manager(Model)
    special = [TOKENIZER.eos_token_id, TOKENIZER.pad_token_id]
    run_manager(manager, trajectory("answer 42", after=special, padding=5))
    run_manager(manager, trajectory("", padding=3))
    assert manager.batcher.reward.function.calls == [["answer 42"], [""]]


def test_of_several_sequences_the_last_one_is_scored_whole_and_alone():
    """verl pads prompts, responses and their joined mask each by itself, so that the mask is no guide to a short response."""
    prompts = [torch.tensor(TOKENIZER.encode(text)) for text in ("go", "go on, go")]
    responses = [torch.tensor(TOKENIZER.encode(text)) for text in ("a long first answer", "short")]
    mask = [torch.ones(len(p) + len(r), dtype=torch.long) for p, r in zip(prompts, responses, strict=True)]
    padded = {
        "prompts": pad_sequence(prompts, batch_first=True),
        # verl pads by token 0, which is a word in many vocabularies; here it is a special token, and would not show
        "responses": pad_sequence(responses, batch_first=True, padding_value=TOKENIZER.encode("x")[0]),
        "attention_mask": pad_sequence(mask, batch_first=True),
    }
    batch = TensorDict(padded, batch_size=2)
    fields = {"data_source": "grid", "reward_model": {"ground_truth": "t"}}
    columns = {key: np.array([value] * 2) for key, value in fields.items()}
    manager = make_manager(Model)
    run_manager(manager, DataProto(batch, {**columns, "response_len": np.array([len(r) for r in responses])}))
    assert manager.batcher.reward.function.calls == [["short"]]


def test_columns_are_lists_of_plain_values():
    messages = [{"role": "user", "content": "go"}]
    extra = {"wm_info": {"success": 1.0}, "turn_scores": []}
    row = trajectory(
        "a",
        uid="u1",
        index=7,
        raw_prompt=messages,
        extra_info={"observer": "tool", "index": 8},
        tool_extra_fields=extra,
    )
    manager = make_manager(Model)
    [result] = run_manager(manager, row)
    assert manager.batcher.reward.function.columns == [
        {
            "data_source": ["grid"],
            "extra_info": [{"observer": "tool", "index": 8}],
            "observer": ["tool"],  # a field of extra_info is a column too,
            "index": [7],  # where the row has none of that name
            "uid": ["u1"],
            "raw_prompt": [messages],
            "context": [messages],  # as on TRL, where the row has none of its own
            "reward_model": [{"ground_truth": "target", "style": "rule"}],
            "tool_extra_fields": [extra],
        }
    ]
    assert type(manager.batcher.reward.function.columns[0]["index"][0]) is int
    assert result["reward_extra_info"] == {"success": 1.0, "acc": result["reward_score"], "reward_batch_size": 1}


def test_a_missing_column_or_target_is_the_rows_own_error():
    lost = trajectory("a")
    del lost.non_tensor_batch["reward_model"]
    rows = [trajectory("a"), trajectory("a", tag="t"), lost, trajectory("a", target=3, tag="t")]
    missing, good, no_target, number = run_manager(make_manager(tagged, reward_wait_ms=50), *rows)
    assert str(missing).startswith(f"reward {named(tagged)} needs the column 'tag'; there is 'data_source'")
    assert good["reward_score"] == score_of("a", "target", "t")
    assert "reward_model.ground_truth is missing; write the text" in str(no_target)
    assert "reward_model.ground_truth is of type int" in str(number)
    assert {type(error) for error in (missing, no_target, number)} == {UserError}


def test_what_a_row_is_given_does_not_depend_on_its_neighbours():
    seen = []

    def reward(predictions, targets, level="default", **columns):
        seen.append((sorted(predictions), level, sorted(columns)))
        return [0.0] * len(predictions)

    batcher = make_batcher(reward, batch=8, wait=0.05)
    rows = [("a", {}), ("b", {"level": 1}), ("c", {"level": 2}), ("d", {"level": 3, "tag": 4})]
    results = run([functools.partial(batcher.score, text, "", columns) for text, columns in rows])
    assert seen == [(["a"], "default", []), (["b", "c"], [1, 2], []), (["d"], [3], ["tag"])]
    assert [size for _, size in results] == [1, 2, 2, 1]


def test_text_stays_text(tmp_path):
    mark = tmp_path / "mark"
    texts = [f"__import__('pathlib').Path('{mark}').touch()", "${oc.env:HOME}", "{0.__class__} %s", "!!python/none"]
    manager = make_manager(Model)
    for text in texts:
        run_manager(manager, trajectory(text, target=text, tag=text))
    assert manager.batcher.reward.function.calls == [[text] for text in texts]
    assert [columns["tag"] for columns in manager.batcher.reward.function.columns] == [[text] for text in texts]
    assert not mark.exists()


# -- batches ------------------------------------------------------------------------------------------------------------------


TEXT = st.text("ab !", max_size=4)


@given(
    rows=st.lists(st.tuples(TEXT, TEXT, st.sampled_from("tu"), st.integers(0, 12)), min_size=1, max_size=24),
    batch=st.integers(1, 9),
    wait=st.sampled_from([0, 1, 3]),
    reward=st.sampled_from([tagged, tagged_async, Judge]),
)
def test_every_trajectory_gets_its_own_score_in_whatever_order_they_come(rows, batch, wait, reward):
    manager = make_manager(reward, reward_batch=batch, reward_wait_ms=wait)

    async def one(text, target, tag, turns):
        for _ in range(turns):  # when it finishes
            await asyncio.sleep(0)
        return await manager.run_single(trajectory(text, target, tag=tag, padding=turns % 3))

    results = run([functools.partial(one, *row) for row in rows])
    for (text, target, tag, _), result in zip(rows, results, strict=True):
        if "!" in text:
            assert isinstance(result, RewardError)
        else:
            score, info = result["reward_score"], result["reward_extra_info"]
            assert score == info["acc"] == score_of(text, target, tag)
            assert 1 <= info["reward_batch_size"] <= batch


def test_what_waits_goes_into_one_call_without_waiting():
    model = Model()
    batcher = make_batcher(model, batch=32, wait=0.0)
    results = run([functools.partial(batcher.score, str(number), "", {}) for number in range(40)])
    assert [len(call) for call in model.calls] == [32, 8]
    assert [size for _, size in results] == [32] * 32 + [8] * 8
    assert [text for call in model.calls for text in call] == [
        str(number) for number in range(40)
    ]  # first come, first served


def test_the_first_waits_for_others_until_the_batch_is_full_or_the_time_is_over():
    model = Model()
    batcher = make_batcher(model, batch=2, wait=60.0)

    async def late():
        await asyncio.sleep(0.05)
        return await batcher.score("late", "", {})

    assert [size for _, size in run([functools.partial(batcher.score, "first", "", {}), late])] == [2, 2]
    batcher.batch, batcher.wait = 3, 0.02
    assert run([functools.partial(batcher.score, "alone", "", {})])[0][1] == 1


def test_what_comes_while_a_call_runs_goes_into_the_next():
    model = Model(seconds=0.3)
    batcher = make_batcher(model, batch=32, wait=0.0)

    async def later(number):
        await asyncio.sleep(0.002 * number)
        return await batcher.score(str(number), "", {})

    run([functools.partial(later, number) for number in range(20)])
    assert [len(call) for call in model.calls] == [1, 19]  # the loop went on while the reward computed
    assert len(model.threads) == 1
    assert model.threads != {threading.get_ident()}


def test_a_caller_that_gives_up_is_left_out():
    model = Model()
    batcher = make_batcher(model, batch=3, wait=0.05)

    async def scenario():
        gone = asyncio.create_task(batcher.score("gone", "", {}))
        stays = asyncio.create_task(batcher.score("stays", "", {}))
        await asyncio.sleep(0)
        gone.cancel()
        return await stays

    assert run([scenario]) == [(score_of("stays", ""), 1)]
    assert model.calls == [["stays"]]


def test_another_event_loop_may_go_on_with_it():
    batcher = make_batcher(Model(), batch=2, wait=0.01)
    for _ in range(3):
        assert run([functools.partial(batcher.score, "a", "", {})]) == [(score_of("a", ""), 1)]


# -- failures -----------------------------------------------------------------------------------------------------------------


def test_a_call_that_fails_fails_for_its_rows_and_nothing_else():
    manager = make_manager(Model, reward_batch=2, reward_wait_ms=5000)
    good, bad = trajectory("good"), trajectory("bad?")
    for _ in range(3):
        errors = run_manager(manager, bad, good)
        assert all(type(error) is RewardError for error in errors)
        assert str(errors[0]) == f"reward {named(Model)} raised LookupError: no such entry: ?"
        assert isinstance(errors[0].__cause__, LookupError)
        assert errors[0] is not errors[1]
        assert stop_reason(types.SimpleNamespace(reward_manager=manager)) is None
        results = run_manager(manager, good, good)
        assert [result["reward_score"] for result in results] == [score_of("good", "target")] * 2


ERRORS = [ValueError, StopIteration, asyncio.CancelledError, TimeoutError]


@pytest.mark.parametrize(("kind", "asynchronous"), [(SystemExit, False), *itertools.product(ERRORS, (False, True))])
def test_nothing_that_a_reward_raises_leaves_a_trajectory_without_an_answer(kind, asynchronous):
    def reward(predictions, targets):
        raise kind("no")

    async def later(predictions, targets):
        await asyncio.sleep(0)
        raise kind("no")

    batcher = make_batcher(later if asynchronous else reward, batch=2)
    results = run([functools.partial(batcher.score, text, "", {}) for text in "abc"])
    assert all(type(result) is RewardError and "reward test.reward raised" in str(result) for result in results)


def test_a_row_that_has_no_score_does_not_take_one_from_its_neighbours():
    returned = [0.1, None, 0.3, float("nan"), 0.5]
    batcher = make_batcher(lambda predictions, targets: returned, batch=5)
    results = run([functools.partial(batcher.score, text, "", {}) for text in "abcde"])
    assert [result if isinstance(result, tuple) else None for result in results] == [
        (0.1, 5),
        None,
        (0.3, 5),
        None,
        (0.5, 5),
    ]


# -- rewards of ours -----------------------------------------------------------------------------------------------------------

JUDGE = {"model": "judge", "backoff": 0.001, "timeout": 10, "max_retries": 0, "concurrency": 1}


def good(body):
    return '<final_evaluation>{"score": 1}</final_evaluation>'


def tagged_text(text):
    return f"<think>hm</think><next_state>{text}</next_state>"


def test_figures_of_a_call_come_with_each_of_its_rows():
    config = stock(
        "wm.reward={path: rwml, kwargs: {model: unused, base_url: 'http://localhost:1/v1', tag: next_state}}",
        "wm.reward_batch=4",
        "wm.reward_wait_ms=5000",
        groups="reward",
    )
    texts = [tagged_text("a b c"), tagged_text("x y z"), "no tags", "nor here"]
    rows = [trajectory(text, "a b c", extra_info={"observer": "tool"}) for text in texts]
    results = run_manager(load_reward_manager(config, TOKENIZER), *rows)
    assert [result["reward_score"] for result in results] == [1, 0, 0, 0]
    for result in results:
        info = {key: value for key, value in result["reward_extra_info"].items() if key != "acc"}
        assert info == {
            "reward_batch_size": 4,
            "wm/rwml/no_prediction": 0.5,
            "wm/rwml/no_tokens": 0,
            "wm/rwml/rouge": 0.25,
        }
    assert figures([{**result["reward_extra_info"], "other": "text"} for result in results]) == {
        "wm/rwml/no_prediction": 0.5,
        "wm/rwml/no_tokens": 0,
        "wm/rwml/rouge": 0.25,
    }


def test_means_of_figures_are_over_rows():
    """So that a call of three rows counts for three of a call's one; a figure that a call has not does not count."""
    rows = [{"wm/a/x": 1.0}] * 3 + [{"wm/a/x": 0.0, "wm/a/y": 0.5, "acc": 1.0}, {"wm/a/y": float("nan")}, {}]
    assert figures(rows) == {"wm/a/x": 0.75, "wm/a/y": 0.5}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_judge_that_fails_one_call_in_three_goes_on(fault):
    with OpenAIServer(good, faults=every(3, fault)) as server:
        settings = JUDGE | {"base_url": server.base_url, "timeout": 0.3 if fault == "timeout" else 10}
        spec = {"path": "judge", "kwargs": {"server": settings, "failed": 0.25, "tag": "next_state"}}
        manager = make_manager(spec, reward_batch=12, reward_wait_ms=5000)
        results = run_manager(manager, *(trajectory(tagged_text(str(n))) for n in range(12)))
    assert [result["reward_score"] for result in results] == [0.25, 1.0, 1.0] * 4
    assert manager.batcher.stopped is None
    shown = figures(result["reward_extra_info"] for result in results)
    assert shown["wm/judge/failure_share"] == pytest.approx(1 / 3)
    assert shown["wm/judge/judged"] == 1
    assert shown["wm/judge/server/calls"] == 12


def test_a_judge_that_fails_too_often_is_not_asked_again():
    with OpenAIServer(good, faults=lambda number: "500") as server:
        settings = JUDGE | {"base_url": server.base_url}
        spec = {"path": "judge", "kwargs": {"server": settings, "max_failure_share": 0.4, "tag": ""}}
        manager = make_manager(spec, reward_batch=10, reward_wait_ms=5000)
        worker = types.SimpleNamespace(reward_manager=manager)
        first = run_manager(manager, *(trajectory(str(n)) for n in range(10)))
        assert [result["reward_score"] for result in first] == [0.0] * 10  # too few to tell
        assert stop_reason(worker) is None
        for _ in range(2):
            errors = run_manager(manager, *(trajectory(f"more {n}") for n in range(10)))
            assert {type(error) for error in errors} == {RewardError}
        assert len(server.bodies) == 20
    reason = stop_reason(worker)
    assert reason.startswith(
        f"reward judge: JudgeReward: judge at {server.base_url} failed to judge 100% of the last 20 "
    )
    assert reason.endswith("and max_failure_share is 0.4; fix the server, or raise it")
    assert "\n" not in reason


def test_verl_makes_the_sampler_by_config():
    config = stock(groups="reward")
    trainer = types.SimpleNamespace(config=config, trainer_mode="sync", _add_prompts_to_generate=None)
    assert type(PPOTrainer._build_replay_buffer(trainer)) is RewardReplayBuffer
    for mode in ("separate_async", "colocate_async"):
        trainer.trainer_mode = mode
        assert type(PPOTrainer._build_replay_buffer(trainer)) is RewardReplayBufferAsync


class OfVerl(types.SimpleNamespace):
    """What the sampler asks of verl's trainer."""

    trainer_mode, total_training_steps = "sync", 4

    def _add_prompts_to_generate(self, num_prompts): ...


def test_a_reward_that_scores_nothing_is_warned_of_and_fails_the_run_at_its_last_step(caplog):
    none, dead = {"wm/rouge/no_prediction": 1.0}, {"wm/judge/failure_share": 1.0}
    trainer = OfVerl(config=stock(ROUGE, groups="reward"))
    sampler = PPOTrainer._build_replay_buffer(trainer)
    for number in (1, 2, 3):
        sampler._watch(none, sampler.refill_fn.__self__, number)
    assert caplog.text.count("reward rouge scored nothing in 3 batches of rollouts in a row") == 1
    with pytest.raises(
        UserError, match="reward rouge scored nothing in any batch of rollouts of the run: no answer had"
    ):
        sampler._watch(none, trainer, 4)
    with pytest.raises(UserError, match="reward judge scored nothing in any batch"):
        PPOTrainer._build_replay_buffer(trainer)._watch(dead, trainer, 4)
    PPOTrainer._build_replay_buffer(trainer)._watch(none, trainer, 4)  # shorter than silent_batches: a warning
    trainer = OfVerl(config=stock(ROUGE, "+wm.on_silence=stop", "+wm.silent_batches=1", groups="reward"))
    with pytest.raises(UserError, match=r"on_silence is stop"):
        PPOTrainer._build_replay_buffer(trainer)._watch(none, trainer, 1)


# -- verl's actors ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_batches_form_in_verls_reward_worker(tmp_path):
    import ray
    from verl.experimental.reward_loop import RewardLoopManager

    here = Path(__file__)
    TOKENIZER.save_pretrained(tmp_path)
    config = stock(*MANAGER, "reward.num_workers=1", f"actor_rollout_ref.model.path={tmp_path}")
    config.wm.reward = {"path": f"{here.stem}:Model", "kwargs": {"seconds": 0.05}}
    search = os.pathsep.join([str(here.parent), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": search}},
    )
    try:
        manager = RewardLoopManager(config)
        random_numbers = random.Random(0)

        async def one(number):
            await asyncio.sleep(random_numbers.random())
            worker = random_numbers.choice(manager.reward_loop_worker_handles)
            extra = {"wm_info": {"success": float(number)}}
            return await worker.compute_score.remote(trajectory(str(number), tool_extra_fields=extra))

        ray.get(manager.reward_loop_worker_handles[0].compute_score.remote(trajectory("warm")))
        results = run([functools.partial(one, number) for number in range(128)])
        for number, result in enumerate(results):
            assert result["reward_score"] == score_of(str(number), "target")
            assert result["reward_extra_info"]["success"] == number
        calls = sum(1 / result["reward_extra_info"]["reward_batch_size"] for result in results)
        # A call takes 50 ms, and a trajectory comes every 8 ms: 6 a call and more. Without a queue it would be 1.
        assert 128 / calls > 3

        with pytest.raises(ray.exceptions.RayTaskError, match="test_rewards:Model raised LookupError: no such entry"):
            ray.get(manager.reward_loop_worker_handles[0].compute_score.remote(trajectory("?")))
        whole = DataProto.concat([trajectory(text) for text in ("abc", "xyz")])
        scored = manager.compute_rm_score(whole)
        torch.testing.assert_close(
            scored.batch["rm_scores"].sum(1), torch.tensor([score_of("abc", "target"), score_of("xyz", "target")])
        )
        assert scored.meta_info["reward_extra_keys"] == ["acc", "reward_batch_size"]
        assert len(reward_workers()) == 1
        assert ray.get(reward_workers()[0].__ray_call__.remote(stop_reason)) is None
    finally:
        ray.shutdown()
