"""The warm start of the pretrained model; test_recipes.py has the recipe itself, tests/lab/pipelines the pipeline."""

import pytest

pytest.importorskip("verl")

from support.scripts import RECIPES, trl_words
from support.verl_recipes import of_recipe
from wm_plugin.hosting import config_file
from wm_plugin.verl.config import read_config


def test_both_hosts_train_alike():
    echo_on_trl = config_file.read(str(RECIPES / "trl" / "echo_sql_135m.yaml"))
    words = trl_words("clone_sql_135m")
    on_trl = {flag: words[words.index(flag) + 1] for flag in words if flag.startswith("--")}
    echo, clone = of_recipe("echo_sql_135m"), of_recipe("clone_sql_135m")
    actor, rollout = echo.actor_rollout_ref.actor, echo.actor_rollout_ref.rollout
    assert (actor.optim.lr, actor.optim.weight_decay) == (echo_on_trl["learning_rate"], echo_on_trl["weight_decay"])
    assert rollout.n == echo_on_trl["num_generations"]
    episodes = echo_on_trl["per_device_train_batch_size"] * echo_on_trl["gradient_accumulation_steps"]
    assert echo.data.train_batch_size * rollout.n == episodes
    assert echo.trainer.total_training_steps == echo_on_trl["max_steps"]
    assert clone.trainer.total_training_steps == int(on_trl["--max_steps"]) == 20
    wm = read_config(echo)
    assert wm.objective.coeff == echo_on_trl["echo_coeff"]
    assert wm.max_turns == echo_on_trl["max_tool_calling_iterations"] + 1
    assert wm.max_turn_tokens == echo_on_trl["generation_kwargs"]["max_new_tokens"]
    assert clone.optim.lr == float(on_trl["--learning_rate"])
    rows = int(on_trl["--per_device_train_batch_size"]) * int(on_trl["--gradient_accumulation_steps"])
    assert clone.data.train_batch_size == rows
