"""Groups whose rewards are all equal give way to others: the batch, N, the host's normaliser, and the bound."""

import pytest
import torch

from support import reference
from support.on_trl import (
    Ours,
    dataset,
    make,
    make_model,
    run,
)
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.trl.refill import Prompts, groups_to_sample, join, move, split


def by_task(prompts, completions, **_):
    """All equal for two tasks of three; different for each completion of the others."""
    numbers = [int(prompt[-1]["content"].removeprefix("task ")) for prompt in prompts]
    return [0.5 if number % 3 else float(row) for row, number in enumerate(numbers)]


def trained(echo, reward=by_task, rows=64, **fields):
    """With groups of two: where a group has an advantage, both of its completions have one."""
    args = {"max_steps": 1, "num_generations": 2, **fields}
    return run(Ours, reward_funcs=[reward], args=args, rows=dataset(rows), world_model=echo)


FIELDS = {
    "one batch": {"loss_type": "dapo"},
    "by sequence": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "several steps a generation": {"loss_type": "dapo", "steps_per_generation": 4, "max_steps": 2},
    "several generations a step": {"loss_type": "dapo", "steps_per_generation": 1, "per_device_train_batch_size": 8},
}
FAST = ("one batch", "several generations a step")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in FIELDS]
)
def test_every_group_has_an_advantage_and_both_normalisers_count_the_final_batch(name):
    fields = FIELDS[name]
    before, without = trained(EchoConfig(0.0, zero_variance_groups="refill"), **fields)
    trainer, gradients = trained(EchoConfig(0.37, zero_variance_groups="refill"), **fields)
    tokenizer = trainer.processing_class
    steps = fields.get("max_steps", 1)
    size = len(trainer.batches) // steps
    for step in range(steps):
        batches = trainer.batches[step * size : (step + 1) * size]
        assert all(batch["advantages"].all() for batch in batches)
        masks = [reference.weights(batch, tokenizer, None) for batch in batches]
        expected, tokens = reference.term_gradient(make_model(tokenizer, dtype=torch.float64), batches, masks)
        assert {int(batch["wm_num_tokens"]) for batch in batches} == {tokens}
        difference = gradients[step].double() - without[step].double()
        assert (difference - 0.37 * expected).norm() <= 1e-6 * expected.norm()
    generation = fields.get("steps_per_generation", 2)
    for start in range(0, len(trainer.batches), generation):
        batches = trainer.batches[start : start + generation]
        sampled = sum(int((batch["completion_mask"] * batch["tool_mask"]).sum()) for batch in batches)
        assert {int(batch["num_items_in_batch"]) for batch in batches} == {sampled}
    row = trainer.state.log_history[0]
    assert row["echo/refill/prompts"] > 0
    assert row["echo/refill/without_advantage"] > 0
    assert row["echo/refill/unfilled"] == 0
    assert row["echo/policy_silent"] == 0
    for one, other in zip(trainer.batches, before.batches, strict=True):
        assert torch.equal(one["completion_ids"], other["completion_ids"])  # the coefficient changes no sampling


@pytest.mark.parametrize("setting", ["keep", "drop"])
def test_what_the_other_settings_divide_by(setting):
    """The same rollouts: N follows the setting, and the host counts every group."""
    trainer, _ = trained(EchoConfig(0.37, zero_variance_groups=setting), loss_type="dapo")
    selected = with_advantage = sampled = 0
    for batch in trainer.batches:
        counts = (reference.weights(batch, trainer.processing_class, None) != 0).sum(dim=1)
        selected += int(counts.sum())
        with_advantage += int(counts[batch["advantages"] != 0].sum())
        sampled += int((batch["completion_mask"] * batch["tool_mask"]).sum())
    assert 0 < with_advantage < selected
    number = selected if setting == "keep" else with_advantage
    assert {int(batch["wm_num_tokens"]) for batch in trainer.batches} == {number}
    assert {int(batch["num_items_in_batch"]) for batch in trainer.batches} == {sampled}


def test_where_every_group_has_an_advantage_nothing_changes():
    def different(completions, **_):
        return [float(row) for row in range(len(completions))]

    trainer, gradients = trained(EchoConfig(0.37, zero_variance_groups="refill"), different)
    kept, expected = trained(EchoConfig(0.37), different)
    assert torch.equal(gradients[0], expected[0])
    assert trainer.state.log_history[0]["echo/refill/prompts"] == 0
    assert not [name for name in kept.state.log_history[0] if "refill" in name]


def test_at_the_bound_groups_stay_and_their_environment_tokens_do_not_count(caplog):
    def equal(completions, **_):
        return [1.0] * len(completions)

    trainer, _ = trained(EchoConfig(0.37, zero_variance_groups="refill", max_refills=3), equal)
    row = trainer.state.log_history[0]
    assert row["echo/refill/prompts"] == 3 * 4  # of four groups
    assert (row["echo/refill/without_advantage"], row["echo/refill/unfilled"]) == (4 + 12, 4)
    assert row["echo/tokens"] == 0
    assert "after 12 further prompts (max_refills 3) the rewards of 4 of 4 groups are all equal" in caplog.text
    assert "zero_variance_groups refill leaves out" in caplog.text
    assert len(trainer.batches[0]["completion_ids"]) == 4  # the host's batch, whole


def test_a_part_of_the_batch_is_filled_at_the_bound():
    def some_tasks(prompts, completions, **_):
        numbers = [int(prompt[-1]["content"].removeprefix("task ")) for prompt in prompts]
        return [float(row) if number < 3 else 0.5 for row, number in enumerate(numbers)]

    trainer, _ = trained(EchoConfig(0.37, zero_variance_groups="refill", max_refills=1), some_tasks, rows=8)
    row = trainer.state.log_history[0]
    assert row["echo/refill/prompts"] <= 4
    assert 0 < row["echo/refill/unfilled"] < 4
    silent = [batch["advantages"] == 0 for batch in trainer.batches]
    weights = [batch["wm_weights"] for batch in trainer.batches]
    assert not any(weight[rows].any() for weight, rows in zip(weights, silent, strict=True))
    assert sum(int(rows.sum()) for rows in silent) == 2 * row["echo/refill/unfilled"]


def test_the_bound_is_exact():
    """A batch of three groups takes three further prompts, not twice two."""
    sampled = []

    def third_is_equal(completions, **_):
        sampled.append(len(completions))
        return [float(row) if len(sampled) == 1 and row < 4 else 0.5 for row in range(len(completions))]

    echo = EchoConfig(0.37, zero_variance_groups="refill", max_refills=1)
    trainer, _ = trained(echo, third_is_equal, per_device_train_batch_size=3, gradient_accumulation_steps=2)
    assert sampled == [6, 4, 2]
    row = trainer.state.log_history[0]
    assert (row["echo/refill/prompts"], row["echo/refill/unfilled"]) == (3, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scale_rewards": "batch"}, "replaces single groups"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "replaces single groups"),
    ],
)
@pytest.mark.parametrize("coeff", [0.0, 0.5])
def test_what_cannot_be_refilled_is_refused(fields, message, coeff):
    with pytest.raises(UserError, match=message):
        trained(EchoConfig(coeff, zero_variance_groups="refill"), **fields)


def test_a_stream_is_refused():
    with pytest.raises(UserError, match="a stream has no n-th row; load it whole"):
        make(Ours, rows=dataset(8).to_iterable_dataset(), world_model=EchoConfig(0.5, zero_variance_groups="refill"))


def test_prompts_are_drawn_by_step_without_repeating():
    prompts = Prompts(10, seed=3)
    first = prompts.draw(0, 4) + prompts.draw(0, 6)
    assert sorted(first) == list(range(10))
    later = prompts.draw(1, 15)
    assert sorted(later[:10]) == list(range(10))
    assert later != first
    resumed = Prompts(10, seed=3)
    assert resumed.draw(1, 7) + resumed.draw(1, 8) == later
    assert Prompts(10, seed=4).draw(1, 15) != later


@pytest.mark.parametrize(
    ("missing", "options", "count"),
    [
        (1, {"batch": 8, "rows": 32, "group_size": 4, "ranks": 1}, 2),
        (7, {"batch": 8, "rows": 32, "group_size": 4, "ranks": 1}, 8),
        (1, {"batch": 8, "rows": 8, "group_size": 4, "ranks": 4}, 4),
        (
            1,
            {"batch": 2, "rows": 2, "group_size": 4, "ranks": 4},
            2,
        ),  # a group lies on two ranks: a batch like the first
    ],
)
def test_how_many_groups_are_sampled_at_once(missing, options, count):
    assert groups_to_sample(missing, **options) == count


def batch(*completions):
    """A batch with prompts of one token, whose number is the first of the completion."""
    ids = [torch.tensor(ids) for ids in completions]
    rows = [
        {
            "prompt_ids": row[:1],
            "completion_ids": row,
            "tool_mask": torch.ones_like(row),
            "advantages": torch.tensor(float(row[0])),
        }
        for row in ids
    ]
    return {**join(rows, {"completion_ids": 99, "tool_mask": 1}), "num_items_in_batch": torch.tensor(5)}


def test_rows_by_hand():
    output = batch([1, 1], [2], [3, 3, 3], [4])
    assert output["completion_ids"].tolist() == [[1, 1, 99], [2, 99, 99], [3, 3, 3], [4, 99, 99]]
    wide = join([{"prompt_ids": torch.tensor(ids)} for ids in ([7], [8, 8])], {"prompt_ids": 99})
    assert wide["prompt_ids"].tolist() == [[99, 7], [8, 8]]  # prompts are padded on the left
    with pytest.raises(RuntimeError, match="cannot move rows of the trainer's column 'images'"):
        split({**output, "images": ["a"] * 4})


def test_groups_move_between_ranks():
    """Two ranks with two groups of two each; group 3, of the second rank, replaces group 0, of the first, and 0 replaces 2."""
    ranks = [split(batch([1], [2], [3], [4])), split(batch([5], [6], [7], [8]))]
    further = [split(batch([11], [12], [13], [14])), split(batch([15], [16], [17, 17], [18]))]
    places, sent = {3: 0, 0: 2}, []

    def note(own):
        sent.extend(own)
        return own

    for rank in (0, 1):  # what each rank sends
        move([*ranks[rank]], further[rank], places, group_size=2, rank=rank, gather=note)
    assert [sorted(own) for own in sent] == [[4, 5], [0, 1]]
    for rank in (0, 1):
        move(ranks[rank], further[rank], places, group_size=2, rank=rank, gather=lambda _: sent)
    assert [[int(row["advantages"]) for row in rows] for rows in ranks] == [[17, 18, 3, 4], [11, 12, 7, 8]]
    assert join(ranks[0], {"completion_ids": 99})["completion_ids"].tolist() == [[17, 17], [18, 99], [3, 99], [4, 99]]
