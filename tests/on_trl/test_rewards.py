"""Rewards of predictions in TRL: what they are given, what they give, what is logged; by code, by config and by dotted path."""

import asyncio
import inspect
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from trl import GRPOConfig, GRPOTrainer
from trl.scripts.grpo import main as stock_grpo
from trl.scripts.grpo import make_parser

from wm_plugin.data.building import build
from wm_plugin.errors import UserError
from wm_plugin.lab.tiny.__main__ import main as tiny
from wm_plugin.rewards import RougeReward
from wm_plugin.trl import rewards
from wm_plugin.trl.rewards import as_reward_function, predictions, reward_functions

PROMPTS = Path(__file__).parents[2] / "recipes" / "trl" / "rwml_tiny_prompts.yaml"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A random tiny model that writes texts, and rows of `wm data build --as rwml --host trl`."""
    path = tmp_path_factory.mktemp("rwml")
    tiny(["--out", str(path / "model"), "--random", "--texts"])
    tiny(["rollouts", "--out", str(path / "rollouts.jsonl"), "--environment", "sql", "--count", "8"])
    (path / "data").mkdir()
    build(path / "rollouts.jsonl", "rwml", "trl", path / "data" / "train.jsonl", prompts=str(PROMPTS))
    return path


def said(text):
    return [{"role": "assistant", "content": f"<think>\nPerfect!\n</think>\n<next_state>\n{text}\n</next_state>"}]


def call(function, completions, **columns):
    """As TRL calls it, with what was logged."""
    logged = {}
    arguments = {"prompts": ["?"] * len(completions), "completion_ids": [[0]] * len(completions)}
    host = {"trainer_state": None, "log_extra": None, "log_metric": logged.__setitem__}
    return function(completions=completions, **arguments, **host, **columns), logged


def test_a_prediction_is_what_the_assistant_wrote_last():
    tool = {"role": "tool", "content": "x"}
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    completions = [
        "plain",
        said("one"),
        [{"role": "assistant", "content": "first"}, tool, {"role": "assistant", "content": "last"}],
        [{"role": "assistant", "content": "first"}, tool],
        [{"role": "assistant", "content": None, "tool_calls": []}],
        [{"role": "assistant", "content": parts}],
        [tool],
        [],
    ]
    assert predictions(completions) == ["plain", said("one")[0]["content"], "last", "first", None, "ab", None, None]


def test_scores_and_figures():
    function = as_reward_function({"path": "rouge", "kwargs": {"tag": "next_state", "step": 0.2}})
    assert function.__name__ == "rouge"
    scores, logged = call(function, [said("a b"), said("a c"), "a b"], target=["a b"] * 3, observer=["tool"] * 3)
    assert scores == [1.0, 0.6, 0.0]  # by hand: 2·1/(2+2) is 0.5, and a tie goes up; no tag, no prediction
    assert logged == {"wm/rouge/no_prediction": pytest.approx(1 / 3), "wm/rouge/no_tokens": 0.0}
    # as TRL was before it had log_metric
    assert rewards.exact(prompts=["?"], completions=[said("a")], completion_ids=[[0]], target=["a"]) == [1.0]


def test_rwml_takes_the_observer_and_names_it_where_it_is_missing(work):
    kwargs = {"tag": "next_state", "model": "unused", "base_url": "http://localhost:9/v1"}
    function = as_reward_function({"path": "rwml", "kwargs": kwargs})
    scores, logged = call(function, [said("a b"), said("c")], target=["a b"] * 2, observer=["tool"] * 2)
    assert scores == [1.0, 0.0]
    assert logged["wm/rwml/rouge"] == 0.5
    with pytest.raises(UserError, match="reward rwml needs the column 'observer'; did you mean 'observe'?"):
        call(function, [said("a")], target=["a"], observe=["tool"])
    with pytest.raises(UserError, match="reward rwml needs the column 'target'; there is none$"):
        call(function, [said("a")])


def test_a_function_gets_the_columns_that_it_takes():
    def mine(predictions, targets, *, turn, context, missing=7):
        return [len(p) + t + len(c) + missing for p, t, c in zip(predictions, turn, context, strict=True)]

    assert call(as_reward_function(mine), ["abc"], target=["x"], turn=[10], other=[0])[0] == [21.0]
    assert call(as_reward_function(mine), ["abc"], target=["x"], turn=[10], context=["12345"])[0] == [25.0]

    def everything(said, seen, **columns):
        assert sorted(columns) == ["context", "environments", "turn"]
        return [float(seen == ["y"])] * len(said)

    function = as_reward_function(everything, name="all", target="label")
    assert function.__name__ == "all"
    assert call(function, ["abc"], label=["y"], turn=[1], environments=[object()])[0] == [1.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0, 2.0], "reward bad returned 2 scores for 1 predictions"),
        (["high"], "returned a str for a row; write a finite number, or None"),
    ],
)
def test_what_is_no_score(given, message):
    function = as_reward_function(lambda predictions, targets: given, name="bad")
    with pytest.raises(UserError, match=message):
        call(function, ["a"], target=["a"])


@pytest.mark.parametrize("given", [[0.5, None, math.nan], np.array([0.5, math.nan, math.nan]), (0.5, None, math.nan)])
def test_none_and_nan_leave_a_row_out(given):
    scores, _ = call(as_reward_function(lambda p, t: given), ["a"] * 3, target=["a"] * 3)
    assert [value is not None and not math.isnan(value) for value in scores] == [True, False, False]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rogue", "reward: there is no 'rogue'; did you mean 'rouge'?"),
        ("rouge", "reward rouge has no tag, and trainers pass whole outputs; write kwargs: {tag: next_state}"),
        (lambda predictions: [], "predictions and targets come first"),
    ],
)
def test_what_is_no_reward(spec, message):
    with pytest.raises(UserError) as error:
        as_reward_function(spec)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_list_of_rewards():
    block = {"path": "rouge", "kwargs": {"tag": ""}}
    functions = reward_functions([block, {"path": "wm_plugin.rewards:RougeReward", "kwargs": {"tag": ""}}, block, len_])
    assert [function.__name__ for function in functions] == ["rouge", "RougeReward", "rouge_2", "len_"]
    assert [function.__name__ for function in reward_functions(block)] == ["rouge"]
    with pytest.raises(UserError, match="rewards, entry 2: reward: there is no 'exakt'; did you mean 'exact'?"):
        reward_functions([block, "exakt"])
    with pytest.raises(UserError, match="rewards is 3; write a list"):
        reward_functions(3)


def len_(predictions, targets):
    return [float(len(text)) for text in predictions]


spans = []  # of two waits, when each began and ended


async def waits():
    began = time.monotonic()
    await asyncio.sleep(0.2)
    spans.append((began, time.monotonic()))


class Slow:
    """Waits, as a judge does."""

    tag = ""

    def __init__(self):
        self.figures = {}

    def __call__(self, predictions, targets, **columns):
        raise AssertionError("TRL is to wait for call_async")

    async def call_async(self, predictions, targets, **columns):
        await waits()
        self.figures = {"share": 0.25, "unknown": math.nan}
        return [1.0] * len(predictions)


async def slow_function(predictions, targets):
    await waits()
    return [None if "a" in target else 0.5 for target in targets]


def config(work, tmp_path, **more):
    settings = {"use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no", "logging_steps": 1}
    size = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 4, "max_steps": 1}
    return GRPOConfig(output_dir=str(tmp_path), **{**settings, **size, **more})


def test_stock_trl_waits_for_asynchronous_rewards_at_the_same_time(work, tmp_path):
    from datasets import load_dataset

    functions = [as_reward_function(one) for one in (Slow(), slow_function, RougeReward(tag="next_state"))]
    assert [inspect.iscoroutinefunction(function) for function in functions] == [True, True, False]
    rows = load_dataset("json", data_files=str(work / "data" / "train.jsonl"), split="train")
    trainer = GRPOTrainer(str(work / "model"), functions, config(work, tmp_path), train_dataset=rows)
    inputs = list(rows.select([0, 1]))
    prompts, completions = [row["prompt"] for row in inputs], [said(inputs[0]["target"]), said("?")]
    spans.clear()
    found = trainer._calculate_rewards(inputs, prompts, completions, [[1], [1]])
    (began, ended), (began_too, ended_too) = spans
    assert max(began, began_too) < min(ended, ended_too)
    assert found[:, 0].tolist() == [1.0, 1.0]
    assert found[:, 1].isnan().tolist() == ["a" in row["target"] for row in inputs]
    assert found[0, 2] == 1.0
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["wm/Slow/share"] == 0.25
    assert "wm/Slow/unknown" not in logged
    assert {"rewards/Slow/mean", "rewards/slow_function/mean", "rewards/RougeReward/mean"} <= logged.keys()


@pytest.mark.parametrize("name", ["exact", "word_f1", "rouge", "rules", "rwml_tools"])
def test_what_is_made_for_the_dotted_path(name):
    function = getattr(rewards, name)
    assert function.__name__ == name
    assert function.reward.tag == "next_state"
    scores, _ = call(function, [said("a b"), "a b"], target=["a b"] * 2, verifier=[{"equals": {"value": "a b"}}] * 2)
    assert scores == [1.0, 0.0]


def test_stock_trl_grpo_takes_the_dotted_paths(work, tmp_path, monkeypatch):
    """`trl grpo --reward_funcs ...`, with nothing of ours but the functions and the rows."""
    monkeypatch.chdir(tmp_path)
    made = []
    init = GRPOTrainer.__init__
    monkeypatch.setattr(GRPOTrainer, "__init__", lambda self, *a, **k: (init(self, *a, **k), made.append(self))[0])
    paths = ["wm_plugin.trl.rewards.rouge", "wm_plugin.trl.rewards.exact"]
    flags = ["--use_cpu", "true", "--bf16", "false", "--report_to", "none", "--save_strategy", "no"]
    flags += ["--logging_steps", "1", "--max_steps", "1"]
    flags += ["--per_device_train_batch_size", "4", "--num_generations", "4", "--max_completion_length", "4"]
    flags += ["--model_name_or_path", str(work / "model"), "--dataset_name", str(work / "data"), "--output_dir", "out"]
    stock_grpo(*make_parser().parse_args_and_config([*flags, "--reward_funcs", *paths]))
    (trainer,) = made
    assert type(trainer) is GRPOTrainer
    logged = trainer.state.log_history[0]
    assert logged["wm/rouge/no_prediction"] == 1.0  # four random characters
    assert logged["rewards/rouge/mean"] == logged["rewards/exact/mean"] == 0.0


def test_the_rows_have_what_the_reward_asks_for(work):
    rows = [json.loads(line) for line in (work / "data" / "train.jsonl").read_text().splitlines()]
    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    scores, _ = call(rewards.rwml_tools, [said(row["target"]) for row in rows], **columns)
    assert scores == [1.0] * len(rows)
