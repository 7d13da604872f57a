import math

import pytest
import torch

from wm_plugin import EchoConfig
from wm_plugin.objectives.metrics import EchoMeter


def add(meter, nll, tool_ids, coeff=0.5, tools=("a", "b")):
    logps = -torch.tensor([nll])
    ids = torch.tensor([tool_ids])
    weights = (ids > 0).float()
    loss = torch.tensor(coeff)
    meter.add(
        logps, weights, ids, list(tools), loss_weights=weights * (logps < -1.5), loss=loss, masked=torch.tensor(1)
    )


def test_by_hand():
    meter = EchoMeter()
    add(meter, [1.0, 2.0, 9.0], [1, 2, 0])
    add(meter, [3.0, 9.0, 9.0], [2, 0, 0])
    meter.end_step(0.5, torch.tensor(0.0))
    add(meter, [2.0, 9.0, 9.0], [3, 0, 0])  # an origin without metrics of its own
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
        }
    )
    assert meter.result(lambda sums: sums) == {}


def test_ranks_are_summed_before_the_division():
    meter = EchoMeter("echo_tempered")
    add(meter, [1.0, 5.0, 9.0], [1, 1, 0])
    meter.end_step(0.5, torch.tensor(1.0))
    figures = meter.result(lambda sums: sums * 2)  # two ranks with the same tokens
    assert figures["echo_tempered/nll"] == 3.0
    assert figures["echo_tempered/tokens"] == 4
    assert figures["echo_tempered/coeff"] == 0.5


@pytest.mark.parametrize("tools", [None, ["a", "b"], {"a": 2.0, "b": 0.5}], ids=str)
def test_information_is_the_weight_that_turn_information_leaves(tools):
    meter = EchoMeter(config=EchoConfig(1.0, tools, turn_information=True))
    multiplier = tools if isinstance(tools, dict) else {"a": 1.0, "b": 1.0}
    for ids, ratios in (([[1, 1, 0]], [0.05, 1.0]), ([[2, 0, 0]], [0.5])):
        weights = torch.zeros(1, 3)
        for place, ratio in enumerate(ratios):
            weights[0, place] = ratio * multiplier["ab"[ids[0][place] - 1]]
        meter.add(
            torch.zeros(1, 3),
            weights,
            torch.tensor(ids),
            ["a", "b"],
            loss_weights=weights,
            loss=torch.tensor(0.0),
            masked=torch.tensor(0),
        )
    meter.end_step(1.0, torch.tensor(1.0))
    with_it = multiplier["a"] * 1.05 + multiplier["b"] * 0.5
    expected = with_it / (2 * multiplier["a"] + multiplier["b"])
    assert meter.result(lambda sums: 2 * sums)["echo/information"] == pytest.approx(expected)


def test_no_tokens_give_nan_not_zero():
    meter = EchoMeter(config=EchoConfig(turn_information=True))
    add(meter, [1.0], [0])
    meter.end_step(0.5, torch.tensor(1.0))
    figures = meter.result(lambda sums: sums)
    assert math.isnan(figures["echo/nll"])
    assert math.isnan(figures["echo/tool/a/nll"])
    assert math.isnan(figures["echo/information"])
    assert figures["echo/tokens"] == 0
