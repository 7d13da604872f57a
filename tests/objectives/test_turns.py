"""Scores of turns as advantages of their tokens, against loops in plain Python."""

import random

import pytest
import torch

from wm_plugin.objectives.turns import on_tokens, turn_advantages


def test_a_score_is_compared_with_the_mean_of_its_group():
    scores = [[1.0, None, 0.0], [None], [0.5], [1.0, 1.0], []]
    found = turn_advantages(scores, ["a", "a", "a", "b", "c"], coeff=2.0)
    assert found == [[1.0, 0.0, -1.0], [0.0], [0.0], [0.0, 0.0], []]


@pytest.mark.parametrize("seed", range(3))
def test_values_stand_on_the_tokens_of_their_turns(seed):
    draw = random.Random(seed)
    rows, values = [], []
    for _ in range(20):
        row, own = [], []
        for _ in range(draw.randrange(5)):
            row += [0] * draw.randint(1, 4) if row or draw.random() < 0.5 else []
            row += [1] * draw.randint(1, 4)
            own.append(draw.uniform(-1, 1))
        rows.append(row + [0] * (40 - len(row)))
        values.append([*own, 0.0])  # a turn that was cut away whole
    expected = []
    for row, own in zip(rows, values, strict=True):
        turn, line = -1, []
        for place, here in enumerate(row):
            turn += bool(here and (place == 0 or not row[place - 1]))
            line.append(own[turn] if here else 0.0)
        expected.append(line)
    found = on_tokens(values, torch.tensor(rows))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor(expected))


def test_turns_that_are_not_the_runs_of_tokens_are_an_error():
    mask = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0]])
    assert on_tokens([[1.0, 2.0], [3.0]], mask).tolist() == [[1, 0, 2, 0], [0, 0, 0, 0]]
    for values in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="completion 0 has 2 runs of sampled tokens"):
            on_tokens([values, []], mask)
    assert on_tokens([[]], torch.zeros(1, 0)).shape == (1, 0)
    assert on_tokens([[1.0, 2.0]], torch.tensor([[1, 0, 1]])).tolist() == [[1, 0, 2]]  # the last token begins a turn


def test_every_completion_has_scores_and_a_group():
    for scores, groups in (([[1.0]], []), ([], ["a"])):
        with pytest.raises(ValueError, match="zip"):
            turn_advantages(scores, groups, 1.0)
    with pytest.raises(ValueError, match="zip"):
        on_tokens([[1.0]], torch.ones(2, 3))
