"""A world model in a world's place: an episode in which the observations are predicted (Word2World).

The world model is asked as it was trained: with the dialogue of `data.prompts.dialogue`, which ends with the action. A
`Simulation` asks nobody itself. `question` is the conversation for an action and `step` takes its answer, so that whoever runs
many episodes can ask for all of them at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wm_plugin.client.answers import Answer
from wm_plugin.data.hidden import Shown
from wm_plugin.data.prompts import Prompts, dialogue
from wm_plugin.data.readers.word2world import SUCCESS
from wm_plugin.data.render import separated
from wm_plugin.data.schema import Action, Kind, Observation, Trajectory, Turn
from wm_plugin.errors import UserError
from wm_plugin.rewards.extract import extract
from wm_plugin.tokens.message import Message

MAX_TURNS = 50  # the paper's
_MARK = SUCCESS.strip()


@dataclass(frozen=True)
class Reading:
    """What an answer of a world model says.

    Attributes:
        texts: one for each call of the action.
        success: it ends in the mark.
        trouble: why it is not to be trusted: the failure, "cut", "empty", "no prediction", "headings" (those of several
            observations are missing), or "".
    """

    texts: tuple[str, ...]
    success: bool = False
    trouble: str = ""


class Simulation:
    """One episode at a time; `reset` starts it anew. It is over at the success mark, after `max_turns`, or when it fails.

    Args:
        prompts: of the dialogues that the world model was trained with. They must have the success mark, which ends an episode.
        observers: what is observed after a call of each tool, as `World.observers`; "tool" after all others.
        world_context: what of the state the world model is shown (`data.hidden`).
        seed: of the prompts' variants. Each task has one variant.

    Attributes:
        trajectory: the episode so far, as an agent sees it.
        success: the world model has marked a success.
        trouble: of the first answer that failed, was empty or had no prediction, or else "cut" if one was cut; see `Reading`.

    Raises:
        UserError: the prompts have no success mark.
    """

    def __init__(
        self,
        prompts: Prompts,
        *,
        observers: Mapping[str, Kind] | None = None,
        world_context: Shown = True,
        seed: int = 0,
        max_turns: int = MAX_TURNS,
    ) -> None:
        if not prompts.success:
            raise UserError(
                f"--prompts: {prompts.name} has no success mark, which ends an episode in a world model; write success: true "
                "there, or take word2world"
            )
        self.prompts, self.observers, self.world_context = prompts, observers or {}, world_context
        self.seed, self.max_turns = seed, max_turns
        self.reset(Trajectory(turns=()))

    def reset(self, start: Trajectory) -> str:
        """Begin an episode with a real one's context and task; return what the agent sees first."""
        # A success of None would leave the mark out of the prompts: see `dialogue`.
        self.trajectory = start.model_copy(update={"turns": (), "success": False, "reward": None})
        self._variant = self.prompts.choose(start.task_id, "sft", self.seed)
        self._ended, self.success, self.trouble = False, False, ""
        return start.context.initial_state

    @property
    def turns(self) -> int:
        return len(self.trajectory.turns)

    @property
    def over(self) -> bool:
        return self._ended or self.turns >= self.max_turns

    def question(self, action: Action, data: Sequence[Mapping[str, Any]] = ()) -> list[Message]:
        """Return the conversation to whose last message, the action, the world model answers with the observation.

        Args:
            data: of the observations, such as instructions for this turn.
        """
        turn = Turn(action=action, observations=self.observations(action, data=data))
        asked = self.trajectory.model_copy(update={"turns": (*self.trajectory.turns, turn)})
        made = dialogue(asked, self.prompts, variant=self._variant, world_context=self.world_context)
        return made.messages[:-1]

    def read(self, action: Action, answer: Answer) -> Reading:
        """Return what an answer to `question(action)` says, without going on."""
        prediction = "" if answer.failure else extract(answer.text, self.prompts.tag).prediction
        # White space at the ends stays: real observations have it, and so had the dialogues of the training.
        text = answer.text if prediction == answer.text.strip() else prediction or ""
        won = text.rstrip().endswith(_MARK)
        text = text.rstrip().removesuffix(SUCCESS).removesuffix(_MARK) if won else text
        observations = self.observations(action)
        texts = separated(text, observations)
        trouble = answer.trouble or ("no prediction" if prediction is None else "")
        if not trouble and len(texts) > 1 and texts[0] == text:  # with its headings a text is never the first one's
            trouble = "headings"
        return Reading(tuple(texts), won, trouble)

    def step(self, action: Action, answer: Answer) -> None:
        """Go on with what the world model answered. A cut or empty answer is an observation, and a `trouble`."""
        said = self.read(action, answer)
        if said.trouble != "headings":  # then all of it is the first observation's
            self._troubled(said.trouble)
        self.take(action, self.observations(action, said.texts), said.success, over=bool(answer.failure))

    def take(self, action: Action, observations: Sequence[Observation], success: bool, *, over: bool = False) -> None:
        """Go on with observations, such as real ones."""
        turn = Turn(action=action, observations=tuple(observations))
        self.success, self._ended = success, success or over
        self.trajectory = self.trajectory.model_copy(
            update={"turns": (*self.trajectory.turns, turn), "success": success}
        )

    def leave(self, action: Action | None = None) -> None:
        """End the episode for the agent, perhaps with words that call no tool."""
        if action is not None:
            self.take(action, (), False)
        self._ended = True

    def fail(self, trouble: str) -> None:
        """End the episode, since there is no action or no observation."""
        self._troubled(trouble)
        self._ended = True

    def _troubled(self, trouble: str) -> None:
        if self.trouble in ("", "cut"):  # so that "cut" says that there is nothing else
            self.trouble = trouble or self.trouble

    def observations(
        self, action: Action, texts: Sequence[str] | None = None, data: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[Observation, ...]:
        """Return the observations of an action's calls, with these texts and data."""
        return tuple(
            Observation(
                kind=self.observers.get(call.name, "tool"),
                text=texts[n] if texts else "",
                tool=call.name,
                call=n,
                data=dict(data[n]) if data else {},
            )
            for n, call in enumerate(action.calls)
        )
