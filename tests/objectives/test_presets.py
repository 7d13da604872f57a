"""Each preset's term and gradient against its own formula, written out in plain torch, whatever the split into micro-batches."""

import pytest
import torch

from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.objectives import Objectives, RunObjective, Span
from wm_plugin.objectives.echo import PRESETS
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.run import WEIGHTS, column
from wm_plugin.tokens.spans import Origin

LENGTH = 12
# of each trajectory: spans of the environment, some of them a host's error; the second one has none
SPANS = [
    [
        Origin(Span(2, 3, "tool", "a", False)),
        Origin(Span(3, 6, "tool", "a", True)),
        Origin(Span(8, 9, "user", None, True)),
    ],
    [],
    [Origin(Span(1, 5, "tool", "b", True), failed=True), Origin(Span(6, 10, "tool", "a", True))],
    [Origin(Span(4, 5, "tool", "b", False)), Origin(Span(5, 12, "tool", "b", True))],
]


def masks(select):
    """(rows, T) float64, 1 = the token is in a span that `select` takes."""
    found = torch.zeros(len(SPANS), LENGTH, dtype=torch.float64)
    for row, origins in enumerate(SPANS):
        for origin in origins:
            if select(origin):
                found[row, origin.span.start : origin.span.end] = 1
    return found


def mean_over_trajectories(nll, mask, parts):
    means = [(nll[row] * mask[row]).sum() / mask[row].sum() for row in range(len(nll)) if mask[row].any()]
    return sum(means) / len(nll)


def mean_over_the_batch(nll, mask, parts):
    return (nll * mask).sum() / mask.sum()


def sum_of_micro_batches(nll, mask, parts):
    return sum((nll[part] * mask[part]).sum() / mask[part].sum().clamp(min=1) for part in parts)


FORMULAS = {
    "blog": (0.05, mean_over_the_batch, lambda origin: origin.span.content and not origin.failed),
    "paper": (0.05, mean_over_trajectories, lambda origin: origin.span.content),
    "prime-rl": (0.1, mean_over_the_batch, lambda origin: origin.span.content and origin.span.role == "tool"),
    "verl-recipe": (0.05, mean_over_trajectories, lambda origin: origin.span.content),
    "rllm": (0.05, mean_over_trajectories, lambda origin: True),
    "openenv": (0.1, sum_of_micro_batches, lambda origin: True),
}


def term(objectives, logps, parts, ranks=1):
    """The term of the batch, over micro-batches `parts`, as the hosts put it together."""
    running = [RunObjective(name, one, limit="", tools=["a", "b"]) for name, one in objectives.items()]
    columns, counts = {}, {}
    environment = masks(lambda origin: True)
    for one in running:
        own = one.columns(one.weigh(SPANS, [False] * len(SPANS), Tally()), LENGTH)
        columns |= own
        counts[one.name] = one.objective.count(own[column(WEIGHTS, one.name)], environment, len(SPANS))
    total = torch.zeros((), dtype=torch.float64)
    for part in parts:
        loss, _ = objectives.add_terms(
            torch.zeros((), dtype=torch.float64),
            logps[part],
            {name: values[part] for name, values in columns.items()},
            coeffs={one.name: one.coeff(0) for one in running},
            num_tokens=counts,
            num_tools={one.name: len(one.tools) for one in running},
            ranks=ranks,
            masked=torch.zeros(()),
        )
        total = total + loss / ranks
    return total


@pytest.mark.parametrize(
    "parts", [[slice(0, 4)], [slice(0, 1), slice(1, 4)], [slice(0, 2), slice(2, 3), slice(3, 4)]], ids=len
)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_formula(name, parts):
    coeff, formula, select = FORMULAS[name]
    torch.manual_seed(0)
    logps = (-3 * torch.rand(len(SPANS), LENGTH, dtype=torch.float64)).requires_grad_()
    expected = coeff * formula(-logps, masks(select), parts)
    (wanted,) = torch.autograd.grad(expected, logps)
    found = term(Objectives.read(EchoConfig(preset=name)), logps, parts)
    (gradient,) = torch.autograd.grad(found, logps)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-9)


def test_per_role_divides_by_each_roles_tokens():
    torch.manual_seed(0)
    logps = (-3 * torch.rand(len(SPANS), LENGTH, dtype=torch.float64)).requires_grad_()
    config = EchoConfig(1.0, roles={"tool": 0.1, "user": 0.5}, normalization="per_role")
    objectives = Objectives.read(config)
    assert list(objectives) == ["role_tool", "role_user"]
    expected = 0.0
    for role, alpha in (("tool", 0.1), ("user", 0.5)):
        mask = masks(lambda o, role=role: o.span.content and not o.failed and o.span.role == role)
        expected = expected + alpha * mean_over_the_batch(-logps, mask, None)
    found = term(objectives, logps, [slice(0, 2), slice(2, 4)])
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    (gradient,) = torch.autograd.grad(found, logps)
    (wanted,) = torch.autograd.grad(expected, logps)
    torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-9)
    with pytest.raises(UserError, match=r"name the roles, e\.g\. roles: \[tool, user\]"):
        EchoConfig(0.1, normalization="per_role")


def test_what_is_written_wins_and_null_is_the_presets():
    assert EchoConfig(preset="prime") == EchoConfig(preset="prime-rl")
    written = EchoConfig(0.3, preset="rllm", include_errors=False)
    assert (written.coeff, written.include_errors, written.content_only) == (0.3, False, False)
    nulls = EchoConfig.read({"preset": "rllm", "coeff": None, "content_only": None, "normalization": None})
    assert nulls == EchoConfig(preset="rllm")
    assert EchoConfig.read({"coeff": None, "include_errors": None}) == EchoConfig()
    assert written.replace(select=None) == written
    with pytest.raises(UserError, match="preset is 'papr'; did you mean 'paper'"):
        EchoConfig(preset="papr")


def test_a_term_that_depends_on_the_split_is_refused_unless_asked_for():
    preset = Objectives.read(EchoConfig(preset="openenv"))
    preset.check_split(1)
    with pytest.raises(
        UserError, match="preset openenv divides by the tokens of each micro-batch, and a step has several"
    ):
        preset.check_split(2)
    Objectives.read(EchoConfig(0.1, normalization="per_micro_batch")).check_split(2)
