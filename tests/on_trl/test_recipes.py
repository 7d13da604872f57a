"""Every recipe for TRL: the papers' constants, its rows, and the tiny ones trained."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.on_trl import NEEDS_ENVIRONMENTS
from support.papers import CONSTANTS, EVALUATED, LEVELS
from support.scripts import RECIPES, flags, trl_words
from wm_plugin.hosting.tags import in_tags
from wm_plugin.lab.report.sources import collect
from wm_plugin.trl import train
from wm_plugin.worlds.maze import MazeEnvironment
from wm_plugin.worlds.sokoban import SokobanEnvironment
from wm_plugin.worlds.taxi import TaxiEnvironment
from wm_plugin.worlds.wrappers.rewarded import rewarded

FORTH = ["echo_forth_all", "echo_forth_code"]


def on_one_gpu(name, *more, **variables):
    """A recipe as its launcher has it; a batch of evaluation has to hold a whole group on one GPU."""
    one_gpu = ["--use_cpu", "true", "--bf16", "false", "--use_vllm", "false", "--per_device_eval_batch_size", "8"]
    return train.parse([*trl_words(name, *more, **variables), *one_gpu])


@pytest.mark.parametrize("name", CONSTANTS)
def test_the_papers_constants(name):
    gpus = 32 if name.endswith("glm") else 8
    # what so many GPUs take, on one
    wide = ("--per_device_train_batch_size", str(gpus)) if name.endswith(("500", "glm")) else ()
    script, config, model, _ = on_one_gpu(name, *wide)
    echo, budget = config.echo_config(), config.make_turn_budget()
    found = {
        "model": model.model_name_or_path,
        "completions": config.per_device_train_batch_size * config.gradient_accumulation_steps * (1 if wide else gpus),
        "group": config.num_generations,
        "coeff": config.echo_coeff,
        "tools": echo.tools,
        "zero_variance_groups": echo.zero_variance_groups,
        "steps": config.max_steps,
        "rate": config.learning_rate,
        "optimizer": config.optimizer,
        "warmup": config.warmup_steps,
        "weight_decay": config.weight_decay,
        "temperature": config.temperature,
        "turns": config.max_tool_calling_iterations,
        "turn_tokens": (config.generation_kwargs or {}).get("max_tokens"),
        "response": config.max_completion_length,
        "protocol": script.protocol,
        "turn_budget": budget and (budget.start, budget.every),
    }
    assert {key: found[key] for key in CONSTANTS[name]} == CONSTANTS[name]
    flagged = on_one_gpu(name, "--coeff", "1.0", "--logging_steps", "7", *wide)[1]
    assert (flagged.echo_coeff, flagged.logging_steps) == (1.0, 7)


def all_rows(script):
    """The rows of training, and of each evaluation."""
    return train._rows(script, None, "train"), train._rows(script, None, "eval")


@pytest.mark.parametrize("name", ["echo_grpo", "echo_gspo"])
def test_the_rows_of_sql(name):
    script, *_ = on_one_gpu(name)
    assert train.run_config(script).factory.__name__ == "SqlEnvironment"
    for split in ("train", "eval"):
        getattr(script, f"{split}_rows_kwargs")["count"] = 2
    assert [len(rows) for rows in all_rows(script)] == [2, 2]


@pytest.mark.parametrize("turns", [10, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORTH)
def test_forths_rows_and_evaluations_on_other_worlds(name, turns):
    pytest.importorskip("bm25s")
    script, config, *_ = on_one_gpu(name, TURNS=str(turns))
    assert config.max_tool_calling_iterations == max(turns, 12)  # wordle and sql take 12
    assert set(train.run_config(script).factory) == set(EVALUATED)
    rows, sets = all_rows(script)
    assert len(rows) == len(set(rows["problem"])) == 432
    assert set(rows["level"]) == set("012345")
    assert {name: len(one) for name, one in sets.items()} == dict.fromkeys(EVALUATED, 64)
    assert all(set(one["environment"]) == {name} for name, one in sets.items())
    assert (set(sets["forth"]["level"]), set(sets["forth"]["max_turns"])) == ({"6"}, {turns})
    assert set(rows["max_turns"]) == {turns}


def test_deepdives_rows():
    pytest.importorskip("bm25s")
    for turns in (200, 10):
        script, config, *_ = on_one_gpu("echo_deepdive", TURNS=str(turns))
        assert config.max_tool_calling_iterations == max(turns, 12)
        rows, sets = all_rows(script)
        assert (len(rows), set(rows["corpus"]), set(sets["deepdive"]["corpus"])) == (2230, {"1"}, {"2"})
        # the world's own limit needs no column
        assert set(rows["max_turns"]) == {10} if turns == 10 else "max_turns" not in rows.column_names
        assert {name: len(one) for name, one in sets.items()} == dict.fromkeys(EVALUATED, 64)


def test_swes_rows():
    script, config, *_ = on_one_gpu("echo_swe")
    assert config.max_tool_calling_iterations == 20
    rows, sets = all_rows(script)
    assert (len(rows), len(set(rows["task"]))) == (2440, 121)
    assert {name: len(set(one["task"])) for name, one in sets.items()} == {"seen": 16, "unseen": 62}


def test_alfworlds_rows_name_the_turns_and_ask_for_thoughts():
    script, *_ = on_one_gpu("policy_alfworld")
    assert script.train_rows_kwargs["count"] == 2048
    for chosen in (script.train_rows_kwargs, *script.eval_rows_kwargs.values()):
        assert (chosen["max_turns"], chosen["think"]) == (15, True)
    worlds = on_one_gpu("policy_tau2")[0].train_rows_kwargs["environments"]
    assert sum(one["count"] for one in worlds.values()) == 178  # tau2's own number of turns is 30


def test_wmacts_worlds_and_held_out_levels_in_one_turn_and_in_many():
    for module in ("reasoning_gym", "mazelib", "gymnasium"):
        pytest.importorskip(module)
    script, config, *_ = on_one_gpu("wmact_grpo")
    assert (config.beta, config.num_generations_eval, config.num_iterations) == (0, 8, 1)
    worlds = train.run_config(script).factory
    classes = {"sokoban": SokobanEnvironment, "maze": MazeEnvironment, "taxi": TaxiEnvironment}
    reward = {"rescale": True, "format_penalty": 0.1}
    assert worlds == {name: in_tags(rewarded(world, **reward)) for name, world in classes.items()}
    assert script.train_rows_kwargs == {"environments": {"sokoban": 4000}, "seed": 0}
    script.train_rows_kwargs = {"environments": {"sokoban": 2}, "seed": 0}
    for arguments in script.eval_rows_kwargs.values():
        (options,) = arguments["environments"].values()
        assert (options["count"], options["held_out"]) == (256, True)
        options["count"] = 2
    trained, sets = all_rows(script)
    assert trained["environment"] == ["sokoban"] * 2
    assert set(sets) == {f"{name}{end}" for name in LEVELS for end in ("", "_single")}
    for name, level in LEVELS.items():
        many, single = sets[name], sets[f"{name}_single"]
        world = name.partition("_")[0]
        column = "state" if world == "taxi" else "board"
        assert many[column] == single[column]
        assert (many["environment"], many["level"], single["max_turns"]) == ([world] * 2, [level] * 2, [1, 1])
        assert "max_turns" not in many.column_names
        environment = worlds[world]()
        assert "<action>" in environment.reset(**single[0])
        assert environment.max_turns == 1
        assert not set(map(str, many[column])) & set(map(str, trained["board"]))


# -- the tiny ones ------------------------------------------------------------------------------------------------------------


def trained(arguments, policy, folder, capsys, **fields):
    """Two steps, with an evaluation after them: the rows of the log."""
    settings = {"model_name_or_path": policy, "output_dir": folder, "max_steps": 2}
    words = flags(**settings, **fields)
    assert train.main([*arguments, *words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["steps"] == 2
    assert (folder / "model.safetensors").exists()
    (run,) = collect([str(folder)]).runs  # as `wm report` does
    assert run.values["echo/coeff"]
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


@NEEDS_ENVIRONMENTS
@pytest.mark.parametrize("name", ["echo_grpo_tiny", "echo_gspo_tiny"])
def test_every_tiny_recipe_trains(name, policy, tmp_path, capsys):
    log = trained(trl_words(name), policy, tmp_path, capsys, train_rows_kwargs={"count": 32})
    assert log[0]["echo/coeff"] == 1.0


@NEEDS_ENVIRONMENTS
@pytest.mark.skipif(not (shutil.which("gforth") and shutil.which("bwrap")), reason="needs gforth and bubblewrap")
@pytest.mark.parametrize(
    "name", [*(pytest.param(one, marks=pytest.mark.slow) for one in (FORTH[0], "echo_swe")), FORTH[1], "echo_deepdive"]
)
def test_the_tiny_recipe_trains_and_evaluates_on_both_worlds(name, policy, tmp_path, capsys):
    world = "forth" if name in FORTH else name.removeprefix("echo_")
    if world == "deepdive":
        pytest.importorskip("bm25s")
    rows = {"grid": 24, world: {"count": 8, "max_turns": 4}}
    held_out = {"seed": 1, "held_out": True}
    log = trained(
        trl_words(f"{name}_tiny"),
        policy,
        tmp_path,
        capsys,
        eval_steps=2,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        train_rows_kwargs={"environments": rows},
        eval_rows_kwargs={name: {"environments": {name: 2}} | held_out for name in rows},
    )
    assert all("echo/refill/prompts" in row for row in log if "loss" in row)
    for name in rows:
        (row,) = [row for row in log if f"eval_{name}_loss" in row]
        assert f"eval_{name}_wm/env/success" in row


@NEEDS_ENVIRONMENTS
def test_wmacts_tiny_recipe_trains(policy, tmp_path, capsys):
    """With sets of held-out rows whose figures have names of their own, and what the JSON flags say."""
    sets = {"seen": {"count": 4, "seed": 0}, "unseen": {"count": 4, "seed": 1, "held_out": True}}
    log = trained(
        ["--config", str(RECIPES / "trl" / "wmact_grpo_tiny.yaml")],
        policy,
        tmp_path,
        capsys,
        eval_steps=2,
        per_device_eval_batch_size=16,
        train_rows_kwargs={"count": 32},
        eval_rows_kwargs=sets,
        turn_budget={"start": 5, "every": 1},
        episode_reward={"rescale": True, "format_penalty": 0.0},
        echo_coeff=0.5,
    )
    # the tiny policies are random here: a turn is rarely a move
    steps = [row for row in log if "loss" in row]
    assert steps[0]["wm/turn_budget"] == steps[0]["wm/env/budget"] == 5
    assert steps[1]["wm/turn_budget"] < 5
    assert steps[1]["wm/env/turns"] <= steps[1]["wm/turn_budget"]
    for name in sets:
        (row,) = [row for row in log if f"eval_{name}_loss" in row]
        assert row[f"eval_{name}_wm/env/budget"] == 5
        assert row[f"eval_{name}_echo/coeff"] == 0.5
        assert not [key for key in row if key.startswith(("eval_wm", "eval_echo"))]


@NEEDS_ENVIRONMENTS
def test_the_tiny_recipe_of_predictions_trains(policy, tmp_path, capsys):
    """A random policy predicts nothing; what predictions are worth is in test_predictions.py."""
    log = trained(
        trl_words("prediction_grpo_tiny"),
        policy,
        tmp_path / "out",
        capsys,
        eval_steps=2,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        train_rows_kwargs={"count": 32},
        eval_rows_kwargs={"count": 4, "seed": 1, "held_out": True},
    )
    steps = [row for row in log if "loss" in row]
    assert len(steps) == 2
    assert all(row["wm/env/prediction/written"] == 0 for row in steps)
    assert any("eval_wm/env/prediction/written" in row for row in log)


def launched(folder, *words, processes=1):
    """What the last line of `recipes/trl/run.sh`, run in `folder`, says."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PROCESSES": str(processes), "PATH": path, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(RECIPES.parent)
    command = [str(RECIPES / "trl" / "run.sh"), *words, "--json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@NEEDS_ENVIRONMENTS
@pytest.mark.slow
def test_a_recipe_on_two_cpu_processes(policy, tmp_path):
    work = tmp_path / "work"
    (work / "runs").mkdir(parents=True)
    (work / "runs" / "tiny").symlink_to(policy)
    result = launched(work, "echo_grpo_tiny", "--max_steps", "2", processes=2)
    assert result["steps"] == 2
    # two ranks of 64 completions, each with a prompt of 20 tokens
    assert result["last"][0]["num_tokens"] > 2 * 2 * 64 * 20


@NEEDS_ENVIRONMENTS
@pytest.mark.nightly
def test_the_term_stays_from_the_warm_start_to_rl(tmp_path):
    """The commands of docs/sft.md: RL starts from what fine-tuning knew of the world."""
    (warm,) = launched(tmp_path, "agent_sft_echo_tiny", "--steps", "20")["last"]
    (cold,) = launched(tmp_path, "echo_grpo_tiny", "--model", "runs/tiny_random", "--max_steps", "1")["last"]
    model = ("--model", "runs/agent_sft_echo_tiny/model", "--out", "runs/after", "--coeff", "0.05")
    (after,) = launched(tmp_path, "echo_grpo_tiny", *model, "--max_steps", "1")["last"]
    assert (warm["echo/coeff"], after["echo/coeff"]) == (1.0, 0.05)
    assert after["echo/nll"] < cold["echo/nll"] - 1
