"""The recipe of the pretrained model: its settings, and a step with random weights. tests/lab/pipelines has its pipeline."""

import json
from pathlib import Path

import pyarrow.parquet
import pytest
from wm_plugin.recipes.pipelines import figures

from support.scripts import flags
from support.small_llama import fields, make_model
from wm_plugin.data.building import build
from wm_plugin.data.write import write
from wm_plugin.lab.tiny.pretrained import _tokenizer
from wm_plugin.trl import train
from wm_plugin.worlds.agents.players import ScriptedPlayer
from wm_plugin.worlds.sql import dataset_rows
from wm_plugin.worlds.worlds import load

RECIPE = Path(__file__).parents[2] / "recipes" / "trl" / "echo_sql_135m.yaml"


def test_the_recipe_parses_and_names_what_exists():
    script, config, model, _ = train.parse(["--config", str(RECIPE), "--bf16", "false"])
    assert train.run_config(script).factory.__name__ == "SqlEnvironment"
    script.train_rows_kwargs = {**script.train_rows_kwargs, "count": 2}
    assert len(train._rows(script, None, "train")) == 2
    assert (config.echo_coeff, model.dtype, config.use_cpu) == (1.0, "float32", True)
    assert config.per_device_train_batch_size * config.gradient_accumulation_steps % config.num_generations == 0
    assert model.model_name_or_path == "runs/sql_135m/trl/cloned"


@pytest.fixture
def model(tmp_path):
    tokenizer = _tokenizer(fields())
    tokenizer.save_pretrained(tmp_path / "model")
    made = make_model(len(tokenizer))
    made.generation_config.eos_token_id = made.generation_config.pad_token_id = tokenizer.eos_token_id
    made.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def episodes(tmp_path):
    player = ScriptedPlayer(load("sql"), "expert")
    try:
        write(player(list(enumerate(dataset_rows(2)))), tmp_path / "expert.jsonl")
    finally:
        player.close()
    return tmp_path / "expert.jsonl"


@pytest.mark.slow
def test_rows_to_clone_a_step_and_figures(model, episodes, tmp_path, capsys):
    """Of the expert's turns the calls count, to their ends; GRPO trains on what `wm env rollout` and the recipe say."""
    pytest.importorskip("trl", minversion="1.10")
    tokenizer = _tokenizer(fields())
    build(episodes, "imitation", "trl", tmp_path / "rows.parquet", tokenizer=model, max_tokens=4096)
    for row in pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist():
        counted = [token for token, counts in zip(row["input_ids"], row["assistant_masks"], strict=True) if counts]
        turns = tokenizer.decode(counted).split("<|im_end|>")
        assert [turn.partition('"arguments"')[0] for turn in turns[:-1]] == [
            f'<tool_call>{{"name": "{name}", '
            for name in ("list_tables", "describe_table", "run_query", "submit_answer")
        ]
    small = {
        "model_name_or_path": model,
        "output_dir": tmp_path / "echo",
        "max_steps": 1,
        "train_rows_kwargs": {"count": 2},
        "num_generations": 2,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 24,
        "generation_kwargs": {"max_new_tokens": 8},
    }
    assert train.main(["--config", str(RECIPE), *flags(**small), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["steps"], result["last"][0]["echo/coeff"]) == (1, 1.0)
    out = ["--out", str(tmp_path / "figures.jsonl"), "--text-tokens", "600", "--episodes", str(episodes)]
    assert figures.main(["--model", str(tmp_path / "echo"), "--name", "echo", *out]) == 0
    row = json.loads((tmp_path / "figures.jsonl").read_text())
    assert row["results_expert"] == 8
    assert row["tokens_expert"] > 300
