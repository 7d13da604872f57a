"""Episodes in TRL's trainer, whose policy says what a test wants."""

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset

from support.on_trl import make, make_tokenizer
from support.played import Played
from wm_plugin.hosting.config import RunConfig
from wm_plugin.hosting.predictions import acting
from wm_plugin.hosting.tags import actions_of
from wm_plugin.trl import WorldModelGRPOConfig, WorldModelGRPOTrainer


class Speaker(WorldModelGRPOTrainer):
    """Each completion of a step says its own turns, one after the other."""

    script: Sequence[Sequence[str]] = ()

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        if not hasattr(self, "running"):
            self.running = dict(enumerate(map(iter, self.script)))
            self.rows = list(self.running)
        else:  # the host asks those that called, in their order
            self.rows = [row for row in self.rows if self.acts[row]]
        turns = {row: next(self.running[row]) for row in self.rows}
        self.acts = {row: self._acts(turn) for row, turn in turns.items()}
        return [self.processing_class(f"{turn}<|im_end|>").input_ids for turn in turns.values()], None

    def _acts(self, turn: str) -> bool:
        if self._wm_left_out is not None:
            turn = acting(turn, self._wm_left_out).acting
        return '{"name"' in turn or actions_of(turn) is not None

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._calculate_rewards(*args, **kwargs)
        self.outcomes, self.completions = found.nansum(dim=1).tolist(), args[2]
        return found

    def _log_episodes(self) -> None:
        read = [[one["content"] for one in messages if one["role"] == "tool"] for messages in self.completions]
        self.played = [Played(*parts) for parts in zip(read, self.outcomes, self._wm_episodes, strict=True)]
        super()._log_episodes()


def spoken(
    script: Sequence[Sequence[str]],
    environment: Any,
    columns: Mapping[str, Any],
    *,
    cls: type[Speaker] = Speaker,
    training: bool = True,
    args: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Speaker:
    """A trainer after one batch, each of whose episodes says its turns of the script."""
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "Go."}], **columns}] * len(script))
    sizes = ("num_generations", "num_generations_eval", "per_device_train_batch_size", "per_device_eval_batch_size")
    fields = {"gradient_accumulation_steps": 1, "max_steps": 1, "max_completion_length": 3000, **(args or {})}
    fields |= dict.fromkeys(sizes, len(script))
    kwargs |= {"reward_funcs": None, "eval_dataset": rows.select([0]), "processing_class": make_tokenizer()}
    trainer = make(cls, args=fields, rows=rows, environment=environment, **kwargs)
    trainer.script = script
    trainer.train() if training else trainer.evaluate()
    return trainer


def play(
    run: Mapping[str, Any], script: Sequence[Sequence[str]], columns: Mapping[str, Any], *, training: bool = True
) -> list[Played]:
    """Play episodes together in one batch: each says its turns of the script."""
    config = RunConfig.read(run)
    args = {"cls": WorldModelGRPOConfig, "max_lost": config.max_lost}
    return spoken(script, config.factory, columns, training=training, args=args).played
