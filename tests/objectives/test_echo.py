"""The objective's arithmetic against naive loops, and its configuration's errors."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.objectives import Span, echo_loss
from wm_plugin.objectives.information import KEEP
from wm_plugin.tokens.spans import Ending, Origin

CONTENT = Span(0, 3, "tool", "a", True)


def weight_of(origin, config):
    ((_, weight),) = config.weigh([origin])
    return weight


@given(
    values=st.lists(st.tuples(st.floats(-20, 0), st.sampled_from([0.0, 0.07, 0.3, 1.0])), min_size=1, max_size=40),
    extra=st.integers(0, 50),
)
@settings(max_examples=50, deadline=None)
def test_loss_and_gradient_against_a_loop(values, extra):
    logps = torch.tensor([[v for v, _ in values]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([[w for _, w in values]])
    tokens = sum(w != 0 for _, w in values) + extra
    loss = echo_loss(logps, weights, torch.tensor(tokens))
    weights64 = weights[0].tolist()
    naive = sum(-w * v for (v, _), w in zip(values, weights64, strict=True)) / max(tokens, 1)
    assert loss.item() == pytest.approx(naive, abs=1e-12)
    loss.backward()
    assert torch.allclose(logps.grad[0], torch.tensor([-w / max(tokens, 1) for w in weights64], dtype=torch.float64))


def test_the_sum_over_micro_batches_is_the_whole():
    torch.manual_seed(0)
    logps, weights = -torch.rand(8, 5, dtype=torch.float64), (torch.rand(8, 5) > 0.6).float()
    tokens = EchoConfig().count(weights, torch.ones(8, 5), 8)
    parts = sum(echo_loss(logps[i : i + 1], weights[i : i + 1], tokens) for i in range(8))
    assert parts.item() == pytest.approx(echo_loss(logps, weights, tokens).item())


@pytest.mark.parametrize("tokens", [0, 1, 0.0, 1.0, torch.tensor(0), torch.tensor(1)])
def test_no_token_counts_as_one(tokens):
    assert echo_loss(torch.tensor([[-3.0]]), torch.ones(1, 1), tokens) == 3


def test_nothing_selected_adds_zero_with_a_gradient():
    logps = torch.full((2, 3), -torch.inf, requires_grad=True)
    loss = echo_loss(logps, torch.zeros(2, 3), torch.tensor(0))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logps.grad, torch.zeros(2, 3))


def test_half_precision_is_summed_in_float32():
    logps = torch.full((1, 4096), -1.001, dtype=torch.bfloat16)
    loss = echo_loss(logps, torch.ones(1, 4096), 4096)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(logps[0, 0].float().neg().item(), rel=1e-6)


def test_counts_are_members_not_weights():
    weights = torch.tensor([[0.3, 0.07, 0.0, 0.0]])
    environment = torch.tensor([[1, 1, 1, 0]])
    assert EchoConfig().count(weights, environment, 1).item() == 2
    assert EchoConfig(normalization="observation_tokens").count(weights, environment, 1).item() == 3
    assert EchoConfig(normalization="per_trajectory").count(weights, environment, 1).item() == 1


def test_floor_and_ceiling_are_inclusive():
    logps = torch.tensor([[-0.5, -1.0, -2.0, -3.0]])
    config = EchoConfig(1.0, min_token_nll=1.0, max_token_nll=2.0)
    assert config.within_bounds(logps, torch.ones(1, 4)).tolist() == [[0, 1, 1, 0]]
    assert EchoConfig().within_bounds(logps, torch.ones(1, 4)).tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("config", "span", "how", "weight"),
    [
        (EchoConfig(), CONTENT, {}, 1.0),
        (EchoConfig(), CONTENT._replace(content=False), {}, 0.0),
        (EchoConfig(content_only=False), CONTENT._replace(content=False), {}, 1.0),
        (EchoConfig(tools=["b"]), CONTENT, {}, 0.0),
        (EchoConfig(tools=["a"]), CONTENT, {}, 1.0),
        (EchoConfig(tools={"a": 0.3}), CONTENT, {}, 0.3),
        (EchoConfig(tools={"a": 0.3}), CONTENT._replace(tool=None), {}, 0.0),
        (EchoConfig(roles=["user"]), CONTENT, {}, 0.0),
        (EchoConfig(roles={"user": 2.0, "tool": 0.1}, tools={"a": 0.3}), CONTENT, {}, 0.1 * 0.3),
        (EchoConfig(roles={"user": 2.0, "tool": 0.0}), CONTENT, {}, 0.0),
        (EchoConfig(roles=["user", "tool"]), CONTENT, {}, 1.0),
        (EchoConfig(), CONTENT, {"failed": True}, 0.0),
        (EchoConfig(include_errors=True), CONTENT, {"failed": True}, 1.0),
        (EchoConfig(), CONTENT, {"ending": Ending.TRUNCATED}, 1.0),
        (EchoConfig(include_truncated=False), CONTENT, {"ending": Ending.TRUNCATED}, 0.0),
        (EchoConfig(select=lambda span, message: False), CONTENT, {}, 0.0),
        (EchoConfig(tools={"a": 2.0}, select=lambda span, message: message is None), CONTENT, {}, 2.0),
        (EchoConfig(), CONTENT, {"category": "echo"}, 1.0),
        (EchoConfig(turn_information=True), CONTENT, {"category": "echo"}, 0.05),
        (EchoConfig(turn_information={"echo": 0.2}), CONTENT, {"category": "echo"}, 0.2),
        (EchoConfig(turn_information={"echo": 0.2}), CONTENT, {"category": "transform"}, 0.5),
        (EchoConfig(tools={"a": 0.5}, turn_information=True), CONTENT, {"category": "transform"}, 0.25),
        (EchoConfig(tools=["b"], turn_information=True), CONTENT, {}, 0.0),
        (EchoConfig(turn_information=True), CONTENT, {"category": "echo", "failed": True}, 0.0),
        (EchoConfig(select=lambda *_: False, turn_information=True), CONTENT, {"category": "echo"}, 0.0),
    ],
)
def test_selection(config, span, how, weight):
    assert weight_of(Origin(span, **how), config) == weight


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"coeff": -0.1}, "coeff is -0.1; write a number >= 0"),
        ({"coeff": math.nan}, "coeff is nan"),
        ({"coeff": True}, "coeff is True"),
        ({"coeff": "high"}, "coeff is 'high'; write a number >= 0; 0 turns the objective off"),
        ({"end_coeff": math.inf}, "end_coeff is inf"),
        ({"coeff": 0.5, "end_coeff": 0.2}, "end_coeff has no effect without schedule: linear, cosine or step"),
        ({"coeff": 0.5, "max_refills": 3}, "max_refills has no effect without zero_variance_groups: refill"),
        ({"tools": 3}, r"tools is 3; write a list of names, e.g. \['search'\]"),
        (
            {"tools": {"a": -1}},
            r"tools is \{'a': -1\}; write a list of names, .* or \{name: multiplier of coeff >= 0\}",
        ),
        ({"roles": ["tols"]}, r"roles\[0\] is 'tols'; did you mean 'tool'\?"),
        ({"roles": ["tool", "usr"]}, r"roles\[1\] is 'usr'; did you mean 'user'\?"),
        ({"roles": [""]}, r"roles\[0\] is ''; there is 'environment', 'system', 'tool', 'user'"),
        ({"on_silence": "wran"}, r"on_silence is 'wran'; did you mean 'warn'\?"),
        ({"silent_batches": 0}, "silent_batches is 0; write a whole number of optimizer batches >= 1"),
        ({"silent_batches": True}, "silent_batches is True"),
        ({"normalization": "selected_token"}, "did you mean 'selected_tokens'"),
        ({"schedule": "lineer", "schedule_steps": 3}, "did you mean 'linear'"),
        ({"schedule": "linear"}, "has no length; write schedule_steps"),
        ({"schedule": "linear", "schedule_steps": 0}, "schedule_steps is 0"),
        ({"schedule_steps": 10}, "schedule_steps has no effect without schedule: linear, cosine or step"),
        ({"min_token_nll": 2.0, "max_token_nll": 1.0}, "no token would count"),
        ({"min_token_nll": -1.0}, "min_token_nll is -1.0"),
        ({"content_only": "maybe"}, "write true or false"),
        ({"policy_loss": False}, "policy_loss is false and coeff is 0: nothing would be trained; write coeff above 0"),
        (
            {"policy_loss": False, "coeff": 0.5, "schedule": "step", "schedule_steps": 3},
            "policy_loss is false and end_coeff is 0: nothing would be trained",
        ),
        (
            {"policy_loss": False, "coeff": 0.5, "guard": {"factor": 0}},
            "policy_loss is false and guard.factor is 0: nothing would be trained",
        ),
        (
            {"policy_loss": False, "coeff": 0.5, "tools": {"a": 0}},
            "policy_loss is false, and nothing would be trained: tools gives every tool that it names the multiplier 0",
        ),
        ({"select": 3}, "select is 3"),
        ({"zero_variance_groups": "skip"}, "zero_variance_groups is 'skip'"),
        ({"guard": "x"}, "guard is 'x'; write true, or some of"),
        ({"turn_information": "yes"}, "turn_information is 'yes'; write true, false, or ratios"),
        ({"turn_information": None}, "turn_information is None; write true, false, or ratios"),
        ({"turn_information": {"ecko": 1.0}}, "turn_information has no category 'ecko'; did you mean 'echo'"),
        ({"turn_information": {"echo": 0}}, r"turn_information\['echo'\] is 0; write a ratio > 0; 0 would change N"),
        ({"turn_information": {"echo": -1}}, r"turn_information\['echo'\] is -1; write a ratio > 0"),
    ],
)
def test_bad_values_are_refused_in_one_line(fields, message):
    with pytest.raises(UserError, match=message) as error:
        EchoConfig(**fields)
    assert "\n" not in str(error.value)


def test_from_mapping_takes_alpha_and_refuses_strangers():
    assert EchoConfig.read({"alpha": 0.05, "tools": ["a"]}) == EchoConfig(0.05, ["a"])
    with pytest.raises(UserError, match=r"wm has no field 'coef'; did you mean 'coeff'\?"):
        EchoConfig.read({"coef": 1.0}, "wm")
    with pytest.raises(UserError, match="gets coeff twice"):
        EchoConfig.read({"coeff": 1.0, "alpha": 1.0})


def test_alpha_is_coeff_and_a_misspelt_field_gets_a_near_miss():
    config = EchoConfig(alpha=0.05)
    assert config == EchoConfig(0.05)
    assert config.replace(tools=["a"]).coeff == 0.05
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
    assert EchoConfig.model_validate(config) is config
    with pytest.raises(ValidationError, match="input_value='x'"):
        EchoConfig.model_validate("x")
    for values in ({"coeff": 0.0}, {"coeff": 1.0}):
        with pytest.raises(UserError, match=r"gets coeff twice \(alpha is the same\); keep one"):
            EchoConfig(**values, alpha=0.05)
    with pytest.raises(UserError, match="gets coeff twice"):
        EchoConfig(0.05, alpha=0.05)
    with pytest.raises(UserError, match=r"EchoConfig has no field 'coef'; did you mean 'coeff'\?"):
        EchoConfig(coef=1.0)
    with pytest.raises(UserError, match="alpha|coeff is -1"):
        EchoConfig(alpha=-1)


def test_roles_in_a_config_may_be_one_name():
    assert EchoConfig.read({"roles": "tool"}).roles == ("tool",)
    assert EchoConfig.read({"roles": "tool, user"}).roles == ("tool", "user")


def test_turn_information_is_the_ratio_of_every_category_or_false():
    assert EchoConfig().turn_information is False
    paper = EchoConfig(turn_information=True)
    assert paper.turn_information == KEEP
    assert paper.replace(coeff=0.5).turn_information == KEEP
    for text, expected in {"True": KEEP, "false": False, '{"echo": 0.2}': {**KEEP, "echo": 0.2}}.items():
        assert EchoConfig.read({"turn_information": text}).turn_information == expected
    with pytest.raises(UserError, match="turn_information is 'ja'; write true, false, or ratios"):
        EchoConfig.read({"turn_information": "ja"})
    with pytest.raises(ValueError, match="weighs by the category of a turn, and Span.* has none"):
        weight_of(Origin(CONTENT), paper)


def test_active_is_about_the_whole_schedule():
    assert not EchoConfig().active
    assert EchoConfig(0.1).active
    assert EchoConfig(0.0, schedule="linear", schedule_steps=5, end_coeff=0.1).active
    assert EchoConfig(0.0).active is False
