"""The pipelines that come with the package, on verl: Hydra composes what they say to its trainers, and verl has every key."""

import pytest

pytest.importorskip("verl")

from support.pipelines import hosts, variants
from support.scripts import verl_words
from support.verl_recipes import composed
from wm_plugin.lab.pipelines import expand, read
from wm_plugin.lab.pipelines.shipped import shipped

VARIANTS = [(name, sets) for name in sorted(shipped()) if len(hosts(name)) > 1 for sets in variants(name)]


@pytest.mark.parametrize(("name", "sets"), VARIANTS)
def test_what_a_pipeline_says_to_the_trainers_is_composed(name, sets):
    """By the launcher, as it comes to Hydra."""
    found = set()
    for step in expand(read(shipped()[name], ["host=verl", *sets.split()])):
        if step.loops.get("seed", "0") != "0":
            continue
        for command in step.commands:
            place = next((place for place, word in enumerate(command) if word.endswith("/run.sh")), None)
            if place is None:
                continue
            recipe, *flags = command[place + 1 :]
            config = composed(*verl_words(recipe, *flags, **step.env))  # an unknown key is an error, unless + adds it
            found.add(step.family)
            assert config.trainer.default_local_dir in step.makes
            if "tiny_worlds" in sets:
                assert config.wm.environment == sets.partition(",")[2]
            if step.family == "train" and name == "early_experience" and "tau2" not in sets:
                assert (config.data.max_prompt_length, config.data.max_response_length) == (1024, 4096)
                assert f"world={config.wm.environment}" == sets
                assert config.trainer.total_training_steps == {"world=alfworld": 1280, "world=scienceworld": 500}[sets]
            if "verl.trainer.main_ppo" in command or "grpo" in recipe:  # of the order of tasks, and of what is drawn
                assert config.data.seed == config.actor_rollout_ref.rollout.seed == int(step.loops.get("seed", 0))
    assert {"train", "rwml"} & found
