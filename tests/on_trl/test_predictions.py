"""Predictions inside an episode in TRL's trainer: the advantages of turns by hand, their gradient, and what is refused."""

import re

import pytest
import torch

from support.foreseeing import COEFF, ROWS, by_hand, trained
from support.on_trl import NEEDS_ENVIRONMENTS, make, series
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.hosting.predictions import predicted
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.grid import GridEnvironment

pytestmark = NEEDS_ENVIRONMENTS


def tokens_of(batch, row):
    mask = batch["completion_mask"][row].bool()
    return tuple(batch["completion_ids"][row][mask].tolist())


def test_a_turn_has_its_advantage_on_its_own_tokens():
    trainer, (gradient,) = trained({"reward": "exact", "coeff": COEFF})
    added = {}
    for (_, ids, _), values in zip(trainer.played, by_hand([messages for messages, *_ in trainer.played]), strict=True):
        added.setdefault(tuple(ids), []).append(values)
    assert len({value for values in added.values() for row in values for value in row}) > 3
    seen = 0
    for batch in trainer.batches:
        for row in range(len(batch["completion_ids"])):
            ids, mask = tokens_of(batch, row), batch["tool_mask"][row].tolist()
            (values,) = added[ids][:1]
            base, turn, expected = batch["advantages"][row][-1] if len(ids) < len(mask) else None, -1, []
            for place in range(len(ids)):
                turn += bool(mask[place] and (place == 0 or not mask[place - 1]))
                more = [*values, 0.0][turn] if mask[place] else 0.0
                expected.append(more)
            found = batch["wm_turns"][row]
            assert found[: len(ids)].tolist() == pytest.approx(expected)
            assert not found[len(ids) :].any()
            seen += any(expected)
            if base is not None:  # the host's own, on all tokens
                assert torch.allclose(batch["advantages"][row], base + found)
    assert seen > 2
    torch.testing.assert_close(gradient, naive_gradient(trainer), rtol=1e-4, atol=1e-8)


def naive_gradient(trainer):
    """The gradient of GRPO's loss with an advantage a token, in plain torch, a completion at a time."""
    model = trainer.model  # a copy's forward would be this one's
    model.zero_grad()
    for batch in trainer.batches:
        for row in range(len(batch["completion_ids"])):
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
            completion = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
            ids = torch.cat([prompt, completion])
            logps = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
            logps = logps.gather(1, ids[1:, None])[len(prompt) - 1 :, 0]
            mask = batch["tool_mask"][row][: len(completion)]
            advantages = batch["advantages"][row][: len(completion)]
            loss = -(advantages * torch.exp(logps - logps.detach()) * mask).sum() / mask.sum()
            (loss / len(batch["completion_ids"]) / len(trainer.batches)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_sums_and_means_are_part_of_the_reward():
    plain = trained({"reward": "exact", "coeff": 0})[0]
    for level in ("sum", "mean"):
        trainer = trained({"reward": "exact", "coeff": COEFF, "level": level, "ask": False})[0]
        assert [ids for _, ids, _ in trainer.played] == [ids for _, ids, _ in plain.played]
        for (*_, reward), (*_, own), values in zip(trainer.played, plain.played, scores_of(trainer), strict=True):
            total = sum(values) / (len(values) if level == "mean" and values else 1)
            assert reward == pytest.approx(own + COEFF * total)
        assert "wm_turns" not in trainer.batches[0]
        assert trainer.batches[0]["advantages"].ndim == 1


def scores_of(trainer):
    """Each completion's scored turns, by hand: the coefficient and the mean are taken out of the advantages again."""
    found = []
    for messages, _, _ in trainer.played:
        own = []
        for place, message in enumerate(messages[:-1]):
            if message["role"] == "assistant" and not any(
                one["role"] == "tool" and one["content"].endswith("!") for one in messages[:place]
            ):
                said = re.findall("<prediction>(.*?)</prediction>", message["content"], re.DOTALL)
                own.append(float(bool(said) and said[-1].strip() == messages[place + 1]["content"].strip()))
        found.append(own)
    return found


@pytest.mark.parametrize("world_model", [None, EchoConfig(0.5)])
def test_coefficient_0_is_the_run_without_it(world_model):
    given = {"steps": 2, "dtype": torch.float32, "learning_rate": 1e-3, "world_model": world_model}
    (without, _), (none, _) = trained(None, **given), trained({"coeff": 0}, **given)
    assert none.played == without.played
    for one, other in zip(none.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert max(series(none, "wm/env/prediction/score")) > 0
    assert not series(without, "wm/env/prediction/score")
    assert series(none, "loss") == series(without, "loss")


def test_two_steps_with_the_world_model_term():
    trainer, steps = trained({"coeff": COEFF}, steps=2, world_model=EchoConfig(0.5), learning_rate=1e-3)
    assert len(steps) == 2
    values = [value for row in scores_of(trainer) for value in row]
    per_step = len(trainer.played) // 2
    first = [value for row in scores_of(trainer)[:per_step] for value in row]
    assert series(trainer, "wm/env/prediction/score")[0] == pytest.approx(sum(first) / len(first))
    assert 0 < sum(values) < len(values)
    assert all(0 < share < 1 for share in series(trainer, "wm/env/prediction/share"))
    assert all(series(trainer, "echo/tokens"))


@pytest.mark.parametrize(
    ("environment", "args", "message"),
    [
        (
            predicted(GridEnvironment),
            {"importance_sampling_level": "sequence"},
            "importance_sampling_level is sequence",
        ),
        (predicted(GridEnvironment), {"use_liger_kernel": True}, "use_liger_kernel takes one advantage a completion"),
        (
            {"a": predicted(GridEnvironment), "b": GridEnvironment},
            {},
            "the environments have different prediction rewards",
        ),
    ],
)
def test_what_is_refused(environment, args, message, monkeypatch):
    if "use_liger_kernel" in args:  # not installed here
        trainer = make(WorldModelGRPOTrainer, environment=environment, rows=ROWS, reward_funcs=None)
        from wm_plugin.trl import predictions

        monkeypatch.setattr(trainer.args, "use_liger_kernel", True)
        with pytest.raises(UserError, match=message):
            predictions.check(trainer._wm_predictions, trainer.args)
        return
    rows = [{**row, "environment": "a"} for row in ROWS] if isinstance(environment, dict) else ROWS
    with pytest.raises(UserError, match=message):
        make(WorldModelGRPOTrainer, args=args, environment=environment, rows=rows, reward_funcs=None)


def test_the_asynchronous_trainer_says_that_it_scores_none():
    from wm_plugin.trl import async_support

    with pytest.raises(UserError, match="GridEnvironment has a prediction_reward, which the rollouts of AsyncGRPO"):
        async_support.names_of_tools(None, predicted(GridEnvironment))
