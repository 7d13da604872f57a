import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin import EchoConfig
from wm_plugin.objectives.metrics import LEARNT, LEARNT_LENGTH, Meter, learn_tools, size, token_sums
from wm_plugin.tokens.spans import OTHER


def add(meter, nll, tool_ids, coeff=0.5, tools=("a", "b")):
    logps = -torch.tensor([nll])
    ids = torch.tensor([tool_ids])
    weights = (ids != 0).float()
    loss = torch.tensor(coeff)
    bounded = weights * (logps < -1.5)
    sums = token_sums(logps, weights, ids, len(tools), loss_weights=bounded, loss=loss, masked=torch.tensor(1))
    assert len(sums) == size(len(tools))
    meter.add(sums, tools)


def test_by_hand():
    meter = Meter(EchoConfig())
    add(meter, [1.0, 2.0, 9.0], [1, 2, 0])
    add(meter, [3.0, 9.0, 9.0], [2, 0, 0])
    meter.end_step(0.5, torch.tensor(0.0))
    add(meter, [2.0, 9.0, 9.0], [OTHER, 0, 0])
    meter.end_step(0.3, torch.tensor(2.0))
    figures = meter.result(lambda sums: sums)
    assert figures == pytest.approx(
        {
            "echo/nll": 2.0,
            "echo/perplexity": math.exp(2.0),
            "echo/tokens": 2.0,
            "echo/coeff": 0.4,
            "echo/loss": 0.75,
            "echo/tokens_in_loss": 0.75,
            "echo/policy_silent": 0.5,
            "echo/masked_by_host": 1.5,
            "echo/tool/a/nll": 1.0,
            "echo/tool/a/tokens": 0.5,
            "echo/tool/b/nll": 2.5,
            "echo/tool/b/tokens": 1.0,
            "echo/tool/other/nll": 2.0,
            "echo/tool/other/tokens": 0.5,
        }
    )
    assert meter.result(lambda sums: sums) == {}


def test_a_step_of_the_term_alone_is_noted():
    meter = Meter(EchoConfig())
    assert (meter.term_alone, meter.nll, meter.tokens) == (False, 0.0, 0.0)
    for coeff, advantages, counted, alone in (
        (0.5, 0.0, {"counted": True}, True),
        (0.5, 0.0, {}, False),
        (0.5, 2.0, {"counted": True}, False),
        (0.0, 0.0, {"counted": True}, False),
    ):
        add(meter, [1.0], [1])
        meter.end_step(coeff, torch.tensor(advantages), **counted)
        assert meter.result(lambda sums: sums)["echo/policy_silent"] == (advantages == 0)
        assert meter.term_alone is alone


def test_ranks_are_summed_before_the_division():
    meter = Meter(EchoConfig(), "echo_tempered")
    add(meter, [1.0, 5.0, 9.0], [1, 1, 0])
    meter.end_step(0.5, torch.tensor(1.0))
    figures = meter.result(lambda sums: sums * 2)  # two ranks with the same tokens
    assert figures["echo_tempered/nll"] == 3.0
    assert figures["echo_tempered/tokens"] == 4
    assert figures["echo_tempered/coeff"] == 0.5


@pytest.mark.parametrize("tools", [None, ["a", "b"], {"a": 2.0, "b": 0.5}], ids=str)
def test_information_is_the_weight_that_turn_information_leaves(tools):
    meter = Meter(EchoConfig(1.0, tools, turn_information=True))
    multiplier = tools if isinstance(tools, dict) else {"a": 1.0, "b": 1.0}
    for ids, ratios in (([[1, 1, 0]], [0.05, 1.0]), ([[2, 0, 0]], [0.5])):
        weights = torch.zeros(1, 3)
        for place, ratio in enumerate(ratios):
            weights[0, place] = ratio * multiplier["ab"[ids[0][place] - 1]]
        nothing = torch.tensor(0.0)
        parts = torch.zeros(1, 3), weights, torch.tensor(ids), 2
        meter.add(token_sums(*parts, loss_weights=weights, loss=nothing, masked=nothing), ["a", "b"])
    meter.end_step(1.0, torch.tensor(1.0))
    with_it = multiplier["a"] * 1.05 + multiplier["b"] * 0.5
    expected = with_it / (2 * multiplier["a"] + multiplier["b"])
    assert meter.result(lambda sums: 2 * sums)["echo/information"] == pytest.approx(expected)


@pytest.mark.parametrize("elsewhere", [{"normalization": "per_trajectory"}, {"roles": {"tool": 0.5}}])
def test_information_is_left_out_where_weights_are_more_than_ratios(elsewhere):
    meter = Meter(EchoConfig(1.0, turn_information=True, **elsewhere))
    add(meter, [1.0], [1])
    meter.end_step(1.0, torch.tensor(1.0))
    assert "echo/information" not in meter.result(lambda sums: sums)


def test_figures_of_nothing_are_left_out():
    meter = Meter(EchoConfig(turn_information=True))
    add(meter, [1.0], [0])
    meter.end_step(0.5, torch.tensor(1.0))
    figures = meter.result(lambda sums: sums)
    assert figures == {
        "echo/tokens": 0,
        "echo/coeff": 0.5,
        "echo/loss": 0.5,
        "echo/policy_silent": 0,
        "echo/masked_by_host": 1,
        "echo/tool/a/tokens": 0,
        "echo/tool/b/tokens": 0,
    }


def test_a_declared_tool_may_be_called_other():
    meter = Meter(EchoConfig())
    add(meter, [1.0, 2.0, 6.0], [1, 2, OTHER], tools=("a", "other"))
    meter.end_step(0.5, torch.tensor(1.0))
    figures = meter.result(lambda sums: sums)
    assert (figures["echo/tool/other/nll"], figures["echo/tool/other/tokens"]) == (4.0, 2.0)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sets(st.text(max_size=80) | st.integers(0, 300).map(str), max_size=150), max_size=4))
def test_names_that_a_policy_invents_make_no_more_than_so_many_figures(batches):
    tools = ["b"]
    for names in batches:
        longer = learn_tools(tools, names)
        assert longer[: len(tools)] == tools
        tools = longer
    assert len(tools) == len(set(tools)) <= LEARNT
    assert all(len(name) <= LEARNT_LENGTH for name in tools)
    assert learn_tools(["b"], ["c", "b", "a"]) == ["b", "a", "c"]
