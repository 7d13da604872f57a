"""What `weigh` offers beside the weights, which the tests of both hosts have."""

import math

import pytest
import torch

from wm_plugin.objectives.weigh import origins_of_tokens, without_variance
from wm_plugin.tokens.spans import Ending, Span


@pytest.mark.parametrize(
    ("groups", "rewards", "equal"),
    [
        ("aabb", [1.0, 1.0, 0.0, 1.0], [True, True, False, False]),
        ("abab", [1.0, 0.0, 1.0, 0.0], [True] * 4),
        ("aaab", [1.0, math.nan, 1.0, math.nan], [True] * 4),  # no reward makes no difference
        ("aaa", [1.0, math.nan, 0.0], [False] * 3),
        ("aaa", [0.0, 1.0, 0.5], [False] * 3),
    ],
)
def test_groups_whose_rewards_are_equal(groups, rewards, equal):
    assert without_variance(groups, rewards) == equal


def test_spans_whose_tokens_alone_are_known_are_read_where_categories_are_wanted():
    spans = [Span(1, 3, "tool", "look", True)]
    decoded, sampled = [], torch.tensor([1, 0, 0])

    def decode(ids):
        decoded.append(list(ids))
        return "text"

    (plain,) = origins_of_tokens(spans, [7, 8, 9], sampled, decode, Ending.COMPLETE, categorize=False)
    assert (plain.span, plain.category, decoded) == (spans[0], None, [])
    (read,) = origins_of_tokens(spans, [7, 8, 9], sampled, decode, Ending.COMPLETE, categorize=True)
    assert read.span == spans[0]
    assert read.category is not None
    assert [8, 9] in decoded
