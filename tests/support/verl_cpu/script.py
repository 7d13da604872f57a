"""What the policy says in place of what it would sample: for runs that need tool calls from a model that makes none."""

import json
import os
from pathlib import Path

from transformers import AutoTokenizer

ENVIRONMENT_VARIABLE = "VERL_CPU_SCRIPT"


class Script:
    """A JSON list of the turns of every trajectory, each with the tokens that end it; the last one is said from then on.

    Or an object of such lists, by a text that is in a trajectory's prompt and in no other's.
    """

    def __init__(self, path: Path, model_path: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        found = json.loads(path.read_text())
        self.turns = {
            key: [self.tokenizer.encode(text, add_special_tokens=False) for text in turns]
            for key, turns in (found if isinstance(found, dict) else {"": found}).items()
        }
        self._spoken: dict[tuple[int, ...], int] = {}

    @classmethod
    def from_environment(cls, model_path: str) -> "Script | None":
        path = os.environ.get(ENVIRONMENT_VARIABLE)
        return cls(Path(path), model_path) if path else None

    def next_turn(self, prompt_ids: list[int]) -> list[int]:
        """A prompt that goes on from what was said before is the next turn; requests carry no number of their own."""
        before = [turn for spoken, turn in self._spoken.items() if tuple(prompt_ids[: len(spoken)]) == spoken]
        turn = max(before, default=-1) + 1
        prompt = self.tokenizer.decode(prompt_ids)
        turns = next(turns for key, turns in self.turns.items() if key in prompt)
        tokens = turns[min(turn, len(turns) - 1)]
        self._spoken[*prompt_ids, *tokens] = turn
        return tokens
