"""The hidden state of a world reaches no policy that TRL trains: neither as a tool nor in a prompt."""

from trl import GRPOTrainer

from support.on_trl import Batches, make, run
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.wordle import WordleEnvironment

WORD = "plumb"  # which is in no description


def test_the_hidden_state_is_no_tool():
    assert [tool.__name__ for tool in make(GRPOTrainer, environment=WordleEnvironment).tools] == ["act"]


class Asks(Batches, WorldModelGRPOTrainer):
    """A policy that asks for the hidden state, and keeps what it sees."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        self.prompts = [*getattr(self, "prompts", []), *map(self.processing_class.decode, prompt_ids)]
        call = '<tool_call>\n{"name": "world_context", "arguments": {}}\n</tool_call>'
        said = ["end" if text.count("not found") else call for text in map(self.processing_class.decode, prompt_ids)]
        return [self.processing_class(f"{turn}<|im_end|>").input_ids for turn in said], None


def test_a_policy_that_asks_for_the_hidden_state_does_not_get_it():
    rows = [{"prompt": [{"role": "user", "content": "Play."}], "word": WORD}] * 2
    args = {"max_steps": 1, "num_generations": 2, "gradient_accumulation_steps": 1, "max_completion_length": 1500}
    trainer, _ = run(Asks, args=args, rows=rows, environment=WordleEnvironment, world_model=EchoConfig(0.5))
    assert any("Tool world_context not found" in text for text in trainer.prompts)
    assert all(environment.world_context() == f"The hidden word is {WORD}." for environment in trainer.environments)
    assert all(WORD not in text for text in trainer.prompts)
