"""The pipelines that come with the package, on verl: Hydra composes what they say to its trainers, and verl has every key."""

import pytest

pytest.importorskip("verl")

from support.verl_recipes import composed
from wm_plugin.cli.pipeline import shipped
from wm_plugin.pipelines import expand, read

TWO_WORLDS = ("early_experience", "lwm_warm_up", "rwml_rl", "wm_sft_rl")
WORLDS = [
    *((name, world) for name in sorted(shipped()) for world in (("alfworld", "tau2") if name in TWO_WORLDS else ("",))),
    ("early_experience", "scienceworld"),
]


@pytest.mark.parametrize(("name", "world"), WORLDS)
def test_what_a_pipeline_says_to_the_trainers_is_composed(name, world):
    sets = ["host=verl", "seeds=0", *([f"world={world}"] if world else [])]
    found = set()
    for step in expand(read(shipped()[name], sets)):
        for command in step.commands:
            if "--config-name" not in command:
                continue
            words = command[command.index("--config-name") + 1 :]
            config = composed(*words)  # a key that is not in the config is an error, unless + adds it
            found.add(step.family)
            folder = config.trainer.default_local_dir
            assert folder in step.makes
            assert config.trainer.resume_mode in ("auto", "disable")
            if step.family == "train" and name == "early_experience" and world != "tau2":
                assert (config.data.max_prompt_length, config.data.max_response_length) == (1024, 4096)
                assert config.wm.environment == world
            assert (config.trainer.resume_mode == "auto") <= step.resumes
    assert "train" in found
