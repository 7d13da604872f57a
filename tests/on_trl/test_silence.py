"""A real trainer whose objective selects nothing says so, and why; see tests/objectives/test_silence.py for the rest."""

import math

import pytest
import torch
from trl import GRPOTrainer

from support.on_trl import Ours, Scripted, call, config, make, reward, run
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.trl import WorldModelGRPOConfig, WorldModelGRPOTrainer, WorldModelMixin
from wm_plugin.trl.rewards import as_reward_function

HEAD = "the world-model objective had no token to train on"


class Silent(Ours):
    silent_rank = 0  # no tool is called


class Caller(WorldModelGRPOTrainer):
    """Calls a tool whose result is longer than what is left of 64 tokens."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        turn = self.processing_class(call("run_code", code="1") + "<|im_end|>").input_ids
        assert len(turn) < 64
        return [turn for _ in prompt_ids], None


def constant(completions, **_):
    return [1.0] * len(completions)


class Inventive(WorldModelGRPOTrainer):
    """Calls one tool that is there, and another in each turn that is not."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        turns = []
        for ids in prompt_ids:
            number = int(torch.randint(10**6, ()))
            called = call(f"invented_{number}", x=1) + "\n" + call("run_code", code=f"{number}")
            depth = self.processing_class.decode(ids).count("<tool_response>")
            turns.append(self.processing_class((f"done {number}" if depth else called) + "<|im_end|>").input_ids)
        return turns, None


def trained(cls, echo, steps=1, reward_funcs=None, **fields):
    args = {"gradient_accumulation_steps": 1, "max_steps": steps, **fields}
    return run(cls, args=args, world_model=echo, reward_funcs=reward_funcs or [reward])[0]


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "world-model objective" in record.getMessage()]


def test_a_role_that_no_token_has_is_said_in_the_first_batch_and_stops_the_run_if_asked(caplog):
    echo = EchoConfig(0.5, roles=["user"], on_silence="stop", silent_batches=2)
    trainer = make(Ours, args={"gradient_accumulation_steps": 1, "max_steps": 3}, world_model=echo)
    with pytest.raises(UserError, match=rf"{HEAD} in 2 optimizer batches in a row: roles \['user'\] leaves out"):
        trainer.train()
    (warning,) = warnings(caplog)  # once
    assert warning.startswith(f"{HEAD} in an optimizer batch: roles ['user'] leaves out ")
    assert "which are of 'tool'" in warning
    row = trainer.state.log_history[0]
    assert row["echo/tokens"] == row["echo/loss"] == 0
    assert not {"echo/nll", "echo/perplexity", "echo/tokens_in_loss", "echo/tool/run_code/nll"} & set(row)
    assert not any(value is None or math.isnan(value) for name, value in row.items() if name.startswith("echo"))


@pytest.mark.parametrize(
    "fields", [pytest.param({"tools": []}, marks=pytest.mark.slow), {"tools": {"run_code": 0}}, {"roles": []}], ids=str
)
def test_a_config_that_can_select_nothing_is_said_before_the_first_batch(caplog, fields):
    trained(Ours, EchoConfig(0.5, **fields))
    (warning,) = warnings(caplog)
    assert "has no token to train on: " in warning
    with pytest.raises(UserError, match="has no token to train on"):
        trained(Ours, EchoConfig(0.5, **fields, on_silence="stop"), steps=0)


def test_rollouts_without_a_call_are_given_some_batches(caplog):
    trained(Silent, EchoConfig(0.5, silent_batches=2), steps=3)
    (warning,) = warnings(caplog)
    assert "in 2 optimizer batches in a row: the rollouts have no environment tokens" in warning


def test_a_run_shorter_than_these_batches_is_told_at_its_end(caplog):
    trained(Silent, EchoConfig(0.5), reward_funcs=[constant])
    (warning,) = warnings(caplog)
    assert "in an optimizer batch: the rollouts have no environment tokens" in warning
    assert warning.endswith("its advantages were all 0 too, so that it trained nothing")
    assert "term alone" not in caplog.text


def test_a_step_without_advantages_but_with_tokens_trained_on_the_term_alone(caplog):
    trained(Ours, EchoConfig(0.5), reward_funcs=[constant])
    assert warnings(caplog) == []
    assert "it trained on the world-model term alone" in caplog.text


def test_results_that_the_length_limit_drops_are_said(caplog):
    trainer = trained(Caller, EchoConfig(0.5), max_completion_length=64)
    assert trainer.state.log_history[0]["tools/call_frequency"] == 1
    assert trainer.state.log_history[0]["echo/tokens"] == 0
    (warning,) = warnings(caplog)
    assert "tools were called, but no result is in the rollouts" in warning
    assert "raise max_completion_length" in warning


@pytest.mark.parametrize("echo", [EchoConfig(), EchoConfig(0.0), EchoConfig(0.5)], ids=["default", "0", "0.5"])
def test_a_coefficient_that_nobody_wrote_is_said_once(caplog, echo):
    trained(Ours, echo, max_steps=0)
    assert caplog.text.count("world_model is given, but coeff is 0") == (not echo.coeff_given)


def test_bounds_that_no_token_is_inside_of_are_said(caplog):
    trained(Ours, EchoConfig(0.5, min_token_nll=1e6))
    (warning,) = warnings(caplog)
    assert "min_token_nll 1000000.0 leaves out all " in warning


def test_a_batch_in_two_micro_batches_is_counted_as_one(caplog):
    echo = EchoConfig(0.5, silent_batches=2, on_silence="stop", normalization="observation_tokens", roles=["user"])
    trained(Ours, echo, gradient_accumulation_steps=2)
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("fields", [{"roles": ["user"]}, pytest.param({"tools": []}, marks=pytest.mark.slow)], ids=str)
def test_coefficient_0_and_an_objective_with_tokens_are_quiet(caplog, fields):
    trained(Ours, EchoConfig(0.0, **fields, on_silence="stop", silent_batches=1))
    trained(Ours, EchoConfig(0.5, on_silence="stop", silent_batches=1))
    assert warnings(caplog) == []


def test_names_that_the_policy_invents_share_a_figure():
    row = trained(Inventive, EchoConfig(0.5, include_errors=True)).state.log_history[0]
    figures = {name for name in row if name.startswith("echo/tool/")}
    assert figures == {
        *(f"echo/tool/{name}/{figure}" for name in ("run_code", "other") for figure in ("nll", "tokens")),
        "echo/tool/lookup_doc/tokens",
    }
    assert row["echo/tokens"] == row["echo/tool/run_code/tokens"] + row["echo/tool/other/tokens"]


# -- rewards that score nothing, and nothing that was asked for ------------------------------------------------------------------

EXACT = {"path": "exact", "kwargs": {"tag": "next_state"}}
DEAD = {"server": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "max_retries": 0}, "tag": ""}


def predicting(reward, steps, rows=None, **fields):
    """A policy of random weights, whose answers have no tag."""
    if rows is None:
        rows = [{"prompt": [{"role": "user", "content": f"{number}"}], "target": "x"} for number in range(16)]
    args = {"gradient_accumulation_steps": 1, "max_completion_length": 8, "max_steps": steps, **fields}
    function = as_reward_function(reward)
    return run(WorldModelGRPOTrainer, environment=None, args=args, rows=rows, reward_funcs=[function])[0]


def test_predictions_without_the_tag_are_warned_of_and_fail_the_run(caplog):
    with pytest.raises(
        UserError, match="reward exact scored nothing in any batch of rollouts of the run: no answer had"
    ):
        predicting(EXACT, 3)
    assert caplog.text.count("reward exact scored nothing in 3 batches of rollouts in a row") == 1
    assert "environment tokens" not in caplog.text  # nobody asked
    fields = {"cls": WorldModelGRPOConfig, "echo_on_silence": "stop", "echo_silent_batches": 2, "echo_coeff": 0.0}
    with pytest.raises(UserError, match=r"in 2 batches .* \(on_silence is stop\)"):
        predicting(EXACT, 4, **fields)
    caplog.clear()
    predicting(EXACT, 1)
    assert caplog.text.count("reward exact scored nothing in any batch") == 1


def test_a_judge_that_never_answers_fails_a_short_run():
    with pytest.raises(UserError, match="reward judge scored nothing .* the judge gave no verdict on any prediction"):
        predicting({"path": "judge", "kwargs": DEAD}, 1)


@pytest.mark.parametrize("world_model", [None, EchoConfig(0.0)], ids=["nothing", "0"])
@pytest.mark.parametrize("cls", [Ours, type("Mixed", (Scripted, WorldModelMixin, GRPOTrainer), {})])
def test_a_trainer_without_an_objective_is_not_plain_grpo_without_a_word(caplog, cls, world_model):
    trained(cls, world_model, steps=0)
    assert caplog.text.count("there is no world_model: nothing is trained on environment tokens") == (not world_model)


@pytest.mark.parametrize("coeff", [None, 0.0, 0.5], ids=str)
def test_a_coefficient_that_nobody_wrote_in_a_file_is_told_from_0(caplog, coeff):
    fields = {} if coeff is None else {"echo_coeff": coeff}
    trainer, _ = run(Ours, args=config(cls=WorldModelGRPOConfig, max_steps=1, **fields))
    assert caplog.text.count("there is no world_model") == (coeff is None)
    assert trainer.state.log_history[0]["echo/coeff"] == (coeff or 0)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "the training set is empty; give it rows"),
        ([{"promt": "x", "target": "x"}], "the training set has no column 'prompt'; did you mean 'promt'"),
    ],
    ids=["empty", "no prompt"],
)
def test_rows_that_nothing_can_be_trained_on_are_refused(rows, reason):
    with pytest.raises(UserError, match=reason):
        predicting(EXACT, 1, rows=rows)
