"""Rewards that score nothing are warned of, stop a run, or fail it at its end."""

import pytest

from wm_plugin.errors import UserError
from wm_plugin.rewards.empty import EmptyRewardMonitor

NONE = {"wm/rwml/no_prediction": 1.0, "wm/rwml/rouge": 0.0, "loss": 0.0}
SOME = {"wm/rwml/no_prediction": 0.75}
DEAD = {"wm/judge/no_prediction": 0.0, "wm/judge/failure_share": 0.9999999}


def fed(*batches, stop=False, most=2):
    monitor = EmptyRewardMonitor(stop=stop, batches=most)
    return monitor, [monitor.record(batch) for batch in batches]


def test_batches_in_a_row_cause_one_warning_and_fail_the_run_at_its_end():
    monitor, (first, second, third) = fed(NONE, NONE, NONE)
    assert first is third is None
    assert second.startswith("reward rwml scored nothing in 2 batches of rollouts in a row: no answer had a prediction")
    with pytest.raises(UserError, match="reward rwml scored nothing in any batch of rollouts of the run: no answer"):
        monitor.at_end()


def test_they_stop_the_run_if_asked():
    with pytest.raises(UserError, match=r"2 batches of rollouts in a row: no answer .* \(on_silence is stop\)"):
        fed(SOME, NONE, NONE, stop=True)


def test_one_prediction_is_enough():
    monitor, warnings = fed(NONE, SOME, NONE, stop=True)
    assert warnings == [None] * 3
    assert monitor.at_end() is None


def test_a_shorter_run_gets_a_warning_since_a_model_may_have_to_learn_the_tag():
    monitor, _ = fed(NONE)
    assert "scored nothing in any batch" in monitor.at_end()


def test_a_judge_that_never_answered_fails_however_short_a_run_is():
    monitor, (warning,) = fed(DEAD)
    assert warning is None
    with pytest.raises(UserError, match="reward judge scored nothing in any batch.*: the judge gave no verdict"):
        monitor.at_end()


def test_rules_without_a_verifier_fail_too():
    monitor, _ = fed({"wm/rules/no_prediction": 0.0, "wm/rules/no_verifier": 1.0})
    with pytest.raises(UserError, match="reward rules scored nothing in any batch.*: no row had a verifier"):
        monitor.at_end()


def test_each_reward_is_watched_alone_and_other_figures_are_not_read():
    _, (first, second) = fed(DEAD | SOME, DEAD | SOME | {"wm/env/no_prediction_": 1.0})
    assert first is None
    assert "judge" in second
    assert "rwml" not in second
    assert fed({"wm/env/success": 1.0}, {})[0].at_end() is None
