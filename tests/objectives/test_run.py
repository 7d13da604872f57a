"""The loop over a run's objectives, with several of them: each has its own columns, N, coefficient and figures."""

import pickle
from typing import ClassVar

import pytest
import torch

from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.objectives import Objective, Objectives, RunObjective, column, echo_loss
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.run import TOOL_IDS, TRAJECTORIES, WEIGHTS
from wm_plugin.tokens.spans import Origin, Span

SPANS = [Span(1, 3, "tool", "a", True), Span(4, 5, "user", None, True)]


class Cubed(Objective):
    label: ClassVar[str] = "cubed"

    def loss(self, logps, weights, num_tokens):
        return (-logps.pow(3) * weights).sum() / num_tokens


def made(**objectives):
    objectives = Objectives(objectives)
    return objectives, [RunObjective(name, one, limit="L", tools=["a"]) for name, one in objectives.items()]


def batch(running):
    """One completion of six tokens: the columns of all objectives, and N of each."""
    columns, counts = {}, {}
    for one in running:
        spans = one.weigh([[Origin(span) for span in SPANS]], [False], Tally(environment=3))
        columns |= one.columns(spans, 6)
        counts[one.name] = one.objective.count(columns[column(WEIGHTS, one.name)], torch.ones(1, 6), 1)
    return columns, counts


def add(objectives, running, loss, logps, ranks=1):
    columns, counts = batch(running)
    return objectives.add_terms(
        loss,
        logps,
        columns,
        coeffs={one.name: one.coeff(0) for one in running},
        num_tokens=counts,
        num_tools={one.name: len(one.tools) for one in running},
        ranks=ranks,
        masked=torch.zeros(()),
    )


def test_each_objective_has_its_own_tokens_count_and_coefficient():
    objectives, running = made(tools=EchoConfig(0.5, roles=["tool"]), users=Cubed(0.1, roles=["user"]))
    columns, counts = batch(running)
    assert set(columns) == {
        f"{base}_{name}" for base in (WEIGHTS, TOOL_IDS, TRAJECTORIES) for name in ("tools", "users")
    }
    assert {name: int(count) for name, count in counts.items()} == {"tools": 2, "users": 1}
    assert objectives.counts(columns, torch.ones(1, 6)).tolist() == [[2, 2, 6], [1, 1, 6]]
    logps = -torch.arange(1.0, 7.0)[None]
    loss, sums = add(objectives, running, torch.tensor(7.0), logps.requires_grad_(), ranks=2)
    assert loss.item() == pytest.approx(7 + 2 * 0.5 * (2 + 3) / 2 + 2 * 0.1 * 5**3)
    (gradient,) = torch.autograd.grad(loss, logps)
    assert gradient.tolist() == [[0, -0.5, -0.5, 0, pytest.approx(-2 * 0.1 * 3 * 25), 0]]
    for one in running:
        one.meter("train").add(sums[one.name], one.tools)
        one.meter("train").end_step(one.coeff(0), torch.tensor(1.0))
    figures = {name: value for one in running for name, value in one.meter("train").result(lambda x: x).items()}
    assert (figures["echo/tools/nll"], figures["cubed/users/nll"]) == (2.5, 5.0)
    assert (figures["echo/tools/tool/a/tokens"], figures["cubed/users/coeff"]) == (2, 0.1)


def test_without_a_coefficient_the_hosts_tensor_goes_back():
    objectives, running = made(one=EchoConfig(0.0), two=EchoConfig(0.0, ["a"]))
    loss = torch.tensor(7.0, requires_grad=True)
    assert add(objectives, running, loss, torch.zeros(1, 6, requires_grad=True))[0] is loss


def test_an_objective_alone_takes_the_place_of_the_policy_loss():
    objectives, running = made(one=EchoConfig(0.5, policy_loss=False), two=EchoConfig(0.0))
    assert not objectives.policy_loss
    logps = -torch.ones(1, 6)
    assert add(objectives, running, torch.tensor(7.0), logps)[0] == 0.5 * echo_loss(logps, torch.ones(1, 6), 6.0)


def test_what_a_run_asks_of_all_objectives():
    objectives, _ = made(one=EchoConfig(0.0, zero_variance_groups="refill", max_refills=3), two=EchoConfig(0.5))
    assert (objectives.active, objectives.refills, objectives.max_refills, objectives.categorize) == (
        True,
        True,
        3,
        False,
    )
    sent = Objectives({"one": EchoConfig(0.5, select=lambda *_: True)}).transportable()
    assert pickle.loads(pickle.dumps(sent)) == {"one": EchoConfig(0.5)}


@pytest.mark.parametrize(
    "given", [Objective(0.1), 3, {}, None, {"coeff": 0.1}, {"one": EchoConfig(), "two": 0.1}], ids=str
)
def test_what_are_no_objectives(given):
    with pytest.raises(UserError, match=r"^world_model is .*; write world_model=EchoConfig\(coeff=0.05\), or several"):
        Objectives.read(given)


def test_the_guard_lowers_the_coefficient():
    one, unguarded = (
        RunObjective("", EchoConfig(0.4, guard=True), limit="L"),
        RunObjective("", EchoConfig(0.4), limit="L"),
    )
    for entropy in (1.0, 0.1):
        one.guard.after_step(nll=0.0, tokens=0, entropy=entropy)
    assert (one.coeff(0), one.guard_figures()["echo/guard/multiplier"]) == (0.2, 0.5)
    assert (unguarded.coeff(0), unguarded.guard, unguarded.guard_figures()) == (0.4, None, {})


def test_completions_that_are_left_out_whole():
    config = EchoConfig(1.0, zero_variance_groups="drop", select_rollout=lambda messages, reward: reward > 0)
    one = RunObjective("", config, limit="L", tools=["a"])
    origins = [Origin(span) for span in SPANS]
    rollouts = [([], 1.0), ([], 1.0), ([], 0.0), None]  # the last is padding
    facts = Tally(environment=12)

    def left(*, equal=(False, True, False, False), **settings):
        weighed = one.weigh([origins] * 4, equal, facts, **settings)
        assert all(spans is None or [weight for _, weight in spans] == [1.0, 1.0] for spans in weighed)
        return [spans is not None for spans in weighed]

    assert left(rollouts=rollouts) == [True, False, False, True]
    assert left() == [True, False, True, True]
    assert left(rollouts=rollouts, held_out=True) == [True] * 4
    assert [tally.selected for tally in one.tallies] == [6, 9]  # of trainings alone
    assert dict(one.tallies[0].left_out) == {
        **{("zero_variance_groups", name): count for name, count in (("a", 2), ("user", 1))},
        **{("select_rollout", name): count for name, count in (("a", 2), ("user", 1))},
    }
    assert facts == Tally(environment=12)
    with pytest.raises(ValueError, match="zip"):
        left(equal=(False,))


def test_a_file_names_the_class_of_an_objective():
    read = Objectives.read({"cubed": {"objective": f"{__name__}:Cubed", "coeff": 0.1}, "plain": {"coeff": 0.2}})
    assert read == {"cubed": Cubed(0.1), "plain": EchoConfig(0.2)}
    assert Objectives.read({"plain": {"objective": "echo", "coeff": 0.2}}) == {"plain": EchoConfig(0.2)}
    with pytest.raises(
        UserError, match=r"world_model\.one\.objective is 'json:loads', which is no objective; write echo"
    ):
        Objectives.read({"one": {"objective": "json:loads"}})
    with pytest.raises(UserError, match="there is no 'eco'; did you mean 'echo'"):
        Objectives.read({"one": {"objective": "eco"}})
