"""How good an agent's actions are: the share of invalid and of ineffective ones, by kind (RWML, section 4.1).

An action is a tool call, or a text that an environment answered. A world may count several actions in one call.

A call is invalid for the first of these reasons that holds:

- unknown tool: its tool is not among those that the agent had;
- arguments: they are no JSON object, or lack one that the tool requires, or have one that it does not know;
- error: the tool or the host flags the answer as an error;
- refused: the world says that the action was invalid, in its counts or in words.

An action is ineffective if it is valid and changed nothing: as the world counts it if its rollouts say so, else if the same
action had the same answer before. RWML also takes commands that only look for ineffective: give their first words as `passive`,
and each action is judged.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.data.filter import Filter
from wm_plugin.data.schema import Call, Observation, Trajectory, Turn
from wm_plugin.lab.evaluation.measures import Key, Sums
from wm_plugin.rewards.extract import extract
from wm_plugin.untrusted import number

KINDS = ("unknown tool", "arguments", "error", "refused")
_MOST = 1e6  # actions of a call; no world counts more, and one line of a file must not outweigh all others
INVALID, INEFFECTIVE = Key("invalid_actions"), Key("ineffective_actions")
EITHER, CALLS = Key("invalid_or_ineffective_actions"), Key("invalid_calls")


@dataclass
class Quality:
    """Counts of an episode. `kinds` counts calls."""

    actions: float = 0.0
    invalid: float = 0.0
    ineffective: float = 0.0
    calls: int = 0
    kinds: Counter[str] = field(default_factory=Counter)


def quality(trajectory: Trajectory, *, passive: Collection[str] = (), invalid: Sequence[str] = ()) -> Quality:
    """Count the agent's actions in an episode.

    Args:
        passive: first words of commands that only look, in lower case.
        invalid: more patterns of observations that answer an invalid action, as `Filter` takes them.
    """
    judge, tools, counts = Filter((), invalid=invalid), _tools(trajectory), Quality()
    earlier: set[bytes] = set()
    for turn in trajectory.turns:
        for call, observations in _answered(turn) if turn.actor == "agent" else ():
            size, refused = _weights(judge, observations)
            if call is not None:
                kind = _problem(call, tools, observations, refused > 0)
                counts.calls += 1
                counts.kinds[kind] += bool(kind)
                refused = size if kind and kind != "refused" else refused
            counts.actions += size
            counts.invalid += refused
            same = _digest(turn, call, observations)
            if observations and (same in earlier or _first_words(turn, call) & set(passive)):
                counts.ineffective += size - refused
            earlier.add(same)
    counts.kinds = Counter({kind: counts.kinds[kind] for kind in KINDS})
    figures = trajectory.metadata.get("figures")
    if (
        isinstance(figures, dict) and not passive
    ):  # the world's own number of ineffective actions, if its rollouts have it
        values = [number(figures.get(name)) for name in ("actions", "effective", "invalid")]
        actions, effective, refused = (0.0 if value is None else value for value in values)
        if None not in values:
            counts.ineffective = min(max(actions - effective - refused, 0.0), max(counts.actions - counts.invalid, 0.0))
    return counts


def add(sums: Sums, task: str, counts: Quality) -> None:
    """Add an episode's counts to those of its task."""
    sums.add(INVALID, task, counts.invalid, counts.actions)
    sums.add(INEFFECTIVE, task, counts.ineffective, counts.actions)
    sums.add(EITHER, task, counts.invalid + counts.ineffective, counts.actions)
    sums.add(CALLS, task, sum(counts.kinds.values()), counts.calls)
    for kind in KINDS:
        sums.add(CALLS._replace(by="kind", group=kind), task, counts.kinds[kind], counts.calls)


def _answered(turn: Turn) -> Iterable[tuple[Call | None, list[Observation]]]:
    """Pair each call with its answers; a text without calls counts if an environment answered it."""
    if not turn.action.calls:
        observations = [observation for observation in turn.observations if observation.kind != "user"]
        return [(None, observations)] if observations else []
    by_call: dict[int | None, list[Observation]] = {}
    for observation in turn.observations:
        by_call.setdefault(observation.call, []).append(observation)
    alone = by_call.get(None, []) if len(turn.action.calls) == 1 else []
    return [(call, by_call.get(index, []) + alone) for index, call in enumerate(turn.action.calls)]


def _weights(judge: Filter, observations: Sequence[Observation]) -> tuple[float, float]:
    """Return how many actions a call has, and how many of them its answers refuse."""
    counts = (number(one.data.get("actions")) for one in observations)
    size = max((count for count in counts if count is not None and 0 < count <= _MOST), default=1.0)
    return size, size * max(map(judge.invalid_share, observations), default=0.0)


def _problem(call: Call, tools: Mapping[str, Any], observations: Sequence[Observation], refused: bool) -> str:
    if tools and call.name not in tools:
        return "unknown tool"
    if not _fit(call.arguments, tools.get(call.name)):
        return "arguments"
    if any(observation.error for observation in observations):
        return "error"
    return "refused" if refused else ""


def _fit(arguments: Any, parameters: Any) -> bool:
    """Return whether arguments are an object with what a tool requires and nothing that it does not know."""
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        return False
    if not isinstance(parameters, dict):
        return True
    required, known = parameters.get("required"), parameters.get("properties")
    if isinstance(required, list) and any(isinstance(name, str) and name not in arguments for name in required):
        return False
    is_open = parameters.get("additionalProperties") not in (None, False)
    return is_open or not isinstance(known, dict) or arguments.keys() <= known.keys()


def _tools(trajectory: Trajectory) -> dict[str, Any]:
    """Return the parameters of each tool that the agent had, by name."""
    functions = [tool.get("function") for tool in trajectory.context.action_space]
    schemas = zip(functions, trajectory.context.action_space, strict=True)
    chosen = [function if isinstance(function, dict) else tool for function, tool in schemas]
    return {str(schema.get("name")): schema.get("parameters") for schema in chosen}


def _digest(turn: Turn, call: Call | None, observations: Sequence[Observation]) -> bytes:
    """Hash an action with its answer; a long episode's texts would take its memory a second time."""
    act = [turn.action.text] if call is None else [call.name, call.arguments]
    text = json.dumps([act, [observation.text for observation in observations]], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _first_words(turn: Turn, call: Call | None) -> set[str]:
    """Return the commands' first words in lower case: of the text after its thoughts, or of a call's name and arguments."""
    if call is None:
        texts = [extract(turn.action.text, "").prediction or ""]
    else:
        arguments = call.arguments.values() if isinstance(call.arguments, dict) else [call.arguments]
        texts = [call.name, *(value for value in arguments if isinstance(value, str))]
    return {words[0].lower() for text in texts if (words := text.split(maxsplit=1))}
