"""Recorded trajectories under control: what world models learn from to obey its instructions.

Observations are perturbed by rule, and the trajectory says what a world model is told: for the episode in its context, for a
turn at the observation. What comes after a perturbed observation was recorded without it, so turns are put in: a call that fails
is tried again, and is answered then as it was recorded; a result in pages is asked for until its last one.

For `withhold` and `tease` the columns are those of the row that was played (`metadata.reset`) and of the metadata, and two that
are derived: `question`, what the agent saw first, and `answer`, what a successful agent handed in at its end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.data.draws import uniform
from wm_plugin.data.schema import Action, Call, Observation, Trajectory, Turn
from wm_plugin.data.transitions import identity
from wm_plugin.errors import UserError
from wm_plugin.worlds.specs import SPECS
from wm_plugin.worlds.wrappers.control.config import ControlConfig
from wm_plugin.worlds.wrappers.control.episode import KEY, ControlEpisode

ANSWER, QUESTION = "answer", "question"
MOST_PAGES = 8  # that are asked for
_IRREVERSIBLE = {spec.path: spec.irreversible for spec in SPECS.values()}


@dataclass
class Figures:
    """Counts of what was done."""

    trajectories: int = 0
    controlled: int = 0  # those with an instruction
    observations: int = 0  # of the agent's calls in these
    put_in: int = 0  # turns
    perturbed: Counter[str] = field(default_factory=Counter)  # observations, by perturbation
    in_force: Counter[str] = field(default_factory=Counter)  # trajectories, by perturbation

    def as_dict(self, names: Iterable[str]) -> dict[str, Any]:
        return {
            "controlled": self.controlled,
            "observations": self.observations,
            "turns_put_in": self.put_in,
            "perturbations": {
                name: {"trajectories": self.in_force[name], "observations": self.perturbed[name]} for name in names
            },
        }


def control(
    trajectories: Iterable[Trajectory], config: ControlConfig, *, share: float = 1.0, figures: Figures | None = None
) -> Iterator[Trajectory]:
    """Yield the trajectories, a share of them under control.

    Args:
        share: of the trajectories. The draw depends on the config's seed and the trajectory's identity alone, and a smaller share
            takes some of a larger one's.
        figures: updated with every trajectory.

    Raises:
        UserError: `share` is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise UserError(f"share is {share}; write a number between 0 and 1")
    figures = Figures() if figures is None else figures
    for trajectory in trajectories:
        figures.trajectories += 1
        taken = uniform(f"control/{config.seed}/share//{identity(trajectory)}") < share
        yield perturbed(trajectory, config, figures) if taken else trajectory


def perturbed(trajectory: Trajectory, config: ControlConfig, figures: Figures | None = None) -> Trajectory:
    """Return a trajectory under control; itself if nothing of the control is in force for it."""
    figures = Figures() if figures is None else figures
    irreversible = _IRREVERSIBLE.get(str(trajectory.metadata.get("environment")), ())
    episode = ControlEpisode(config, identity(trajectory), columns=columns_of(trajectory), irreversible=irreversible)
    if not episode.instruction:
        return trajectory
    turns: list[Turn] = []
    for turn in trajectory.turns:
        turns += _turns(turn, episode) if turn.actor == "agent" and turn.observations else [turn]
    figures.controlled += 1
    figures.put_in += len(turns) - len(trajectory.turns)
    figures.in_force.update(episode.names)
    counts = {name.partition("/")[2]: count for name, count in episode.figures.items()}
    figures.observations += counts.pop("calls")
    figures.perturbed.update(counts)
    told = "\n\n".join(filter(None, (trajectory.context.simulation_instruction, episode.instruction)))
    return trajectory.model_copy(
        update={
            "turns": tuple(turns),
            "context": trajectory.context.model_copy(update={"simulation_instruction": told}),
            "metadata": {**trajectory.metadata, KEY: config.as_mapping()},
        }
    )


def columns_of(trajectory: Trajectory) -> dict[str, Any]:
    """Return the columns that `withhold` finds of a trajectory: see the module."""
    metadata = trajectory.metadata
    row = metadata.get("reset")
    derived: dict[str, Any] = {QUESTION: trajectory.context.initial_state}
    if trajectory.success and (answer := _handed_in(trajectory)):
        derived[ANSWER] = answer
    return {**derived, **metadata, **(row if isinstance(row, Mapping) else {})}


def _handed_in(trajectory: Trajectory) -> Any:
    """Return the argument `answer` of the agent's last call that has one; else None."""
    for turn in reversed(trajectory.turns):
        for call in reversed(turn.action.calls):
            if turn.actor == "agent" and isinstance(call.arguments, Mapping) and call.arguments.get(ANSWER):
                return call.arguments[ANSWER]
    return None


def _turns(turn: Turn, episode: ControlEpisode) -> Iterator[Turn]:
    """Yield a recorded turn under control, with the turns that are put in after it."""
    action, alone = turn.action, len(turn.observations) == 1
    shown, failed, paged = _answer(action, turn.observations, episode, alone=alone)
    yield turn.model_copy(update={"observations": shown})
    if failed:  # the calls are made again, and answered as they were recorded
        again = action if alone else _only(action, failed)
        observations = failed if alone else [_renumbered(one, number) for number, one in enumerate(failed)]
        shown, _, later = _answer(again, observations, episode, failing=False)
        yield Turn(action=again, observations=shown)
        for observation in later:
            yield from _pages(again, observation, episode)
    for observation in paged:
        yield from _pages(action, observation, episode)


def _answer(
    action: Action,
    observations: Sequence[Observation],
    episode: ControlEpisode,
    *,
    failing: bool = True,
    alone: bool = False,
) -> tuple[tuple[Observation, ...], list[Observation], list[Observation]]:
    """Return the observations of a turn as they are shown, and as they were recorded those that failed and those with pages.

    Args:
        alone: there is one observation. Of several one without a call could not be asked for again, and does not fail.
    """
    episode.begin_turn()
    shown: list[Observation] = []
    failed: list[Observation] = []
    paged: list[Observation] = []
    for observation in observations:
        if observation.kind == "user":
            shown.append(observation)
            continue
        call = _call(action, observation)
        plan = episode.plan(_tool(call, observation), failing=failing and (call is not None or alone))
        if (error := episode.failure(plan)) is not None:
            failed.append(observation)
            shown.append(_with(observation, error, plan.data, error=True))
            continue
        arguments = call.arguments if call else None
        text = episode.perturbed(plan, observation.text, arguments)
        shown.append(_with(observation, text, episode.data))
        paged += [observation] if episode.has_pages(plan, arguments) else []
    return tuple(shown), failed, paged


def _pages(action: Action, observation: Observation, episode: ControlEpisode) -> Iterator[Turn]:
    """Yield the same call again, page after page."""
    call = _call(action, observation)
    arguments = call.arguments if call else None
    for _ in range(MOST_PAGES):
        episode.begin_turn()
        plan = episode.plan(_tool(call, observation), failing=False)
        page = episode.next_page(plan, arguments)
        if page is None:
            return
        text = episode.perturbed(plan, page, page=True)
        made = _with(_renumbered(observation, 0), text, episode.data)
        yield Turn(action=_only(action, [observation]), observations=(made,))
        if not episode.has_pages(plan, arguments):
            return


def _with(observation: Observation, text: str, told: Mapping[str, Any], *, error: bool = False) -> Observation:
    """Return the observation with another text. What verified the recorded one does not verify another."""
    data = {**observation.data, **told}
    if text != observation.text:
        data.pop("verifier", None)
    if error:
        data.pop("success", None)
    return observation.model_copy(update={"text": text, "data": data, "error": error or observation.error})


def _only(action: Action, observations: Sequence[Observation]) -> Action:
    """Return the action with the calls of these observations alone."""
    if len(action.calls) < 2:
        return action
    calls = tuple(call for one in observations if (call := _call(action, one)) is not None)
    return action.model_copy(update={"calls": calls, "text": "", "thought": None})


def _renumbered(observation: Observation, number: int) -> Observation:
    return observation if observation.call is None else observation.model_copy(update={"call": number})


def _call(action: Action, observation: Observation) -> Call | None:
    number = observation.call
    return action.calls[number] if number is not None and number < len(action.calls) else None


def _tool(call: Call | None, observation: Observation) -> str:
    return (call.name if call else observation.tool) or ""
