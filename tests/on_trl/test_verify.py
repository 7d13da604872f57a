"""Checks before irreversible actions in TRL's rollouts: without checks, or where all pass, a training is the same bit by bit."""

import json

import pytest
import torch

from support.on_trl import Batches, config, make_model, make_tokenizer
from support.openai_server import OpenAIServer
from support.runs import environment as _environment
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.hosting.tags import takes_tags
from wm_plugin.hosting.world import options_of, tool_methods
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.verified import Verified, verified
from wm_plugin.worlds.wrappers.verify_config import REFUSAL

GRID = load("grid")
SAYS = {"url": "http://localhost:1/v1", "model": "w"}


class Wandering(Batches, WorldModelGRPOTrainer):
    """Draws what a turn says: moves, two at once, and plain words."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        said = []
        for _ in prompt_ids:
            draw = int(torch.randint(10, ()))
            calls = [{"name": "move", "arguments": {"direction": "UDLR"[draw % 4]}}] * (1 + (draw == 8))
            tagged = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
            said.append("I stop.<|im_end|>" if draw == 9 else f"{tagged}<|im_end|>")
        return [self.processing_class(text).input_ids for text in said], None

    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        self.rewards = [*getattr(self, "rewards", []), rewards.flatten().tolist()]
        self.completions = [*getattr(self, "completions", []), args[2]]
        return rewards


def train(environment):
    from datasets import Dataset

    tokenizer = make_tokenizer(list(tool_methods(environment()).values()))
    torch.manual_seed(0)
    trainer = Wandering(
        model=make_model(tokenizer),
        args=config(
            max_steps=1,
            num_generations=4,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1,
            learning_rate=1e-3,
            max_completion_length=1000,
        ),
        train_dataset=Dataset.from_list(GRID.rows(4)),
        processing_class=tokenizer,
        environment_factory=environment,
        world_model=EchoConfig(0.5),
    )
    trainer.train()
    (log,) = [row for row in trainer.state.log_history if "loss" in row]
    return trainer, log


def made(server, **settings):
    block = {"budget": 3, "tools": ["move"], "world_model": {"url": server.base_url, "model": "world"}, **settings}
    return _environment("grid", verify=block)


def test_a_training_where_every_check_passes_is_the_one_without_checks():
    assert _environment("grid", verify={"budget": 0}) is GRID.environment
    real, theirs = train(GRID.environment)
    with OpenAIServer(lambda body: "You are there. [SUCCESS]", latency=0.2) as server:
        checked, ours = train(made(server))
    assert checked.completions == real.completions
    assert checked.rewards == real.rewards
    for (name, one), (_, other) in zip(checked.model.named_parameters(), real.model.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    assert not any("verify/" in name for name in theirs)
    assert ours["wm/env/verify/checks"] > 0
    assert ours["wm/env/verify/refused"] == 0
    assert ours["wm/env/verify/spent"] > 0
    assert server.most_at_once > 2  # completions of a batch are asked about together


def test_a_server_that_refuses_the_key_ends_the_run():
    with OpenAIServer(faults=lambda number: "401") as server, pytest.raises(UserError, match="status 401"):
        train(made(server))


def test_a_config_file_says_which_worlds_are_verified():
    worlds = {"real": "shop", "model": "shop", "plain": "sql"}
    made = _environment(
        worlds,
        {"rescale": True},
        simulation={**SAYS, "worlds": ["model"]},
        control={"perturbations": [{"name": "error", "rate": 0.1}]},
        verify={"world_model": SAYS, "worlds": ["real"]},
    )
    assert {name: options_of(one, Verified) is not None for name, one in made.items()} == {
        "real": True,
        "model": False,
        "plain": False,
    }
    assert takes_tags(_environment("wordle", None, "tags", verify=json.dumps({"world_model": SAYS})))


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        (None, {"verify": {"world_model": SAYS}}, "verify is for episodes in an environment"),
        ({"a": "shop"}, {"verify": {"world_model": SAYS, "worlds": ["b"]}}, "verify.worlds: there is no environment 'b'"),
        ("shop", {"verify": {"world_modle": SAYS}}, "verify has no field 'world_modle'; did you mean 'world_model'"),
        ("shop", {"verify": "budget"}, "verify is 'budget'; write fields"),
        ("grid", {"verify": {"world_model": SAYS}}, "verify: GridEnvironment says of no tool that it is irreversible"),
        ("shop", {"verify": {"world_model": SAYS}, "simulation": SAYS}, "verify: ShopEnvironment is simulated"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_config_is_one_line(environment, options, message):
    with pytest.raises(UserError) as error:
        _environment(environment, **options)
    assert message in str(error.value)


def test_the_class_and_its_config_serve_python():
    assert verified(load("shop").environment, {"world_model": SAYS}) is _environment(
        "shop", verify={"world_model": SAYS}
    )


def test_rollouts_of_the_asynchronous_trainer_are_checked():
    pytest.importorskip("trl.experimental.async_grpo")
    pytest.importorskip("trl", minversion="1.16")
    from accelerate import PartialState

    from support.async_on_trl import tokenizer_of_tools, worker
    from support.on_trl import ToolEnvironment

    PartialState()  # which the host's logger wants
    with OpenAIServer(lambda body: "nothing") as server:
        model = {"url": server.base_url, "model": "world"}
        # of several calls in a turn the answer is none, since it has no headings
        block = {"budget": 1, "tools": ["lookup_doc"], "unanswered": "refuse", "world_model": model}
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
