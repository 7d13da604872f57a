"""The pipelines that come with the package, on verl: Hydra composes what they say to its trainers, and verl has every key."""

import pytest

pytest.importorskip("verl")

from support.pipelines import variants
from support.verl_recipes import composed
from wm_plugin.lab.pipelines import expand, read
from wm_plugin.lab.pipelines.shipped import shipped

VARIANTS = [(name, sets) for name in sorted(shipped()) for sets in variants(name)]


@pytest.mark.parametrize(("name", "sets"), VARIANTS)
def test_what_a_pipeline_says_to_the_trainers_is_composed(name, sets):
    found = set()
    for step in expand(read(shipped()[name], ["host=verl", "seeds=0", *sets.split()])):
        for command in step.commands:
            if "--config-name" not in command:
                continue
            words = command[command.index("--config-name") + 1 :]
            config = composed(*words)  # a key that is not in the config is an error, unless + adds it
            found.add(step.family)
            folder = config.trainer.default_local_dir
            assert folder in step.makes
            assert config.trainer.resume_mode in ("auto", "disable")
            if step.family == "train" and name == "early_experience" and "tau2" not in sets:
                assert (config.data.max_prompt_length, config.data.max_response_length) == (1024, 4096)
                assert f"world={config.wm.environment}" == sets
            assert (config.trainer.resume_mode == "auto") <= step.resumes
    assert {"train", "rwml"} & found
