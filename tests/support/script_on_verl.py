"""What the policy says in place of what it would sample: for runs that need tool calls from a model that makes none.

    PYTHONPATH=tests VERL_USE_EXTERNAL_MODULES=support.script_on_verl WM_TEST_SCRIPT=script.json recipes/verl/run.sh ...

puts it into `wm_plugin.verl.cpu`'s generator.
"""

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from wm_plugin.verl.after_import import on_import

ENVIRONMENT_VARIABLE = "WM_TEST_SCRIPT"


def variables(script: Path) -> dict[str, str]:
    """The environment of a run that follows the script."""
    return {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "VERL_USE_EXTERNAL_MODULES": __name__,
        ENVIRONMENT_VARIABLE: str(script),
    }


class Script:
    """A JSON list of the turns of every trajectory, each with the tokens that end it; the last one is said from then on.

    Or an object of such lists, by a text that is in a trajectory's prompt and in no other's.
    """

    def __init__(self, path: Path, model_path: str) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        found = json.loads(path.read_text())
        self.turns = {
            key: [self.tokenizer.encode(text, add_special_tokens=False) for text in turns]
            for key, turns in (found if isinstance(found, dict) else {"": found}).items()
        }
        self._spoken: dict[tuple[int, ...], int] = {}

    def next_turn(self, prompt_ids: list[int]) -> list[int]:
        """A prompt that goes on from what was said before is the next turn; requests carry no number of their own."""
        before = [turn for spoken, turn in self._spoken.items() if tuple(prompt_ids[: len(spoken)]) == spoken]
        turn = max(before, default=-1) + 1
        prompt = self.tokenizer.decode(prompt_ids)
        turns = next(turns for key, turns in self.turns.items() if key in prompt)
        tokens = turns[min(turn, len(turns) - 1)]
        self._spoken[*prompt_ids, *tokens] = turn
        return tokens


def _follow(generation: ModuleType) -> None:
    class Scripted(generation.Generator):
        def __init__(self, path: str, *arguments: Any) -> None:
            super().__init__(path, *arguments)
            self.script = Script(Path(os.environ[ENVIRONMENT_VARIABLE]), path)

        def request(self, prompt_ids: list[int], *others: Any) -> Any:
            return super().request(prompt_ids, *others, forced=self.script.next_turn(prompt_ids))

    generation.Generator = Scripted


if ENVIRONMENT_VARIABLE in os.environ:
    # not the server's module: a worker of Ray imports that one first, and by it verl, and by verl this one
    on_import("wm_plugin.verl.cpu.generation", _follow)
