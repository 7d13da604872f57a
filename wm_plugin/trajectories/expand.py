"""Trajectories to transitions: (history, action, next observation), what a world model is trained and tested on.

Which turns: all of them (RWML), exactly one a trajectory (Qwen-AgentWorld's RL: shared prefixes collapse training), or the first,
the last and three in between (AgentWorldBench). Splits go by task, never by turn.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from wm_plugin.errors import UserError, nearest
from wm_plugin.trajectories import files
from wm_plugin.trajectories.draws import uniform
from wm_plugin.trajectories.readers import read
from wm_plugin.trajectories.schema import Observation, Trajectory, Transition, Turn
from wm_plugin.trajectories.turn_texts import action_text

Sampling = Literal["all", "one", "bench"]
SAMPLINGS = ("all", "one", "bench")
_BENCH = 5  # the first, the last and three uniform ones


def expand(
    trajectories: Iterable[Trajectory],
    *,
    turns: str = "all",
    history: int | None = None,
    history_tokens: int | None = None,
    count: Callable[[str], int] | None = None,
    seed: int = 0,
) -> Iterator[Transition]:
    """The transitions of trajectories, in their order.

    A turn with several results is a transition for each of them, all with the same action; `observation.call` says which call was
    answered. What the user observes is in the history, and never a target.

    Args:
        turns: `all`; `one`, drawn at random for each trajectory; `bench`, the first, the last and three more at random.
        history: turns before the action that are kept; None keeps them all.
        history_tokens: tokens of the history instead: as many of the last turns as fit, whole, even none. A turn is as long
            as the text of its action and its observations by `count`; headings and templates come on top.
        count: tokens of a text, for `history_tokens`.
        seed: of the draws. A trajectory's draw depends on nothing but the seed and where it comes from.

    Raises:
        UserError: `turns` or `history` is none of these, or the history is given twice.
    """
    if turns not in SAMPLINGS:
        raise UserError(f"turns is {turns!r}{nearest(turns, SAMPLINGS)}")
    for name, limit in (("history", history), ("history_tokens", history_tokens)):
        if limit is not None and (type(limit) is not int or limit < 0):
            raise UserError(f"{name} is {limit!r}; write a number >= 0, or leave it out for all turns")
    if history is not None and history_tokens is not None:
        raise UserError("history counts turns and history_tokens tokens: leave one of them out")
    if history_tokens is not None and count is None:
        raise UserError("history_tokens needs count: a function from a text to its number of tokens")
    for trajectory in trajectories:
        observed = list(trajectory.observed())
        start = _starts(trajectory.turns, history, history_tokens, count)
        name = identity(trajectory)
        luck = random.Random(f"{seed}/{name}".encode(errors="surrogatepass"))
        for index in _chosen(len(observed), turns, luck):
            number, _, observation = observed[index]
            yield transition(trajectory, number, observation, name=name, first=start(number))


def transition(
    trajectory: Trajectory, number: int, observation: Observation, *, name: str, first: int = 0
) -> Transition:
    """The transition to an observation of turn `number`, with the history from turn `first` on; `name` is the identity."""
    return Transition(
        trajectory=name,
        turn=number,
        history=trajectory.turns[first:number],
        action=trajectory.turns[number].action,
        observation=observation,
        context=trajectory.context,
        task_id=trajectory.task_id,
        source=trajectory.source,
    )


def _starts(
    turns: Sequence[Turn], history: int | None, history_tokens: int | None, count: Callable[[str], int] | None
) -> Callable[[int], int]:
    """For a turn, the first one of its history."""
    if history_tokens is None or count is None:
        return lambda number: 0 if history is None else max(0, number - history)
    limit, tokens = history_tokens, cache(lambda number: _tokens(turns[number], count))

    def first(number: int) -> int:
        total = 0
        for earlier in range(number - 1, -1, -1):
            total += tokens(earlier)
            if total > limit:
                return earlier + 1
        return 0

    return first


def _tokens(turn: Turn, count: Callable[[str], int]) -> int:
    texts = [action_text(turn.action), *(observation.text for observation in turn.observations)]
    return sum(count(text) for text in texts if text)


def _chosen(count: int, turns: str, luck: random.Random) -> Iterable[int]:
    if turns == "all" or count == 0:
        return range(count)
    if turns == "one":
        return [luck.randrange(count)]
    if count <= _BENCH:
        return range(count)
    return sorted([0, count - 1, *luck.sample(range(1, count - 1), _BENCH - 2)])


def identity(trajectory: Trajectory) -> str:
    """A name for a trajectory, the same in every run over the same files."""
    source = trajectory.source
    if source is None:
        digest = hashlib.sha256(b"\n".join(turn.to_bytes() for turn in trajectory.turns))
        return f"{trajectory.task_id}#{digest.hexdigest()[:16]}"
    return f"{trajectory.task_id}#{source.file}/{source.row}" + (f"/{source.id}" if source.id else "")


def is_validation(trajectory: Trajectory, share: float, seed: int = 0) -> bool:
    """Whether a trajectory's task belongs to the validation split, which gets `share` of the tasks.

    A fixed function of the task: other files, another order or more data move no task from one side to the other. A trajectory
    without a task is a task of its own.
    """
    if not 0 <= share <= 1:
        raise UserError(f"the validation share is {share}; write a number between 0 and 1")
    task = trajectory.task_id or identity(trajectory)
    return uniform(f"{seed}/{task}") < share


def holds_transitions(path: str | Path) -> bool:
    """Whether a file is one of transitions, by its first record.

    Raises:
        UserError: it does not exist, is empty or no JSON.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        return False
    sample = files.head(path).sample
    return isinstance(sample, Mapping) and {"history", "action", "observation"} <= sample.keys()


def transitions_in(path: str | Path) -> Iterator[Transition]:
    """The transitions of a file: as they are, or those of all turns of its trajectories.

    Raises:
        UserError: as `read_transitions` and `read`.
    """
    return read_transitions(path) if holds_transitions(path) else expand(read(path))


def read_transitions(path: str | Path) -> Iterator[Transition]:
    """The transitions of a file that `write_transitions` wrote, one by one.

    Raises:
        UserError: a row is none; the message names it.
    """
    path = Path(path)
    for record in files.lines(path):
        if record.error is not None:
            raise UserError(f"{path}, row {record.row}: {record.error}")
        try:
            yield Transition.model_validate(record.value)
        except (ValidationError, RecursionError) as error:
            raise UserError(f"{path}, row {record.row}: no transition ({' '.join(str(error).split())[:200]})") from None
