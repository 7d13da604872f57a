"""Trajectories to transitions: (history, action, next observation). World models are trained and tested on these.

The turns to use are all of them (RWML), one per trajectory (Qwen-AgentWorld's RL, where shared prefixes collapse training), or
a sample (AgentWorldBench). Splits are by task, never by turn.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wm_plugin.data import files
from wm_plugin.data.draws import uniform
from wm_plugin.data.errors import RowError
from wm_plugin.data.failures import SCREENS, domain_of
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Line, Observation, Trajectory, Transition, Turn, misfit
from wm_plugin.data.turn_texts import action_text
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.objectives.information import statistics

SAMPLINGS = ("all", "one", "bench")
_BENCH = 5  # turns: the first, the last and three uniform ones
_HALF = 0.5  # the share of them that is kept


def expand(
    trajectories: Iterable[Trajectory],
    *,
    turns: str = "all",
    history: int | None = None,
    history_tokens: int | None = None,
    count: Callable[[str], int] | None = None,
    seed: int = 0,
) -> Iterator[Transition]:
    """Yield the transitions of trajectories, in order.

    `bench` samples as AgentWorldBench does: the first, the last and three more turns at random, then half of these. Of the
    domains with screens (android, web, os) the paper says only that it took harder turns: here they are the five whose
    observations have the largest share of words that the one before does not have.

    A turn with several results gives one transition for each, all with the same action; `observation.call` is the index of the
    call that the result answers. What a user observes of its own tools is in the history, and never a target; so is what a filter
    marked (`data["target"]` is false). The last observation of a success says so (see `with_success`), and of a trajectory with a
    domain (`failures.domain_of`) each one has it in `data["domain"]`, for prompts and judges.

    Args:
        turns: `all`; `one`, drawn at random for each trajectory; `bench`.
        history: how many turns before the action to keep; None keeps all.
        history_tokens: a limit in tokens instead. The last turns that fit are kept whole; there may be none. A turn's length is
            that of its action's and its observations' texts by `count`; headings and templates are not counted.
        count: the number of tokens of a text, for `history_tokens`.
        seed: of the draws. A trajectory's draw depends only on the seed and the trajectory's identity.

    Raises:
        UserError: `turns` or `history` has another value, or both limits of the history are set.
    """
    if turns not in SAMPLINGS:
        raise UserError(f"turns is {shown(turns)}{nearest(turns, SAMPLINGS)}")
    _check_limits(history=history, history_tokens=history_tokens)
    if history is not None and history_tokens is not None:
        raise UserError("history counts turns and history_tokens tokens: leave one of them out")
    if history_tokens is not None and count is None:
        raise UserError("history_tokens needs count: a function from a text to its number of tokens")
    for unmarked in trajectories:
        trajectory, name = _with_domain(with_success(unmarked)), identity(unmarked)
        observed = [one for one in trajectory.observed() if one[2].data.get("target") is not False]
        start = _starts(trajectory.turns, history, history_tokens, count)
        rng = _rng(seed, name)
        drawn = _draw(len(observed), turns, rng)
        if turns == "bench":
            if domain_of(trajectory) in SCREENS:
                drawn = _hardest([observation.text for _, _, observation in observed])
            drawn = [index for index in drawn if rng.random() < _HALF]
        for index in drawn:
            number, _, observation = observed[index]
            yield transition(trajectory, number, observation, name=name, first=start(number))


def shortened(transitions: Iterable[Transition], history: int | None) -> Iterator[Transition]:
    """Yield transitions with the last `history` turns of their histories, as `expand` cuts them; None keeps what they have."""
    _check_limits(history=history)
    for one in transitions:
        if history is not None and len(one.history) > history:
            one = one.model_copy(update={"history": one.history[len(one.history) - history :]})
        yield one


def _check_limits(**limits: Any) -> None:
    for name, limit in limits.items():
        if limit is not None and (type(limit) is not int or limit < 0):
            raise UserError(f"{name} is {shown(limit)}; write a number >= 0, or leave it out for all turns")


def one_each(path: str | Path, seed: int = 0) -> Iterator[Transition]:
    """Yield one transition of each trajectory in a file of transitions: the one that `expand` draws by this seed.

    The file is read twice.
    """
    counts = Counter(transition.trajectory for transition in read_transitions(path))
    drawn = {name: _rng(seed, name).randrange(count) for name, count in counts.items()}
    for transition in read_transitions(path):
        if drawn[transition.trajectory] == 0:
            yield transition
        drawn[transition.trajectory] -= 1


def _rng(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed}/{name}".encode(errors="surrogatepass"))


def _with_domain(trajectory: Trajectory) -> Trajectory:
    domain = domain_of(trajectory)
    if not domain:
        return trajectory

    def marked(one: Observation) -> Observation:
        return one if "domain" in one.data else one.model_copy(update={"data": {**one.data, "domain": domain}})

    turns = (one.model_copy(update={"observations": tuple(map(marked, one.observations))}) for one in trajectory.turns)
    return trajectory.model_copy(update={"turns": tuple(turns)})


def with_success(trajectory: Trajectory) -> Trajectory:
    """Mark the agent's last observation with `data["success"]` if the trajectory is a success without such a mark."""
    observed = list(trajectory.observed())
    if not trajectory.success or not observed or any(one.data.get("success") is True for _, _, one in observed):
        return trajectory
    number, index, last = observed[-1]
    turns, marked = list(trajectory.turns), last.model_copy(update={"data": {**last.data, "success": True}})
    observations = list(turns[number].observations)
    observations[index] = marked
    turns[number] = turns[number].model_copy(update={"observations": tuple(observations)})
    return trajectory.model_copy(update={"turns": tuple(turns)})


def transition(
    trajectory: Trajectory, number: int, observation: Observation, *, name: str, first: int = 0
) -> Transition:
    """Make the transition to an observation of turn `number`."""
    return Transition.model_construct(  # the trajectory is valid; a history would be checked turn by turn again
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
    """Return a function from a turn's number to the number of the first turn of its history, for numbers in order."""
    if history_tokens is None or count is None:
        return lambda number: 0 if history is None else max(0, number - history)
    limit = history_tokens

    @cache
    def tokens(number: int) -> int:
        texts = [action_text(turns[number].action), *(observation.text for observation in turns[number].observations)]
        return sum(count(text) for text in texts if text)

    start = end = total = 0  # the history before, and its tokens

    def first(number: int) -> int:
        nonlocal start, end, total
        before, end, new = end, number, 0
        for earlier in range(number - 1, before - 1, -1):
            if new + tokens(earlier) > limit:
                start, total = earlier + 1, new
                return start
            new += tokens(earlier)
        total += new
        while total > limit:
            total -= tokens(start)
            start += 1
        return start

    return first


def _draw(count: int, turns: str, rng: random.Random) -> Iterable[int]:
    if turns == "all" or count == 0:
        return range(count)
    if turns == "one":
        return [rng.randrange(count)]
    if count <= _BENCH:
        return range(count)
    return sorted([0, count - 1, *rng.sample(range(1, count - 1), _BENCH - 2)])


def _hardest(texts: Sequence[str]) -> list[int]:
    """Return the observations with the most new words against the one before, in order."""
    new = [statistics(before, text).novelty for before, text in zip(["", *texts], texts, strict=False)]
    return sorted(sorted(range(len(texts)), key=lambda index: -new[index])[:_BENCH])


def identity(trajectory: Trajectory) -> str:
    """Return a trajectory's name: the same in every run over the same files, and different for every trajectory of them."""
    source = trajectory.source
    if source is None:
        digest = hashlib.sha256(b"\n".join(turn.to_bytes() for turn in trajectory.turns))
        return f"{trajectory.task_id}#{digest.hexdigest()[:16]}"
    return f"{trajectory.task_id}#{source.file}/{source.row}" + (f"/{source.id}" if source.id else "")


def is_validation(trajectory: Trajectory, share: float, seed: int = 0) -> bool:
    """Tell whether a trajectory's task belongs to the validation split, which gets `share` of the tasks.

    The draw depends only on the task and the seed: other files, another order or more data do not move a task to the other side.
    A trajectory without a task counts as a task of its own.
    """
    if not 0 <= share <= 1:
        raise UserError(f"the validation share is {share}; write a number between 0 and 1")
    task = trajectory.task_id or identity(trajectory)
    return uniform(f"{seed}/{task}") < share


def pool_of(trajectory: Trajectory, shares: Mapping[str, float], seed: int = 0) -> str | None:
    """Return the pool that a trajectory's task belongs to, each with its share of the tasks; None where the shares leave a rest.

    The draw depends only on the task and the seed, so that the pools of training stages have no task in common (Qwen-AgentWorld,
    section 3.1). It is independent of the validation split, so that each pool can be split.
    """
    at = uniform(f"pool/{seed}/{trajectory.task_id or identity(trajectory)}")
    for name, share in shares.items():
        if at < share:
            return name
        at -= share
    return None


def holds_transitions(path: str | Path) -> bool:
    """Tell by its first record whether a file holds transitions."""
    path = Path(path)
    if path.suffix == ".parquet":
        return False
    sample = files.head(path).sample
    whole, compact = {"history", "action", "observation"}, {"turns", "transitions"}
    return isinstance(sample, Mapping) and (whole <= sample.keys() or compact <= sample.keys())


def transitions_in(path: str | Path) -> Iterator[Transition]:
    """Yield the transitions of a file: as they are, or those of all turns of its trajectories."""
    return read_transitions(path) if holds_transitions(path) else expand(read(path))


def read_transitions(path: str | Path) -> Iterator[Transition]:
    """Yield the transitions of a file that `write_transitions` wrote.

    Raises:
        UserError: a row is not a transition; the message names the row.
    """
    path = Path(path)
    for record in files.lines(path):
        if record.error is not None:
            raise UserError(f"{path}, row {record.row}: {record.error}")
        try:
            if isinstance(record.value, Mapping) and "transitions" in record.value:
                yield from Line.model_validate(record.value).expanded()
            else:
                yield Transition.model_validate(record.value)
        except (ValidationError, RecursionError) as error:
            raise UserError(f"{path}, row {record.row}: no transition ({misfit(error)})") from None
        except RowError as error:
            raise UserError(f"{path}, row {record.row}: no transition ({error})") from None
