"""`control:` in real TRL trainers: what the policy reads, in training and evaluation, and a curriculum's factor."""

import json

import pytest
import torch
import trl
from packaging.version import Version

from support.on_trl import call, config, dataset, make_model, make_tokenizer
from wm_plugin.errors import UserError
from wm_plugin.hosting.config import RunConfig
from wm_plugin.trl import WorldModelGRPOTrainer, support
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.wrappers.control import config_of, control_of, controlled

pytestmark = pytest.mark.skipif(Version(trl.__version__) < Version("1.8"), reason="environments need trl >= 1.8")


class Walk:
    """Counts its steps."""

    def reset(self, **_) -> str:
        self.turns, self.success = 0, False
        return ""

    def walk(self) -> str:
        """Take a step."""
        self.turns += 1
        self.success = self.turns == 2
        return f"step {self.turns}"

    def get_reward(self) -> float:
        return float(self.turns)


class Walker(WorldModelGRPOTrainer):
    """Three turns: one call, two calls at once, and an end. Keeps what was observed."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        turns = []
        for ids in prompt_ids:
            text = self.processing_class.decode(ids).rpartition("<|im_start|>user\ntask")[2]
            done = text.count("<|im_start|>assistant") - 1
            turns.append([call("walk"), call("walk") + "\n" + call("walk"), "done"][done])
        return [self.processing_class(turn + "<|im_end|>").input_ids for turn in turns], None

    def _tool_call_loop(self, *args, **kwargs):
        result = super()._tool_call_loop(*args, **kwargs)
        figures = [dict(control_of(world).figures) if control_of(world) else None for world in self.environments]
        place = [(control_of(world).turn, control_of(world).call) for world in self.environments if control_of(world)]
        steps = [world.turns for world in self.environments]
        self.seen = [*getattr(self, "seen", []), (self.model.training, steps, figures, place)]
        return result


def walker(control, **fields):
    tokenizer = make_tokenizer([Walk().walk])
    args = {"gradient_accumulation_steps": 1, "max_steps": 3, "max_completion_length": 2000} | fields
    eval_dataset = dataset() if "eval_strategy" in args else None
    trainer = Walker(
        model=make_model(tokenizer),
        args=config(**args),
        train_dataset=dataset(),
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        environment_factory=controlled(Walk, control),
    )
    torch.manual_seed(11)
    return trainer


def series(trainer, name):
    return [row[name] for row in trainer.state.log_history if name in row]


CALLS = {"name": "partial", "of": "calls", "rate": 1}


def test_training_is_perturbed_by_turns_and_evaluation_is_not():
    trainer = walker(
        {
            "perturbations": [{"name": "error", "turns": [1]}, CALLS],
            "curriculum": {"start": 1.0, "end": 0.0, "steps": 2},
        },
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=4,
    )
    trainer.train()
    trained = [(steps, figures, place) for training, steps, figures, place in trainer.seen if training]
    for steps, figures, place in trained[
        :1
    ]:  # the first call fails, and of the two calls of the second turn the second
        assert set(steps) == {1}
        assert all(one == {"control/calls": 3, "control/error": 1, "control/partial": 1} for one in figures)
        assert set(place) == {(2, 2)}
    assert set(trained[2][0]) == {3}  # the factor is 0
    evaluated = [(steps, figures) for training, steps, figures, _ in trainer.seen if not training]
    assert evaluated
    assert all(set(steps) == {3} and set(figures) == {None} for steps, figures in evaluated)
    assert series(trainer, "wm/control_strength") == [1.0, 0.5, 0.0]
    assert series(trainer, "wm/env/control/error")[0] == pytest.approx(1 / 3)
    assert not series(trainer, "eval_wm/env/control/error")


@pytest.mark.slow
def test_a_resume_goes_on_exactly(tmp_path):
    control = {
        "perturbations": [{"name": "error", "rate": 0.5}],
        "curriculum": {"by": "success", "every": 2, "change": 0.5, "below": 0},
    }
    fields = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 1, "max_steps": 6}
    whole = walker(control, **fields)
    whole.train()
    saved = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())["stateful_callbacks"]
    assert saved["wm_control"]["iterations"] == 1
    resumed = walker(control, **fields)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert series(resumed, "wm/control_strength") == series(whole, "wm/control_strength")


def test_the_class_of_a_config():
    values = {"perturbations": [{"name": "error", "rate": 0.1}]}
    kind = RunConfig.read(
        {"environment": "grid", "episode_reward": {"rescale": True}, "control": json.dumps(values)}
    ).factory
    assert issubclass(kind, GridEnvironment)
    assert config_of(kind).as_mapping() == values
    several = RunConfig.read(
        {"environment": {"a": "grid", "b": "wordle"}, "control": {**values, "worlds": ["b"]}}
    ).factory
    assert [config_of(kind) is not None for kind in several.values()] == [False, True]


@pytest.mark.parametrize(
    ("environment", "control", "message"),
    [
        (None, {"perturbations": [{"name": "style"}]}, "control is for episodes in an environment"),
        ("grid", "{perturb", "control is not JSON"),
        ("grid", {"perturbations": []}, "control.perturbations is []"),
        (
            "grid",
            {"perturbations": [{"name": "error", "rate": 1, "tools": ["mov"]}]},
            "control.perturbations[0].tools: GridEnvironment",
        ),
        (
            {"grid": "grid"},
            {"perturbations": [{"name": "style"}], "worlds": ["grit"]},
            "control.worlds: there is no environment 'grit'",
        ),
    ],
)
def test_what_does_not_fit(environment, control, message):
    with pytest.raises(UserError) as error:
        RunConfig.read({"environment": environment, "control": control}).classes()
    assert str(error.value).startswith(message)


def test_no_curriculum_where_rollouts_are_made_in_a_process_of_their_own():
    entry = {"perturbations": [{"name": "style"}]}
    support.check_no_curriculum({"a": controlled(Walk, entry)})
    for factories in (
        controlled(Walk, {**entry, "curriculum": {}}),
        {"a": controlled(Walk, {**entry, "curriculum": {}})},
    ):
        with pytest.raises(UserError, match="control.curriculum changes while the policy trains"):
            support.check_no_curriculum(factories)
