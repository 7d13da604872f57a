"""verl's own `main_ppo`, unchanged, on a CPU: our recipes from their scripts to the weights that the rollout samples from."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("verl")

import torch

from support.commands import ROOT, blocks
from support.run_on_verl import check_rollouts_are_on_policy, run_recipe, walking_policy
from wm_plugin.data.chat import conversation
from wm_plugin.data.host_dumps import RENDERED
from wm_plugin.data.readers import read
from wm_plugin.lab.evaluation.inspect import Inspector, Inspectors
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.objectives import EchoConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where runs find a policy that walks."""
    folder = tmp_path_factory.mktemp("verl")
    walking_policy(folder / "runs" / "tiny_random")
    return folder


@pytest.fixture(scope="module")
def refilled_gspo(folder):
    """Two steps of two updates each, of groups that all have an advantage."""
    two_updates = ("trainer.total_training_steps=2", "actor_rollout_ref.actor.ppo_mini_batch_size=4")
    refill = ("wm.zero_variance_groups=refill", "wm.max_refills=40")
    run = run_recipe("echo_gspo_tiny", folder, *refill, *two_updates, f"trainer.rollout_data_dir={folder / 'dumps'}")
    assert run.code == 0, run.output[-5000:]
    assert len(run.steps) == 2
    check_rollouts_are_on_policy(run)
    return run


def test_gspo_clips_ratios_of_sequences(refilled_gspo):
    """At the second update of a step the ratios of sequences lie far outside GSPO's clip, a thousandth of PPO's."""
    assert max(refilled_gspo.series("actor/pg_clipfrac")) > 0.1
    assert refilled_gspo.series("echo/nll")[1] < refilled_gspo.series("echo/nll")[0]


def test_groups_without_an_advantage_are_refilled(refilled_gspo):
    """The count of tokens that the trainer writes is that which the workers see, or the run stops."""
    assert refilled_gspo.series("echo/refill/unfilled") == [0, 0]
    assert sum(refilled_gspo.series("echo/refill/without_advantage")) > 0
    assert sum(refilled_gspo.series("echo/refill/prompts")) > 0
    assert refilled_gspo.series("echo/policy_silent") == [0, 0]
    assert min(refilled_gspo.series("echo/tokens")) > 0


def test_dumps_are_rendered_as_in_training(refilled_gspo, folder):
    """The text of each dumped rollout is that of its tokens. Validations, which the run lacks, are dumped by the same method."""
    tokenizer = make_tokenizer()
    ends = make_model(tokenizer, 0).generation_config.eos_token_id
    inspectors = Inspectors(partial(Inspector, tokenizer, EchoConfig(1.0), end_ids=ends))
    for step in (1, 2):
        rows = [json.loads(line) for line in (folder / "dumps" / f"{step}.jsonl").read_text().splitlines()]
        found = list(read(folder / "dumps" / f"{step}.jsonl"))
        assert len(found) == len(rows) > 0
        for one in found:
            tools = list(one.context.action_space)
            assert [tool["function"]["name"] for tool in tools] == ["move"]
            messages, row = conversation(one), rows[one.source.row]
            first = len(row["prompt"])
            ids = inspectors.of(one.metadata[RENDERED], tools).messages(messages[:first], messages[first:], tools).ids
            assert tokenizer.decode(ids, skip_special_tokens=True) == row["input"] + row["output"]
    assert inspectors.differ == 0


def test_evaluations_on_other_worlds(folder):
    """ECHO on two worlds at once, with groups refilled, figures of each world's held-out rows, and a guard that watches them."""
    if not (shutil.which("gforth") and shutil.which("bwrap")):
        pytest.skip("needs gforth and bubblewrap")
    tiny = folder / "runs" / "tiny_verl"
    if not tiny.exists():
        tiny.symlink_to("tiny_random")
    guard = "wm.guard={k: 1, share: 0.999, sets: [grid]}"
    run = run_recipe("echo_forth_code_tiny", folder, guard, "trainer.save_freq=2")
    assert run.code == 0, run.output[-5000:]
    assert len(run.steps) == 2
    said = run.output.count("; the coefficient is now 0.5 of what the config says")
    checkpoint = folder / "runs" / "echo_forth_code_tiny" / "global_step_2" / "wm_state.json"
    state = json.loads(checkpoint.read_text())["guard"]["state"]
    assert state["multiplier"] == 0.5**said
    assert state["step"] == 2  # with the validation of that step, which comes after the checkpoint
    assert state["entropy"] / state["start"] == run.steps[1]["echo/guard/entropy"]
    assert run.series("echo/coeff") == [0.5, 0.5]  # what it did at the second step would be for the third
    held_out = {name.removeprefix("val-aux/grid/echo/"): value for name, value in run.steps[1].items()}
    assert held_out["nll"] == held_out["tool/move/nll"] == pytest.approx(state["rising"][0][0])
    assert held_out["tokens"] == held_out["tool/move/tokens"] > 0
    assert held_out["nll"] < 10
    for world in ("grid", "forth"):
        assert [name for name in run.steps[-1] if name.startswith(("val-core/", "val-aux/")) and f"/{world}/" in name]
    assert all("echo/refill/prompts" in step for step in run.steps)


@pytest.mark.nightly
def test_the_grid_and_the_terminal(folder):
    """Like the grid and Forth, above, which is the same path through verl."""
    if not all(map(shutil.which, ("bwrap", "git", "make"))):
        pytest.skip("needs bubblewrap, git and make")
    tiny = folder / "runs" / "tiny_verl"
    if not tiny.exists():
        tiny.symlink_to("tiny_random")
    run = run_recipe("echo_terminal_grpo_tiny", folder)
    assert run.code == 0, run.output[-5000:]
    assert run.series("echo/coeff") == [0.05, 0.05]
    assert all(step["echo/tokens"] > 0 for step in run.steps)
    for world in ("grid", "terminal"):
        assert [name for name in run.steps[-1] if name.startswith(("val-core/", "val-aux/")) and f"/{world}/" in name]


def check_critic_updates(run, checkpoint, steps):
    updates = {}
    for model in ("actor", "critic"):
        states = torch.load(checkpoint / model / "optim_world_size_1_rank_0.pt", weights_only=False)["state"]
        updates[model] = {int(state["step"]) for state in states.values()}
    assert updates == {"actor": {steps}, "critic": {12 * steps}}
    assert run.steps[-1]["critic/vf_loss"] < run.steps[0]["critic/vf_loss"]


@pytest.mark.nightly
def test_ppo_updates_the_critic_twelve_times_a_policy_update(folder):
    """WMAct + ECHO, below, is PPO too, and is checked for the same."""
    run = run_recipe("echo_ppo_tiny", folder, "trainer.total_training_steps=2", "trainer.save_freq=2")
    assert run.code == 0, run.output[-5000:]
    check_critic_updates(run, folder / "runs" / "echo_ppo_tiny" / "global_step_2", 2)
    assert run.series("echo/nll")[1] < run.series("echo/nll")[0]
    check_rollouts_are_on_policy(run)


def test_wmacts_budget_reaches_the_next_rollout(folder):
    """With the world-model objective on top: WMAct + ECHO."""
    tiny = folder / "runs" / "tiny_verl"  # where WMAct's recipes look for a policy that walks
    if not tiny.exists():
        tiny.symlink_to("tiny_random")
    run = run_recipe("wmact_ppo_tiny", folder, "wm.coeff=1.0", "trainer.save_freq=3")
    assert run.code == 0, run.output[-5000:]
    check_critic_updates(run, folder / "runs" / "wmact_ppo_tiny" / "global_step_3", 3)
    budgets, turns = run.series("wm/turn_budget"), run.series("wm/env/turns")
    assert budgets == run.series("wm/env/budget")
    assert budgets[0] == 6 > budgets[-1]
    for before, mean, after in zip(budgets, turns, budgets[1:], strict=False):
        assert mean <= before
        most = range(math.ceil(mean), int(before) + 1)  # the maximum is not logged
        assert after in {max(1, min(before, math.ceil((mean + longest) / 2))) for longest in most}
    rewards, successes = run.series("critic/rewards/mean"), run.series("wm/env/success")
    # a reward is a success, less the share of moves that did nothing, and less a tenth where an answer was none
    assert all(-0.1 <= reward <= success for reward, success in zip(rewards, successes, strict=True))
    assert sum(rewards) < sum(successes)
    assert run.series("echo/nll")[-1] < run.series("echo/nll")[0]
    check_rollouts_are_on_policy(run)


@pytest.mark.nightly
def test_the_commands_of_the_page_train(tmp_path):
    """A whole run on a CPU, as a reader of docs/verl.md types it."""
    (block,) = [block for block in blocks(ROOT / "docs" / "verl.md", "bash") if "--random" in block]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", block], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    nll = [float(value) for value in re.findall(r"echo/nll:([\d.]+)", done.stdout)]
    assert len(nll) == 3
    assert nll[2] < nll[0]
