"""WM-SFT by TRL's own trainer: it reads our rows, trains on the tokens that count and on no others, and every recipe fits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from trl.scripts.sft import main as sft
from trl.scripts.sft import make_parser

from support.papers import SFT
from support.scripts import judges_port, trl_words
from support.wm_sft import ROWS, expected_loss, make_data
from wm_plugin.data.building import build
from wm_plugin.lab.tiny.__main__ import main as tiny

RECIPES = Path(__file__).parents[2] / "recipes" / "trl"
NAMES = [f"{name}{size}" for name in SFT for size in ("", "_tiny")]
SLOW = ("wm_sft_word2world_tiny",)
# one of them with each change: the recipes differ in the data that they build, which faster tests look at
TINY = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else pytest.mark.nightly)
    for name in NAMES
    if name not in SFT
]


def parsed(name, *flags):
    on_cpu = ["--use_cpu", "true", "--bf16", "false"]
    return make_parser().parse_args_and_config([*trl_words(name), *on_cpu, *flags])


@pytest.mark.parametrize("name", NAMES)
def test_stock_trl_reads_the_recipe(name):
    _, config, model, mixture = parsed(name)
    (dataset,) = mixture.datasets
    assert dataset.data_files == f"runs/{name}/trl.parquet"
    assert config.output_dir == f"runs/{name}"
    if name in SFT:
        completions = config.per_device_train_batch_size * 8 * config.gradient_accumulation_steps
        assert (config.learning_rate, completions, config.num_train_epochs, model.model_name_or_path) == SFT[name]
        assert model.dtype == "float32"


def test_the_constants_of_word2world():
    """The agent's are the world model's (A.3), but for the model that is trained."""
    for name, ends in (("wm_sft_word2world", "<|im_end|>"), ("agent_sft", None)):
        _, config, _, _ = parsed(name)
        assert (config.warmup_steps, config.max_grad_norm) == (10, 100)
        assert config.lr_scheduler_type == "constant_with_warmup"
        assert (config.max_length, config.eos_token) == (12288, ends)


def train(name, monkeypatch, *flags):
    """What stock `trl sft` logs, in this process; (loss of each step)."""
    from transformers import TrainerCallback
    from trl import SFTTrainer

    logged = []

    class Note(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            logged.extend([logs["loss"]] if "loss" in logs else [])

    made = SFTTrainer.__init__

    def noting(trainer, *arguments, **options):
        made(trainer, *arguments, **options)
        trainer.add_callback(Note())

    monkeypatch.setattr(SFTTrainer, "__init__", noting)
    sft(*parsed(name, *flags))
    return logged


def test_the_loss_is_that_of_the_tokens_that_count(tmp_path, monkeypatch):
    policy, out = make_data(tmp_path, "trl")
    monkeypatch.chdir(tmp_path)
    size = ["--per_device_train_batch_size", str(ROWS), "--max_steps", "8", "--num_train_epochs", "8"]
    losses = train("wm_sft_word2world_tiny", monkeypatch, *size)
    assert losses[0] == pytest.approx(expected_loss(policy, out, "trl"), rel=1e-5)
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("kind", ["rwml-sft", "word2world"])
def test_stock_trl_takes_rows_of_messages(kind, tmp_path, monkeypatch):
    """Without a tokenizer. The tiny template has no marks of the assistant's tokens, so a dialogue is trained on as a whole."""
    policy, _ = make_data(tmp_path, "trl")
    tiny(["rollouts", "--out", str(tmp_path / "grid.jsonl"), "--count", "8"])
    build(tmp_path / "grid.jsonl", kind, "trl", tmp_path / "rows.jsonl")
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_load((RECIPES / "sft_tiny.yaml").read_text())
    config["datasets"] = [{"path": "json", "data_files": str(tmp_path / "rows.jsonl")}]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config | {"max_steps": 2, "model_name_or_path": str(policy)}))
    sft(*make_parser().parse_args_and_config(["--config", str(tmp_path / "config.yaml")]))
    assert (tmp_path / config["output_dir"] / "model.safetensors").exists()


@pytest.mark.parametrize("name", TINY)
def test_every_tiny_recipe_learns_by_its_script(name, tmp_path):
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = str(RECIPES.parents[1])
    script = [str(RECIPES / "run.sh"), name]
    with judges_port():
        done = subprocess.run(script, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "runs" / name / "model.safetensors").exists()
    losses = [float(part.split("'")[3]) for part in done.stdout.split("{")[1:] if part.startswith("'loss'")]
    assert sum(losses[-5:]) / 5 < losses[0] - 1
