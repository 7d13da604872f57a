"""The warm start of the pretrained model; test_recipes.py has the recipe itself, tests/test_pipelines.py the scripts of both."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("verl")

from support.verl_recipes import composed, unknown_keys
from wm_plugin.verl.config import read_config

RECIPES = Path(__file__).parents[2] / "recipes"


def test_every_key_of_the_warm_start_exists():
    stock = composed("sft_trainer_engine", module="verl.trainer.config")
    values = yaml.safe_load((RECIPES / "verl" / "clone_sql_135m.yaml").read_text())
    assert not list(unknown_keys(values, stock))


def test_both_hosts_train_alike():
    echo_on_trl, clone_on_trl = (
        yaml.safe_load((RECIPES / "trl" / f"{name}_sql_135m.yaml").read_text()) for name in ("echo", "clone")
    )
    echo, clone = composed("echo_sql_135m"), composed("clone_sql_135m")
    actor, rollout = echo.actor_rollout_ref.actor, echo.actor_rollout_ref.rollout
    assert (actor.optim.lr, actor.optim.weight_decay) == (echo_on_trl["learning_rate"], echo_on_trl["weight_decay"])
    assert rollout.n == echo_on_trl["num_generations"]
    episodes = echo_on_trl["per_device_train_batch_size"] * echo_on_trl["gradient_accumulation_steps"]
    assert echo.data.train_batch_size * rollout.n == episodes
    assert (echo.trainer.total_training_steps, clone.trainer.total_training_steps) == (
        echo_on_trl["max_steps"],
        clone_on_trl["max_steps"],
    )
    wm = read_config(echo)
    assert wm.objective.coeff == echo_on_trl["echo_coeff"]
    assert wm.max_turns == echo_on_trl["max_tool_calling_iterations"] + 1
    assert wm.max_turn_tokens == echo_on_trl["generation_kwargs"]["max_new_tokens"]
    assert clone.optim.lr == clone_on_trl["learning_rate"]
    rows = clone_on_trl["per_device_train_batch_size"] * clone_on_trl["gradient_accumulation_steps"]
    assert clone.data.train_batch_size == rows
