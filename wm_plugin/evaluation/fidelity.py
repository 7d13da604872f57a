"""How often a world model writes the next observation of real episodes (Word2World's one-step fidelity).

The model gets a real dialogue up to an action and writes the observation at temperature 0. It matches if the texts are equal
after white space at their ends is stripped, with the success mark: a right text with a wrong mark is wrong, and so is a right
mark with a wrong text. The share is over all turns of all episodes alike, not a mean of episodes. A turn without an answer counts
as wrong.

`one_step` judges the same without generating, by the tokens of the real observation.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.rewards.exact import ExactReward
from wm_plugin.rewards.extract import extract
from wm_plugin.rewards.words import WordF1Reward
from wm_plugin.runtime.predict import Predictor
from wm_plugin.samples.prompts import Prompts, dialogue
from wm_plugin.tokens.message import Message
from wm_plugin.trajectories.readers.word2world import SUCCESS
from wm_plugin.trajectories.schema import Trajectory

MARK = SUCCESS.strip()


@dataclass
class Counts:
    """Sums over turns."""

    turns: int = 0
    exact: int = 0  # text and mark
    text: int = 0  # the text without the mark
    mark: int = 0  # the mark, or its absence
    word_f1: float = 0.0
    unanswered: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Shares of the turns, None of no turns."""
        names = ("exact", "text", "mark", "word_f1")
        shares = {name: getattr(self, name) / self.turns if self.turns else None for name in names}
        return {"turns": self.turns, **shares, "unanswered": self.unanswered}


@dataclass
class Fidelity:
    """The counts of all turns, and those of each step of an episode, from 1."""

    all: Counts = field(default_factory=Counts)
    by_step: dict[int, Counts] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        steps = {str(step): counts.as_dict() for step, counts in sorted(self.by_step.items())}
        return {**self.all.as_dict(), "by_step": steps}


def fidelity(
    trajectories: Iterable[Trajectory],
    predictor: Predictor,
    prompts: Prompts,
    *,
    world_context: bool = True,
    seed: int = 0,
    at_once: int = 256,
) -> Fidelity:
    """Predict every turn of trajectories and compare.

    Args:
        predictor: at temperature 0.
        prompts: of dialogues, such as the family `word2world`; those that the model was trained with, of the stage `sft`.
        world_context: show the hidden state that trajectories carry. Evaluate as the model was trained.
        seed: of the prompts' variants, as in `samples`.
        at_once: turns that are given to the predictor in one call.

    Raises:
        UserError: the predictor samples, or as from the predictor.
    """
    if predictor.settings.get("temperature") != 0:
        raise UserError(f"exact match is at temperature 0, not {predictor.settings.get('temperature')}")
    result = Fidelity()
    asked = _turns(trajectories, prompts, world_context, seed)
    while chunk := list(islice(asked, at_once)):
        outputs = predictor([messages for _, messages, _ in chunk], k=1, seed=seed)
        predictions = [extract(texts[0], prompts.tag).prediction if texts else None for texts in outputs]
        targets = [target for _, _, target in chunk]
        exact, f1 = ExactReward()(predictions, targets), WordF1Reward()(predictions, targets)
        for row, (step, _, target) in enumerate(chunk):
            text, marked = _parts(predictions[row])
            real, really = _parts(target)
            for counts in (result.all, result.by_step.setdefault(step, Counts())):
                counts.turns += 1
                counts.exact += exact[row] == 1
                counts.text += text is not None and text == real
                counts.mark += text is not None and marked == really
                counts.word_f1 += f1[row]
                counts.unanswered += text is None
    return result


def _turns(
    trajectories: Iterable[Trajectory], prompts: Prompts, world_context: bool, seed: int
) -> Iterator[tuple[int, list[Message], str]]:
    """The step, the dialogue before it and the real observation of every turn."""
    for trajectory in trajectories:
        messages = dialogue(trajectory, prompts, seed=seed, world_context=world_context).messages
        places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        for step, place in enumerate(places, 1):
            yield step, messages[:place], messages[place]["content"]


def _parts(text: str | None) -> tuple[str | None, bool]:
    """A stripped text without its success mark, and whether it has one."""
    if text is None:
        return None, False
    text = text.strip()
    return text.removesuffix(MARK).rstrip(), text.endswith(MARK)
