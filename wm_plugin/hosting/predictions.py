"""Predictions inside an episode: `<prediction>what I shall see</prediction>` before an action, scored by what is observed.

`predicted(SokobanEnvironment, reward="exact", coeff=0.5)` is the environment whose turns are scored; a run's `prediction_reward`
does the same on both hosts. Sums and means of scores are part of its `get_reward`. `turn_scores` returns the scores to the hosts,
which make them advantages of the turns' tokens (`objectives.turns`).

A turn is scored once the policy has read what followed it, that is when it goes on: the last turn never is. It has the score

* 0 without a prediction, and where the host wrote an observation (an unknown tool, a call that does not parse, a tool that
  raised): failing on purpose is easily foreseen;
* of the reward otherwise: the text in the answer's last tag after its thoughts, against the observations of all its calls.

Turns after the end of a world's episode are not scored, as nothing can happen in them.

What stands between the tags is left out before an answer's action is parsed (`acting`), so that no text is both.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Self

from wm_plugin.data.render import write_call
from wm_plugin.data.schema import Action
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import Start, Wrapper, chain_of, dress, is_over, layer_of, options_of
from wm_plugin.rewards.extract import extract
from wm_plugin.rewards.prediction import FIELD, PredictionReward

ASK = """
Before you act in a turn, and after your thoughts, predict what you will observe next: write it between <{tag}> and </{tag}>.
"""
COUNTS = ("turns", "written", "total")  # scored turns, those of them with a prediction, and the sum of the scores


class Answer(NamedTuple):
    """An answer in two parts.

    Attributes:
        acting: without the predictions.
        predicted: the predictions, with their tags.
    """

    acting: str
    predicted: str


def acting(answer: str, tag: str, *, thinking: bool = False) -> Answer:
    """Split an answer. Takes time in proportion to it.

    A prediction begins at `<tag>` outside of thoughts and ends at the next `</tag>`, or with the answer. What stands in it is
    text, whatever it looks like.

    Args:
        answer: with its special tokens, since some tokenizers count the tags among them.
        thinking: the prompt has begun the answer with `<think>`.
    """
    cuts: list[tuple[int, int]] = []
    inside, start = "think" if thinking else "", 0
    for mark in _marks(tag).finditer(answer):
        name = mark[0]
        if inside == tag:
            if name == f"</{tag}>":
                cuts.append((start, mark.end()))
                inside = ""
        elif name == "</think>":
            if not inside:  # the prompt began to think: what stood before it were thoughts
                cuts.clear()
            inside = ""
        elif name in ("<think>", f"<{tag}>") and not inside:
            inside, start = name[1:-1], mark.start()
    if inside == tag:
        cuts.append((start, len(answer)))
    if not cuts:
        return Answer(answer, "")
    starts = [0, *(end for _, end in cuts)]
    ends = [*(begin for begin, _ in cuts), len(answer)]
    kept = "".join(answer[one:other] for one, other in zip(starts, ends, strict=True))
    return Answer(kept, "".join(answer[one:other] for one, other in cuts))


@lru_cache(maxsize=8)
def _marks(tag: str) -> re.Pattern[str]:
    return re.compile(f"</?(?:think|{re.escape(tag)})>")


def predicted(environment: type, config: PredictionReward | Mapping[str, Any] | None = None, **settings: Any) -> type:
    """Return the class of `environment` whose turns are scored by what the policy predicted in them.

    Raises:
        UserError: there is no such setting, its value does not fit, or the environment has no `get_reward`, to which the scores
            are to be added; in an episode: the reward lacks a column, or fails.
    """
    options = PredictionReward.read(settings if config is None else config, FIELD)
    if options.of_episodes and not hasattr(environment, "get_reward"):
        raise UserError(
            f"{environment.__name__} has no get_reward, to which {FIELD}.level: {options.level} adds; write level: turn"
        )
    return dress(environment, Predicted, options)


def prediction_reward(environment: Any) -> PredictionReward | None:
    """Return the options of a class's or an instance's prediction reward; None if it has none."""
    found: PredictionReward | None = options_of(environment, Predicted)
    return found


def turn_scores(environment: Any) -> list[float | None]:
    """Return the score of each turn of an instance's episode that ended, in order; None: the turn is not scored."""
    chain = chain_of(environment)
    layer = None if chain is None else layer_of(chain, Predicted)
    return [] if layer is None else [turn.score for turn in layer.answers]


class _Turn:
    """A turn: its prediction and action, and what is known of what followed.

    Attributes:
        reached: how many of its calls the world answered.
        observed: what the policy read; None if it has not gone on.
        late: the world's episode was over already.
    """

    def __init__(self, action: Action, prediction: str | None, context: Sequence[Any], late: bool) -> None:
        self.action = "\n".join(map(write_call, action.calls))
        self._tool = action.calls[0].name if action.calls else ""
        self.prediction, self.context, self.late = prediction, context, late
        self.reached = 0
        self.observed: str | None = None
        self.genuine = False
        self.score: float | None = None

    def observer(self, environment: type) -> str:
        """Return who the turn's first call heard from: a tool, a user or the environment."""
        declared = getattr(environment, "observer", "tool")
        return str(declared.get(self._tool, "tool") if isinstance(declared, Mapping) else declared)


class Predicted(Wrapper):
    """A world whose turns are scored by the policy's predictions.

    Attributes:
        answers: the policy's turns in the episode.
    """

    is_turn_aware = True

    def __init__(self, world: Wrapper, options: PredictionReward, environment: type) -> None:
        super().__init__(world, options, environment)
        self._begin({}, Start())

    def _begin(self, columns: Mapping[str, Any], start: Start) -> None:
        self.answers: list[_Turn] = []
        self._columns, self._training = dict(columns), start.training
        prompt = self._columns.pop("prompt", None) or start.prompt
        self._said: list[Any] = list(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, str) else []

    def reset(self, columns: dict[str, Any], start: Start) -> Any:
        self._begin(columns, start)
        observation = self.world.reset(columns, start)
        return self._awaited(observation) if inspect.isawaitable(observation) else self._first(observation)

    async def _awaited(self, observation: Any) -> Any:
        return self._first(await observation)

    def _first(self, observation: Any) -> Any:
        self._said.append({"role": "user", "content": str(observation or "")})
        if not (self.options.ask and self.options.coeff):
            return observation
        request = ASK.replace("{tag}", self.options.tag)
        if isinstance(observation, list):
            return [*observation, {"type": "text", "text": request}]
        return f"{'' if observation is None else observation}\n{request}"

    def turn(self, action: Action, results: Sequence[str]) -> None:
        self._observe(results)
        prediction = extract(action.text, self.options.tag).prediction
        self.answers.append(_Turn(action, prediction, tuple(self._said), is_over(self.world)))
        self.world.turn(action, results)

    def _observe(self, results: Sequence[str]) -> None:
        """Note what the policy read after its last turn."""
        if not (self.answers and results):
            return
        last = self.answers[-1]
        last.observed = "\n".join(results)
        last.genuine = last.reached == len(results)
        self._said += [{"role": "assistant", "content": last.action}, {"role": "user", "content": last.observed}]

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        result = self.world.call(tool, arguments)
        if inspect.isawaitable(result):
            return self._reached(result)
        self._count()
        return result

    async def _reached(self, result: Any) -> Any:
        found = await result
        self._count()
        return found

    def _count(self) -> None:
        if self.answers:
            self.answers[-1].reached += 1

    @classmethod
    def finalize(cls, episodes: Sequence[Self]) -> None:
        """Score the turns of episodes that ended together, all in one call of the reward."""
        for options in dict.fromkeys(one.options for one in episodes):
            scored = [
                (one, turn)
                for one in episodes
                if one.options == options
                for turn in one.answers
                if turn.observed is not None and not turn.late
            ]
            predictions = [turn.prediction if turn.genuine else None for _, turn in scored]
            names = dict.fromkeys(name for one, _ in scored for name in one._columns)
            columns = {name: [one._columns.get(name) for one, _ in scored] for name in names}
            columns |= {
                "observer": [turn.observer(one.environment) for one, turn in scored],
                "action": [turn.action for _, turn in scored],
                "context": [list(turn.context) for _, turn in scored],
            }
            scores = options.scores(predictions, [str(turn.observed) for _, turn in scored], columns)
            for (_, turn), score in zip(scored, scores, strict=True):
                turn.score = score

    def get_reward(self) -> Any:
        """Return the world's reward, in trainings with what the scores add. It may be asynchronous."""
        outcome = self.world.get_reward()
        bonus = self.options.bonus([turn.score for turn in self.answers]) if self._training else 0.0
        if not bonus:
            return outcome
        return self._sum(outcome, bonus) if inspect.isawaitable(outcome) else float(outcome) + bonus

    async def _sum(self, outcome: Any, bonus: float) -> float:
        return float(await outcome) + bonus

    @property
    def metrics(self) -> dict[str, float]:
        """The world's, and the counts of scored turns."""
        scored = [turn for turn in self.answers if turn.score is not None]
        counts = (
            len(scored),
            sum(turn.prediction is not None for turn in scored),
            sum(turn.score or 0 for turn in scored),
        )
        own = {f"prediction/{name}": float(count) for name, count in zip(COUNTS, counts, strict=True)}
        whole = max(own["prediction/turns"], 1.0)
        own |= {
            "prediction/score": own["prediction/total"] / whole,
            "prediction/share": own["prediction/written"] / whole,
        }
        return {**(getattr(self.world, "metrics", None) or {}), **own}
