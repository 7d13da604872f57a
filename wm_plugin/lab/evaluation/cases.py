"""Turns of real episodes as questions to a world model, each with the real observation; and demonstrations for few-shot prompts.

A question is written as `data.kinds` writes the kind of data that the model was trained on: a dialogue up to an action, or a
transition. The history before an action is always the real one (teacher forcing).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wm_plugin.data.draws import uniform
from wm_plugin.data.errors import RowError
from wm_plugin.data.hidden import HEADINGS, PARTS, UNSEEN, Shown, parts
from wm_plugin.data.kinds import KINDS, Prompted
from wm_plugin.data.prompts import Prompts, dialogue, observed, render, target
from wm_plugin.data.readers import read
from wm_plugin.data.render import write_action, write_history
from wm_plugin.data.sample import Sample
from wm_plugin.data.schema import Action, Observation, Trajectory, Transition, Turn
from wm_plugin.data.transitions import expand, holds_transitions, identity, read_transitions, with_success
from wm_plugin.data.turn_texts import action_text
from wm_plugin.errors import UserError, nearest
from wm_plugin.objectives.information import category
from wm_plugin.tokens.message import Message

Item = Trajectory | Transition
_WHOLE = "holds transitions, but {} is made of trajectories: give what wm data convert wrote"
SEVERAL = "several"  # observers or tools in one message of a dialogue


@dataclass(frozen=True)
class Case:
    """One turn: the question to the model, and the real observation."""

    trajectory: str  # its `identity`
    turn: int  # its number in the trajectory, from 1
    messages: Sequence[Message]  # the question; the last message is a user's
    real: str  # what the model should write, without tags
    before: str  # what the agent saw last before it acted
    action: str  # the agent's action
    tool: str = ""  # the tool whose result it is, or ""
    observer: str = "environment"  # "tool", "user", "environment", or `SEVERAL`
    category: str = "other"  # how much of the world the turn shows (`objectives.information`)
    error: bool = False  # the source flags the observation as an error
    known: bool = True  # whether the data say if the task was done
    won: bool = False  # the observation shows that it was


@dataclass(frozen=True)
class Episode:
    """One trajectory's cases. `sample` holds the answers that the model was trained to give, one counted message a case.

    It is None for a model that reasons before it answers: the answer then has no single form.
    """

    cases: Sequence[Case]
    sample: Sample | None


def kind_of(name: str, others: Sequence[str] = ()) -> type[Prompted]:
    """Return the kind of training data with this name."""
    prompted = {one: kind for one, kind in KINDS.items() if issubclass(kind, Prompted)}
    if name not in prompted:
        raise UserError(f"there is no kind {name!r} of a world model's data{nearest(name, [*prompted, *others])}")
    return prompted[name]


def items_in(source: str | Path, kind: str) -> Iterator[Item]:
    """Read a file's trajectories, or its transitions for kinds that are made of these."""
    if not holds_transitions(source):
        return read(source)
    if kind_of(kind).of == "dialogues":
        raise UserError(f"{source}: {_WHOLE.format(kind)}")
    return read_transitions(source)


def episodes(
    items: Iterable[Item],
    kind: str,
    prompts: Prompts,
    *,
    world_context: Shown,
    seed: int = 0,
    limit: int | None = None,
    left_out: Counter[str] | None = None,
) -> Iterator[Episode]:
    """Make the cases of trajectories, or of transitions for kinds that are made of these, in order.

    What a filter marked as no target is left out, as in training.

    Args:
        left_out: counts turns that have no case, by reason.
    """
    chosen, left_out = kind_of(kind), Counter() if left_out is None else left_out
    stage = "cpt" if kind == "cpt" else chosen.form
    how = {"stage": stage, "seed": seed, "world_context": world_context}
    trajectories, last = 0, ""
    for item in items:
        name = item.trajectory if isinstance(item, Transition) else identity(item)
        trajectories += isinstance(item, Trajectory) or not trajectories or name != last
        last = name
        if limit is not None and trajectories > limit:
            return
        if chosen.of == "dialogues":
            if isinstance(item, Transition):
                raise UserError(_WHOLE.format(kind))
            yield from _of_dialogue(item, prompts, how, left_out)
            continue
        known = isinstance(item, Transition) or _knows(item)
        for transition in [item] if isinstance(item, Transition) else expand([item]):
            yield from _of_transition(transition, prompts, how, known, left_out)


def _of_dialogue(
    trajectory: Trajectory, prompts: Prompts, how: Mapping[str, Any], left_out: Counter[str]
) -> Iterator[Episode]:
    messages = dialogue(trajectory, prompts, **how).messages
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    # each of the agent's turns with observations is one assistant message
    turns = [(n, turn) for n, turn in enumerate(with_success(trajectory).turns, 1) if turn.actor == "agent"]
    answered = [(n, turn) for n, turn in turns if turn.observations]
    name, known = identity(trajectory), _knows(trajectory)
    cases, train = [], [False] * len(messages)
    before = trajectory.context.initial_state
    for (number, turn), place in zip(answered, places, strict=True):
        real = messages[place]["content"]
        train[place] = not any(one.data.get("target") is False for one in turn.observations)
        left_out["no target"] += not train[place]
        if train[place]:
            action = write_action(turn.action, told=turn.observations)
            observations = facts(turn.action, turn.observations)
            cases.append(Case(name, number, messages[:place], real, before, action, known=known, **observations))
        before = real
    if cases:
        yield Episode(cases, Sample(messages, train))


def _of_transition(
    transition: Transition, prompts: Prompts, how: Mapping[str, Any], known: bool, left_out: Counter[str]
) -> Iterator[Episode]:
    observation, trains = transition.observation, how["stage"] != "rl"
    try:
        answer = target(observation, prompts)
    except RowError as error:
        left_out[error.kind] += 1
        return
    messages = render(transition, prompts, thinking=not trains, **how).messages
    earlier = [one.text for turn in transition.history for one in turn.observations]
    case = Case(
        transition.trajectory,
        transition.turn + 1,
        messages,
        observed(observation, prompts),
        earlier[-1] if earlier else transition.context.initial_state,
        write_action(transition.action, observation.call, [observation]),
        known=known,
        **facts(transition.action, [observation]),
    )
    whole: list[Message] = [*messages, {"role": "assistant", "content": answer}]
    yield Episode([case], Sample(whole, [False] * len(messages) + [True]) if trains else None)


def facts(action: Action, observations: Sequence[Observation]) -> dict[str, Any]:
    """Return the fields of a case that follow from its observations."""

    def only(values: set[str]) -> str:
        return values.pop() if len(values) == 1 else SEVERAL

    call = observations[0].call if len(observations) == 1 else None
    return {
        "tool": only({one.tool or "" for one in observations}),
        "observer": only({one.kind for one in observations}),
        "category": category(action_text(action, call), "\n\n".join(one.text for one in observations)),
        "error": any(one.error for one in observations),
        "won": any(one.data.get("success") is True for one in observations),
    }


def _knows(trajectory: Trajectory) -> bool:
    marked = any(one.data.get("success") is True for _, _, one in trajectory.observed())
    return trajectory.success is not None or marked


class Demonstrations:
    """Draws whole trajectories as a prompt's examples, each of another task; the same for every question but its own task's.

    A few more are drawn than are shown, so that leaving one out does not change the others.
    """

    def __init__(self, trajectories: Iterable[Trajectory], shots: int, *, seed: int = 0, source: str = "") -> None:
        if shots < 1:
            raise UserError(f"shots is {shots}; write a number >= 1")
        self.shots, self.source = shots, source
        drawn: dict[str, tuple[float, float, Trajectory]] = {}
        for trajectory in trajectories:
            if not any(True for _ in trajectory.observed()):
                continue
            name = identity(trajectory)
            task = trajectory.task_id or name
            row = uniform(f"demonstration/{seed}/{task}"), uniform(f"demonstration/{seed}/{name}"), trajectory
            if task not in drawn or row[:2] < drawn[task][:2]:
                drawn[task] = row
            if len(drawn) > shots + 3:  # by task, by name and by its turns, three at most may be a question's own
                del drawn[max(drawn, key=lambda task: drawn[task][:2])]
        self._drawn = [(identity(row[2]), row[2]) for row in sorted(drawn.values(), key=lambda row: row[:2])]
        if len(self._drawn) < shots:
            raise UserError(f"{source}: has {len(self._drawn)} tasks to demonstrate, fewer than {shots}")

    def shown(self, item: Item, prompts: Prompts, *, world_context: Shown) -> Item:
        """Return a trajectory or transition with the demonstrations in its context."""
        if "context" in prompts.omits:
            raise UserError(f"{prompts.name}: these prompts show no context, in which demonstrations would stand")
        name = item.trajectory if isinstance(item, Transition) else identity(item)
        chosen = [one for of_one, one in self._drawn if of_one != name and not _same(one, item)][: self.shots]
        if len(chosen) < self.shots:
            task = f" without {item.task_id}" if item.task_id else ""
            raise UserError(f"{self.source}: has {len(chosen)} tasks to demonstrate{task}, fewer than {self.shots}")
        texts = (_written(n, one, prompts, world_context) for n, one in enumerate(chosen, 1))
        context = item.context.model_copy(update={"demonstrations": (*item.context.demonstrations, *texts)})
        return item.model_copy(update={"context": context})


def _same(one: Trajectory, item: Item) -> bool:
    if one.task_id and one.task_id == item.task_id:
        return True
    return isinstance(item, Trajectory) and one.turns == item.turns


def _written(number: int, trajectory: Trajectory, prompts: Prompts, world_context: Shown) -> str:
    """Write a demonstration: the task, and every turn with its observations, success marks included."""
    context, told = trajectory.context, parts(world_context)
    hidden = {HEADINGS[name].removesuffix(UNSEEN): getattr(context, PARTS[name]) for name in PARTS if name in told}
    happened = write_history([_marked(turn, prompts) for turn in with_success(trajectory).turns])
    texts_of = {"Task": context.task, **hidden, "What happened": happened}
    texts = (f"{heading}:\n{text}" for heading, text in texts_of.items() if text.strip())
    return "\n\n".join([f"## Demonstration {number}", *texts])


def _marked(turn: Turn, prompts: Prompts) -> Turn:
    def written(one: Observation) -> Observation:
        return one.model_copy(update={"text": observed(one, prompts)})

    return turn.model_copy(update={"observations": tuple(map(written, turn.observations))})
