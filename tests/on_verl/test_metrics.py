"""The figures that the workers' sums become: by hand, whatever the split, and through verl's own reduction."""

import pytest

pytest.importorskip("verl")

import torch
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from support import on_verl
from support.bare_on_verl import bare
from support.on_verl import TOOLS, make_batch, make_rollouts, policy_loss, with_term
from support.verl_recipes import stock
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.objectives.empty_batches import EmptyBatchMonitor, Tally
from wm_plugin.verl.names import COUNTS, SUMS

COEFF = 0.37
ROLLOUTS = make_rollouts(8, silent=[5])


@pytest.fixture(scope="module")
def nlls(worker):
    """(T,) of each rollout's response, by plain transformers."""
    model = on_verl.plain_model(worker)
    found = []
    for rollout in ROLLOUTS:
        ids = torch.tensor([[*rollout.prompt, *rollout.response]])
        with torch.no_grad():
            logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        found.append(-logps.gather(-1, ids[0, 1:, None])[-len(rollout.response) :, 0])
    return found


def by_hand(nlls, rows, echo):
    """The sums of one update: NLL, tokens, those inside the bounds, the term, masked, weight; NLL and tokens by tool."""
    tools = on_verl.tool_names(echo)
    total, tokens, inside, term, weight, per_tool = 0.0, 0, 0, 0.0, 0.0, {tool: [0.0, 0] for tool in tools}
    for row in rows:
        for start, end, _role, tool, content in ROLLOUTS[row].spans:
            multiplier = 1.0 if echo.tools is None else dict(echo.tools).get(tool, 0.0)
            if echo.turn_information:
                multiplier *= echo.turn_information[on_verl.CATEGORIES[tool]]
            for token in range(start, end) if content and multiplier else ():
                nll = nlls[row][token].item()
                total, tokens, weight = total + nll, tokens + 1, weight + multiplier
                per_tool[tool] = [per_tool[tool][0] + nll, per_tool[tool][1] + 1]
                if nll >= (echo.min_token_nll or 0):
                    inside, term = inside + 1, term + multiplier * nll
    by_tool = (x for tool in tools for x in per_tool[tool])
    return [total, tokens, inside, echo.coeff * term / tokens, 0, weight, *by_tool, 0, 0]  # no other tools


def measured(worker, echo, rollouts=ROLLOUTS, **settings):
    return on_verl.update(worker, with_term(policy_loss(), echo), make_batch(rollouts, echo, **settings))


SPLITS = [
    {"micro_batch_size_per_gpu": 1},
    {"micro_batch_size_per_gpu": 2},
    {"micro_batch_size_per_gpu": 8},
    {"use_dynamic_bsz": True, "max_token_len_per_gpu": 110},
]


@pytest.mark.parametrize("settings", SPLITS, ids=["1", "2", "8", "dynamic"])
def test_sums_by_hand_whatever_the_split(worker, nlls, settings):
    echo = EchoConfig(COEFF, {"run_code": 0.3, "lookup_max": 1.0, "admin": 0.07}, min_token_nll=4.5)
    sums = measured(worker, echo, **settings).sums
    expected = by_hand(nlls, range(8), echo)
    assert sums == pytest.approx(expected, rel=1e-6)
    assert 0 < sums[2] < sums[1] == expected[1]


def test_a_coefficient_of_0_is_measured_all_the_same(worker, nlls):
    echo = EchoConfig(0.0)
    assert measured(worker, echo).sums == pytest.approx(by_hand(nlls, range(8), echo), rel=1e-6)


def test_the_loss_that_verl_logs_has_the_term_in_it(worker, nlls):
    echo = EchoConfig(COEFF)
    stock = on_verl.update(worker, policy_loss(), make_batch(ROLLOUTS))
    ours = measured(worker, echo)
    assert ours.losses[0] - stock.losses[0] == pytest.approx(by_hand(nlls, range(8), echo)[3], rel=1e-5)  # in float32
    assert {name for name in ours.metrics if not name.startswith(SUMS)} == set(stock.metrics)
    assert ours.metrics["actor/pg_loss"] == stock.metrics["actor/pg_loss"]


def test_padding_rows_change_no_figure(worker):
    echo = EchoConfig(COEFF)
    rollouts = ROLLOUTS[:6]
    padded = [*rollouts, *make_rollouts(0, padding=2)]
    one, other = (measured(worker, echo, rows, micro_batch_size_per_gpu=2).sums for rows in (padded, rollouts))
    assert one == pytest.approx(other, rel=1e-6)


class Workers:
    """The worker group of one worker, without Ray: it gets what the trainer sends along with a batch."""

    def __init__(self, worker, rollouts, echo):
        self.worker, self.rollouts, self.echo = worker, rollouts, echo

    def update_actor(self, batch):
        data = make_batch(self.rollouts, self.echo, micro_batch_size_per_gpu=2)
        tu.assign_non_tensor(data, **batch.extra_info)
        self.worker.set_loss_fn(with_term(policy_loss(), self.echo))
        return self.worker.train_mini_batch(data)


def step(worker, echo, rollouts=ROLLOUTS, mini=8, silence=None, total=9, updates=1):
    """The metrics of the trainer's `_update_actor`."""
    overrides = [f"actor_rollout_ref.actor.ppo_mini_batch_size={mini}", "actor_rollout_ref.rollout.n=1"]
    config = stock(*overrides, groups=None)
    trainer = bare(
        echo,
        config=config,
        global_steps=1,
        total_training_steps=total,
        parameter_sync_step=updates,
        actor_rollout_wg=Workers(worker, rollouts, echo),
        tools=on_verl.tool_names(echo),
        _wm_selected={"": int(make_batch(rollouts, echo)[COUNTS].sum())},
    )
    (one,) = trainer._wm_running
    one.monitor = silence or one.monitor
    one.tallies.append(Tally(environment=sum(rollout.mask.count(0) for rollout in rollouts)))
    keys = [f"{row}_0_0" for row in range(len(rollouts))]
    metrics = {}
    trainer._update_actor(KVBatchMeta(keys=keys, tags=[{}] * len(keys), partition_id="train", extra_info={}), metrics)
    return metrics


def test_what_the_trainer_logs(worker, nlls):
    """Names with "max" and "min" in them too, by which verl would take the largest and the smallest of its two updates."""
    assert any("max" in tool for tool in TOOLS)
    assert any("min" in tool for tool in TOOLS)
    echo = EchoConfig(COEFF, turn_information=True)
    metrics = step(worker, echo, mini=4)
    first, second = by_hand(nlls, range(4), echo), by_hand(nlls, range(4, 8), echo)
    total = [a + b for a, b in zip(first, second, strict=True)]
    expected = {
        "echo/nll": total[0] / total[1],
        "echo/tokens": total[1] / 2,
        "echo/tokens_in_loss": 1.0,
        "echo/coeff": COEFF,
        "echo/loss": total[3] / 2,
        "echo/policy_silent": 0.0,
        "echo/masked_by_host": 0.0,
        "echo/information": total[5] / total[1],
    }
    for index, tool in enumerate(sorted(TOOLS)):
        nll, tokens = total[6 + 2 * index :][:2]
        assert first[7 + 2 * index] != second[7 + 2 * index]
        expected |= {f"echo/tool/{tool}/nll": nll / tokens, f"echo/tool/{tool}/tokens": tokens / 2}
    ours = {name: value for name, value in metrics.items() if "echo/" in name}
    assert ours.pop("echo/perplexity") == pytest.approx(torch.tensor(expected["echo/nll"]).exp().item(), rel=1e-5)
    assert ours == pytest.approx(expected, rel=1e-6)
    assert not [name for name in metrics if SUMS in name]


def test_updates_without_a_reward_signal_are_counted(worker, caplog):
    rollouts = [rollout._replace(advantage=0.0) if row < 4 else rollout for row, rollout in enumerate(ROLLOUTS)]
    metrics = step(worker, EchoConfig(COEFF), rollouts, mini=4)
    assert metrics["echo/policy_silent"] == 0.5
    assert "all advantages of an optimizer step were 0" in caplog.text


def test_a_step_without_a_token_logs_no_figure_of_nothing_and_says_so(worker, caplog):
    echo = EchoConfig(COEFF, roles=["user"], on_silence="stop", silent_batches=2)
    silence = EmptyBatchMonitor(echo)
    metrics = step(worker, echo, mini=4, silence=silence)
    figures = {name: value for name, value in metrics.items() if "echo/" in name}
    assert figures == {
        "echo/tokens": 0,
        "echo/coeff": COEFF,
        "echo/loss": 0,
        "echo/policy_silent": 0,
        "echo/masked_by_host": 0,
        **{f"echo/tool/{tool}/tokens": 0 for tool in TOOLS},
    }
    (warning,) = [record.getMessage() for record in caplog.records if "no token to train on" in record.getMessage()]
    assert "in an optimizer batch" in warning
    with pytest.raises(UserError, match=r"in 2 optimizer batches in a row: .* \(on_silence is stop\)"):
        step(worker, echo, mini=4, silence=silence)


def test_a_last_step_that_trained_nothing_is_said(worker, caplog):
    rollouts = [rollout._replace(advantage=0.0) for rollout in make_rollouts(4, silent=range(4))]
    for unfinished in ({"total": 2}, {"total": 1, "updates": 2}):
        step(worker, EchoConfig(COEFF), rollouts, mini=4, **unfinished)
    assert "no token to train on" not in caplog.text
    step(worker, EchoConfig(COEFF), rollouts, mini=4, total=1)
    assert "its advantages were all 0 too, so that it trained nothing" in caplog.text
    assert "term alone" not in caplog.text


def test_coefficient_0_and_a_step_with_tokens_are_quiet(worker, caplog):
    for echo in (EchoConfig(0.0, roles=["user"]), EchoConfig(COEFF)):
        step(worker, echo.replace(on_silence="stop", silent_batches=1))
    assert "no token to train on" not in caplog.text


def test_bounds_that_no_token_is_inside_of_are_said(worker, caplog):
    step(worker, EchoConfig(COEFF, min_token_nll=1e6))
    assert "min_token_nll 1000000.0 leaves out all " in caplog.text
