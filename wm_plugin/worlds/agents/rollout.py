"""An agent in one of our environments: the trajectory that a host would record, without a host and without a model.

A policy takes the trajectory so far and the environment (which only scripted policies look into), and returns an action, or None
to end the episode.
"""

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal

from wm_plugin.data.schema import Action, Call, Kind, Observation, Trajectory, Turn
from wm_plugin.errors import UserError, shown
from wm_plugin.hosting.episode import EpisodePort
from wm_plugin.hosting.world import is_over, tool_methods
from wm_plugin.untrusted import loads
from wm_plugin.worlds.kit.protocol import observers, reward_of, tool_schema, world_context_of
from wm_plugin.worlds.kit.start import context_of, task_of
from wm_plugin.worlds.wrappers.control import control_of

Policy = Callable[[Trajectory, Any], Action | None]
Host = Literal["trl", "verl"]  # whose texts the agent gets when a call fails
HOSTS = ("trl", "verl")


def play(environment: Any, row: Mapping[str, Any], policy: Policy, *, max_turns: int, host: Host = "trl") -> Trajectory:
    """Play one episode.

    The calls of an action run in order; each gives an observation, of the kind that the environment's class declares for its tool
    (see `protocol.observers`). A tool that does not exist, arguments that do not fit and exceptions give observations too, with
    `error` and the text of the host. An observation's `data` has the `actions` of its call and how many of them were `invalid`,
    where the environment counts them in `metrics`, and where the call failed. Wrappers add what they
    note: how the observation was perturbed, with the simulation instruction in the context, or what became of a call that was
    checked; `metadata` has their configs.

    The episode ends when the policy returns None or an action without a call, when the environment is `over`, or after
    `max_turns`. An action without a call that the environment took counts as on the hosts (`EpisodePort.end`).

    Args:
        environment: an instance in the form of `wm_plugin.worlds`; `reset` starts it anew.
        row: of a dataset: optionally `prompt` and `task_id`, and the columns that `reset` takes.
        policy: (the trajectory so far, the environment) -> an action or None.

    Returns:
        A trajectory. Its context is the prompt under a host: the system message as the task, the user's message followed by the
        first observation as the initial state, and the tools; and the environment's `world_context`, which policies do not see if
        they take the prompt by `data.chat`. `metadata` has the class of the environment, the row as `reset`,
        the host and the episode's `figures`: enough to play it again; and the `user_profile` of an environment that has one.

    Raises:
        UserError: a tool is asynchronous, `host` is neither trl nor verl, the row has not the columns that `reset` takes, or its
            prompt is neither a text nor messages of system and user.
        MissingExtraError: transformers, which makes the tools' schemas, is not installed.
    """
    steps = episode(environment, row, max_turns=max_turns, host=host)
    try:
        trajectory = next(steps)
        while True:
            trajectory = steps.send(policy(trajectory, environment))
    except StopIteration as end:
        played: Trajectory = end.value
        return played


def episode(
    environment: Any, row: Mapping[str, Any], *, max_turns: int, host: Host = "trl"
) -> Generator[Trajectory, Action | None, Trajectory]:
    """Do what `play` does as a generator, for policies that act in many episodes at once.

    Yields the trajectory so far, is sent the next action or None, and returns the whole trajectory.
    """
    if host not in HOSTS:
        raise UserError(f"host is {shown(host)}; write 'trl' or 'verl'")
    tools = tool_methods(environment)
    if coroutines := [name for name, tool in tools.items() if inspect.iscoroutinefunction(tool)]:
        raise UserError(f"{path_of(environment)}: the tool {coroutines[0]!r} is asynchronous; play takes plain methods")
    kinds = observers(type(environment))
    schemas = tuple(tool_schema(getattr(type(environment), name)) for name in tools)
    port = EpisodePort(environment)
    columns = {name: value for name, value in row.items() if name != "prompt"}
    first = port.begin(columns, prompt=row.get("prompt"))
    trajectory = Trajectory(
        turns=(),
        context=context_of(row.get("prompt"), first or "", schemas, world_context_of(environment)),
        task_id=task_of(row),
        metadata={"environment": path_of(environment), "reset": dict(row), "host": host, **port.about},
    )
    if (control := control_of(environment)) is not None:
        context = trajectory.context.model_copy(update={"simulation_instruction": control.instruction})
        trajectory = trajectory.model_copy(update={"context": context})
    if profile := getattr(environment, "user_profile", None):
        metadata = {**trajectory.metadata, "user_profile": dict(profile)}
        trajectory = trajectory.model_copy(update={"metadata": metadata})
    unanswered = 0
    while len(trajectory.turns) < max_turns and not is_over(environment):
        action = yield trajectory
        if action is None:
            break
        waiting = port.is_waiting
        port.turn(action, [seen.text for turn in trajectory.turns[-1:] for seen in turn.observations])
        observations = tuple(_observe(port, tools, kinds, call, index, host) for index, call in enumerate(action.calls))
        unanswered += waiting and all(observation.error for observation in observations)
        turn = Turn(action=action, observations=observations)
        trajectory = trajectory.model_copy(update={"turns": (*trajectory.turns, turn)})
        if not action.calls:
            break
    port.end(unanswered)
    success = getattr(environment, "success", None)
    return trajectory.model_copy(
        update={
            "success": None if success is None else bool(success),
            "reward": reward_of(environment),
            "metadata": {**trajectory.metadata, "figures": port.report()},
        }
    )


def replay(environment: Any, row: Mapping[str, Any], actions: Sequence[Action], *, host: Host = "trl") -> Trajectory:
    """Play the episode of these actions, or of the first ones if the environment is over before the last."""

    def next_action(trajectory: Trajectory, _: Any) -> Action | None:
        return actions[len(trajectory.turns)] if len(trajectory.turns) < len(actions) else None

    return play(environment, row, next_action, max_turns=len(actions), host=host)


def path_of(environment: Any) -> str:
    """Return an environment's class as a dotted path, or the file that it comes from."""
    return getattr(environment, "_wm_file", None) or f"{type(environment).__module__}:{type(environment).__qualname__}"


def _observe(
    port: EpisodePort,
    tools: Mapping[str, Callable[..., Any]],
    kinds: Mapping[str, Kind],
    call: Call,
    index: int,
    host: Host,
) -> Observation:
    before = _counts(port.environment)
    port.notes()  # those of a plan
    text, failed = _run(tools, call, host)
    data: dict[str, Any] = (
        {"actions": 1, "invalid": 1}
        if failed
        else {name: count - before[name] for name, count in _counts(port.environment).items()}
    )
    data |= port.notes(failed=failed)
    # the host answers for a tool that does not exist
    kind = kinds.get(call.name, "tool")
    return Observation(kind=kind, text=text, tool=call.name, call=index, error=failed, data=data)


def _counts(environment: Any) -> dict[str, int]:
    """Return how many actions of the episode there were and how many were invalid, if the environment counts both."""
    metrics = getattr(environment, "metrics", None) or {}
    names = ("actions", "invalid")
    return {name: int(metrics[name]) for name in names} if all(name in metrics for name in names) else {}


def _run(tools: Mapping[str, Callable[..., Any]], call: Call, host: Host) -> tuple[str, bool]:
    if call.name not in tools:
        if host == "verl":
            return f"Unknown function '{call.name}'. Available tools: {list(tools)}", True
        return str({"error": f"Tool {call.name} not found."}), True
    arguments = {} if call.arguments is None else call.arguments
    if host == "verl" and isinstance(arguments, str):
        try:
            arguments = loads(arguments)
        except ValueError as error:
            return f"Invalid JSON in arguments for '{call.name}': {error}", True
    try:
        return str(tools[call.name](**arguments)), False
    except Exception as error:
        if host == "verl":
            return f"Error executing tool '{call.name}': {error}", True
        return str({"error": str(error)}), True
