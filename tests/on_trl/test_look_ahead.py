"""Evaluation sets that a real trainer's policy plays looking ahead with itself."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from support.on_trl import NEEDS_ENVIRONMENTS, make
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.trl import WorldModelGRPOConfig, WorldModelGRPOTrainer, look_ahead
from wm_plugin.worlds.grid import GridEnvironment, dataset_rows

pytestmark = NEEDS_ENVIRONMENTS

MARKS = {"over": "!", "won": "P"}
FIELDS = {"continuations": 4, "depth": 2, "observation_tokens": 20, "marks": MARKS}


class Noting(WorldModelGRPOTrainer):
    """Notes which turns the host would have sampled, and which went out instead."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        result = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self.seen = [
            *getattr(self, "seen", []),
            (
                self._wm_eval_set,
                self.model.training,
                [list(ids) for ids in prompt_ids],
                [list(ids) for ids in result[0]],
            ),
        ]
        return result


def trainer(sets=None, *, kind=Noting, **fields):
    rows = Dataset.from_list(dataset_rows(4, 1))
    args = {"cls": WorldModelGRPOConfig, "look_ahead": sets, "max_steps": 1, "gradient_accumulation_steps": 1}
    tokenizer = make_tokenizer()
    made = make(
        kind,
        model=make_model(tokenizer, 0),
        args={"max_completion_length": 150, **args, **fields},
        rows=rows,
        eval_dataset={"plain": rows, "ahead": rows},
        processing_class=tokenizer,
        environment=GridEnvironment,
        reward_funcs=None,
    )
    torch.manual_seed(3)
    return made


def test_one_set_is_played_looking_ahead_and_nothing_else_changes(monkeypatch):
    asked = []
    turns = look_ahead.turns

    def noted(host, ahead, prompts, left):
        asked.append((host._wm_eval_set, host.model.training, len(prompts)))
        return turns(host, ahead, prompts, left)

    monkeypatch.setattr(look_ahead, "turns", noted)
    made = trainer({"ahead": FIELDS})
    made.train()
    figures = made.evaluate()
    assert {name for name, *_ in asked} == {"ahead_"}
    assert not any(training for _, training, _ in asked)
    assert {(name, training) for name, training, *_ in made.seen} >= {("plain_", False), ("ahead_", False)}
    for name in ("plain", "ahead"):
        assert f"eval_{name}_wm/env/success" in figures or any(
            f"eval_{name}_wm/env/success" in row for row in made.state.log_history
        )
    for name, _, prompts, turn in made.seen:
        if name == "ahead_":
            assert [len(one) for one in turn] == [1] * len(prompts)  # a turn of this policy is one token


def test_the_same_rollouts_have_the_same_luck_and_those_of_one_prompt_another():
    made = trainer({"ahead": FIELDS})
    made.model.eval()
    tokenizer = made.processing_class
    prompts = tokenizer([row["board"] + ":" for row in dataset_rows(3, 1)]).input_ids
    ahead = LookAheadConfig(**{**FIELDS, "floor": 2.0})  # it acts as it would: samples of the policy
    first = look_ahead.turns(made, ahead, prompts * 8)
    assert first == look_ahead.turns(made, ahead, prompts * 8)
    assert len({tuple(one) for one in first[::3]}) > 1
    greedy = look_ahead.turns(made, LookAheadConfig(**{**FIELDS, "temperature": 0.0}), prompts)
    with torch.no_grad():
        logits = made.model(input_ids=torch.tensor(prompts)).logits[:, -1]
    assert greedy == logits.argmax(-1, keepdim=True).tolist()


@pytest.mark.parametrize(
    ("fields", "distributed", "message"),
    [
        ({"use_vllm": True}, "NO", "use_vllm has another one"),
        ({"use_transformers_continuous_batching": True}, "NO", "hands away"),
        ({}, "FSDP", "FSDP splits it"),
        ({}, "DEEPSPEED", "DEEPSPEED splits it"),
    ],
)
def test_engines_that_have_another_model_are_refused(fields, distributed, message):
    made = trainer({"ahead": FIELDS})
    for name, value in fields.items():
        setattr(made.args, name, value)
    made.accelerator = SimpleNamespace(distributed_type=SimpleNamespace(name=distributed))
    with pytest.raises(UserError, match=message):
        look_ahead.check(made, made._wm_ahead)


def test_nothing_is_imagined_beyond_the_turns_that_an_episode_has_left(monkeypatch):
    made = trainer({"ahead": FIELDS}, max_tool_calling_iterations=3)
    lefts, up = [], made.processing_class("U").input_ids

    def moved(host, ahead, prompts, left):
        lefts.append(left)
        return [list(up) for _ in prompts]

    monkeypatch.setattr(look_ahead, "turns", moved)
    made.evaluate()
    assert lefts == [3, 2, 1, 0] * 2  # turns with calls, and the one that answers; of two batches
    depths = []

    def imagined(self, states, seeds):
        depths.append(self._turns_left(states[0]))
        return []

    monkeypatch.undo()
    monkeypatch.setattr(look_ahead.LookAhead, "imagine", imagined)
    for left in (2, 0, None):
        look_ahead.turns(made, LookAheadConfig(**FIELDS), [up], left)
    assert depths[:2] == [2, 1]  # an action is imagined in any case
    assert depths[2] > 1000


def test_training_is_that_of_a_run_without_it():
    weights = []
    for sets in (None, {"ahead": FIELDS}):
        made = trainer(sets, max_steps=2)
        made.train()
        weights.append([parameter.detach().clone() for parameter in made.model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"ahed": FIELDS}, "there is no evaluation set 'ahed'; did you mean 'ahead'"),
        ("{ahead", "look_ahead is not JSON"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(sets, message):
    with pytest.raises(UserError, match=message) as caught:
        trainer(sets)
    assert "\n" not in str(caught.value)
