"""Training in worlds that are simulated, checked or perturbed: what the policy reads, and where it is the real training."""

import json

import pytest
import torch

from support.on_trl import (
    NEEDS_ENVIRONMENTS,
    Batches,
    ToolEnvironment,
    call,
    dataset,
    make,
    run,
    series,
)
from support.openai_server import OpenAIServer
from support.perfect import perfect, settings
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.hosting.config import RunConfig
from wm_plugin.trl import WorldModelGRPOTrainer, support
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.control import control_of, controlled
from wm_plugin.worlds.wrappers.verified import verified
from wm_plugin.worlds.wrappers.verify_config import REFUSAL

pytestmark = NEEDS_ENVIRONMENTS

ROWS = load("grid").rows(8)
MOVES = [call("move", direction=one) for one in "UDLR"]


class Wandering(Batches, WorldModelGRPOTrainer):
    """Draws what a turn says: moves, some of them wrong, two at once, calls of no tool, and plain words."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        odd = [call("move", direction="X"), MOVES[0] * 2, call("fly", to="G") + call("move", way="U"), "I stop."]
        turns = [[*MOVES, *MOVES, *odd][int(torch.randint(12, ()))] for _ in prompt_ids]
        return [self.processing_class(f"{turn}<|im_end|>").input_ids for turn in turns], None

    def _calculate_rewards(self, *args):
        found = super()._calculate_rewards(*args)
        self.played = [*getattr(self, "played", []), (found.flatten().tolist(), args[2])]
        return found


def trained(steps=2, **fields):
    """A run in the grid, dressed in these fields of its config; with the rows of its log."""
    environment = RunConfig.read({"environment": "grid", **fields}).factory
    args = {"max_steps": steps, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    args |= {"learning_rate": 1e-3, "max_completion_length": 2000}
    given = {"rows": ROWS, "environment": environment, "reward_funcs": None}
    trainer, _ = run(Wandering, args=args, dtype=torch.float32, world_model=EchoConfig(0.5), **given)
    return trainer, [row for row in trainer.state.log_history if "loss" in row]


def check_the_same(real, other):
    assert other.played == real.played
    for (name, ours), (_, theirs) in zip(other.model.named_parameters(), real.model.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.slow
@pytest.mark.parametrize("reward", [None, {"rescale": True, "format_penalty": 0.1}])
def test_with_a_perfect_world_model_it_is_the_training_in_the_real_world(reward):
    real, theirs = trained(episode_reward=reward)
    with perfect("grid", ROWS) as server:
        played, ours = trained(episode_reward=reward, simulation=settings(server, cache=False))
    check_the_same(real, played)
    for one, other in zip(theirs, ours, strict=True):
        same = [name for name in one if not name.startswith("wm/env/calls") and "time" not in name]
        assert {name: other[name] for name in same} == {name: one[name] for name in same}
        assert other["wm/env/lost"] == 0
        assert other["wm/env/simulation/requests"] > 0
    assert server.most_at_once > 2  # completions of a batch are asked about together


def checks(server, **fields):
    return {"budget": 3, "tools": ["move"], "world_model": settings(server), **fields}


def test_a_training_where_every_check_passes_is_the_one_without_checks():
    real, (theirs,) = trained(1)
    with OpenAIServer(lambda body: "You are there. [SUCCESS]", latency=0.2) as server:
        checked, (ours,) = trained(1, verify=checks(server))
    check_the_same(real, checked)
    assert not any("verify/" in name for name in theirs)
    assert ours["wm/env/verify/checks"] > 0 == ours["wm/env/verify/refused"]
    assert ours["wm/env/verify/spent"] > 0
    assert server.most_at_once > 2  # completions of a batch are asked about together
    with OpenAIServer(faults=lambda number: "401") as server, pytest.raises(UserError, match="status 401"):
        trained(1, verify=checks(server))


def test_rollouts_of_the_asynchronous_trainer_are_checked():
    pytest.importorskip("trl.experimental.async_grpo")
    pytest.importorskip("trl", minversion="1.16")
    from accelerate import PartialState

    from support.async_on_trl import tokenizer_of_tools, worker

    PartialState()  # which the host's logger wants
    with OpenAIServer(lambda body: "nothing") as server:
        # of several calls in a turn the answer is none, since it has no headings
        block = checks(server, budget=1, tools=["lookup_doc"], unanswered="refuse")
        local = worker(tokenizer_of_tools(), ours=True, ready=24, environment=verified(ToolEnvironment, block))
        local.start()
    asked = 0
    for completion in {id(sample.completion): sample.completion for sample in local.samples}.values():
        results = [message for message in completion if message["role"] == "tool"]
        looked = [message["content"] for message in results if message["name"] == "lookup_doc"]
        assert [text == REFUSAL for text in looked] == [True, *[False] * len(looked)][: len(looked)]
        assert not any(message["content"] == REFUSAL for message in results if message["name"] != "lookup_doc")
        asked += bool(looked)
    assert asked > 2
    assert REFUSAL not in json.dumps(server.bodies)
    figures = [one["wm/env/verify/checks"] for one in local.metrics_queue.queue if "wm/env/verify/checks" in one]
    assert sum(total for total, _ in figures) >= asked


# -- control ------------------------------------------------------------------------------------------------------------------


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
        steps, controls = [world.turns for world in self.environments], map(control_of, self.environments)
        figures = [control and (dict(control.figures), (control.turn, control.call)) for control in controls]
        self.seen = [*getattr(self, "seen", []), (self.model.training, steps, figures)]
        return result


def walker(control, **fields):
    args = {"gradient_accumulation_steps": 1, "max_steps": 3, "max_completion_length": 2000} | fields
    evaluated = dataset() if "eval_strategy" in args else None
    environment = controlled(Walk, control)
    trainer = make(Walker, args=args, environment=environment, eval_dataset=evaluated, reward_funcs=None)
    torch.manual_seed(11)
    return trainer


def test_training_is_perturbed_by_turns_and_evaluation_is_not():
    calls = {"name": "partial", "of": "calls", "rate": 1}
    perturbations = [{"name": "error", "turns": [1]}, calls]
    trainer = walker(
        {"perturbations": perturbations, "curriculum": {"start": 1.0, "end": 0.0, "steps": 2}},
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=4,
    )
    trainer.train()
    first, _, third = [seen[1:] for seen in trainer.seen if seen[0]]
    # the first call fails, and of the two calls of the second turn the second
    figures = {"control/calls": 3, "control/error": 1, "control/partial": 1}
    assert first == ([1] * 4, [(figures, (2, 2))] * 4)
    assert third[0] == [3] * 4  # the factor is 0
    evaluated = [seen[1:] for seen in trainer.seen if not seen[0]]
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


def test_no_curriculum_where_rollouts_are_made_in_a_process_of_their_own():
    entry = {"perturbations": [{"name": "style"}]}
    support.check_no_curriculum({"a": controlled(Walk, entry)})
    kind = controlled(Walk, {**entry, "curriculum": {}})
    for factories in (kind, {"a": kind}):
        with pytest.raises(UserError, match="control.curriculum changes while the policy trains"):
            support.check_no_curriculum(factories)
