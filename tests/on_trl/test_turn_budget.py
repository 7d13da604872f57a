"""WMAct's turn budget in real trainers: what the tool loop allows, what is logged, what a resume goes on from."""

import json
import re
from typing import ClassVar

import pytest
import torch

from support.agreement import BUDGETS, TURN_BUDGET, WANTED, Walk
from support.on_trl import (
    NEEDS_ENVIRONMENTS,
    ToolEnvironment,
    call,
    dataset,
    make,
    series,
)
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.trl import WorldModelGRPOConfig, WorldModelGRPOTrainer
from wm_plugin.worlds.wrappers.rewarded import rewarded

pytestmark = NEEDS_ENVIRONMENTS

KEY = "wm_turn_budget"


class Walker(WorldModelGRPOTrainer):
    """Takes the turns that its script wants, a row of a step at a time; says which row it is in each call."""

    wanted = WANTED

    def _generate(self, *args, **kwargs):
        self.rollout = getattr(self, "rollout", self.state.global_step)  # after a resume: where the whole run was
        self.script = self.wanted[self.rollout] if self.model.training else [9]
        self.rollout += self.model.training
        return super()._generate(*args, **kwargs)

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        turns = []
        for index, ids in enumerate(prompt_ids):
            rows = re.findall(
                r'"row": (\d+)', self.processing_class.decode(ids).rpartition("<|im_start|>user\ntask")[2]
            )
            row = int(rows[0]) if rows else index  # the first turn is that of all rows
            done = len(rows) >= self.script[row % len(self.script)]
            turns.append("done" if done else call("walk", row=row))
        return [self.processing_class(turn + "<|im_end|>").input_ids for turn in turns], None

    def _tool_call_loop(self, *args, **kwargs):
        result = super()._tool_call_loop(*args, **kwargs)
        seen = (self.model.training, self.max_tool_calling_iterations, [world.turns for world in self.environments])
        self.seen = [*getattr(self, "seen", []), seen]
        return result

    def allowed(self, training=True):
        return [limit for mode, limit, _ in self.seen if mode == training]


def walker(budget=None, *, kind=Walker, environment=Walk, echo=None, eval_dataset=None, **fields):
    args = {"gradient_accumulation_steps": 1, "max_steps": len(WANTED), "max_completion_length": 2000} | fields
    given = {"environment": environment, "eval_dataset": eval_dataset, "turn_budget": budget, "world_model": echo}
    trainer = make(kind, args=args, reward_funcs=None, **given)
    torch.manual_seed(11)
    return trainer


def test_the_budgets_of_both_hosts():
    """As tests/on_verl/test_agent_loop.py has them: the next rollout has the new budget, and all episodes of a step the same."""
    trainer = walker(TurnBudget(**TURN_BUDGET))
    trainer.train()
    assert trainer.allowed() == BUDGETS
    assert series(trainer, "wm/turn_budget") == series(trainer, "wm/env/budget") == BUDGETS
    for (_, limit, turns), wanted in zip(trainer.seen, WANTED, strict=True):
        assert turns == [min(want, limit) for want in wanted]


def test_groups_of_several_prompts_and_rollouts_made_ahead_have_one_budget():
    """Two prompts a rollout and two rollouts an update, for the second of which the term counts tokens before the first."""

    class Double(Walker):
        wanted: ClassVar = [[number, 9, 1, 1, 1, 1, 1, 1] for number in range(1, 7)]

    trainer = walker(
        TurnBudget(5, 2),
        kind=Double,
        echo=EchoConfig(0.5),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        steps_per_generation=1,
        max_steps=3,
    )
    trainer.train()
    # 1 2 | 5 5, 1s: the means are 1.5 and 1.8, say, and the maxima what was allowed
    assert trainer.allowed() == [5, 5, 4, 4, 3, 3]
    assert all(len(turns) == 8 and max(turns) == limit for _, limit, turns in trainer.seen)
    assert series(trainer, "wm/turn_budget") == [5, 4, 3]


@pytest.mark.parametrize("given", [pytest.param("argument", marks=pytest.mark.slow), "config"])
def test_evaluations_have_the_first_value(given):
    fields = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4, "max_steps": 4}
    if given == "config":
        fields |= {"cls": WorldModelGRPOConfig, "turn_budget": {"start": 3, "every": 1}}
    budget = TurnBudget(3, 1) if given == "argument" else None
    trainer = walker(budget, eval_dataset={"one": dataset(1), "two": dataset(2)}, **fields)
    trainer._wm_budget.end_iteration([1])
    trainer.train()
    assert trainer.allowed() == [1, 1, 1, 1]
    assert set(trainer.allowed(training=False)) == {3}
    for name in ("one", "two"):
        assert series(trainer, f"eval_{name}_wm/env/budget") == series(trainer, f"eval_{name}_wm/env/turns") == [3, 3]
    assert not series(trainer, "eval_wm/env/budget")
    assert not [key for row in trainer.state.log_history for key in row if "eval" in key and "turn_budget" in key]


# in the middle of a window, and after it
@pytest.mark.parametrize("step", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_resume_goes_on_exactly(tmp_path, step):
    fields = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 1, "max_steps": 8}
    whole = walker(TurnBudget(**TURN_BUDGET), learning_rate=1e-3, **fields)
    whole.train()
    assert whole.allowed() == BUDGETS[:8]
    resumed = walker(TurnBudget(**TURN_BUDGET), learning_rate=1e-3, **fields)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert resumed.seen == whole.seen[step:]
    assert resumed._wm_budget == whole._wm_budget
    for name in ("wm/turn_budget", "wm/env/turns", "loss"):
        assert series(resumed, name)[step:] == series(whole, name)[step:], name
    saved = json.loads((tmp_path / "checkpoint-8" / "trainer_state.json").read_text())
    assert saved["stateful_callbacks"][KEY] == resumed._wm_budget.state_dict()


def test_other_settings_and_a_run_without_a_budget_are_told(tmp_path, caplog):
    fields = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    walker(TurnBudget(**TURN_BUDGET), **fields).train()
    other = walker(TurnBudget(5, 2), **fields)
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert "the checkpoint has a turn budget of other settings: it starts at 5" in caplog.text
    assert other.allowed() == [5, 5]
    path = tmp_path / "checkpoint-2" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"][KEY]
    path.write_text(json.dumps(state))
    caplog.clear()
    walker(TurnBudget(**TURN_BUDGET), **fields).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert "the checkpoint has no turn budget: it starts at 6" in caplog.text


def test_the_reward_of_an_environment_is_what_the_trainer_trains_on():
    trainer = walker(TurnBudget(**TURN_BUDGET), environment=rewarded(Walk, turn_penalty=0.1), max_steps=1)
    trainer.train()
    taken = [2, 6, 4, 1]
    assert series(trainer, "reward") == pytest.approx([sum(turns % 2 - 0.1 * turns for turns in taken) / 4])


@pytest.mark.parametrize(
    ("budget", "fields", "message"),
    [
        (TurnBudget(), {"max_tool_calling_iterations": 3}, "turn_budget says what max_tool_calling_iterations says"),
        ({"start": 3}, {}, "turn_budget is {'start': 3}; write TurnBudget(start=30, every=100)"),
        (
            TurnBudget(),
            {"cls": WorldModelGRPOConfig, "turn_budget": {"start": 3}},
            "are the same thing; give one of them",
        ),
    ],
)
def test_what_does_not_fit_is_refused(budget, fields, message):
    with pytest.raises(UserError) as error:
        walker(budget, **fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_turns_need_an_environment():
    with pytest.raises(UserError, match="turn_budget counts turns in an environment, and the run has none"):
        make(WorldModelGRPOTrainer, environment=None, tools=[ToolEnvironment().run_code], turn_budget=TurnBudget())
