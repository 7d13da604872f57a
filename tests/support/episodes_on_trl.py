"""The real GRPO trainer with a policy that says the turns of given episodes."""

from typing import ClassVar

from support.on_trl import Batches, make
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer


class Played(Batches, WorldModelGRPOTrainer):
    """Says the turns of given episodes. A prompt is known by its first observation; keeps what came of each generation."""

    episodes: ClassVar[list] = []

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        texts = [self.processing_class.decode(ids) for ids in prompt_ids]
        said = [self._next_turn(text) for text in texts]
        return [self.processing_class(turn + "<|im_end|>").input_ids for turn in said], None

    def _next_turn(self, text):
        first, *turns = text.split("<|im_start|>assistant\n")
        for episode in self.episodes:
            if episode.played.context.initial_state in first:
                return episode.turns[min(len(turns) - 1, len(episode.turns) - 1)]
        raise AssertionError(f"no episode begins with {first[-300:]!r}")

    def _calculate_rewards(self, inputs, prompts, completions, ids):
        rewards = super()._calculate_rewards(inputs, prompts, completions, ids)
        self.seen = [*getattr(self, "seen", []), (inputs, completions, rewards.flatten().tolist())]
        self.reports = [port.report() for port in self._wm_rollouts.ports]
        return rewards


def trainer_of(rows, found, factory, **fields):
    Played.episodes = found
    args = {"num_generations": 2, "gradient_accumulation_steps": 1, "learning_rate": 1e-3}
    args |= {"max_completion_length": 3500, **fields}
    return make(Played, args=args, rows=rows, environment=factory, reward_funcs=None, world_model=EchoConfig(0.5))
