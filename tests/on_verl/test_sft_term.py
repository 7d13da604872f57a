"""The term on verl's SFT trainer: against plain transformers, on one process and two, and bit by bit verl's own at 0."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

pytest.importorskip("verl")

import torch
from transformers import AutoModelForCausalLM
from verl.trainer.sft_trainer import SFTTrainer, create_sft_dataset

from support.agent_sft import AGREED, naive, of_spans, write_rollouts
from support.agreement import make_model, read_tokenizer
from support.run_on_verl import run_recipe
from support.upstream import taken_from_host
from support.verl_recipes import composed, of_recipe
from wm_plugin.data.building import build
from wm_plugin.errors import UserError
from wm_plugin.hosting.hooks import missing_hooks
from wm_plugin.verl import support
from wm_plugin.verl.names import SEARCH_PATH
from wm_plugin.verl.sft_trainer import WorldModelSFTTrainer

TESTS = Path(__file__).parents[1]
CASES = {
    "split": {"ours": True, "settings": ["wm.coeff=0.5", "data.micro_batch_size_per_gpu=2"]},
    "whole": {"ours": True, "settings": ["wm.coeff=0.5", "wm.normalization=per_trajectory"]},
    "several": {
        "ours": True,
        "settings": ["wm.world_model={tools: {coeff: 0.5, tools: [look]}, users: {coeff: 0.2, roles: [user]}}"],
    },
    "observations": {"ours": True, "settings": ["wm.policy_loss=false", "wm.coeff=0.5"]},
    "off": {"ours": True, "settings": ["wm.coeff=0"]},
    "stock": {"ours": False, "settings": []},
}
for one in CASES.values():  # one batch has all rows
    one["settings"] = ["data.train_batch_size=8", "data.micro_batch_size_per_gpu=4", *one["settings"]]
for name in ("off", "stock"):
    CASES[name]["settings"] += ["data.val_files=${data.train_files}", "trainer.test_freq=1"]


def launch(folder, cases, processes):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VERL_PLATFORM": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    words = [str(TESTS / "support" / "sft_on_verl.py"), str(folder), json.dumps(cases)]
    done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: torch.load(folder / f"{name}.pt", weights_only=False) for name in cases}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    tokenizer = read_tokenizer()
    make_model(tokenizer).save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    build(write_rollouts(folder / "rollouts.jsonl"), "imitation", "verl", folder / "rows.parquet", tokenizer=tokenizer)
    return folder


@pytest.fixture(scope="module")
def one_process(rows):
    return launch(rows, CASES, 1)


def formula(folder, weights=None, **kwargs):
    model = AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32)
    found = pyarrow.parquet.read_table(folder / "rows.parquet").to_pylist()
    return naive(model, found, weights or of_spans(), **{"coeff": 0.5, "mask": "loss_mask", **kwargs})


def check(found, expected, loss):
    step, (gradient, *_) = found["logged"][0], found["gradients"]
    assert step["train/loss"] == pytest.approx(loss, rel=1e-5)
    assert torch.allclose(gradient, expected[2], rtol=1e-3, atol=1e-5 * float(expected[2].abs().max()))


@pytest.mark.slow
def test_loss_and_gradient_by_the_formula(rows, one_process):
    agent, environment, _ = expected = formula(rows)
    assert (agent, environment) == pytest.approx(AGREED, rel=1e-6)  # TRL's test has the same
    check(one_process["split"], expected, agent + 0.5 * environment)
    step = one_process["split"]["logged"][0]
    assert step["echo/nll"] == pytest.approx(environment, rel=1e-6)
    assert step["echo/loss"] == pytest.approx(0.5 * environment, rel=1e-5)
    assert (step["echo/coeff"], step["echo/policy_silent"]) == (0.5, 0)
    assert {"echo/tool/look/nll", "echo/tool/take/tokens"} <= {*step}


@pytest.mark.slow
def test_options_of_the_objective(rows, one_process):
    def means(row):
        weights = of_spans()(row)
        return [weight / max(sum(weights[1:]), 1) for weight in weights]

    agent, environment, _ = expected = formula(rows, means, divide=len)
    check(one_process["whole"], expected, agent + 0.5 * environment)
    parts = [
        formula(rows, of_spans(lambda s, k=key, v=value: float(s["content"] and s[k] == v)), coeff=coeff)
        for key, value, coeff in (("tool", "look", 0.5), ("role", "user", 0.2))
    ]
    step = one_process["several"]["logged"][0]
    assert step["echo/tools/nll"] == pytest.approx(parts[0][1], rel=1e-5)
    assert step["echo/users/nll"] == pytest.approx(parts[1][1], rel=1e-5)
    assert step["train/loss"] == pytest.approx(agent + 0.5 * parts[0][1] + 0.2 * parts[1][1], rel=1e-5)
    alone = formula(rows, policy=False)
    check(one_process["observations"], alone, 0.5 * alone[1])
    assert one_process["observations"]["logged"][0]["echo/policy_silent"] == 1


@pytest.mark.slow
def test_bit_identical_to_verl_at_0(one_process):
    ours, stock = one_process["off"], one_process["stock"]
    for name in ("parameters", "random"):
        assert torch.equal(ours[name], stock[name])
    assert all(torch.equal(a, b) for a, b in zip(ours["gradients"], stock["gradients"], strict=True))
    assert len(stock["gradients"]) == 2
    for name in ("train/loss", "train/grad_norm", "val/loss"):
        losses = [[step[name] for step in one["logged"] if name in step] for one in (ours, stock)]
        assert losses[0] == losses[1], name
        assert len(losses[0]) == 2, name
    trained = [step for step in ours["logged"] if "train/loss" in step]
    validated = [step for step in ours["logged"] if "val/loss" in step]
    # of the same weights and rows
    assert validated[0]["val/echo/nll"] == pytest.approx(trained[1]["echo/nll"], rel=1e-5)


@pytest.mark.slow
def test_two_ranks_count_together(rows):
    """A rank has four of the rows; their observations are unequal."""
    agent, environment, _ = expected = formula(rows)
    settings = [
        "wm.coeff=0.5",
        "data.train_batch_size=8",
        "data.micro_batch_size_per_gpu=2",
        "trainer.total_training_steps=1",
    ]
    found = launch(rows, {"two": {"ours": True, "settings": settings}}, 2)["two"]
    check(found, expected, agent + 0.5 * environment)
    assert found["logged"][0]["echo/nll"] == pytest.approx(environment, rel=1e-5)
    assert found["logged"][0]["echo/tokens"] == found["logged"][0]["echo/tool/look/tokens"] + found["logged"][0][
        "echo/tool/take/tokens"
    ] + sum(s["end"] - s["start"] for r in table(rows) for s in r["env_spans"] if s["role"] == "user" and s["content"])


def table(folder):
    return pyarrow.parquet.read_table(folder / "rows.parquet").to_pylist()


# -- what is refused, and what verl is asked for ---------------------------------------------------------------------------------


def config(*settings):
    search = f"hydra.searchpath=[pkg://verl.trainer.config,{SEARCH_PATH}]"
    return composed("sft_tiny", search, "+wm=sft", *settings)


def test_the_group_has_lambda_of_actobs():
    (objective,) = support.check_sft(config()).values()
    assert (objective.coeff, objective.roles, objective.normalization) == (1.0, None, "selected_tokens")
    assert support.check_sft(config("wm.preset=prime-rl"))[""].coeff == 0.1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("+wm.guard=true", "wm.guard: the state of a guard has no place"),
        ("+wm.environment=grid", "wm.environment is of rollouts"),
        ("+wm.zero_variance_groups=drop", "wm.zero_variance_groups is drop"),
        ("+wm.tempered=true", "wm.tempered is true"),
        ("+wm.cooeff=1", "wm has no field 'cooeff'; did you mean 'coeff'"),
        ("engine.strategy=megatron", "engine.strategy is megatron"),
        ("data.pad_mode=right", "data.pad_mode is right"),
        ("wm.preset=openenv", "preset openenv divides by the tokens of each micro-batch"),
    ],
)
def test_refused_in_one_line(setting, message):
    settings = [setting, *(["data.micro_batch_size_per_gpu=1"] if "openenv" in setting else [])]
    with pytest.raises(UserError, match=message) as error:
        support.check_sft(config(*settings))
    assert "\n" not in str(error.value)


def test_verls_own_main_does_not_leave_the_term_out(rows):
    with pytest.raises(UserError, match="start with -m wm_plugin.verl.sft_trainer in its place"):
        create_sft_dataset(str(rows / "rows.parquet"), config().data, read_tokenizer(), None)


def test_the_list_of_hooks_is_closed():
    names = {hook.path.removeprefix("SFTTrainer.") for hook in support.SFT_HOOKS}
    assert taken_from_host(WorldModelSFTTrainer, SFTTrainer) <= {name.rpartition(".")[2] for name in names}
    assert missing_hooks(support.SFT_HOOKS) == []


@pytest.mark.parametrize("name", ["agent_sft_echo", "agent_sft_echo_tiny"])
def test_the_recipe_has_the_group(name):
    (objective,) = support.check_sft(of_recipe(name)).values()
    assert objective.coeff == 1.0
    (objective,) = support.check_sft(of_recipe(name, "--coeff", "0.3")).values()
    assert objective.coeff == 0.3


@pytest.mark.nightly
def test_the_term_stays_from_the_warm_start_to_rl(tmp_path):
    """RL starts from what fine-tuning knew of the world."""
    warm = run_recipe("agent_sft_echo_tiny", tmp_path, "--steps", "20")
    assert warm.code == 0, warm.output[-3000:]
    found = []
    for model in ("tiny_random", "agent_sft_echo_tiny/model"):
        steps = ("--steps", "1", "--coeff", "0.05", "trainer.save_freq=-1", "--out", f"runs/rl/{model}")
        run = run_recipe("echo_grpo_tiny", tmp_path, "--model", f"runs/{model}", *steps)
        assert run.code == 0, run.output[-3000:]
        assert run.series("echo/coeff") == [0.05]
        found += run.series("echo/nll")
    cold, after = found
    assert after < cold - 1
