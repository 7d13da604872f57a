"""Training in a simulated environment on TRL: with a perfect world model it is the training in the real world, bit by bit."""

import json

import pytest
import torch
import yaml

from support.on_trl import Batches, config, make_model, make_tokenizer
from support.openai_server import OpenAIServer
from support.runs import environment as _environment
from support.world_models import RealWorld
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import tool_methods
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.rewarded import rewarded
from wm_plugin.worlds.wrappers.simulated import is_simulated, simulated

GRID = load("grid")
STEPS = 2


class Wandering(Batches, WorldModelGRPOTrainer):
    """Draws what a turn says: moves, some of them wrong, two at once, calls of no tool, and plain words."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        said = []
        for _ in prompt_ids:
            draw = int(torch.randint(12, ()))
            calls = [{"name": "move", "arguments": {"direction": "UDLR"[draw % 4]}}]
            if draw == 8:
                calls = [{"name": "move", "arguments": {"direction": "X"}}]
            elif draw == 9:
                calls *= 2
            elif draw == 10:
                calls = [{"name": "fly", "arguments": {"to": "G"}}, {"name": "move", "arguments": {"way": "U"}}]
            tagged = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
            said.append("I stop.<|im_end|>" if draw == 11 else f"{tagged}<|im_end|>")
        return [self.processing_class(text).input_ids for text in said], None

    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        self.rewards = [*getattr(self, "rewards", []), rewards.flatten().tolist()]
        self.completions = [*getattr(self, "completions", []), args[2]]
        return rewards


def train(environment, rows, **options):
    from datasets import Dataset

    tokenizer = make_tokenizer(list(tool_methods(environment()).values()))
    torch.manual_seed(0)
    trainer = Wandering(
        model=make_model(tokenizer),
        args=config(
            max_steps=STEPS,
            num_generations=4,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1,
            learning_rate=1e-3,
            max_completion_length=2000,
            **options,
        ),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:2]),
        processing_class=tokenizer,
        environment_factory=environment,
        world_model=EchoConfig(0.5),
    )
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def server():
    rows = GRID.rows(8)
    real = RealWorld(GRID, rows)
    with OpenAIServer(lambda body: real.answer(body["messages"]).text) as server:
        server.rows = rows
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("reward", [{}, {"rescale": True, "format_penalty": 0.1}])
def test_with_a_perfect_world_model_it_is_the_training_in_the_real_world(server, reward):
    model = simulated(GRID.environment, {"url": server.base_url, "model": "world", "cache": False})
    worlds = [GRID.environment, model]
    if reward:
        worlds = [rewarded(one, **reward) for one in worlds]
    server.most_at_once = 0
    real, played = (train(one, server.rows) for one in worlds)
    assert played.completions == real.completions
    assert played.rewards == real.rewards
    for (name, ours), (_, theirs) in zip(played.model.named_parameters(), real.model.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    logs = [[row for row in one.state.log_history if "loss" in row] for one in (real, played)]
    for theirs, ours in zip(*logs, strict=True):
        same = [name for name in theirs if not name.startswith(("wm/env/calls", "step_time")) and "time" not in name]
        assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
        assert ours["wm/env/lost"] == 0
        assert ours["wm/env/simulation/requests"] > 0
    assert server.most_at_once > 2  # completions of a batch are asked about together


SERVER = {"url": "http://localhost:1/v1", "model": "w"}


def test_a_config_file_says_which_worlds_are_simulated():
    assert is_simulated(_environment("grid", simulation=yaml.safe_load("{url: 'http://localhost:1/v1', model: w}")))
    worlds = _environment(
        {"real": "grid", "model": "grid"}, {"rescale": True}, "tags", simulation={**SERVER, "worlds": ["model"]}
    )
    assert {name: is_simulated(one) for name, one in worlds.items()} == {"real": False, "model": True}


@pytest.mark.parametrize(
    ("environment", "simulation", "message"),
    [
        (None, SERVER, "simulation is for episodes in an environment"),
        ({"grid": "grid"}, {**SERVER, "worlds": ["gird"]}, "simulation.worlds: there is no environment 'gird'"),
        ("grid", {**SERVER, "modle": "w"}, "simulation has no field 'modle'; did you mean 'model'"),
        ("grid", "url", "simulation is 'url'; write fields"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_config_is_one_line(environment, simulation, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        _environment(environment, simulation=simulation)
