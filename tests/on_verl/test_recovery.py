"""Runs that go wrong: killed and resumed, with environments that fail."""

import json

import pytest

pytest.importorskip("verl")

from support.run_on_verl import check_rollouts_are_on_policy, run_recipe

pytestmark = pytest.mark.slow

SCHEDULE = ("wm.schedule=linear", "wm.schedule_steps=4", "wm.end_coeff=0.2")
BUDGET = ("wm.max_turns=null", "wm.turn_budget={start: 4, every: 10}")
SAVE = ("trainer.save_freq=1", "trainer.resume_mode=auto", "trainer.total_training_steps=4")

# Environments of a user's own, on the PYTHONPATH of the run. A step has 64 episodes.
FAILING = '''
from wm_plugin.worlds.grid import GridEnvironment


class Sometimes(GridEnvironment):
    """In the first step every other board cannot be reached, in the second one all episodes but the last one fail."""

    started = 0

    def reset(self, index, **columns):
        Sometimes.started += 1
        if index % 2 if Sometimes.started <= 64 else Sometimes.started % 64:
            raise ConnectionError("the world is down")
        return super().reset(**columns)


class Leaves(GridEnvironment):
    """Its episodes begin, and are lost in play."""

    @property
    def metrics(self):
        return super().metrics | {"lost": 1}
'''

ECHO_KEYS = {
    "echo/nll",
    "echo/perplexity",
    "echo/tokens",
    "echo/coeff",
    "echo/loss",
    "echo/tokens_in_loss",
    "echo/policy_silent",
    "echo/tool/move/nll",
    "echo/tool/move/tokens",
    "wm/lost",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recovery")


def test_kill_9_and_resume(folder):
    """It learns to predict the environment; schedule, turn budget and tools go on from the last complete checkpoint."""
    checkpoints = folder / "runs/echo_grpo_tiny"
    latest = checkpoints / "latest_checkpointed_iteration.txt"

    def second_checkpoint():
        return latest.exists() and int(latest.read_text()) >= 2

    killed = run_recipe("echo_grpo_tiny", folder, *SCHEDULE, *BUDGET, *SAVE, until=second_checkpoint)
    assert killed.code < 0
    done = int(latest.read_text())
    state = json.loads((checkpoints / f"global_step_{done}" / "wm_state.json").read_text())
    assert (state["tools"], state["objective"]["schedule"]) == (["move"], "linear")
    budget = state["turn_budget"]
    assert (budget["turns"], budget["iterations"], budget["episodes"]) == (4, done, 64 * done)
    # a checkpoint is complete before its step is logged: the last one may be missing there
    assert budget["total"] >= 64 * sum(killed.series("wm/env/turns")[:done]) - 1e-6

    # as if it had been annealed: what was written down counts, not what the config began with
    budget["turns"] = 2
    (checkpoints / f"global_step_{done}" / "wm_state.json").write_text(json.dumps(state))
    resumed = run_recipe("echo_grpo_tiny", folder, *SCHEDULE, *BUDGET, *SAVE, "wm.min_token_nll=0.001")
    assert resumed.code == 0, resumed.output[-3000:]
    assert resumed.series("training/global_step") == list(range(done + 1, 5))
    assert resumed.series("echo/coeff") == pytest.approx([1 - 0.2 * (step - 1) for step in range(done + 1, 5)])
    assert "wm.min_token_nll: None -> 0.001" in resumed.output
    state = json.loads((checkpoints / "global_step_4" / "wm_state.json").read_text())
    assert (state["turn_budget"]["turns"], state["turn_budget"]["iterations"]) == (2, 4)  # in the middle of a window
    assert resumed.series("wm/turn_budget") == resumed.series("wm/env/budget") == [2.0] * (4 - done)
    assert 0 < max(resumed.series("wm/env/turns")) <= 2
    # it went on learning from what it had learnt
    losses = [*killed.series("echo/nll")[:done], *resumed.series("echo/nll")]
    assert losses[0] > 4  # random weights over 97 characters: log 97 is 4.6
    assert resumed.series("echo/nll")[0] < losses[0]
    assert losses[-1] < losses[0] - 0.5
    for run in (killed, resumed):
        check_rollouts_are_on_policy(run)
        for step in run.steps:
            assert set(step) >= ECHO_KEYS
            assert step["echo/tokens"] == step["echo/tool/move/tokens"] > 0
            assert step["wm/lost"] == 0


def test_groups_lost_to_failing_environments(folder):
    """A share that is allowed is told, and trained without; a larger one stops the run."""
    (folder / "worlds.py").write_text(FAILING)
    path = {"PYTHONPATH": str(folder)}
    run = run_recipe("echo_grpo_tiny", folder, "wm.environment=worlds:Sometimes", "wm.max_lost=0.9", environment=path)
    (lost,) = run.series("wm/lost")
    assert 0 < lost < 0.9
    assert f"{round(64 * lost)} of 64 trajectories failed in the agent loop" in run.output
    assert "the world is down" in run.output
    assert run.code != 0
    assert "63 of 64 trajectories failed in the agent loop" in run.output
    assert "fix the environment, or allow more with wm.max_lost" in run.output


def test_episodes_lost_in_play_stop_the_run_before_it_trains(folder):
    (folder / "worlds.py").write_text(FAILING)
    run = run_recipe("echo_grpo_tiny", folder, "wm.environment=worlds:Leaves", environment={"PYTHONPATH": str(folder)})
    assert run.code != 0
    assert "64 of 64 episodes lost their world" in run.output
    assert "allow more with wm.max_lost" in run.output
    assert not run.steps
