"""Players run a policy over many rows: an environment's own expert or wanderer, a model behind a server, or a local model."""

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import wm_plugin.worlds.agents.rollout as rollout
from wm_plugin.client.predict import LocalPredictor, seed_of
from wm_plugin.client.server import Server
from wm_plugin.data.schema import Action, Trajectory
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import tool_names
from wm_plugin.runtime.workers import Function, Lost, Processes, Threads, lost_by
from wm_plugin.untrusted import loads
from wm_plugin.worlds.agents.policies import LocalPolicy, NoAnswer, ServerPolicy, sampling_of
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.kit.protocol import READY_SCHEMAS, path_of_tool, tool_schema
from wm_plugin.worlds.worlds import World

SCRIPTED = ("random", "expert")
MAX_TURNS = 64  # the default; environments end on their own, too

Row = Mapping[str, Any]
Task = tuple[int, Row]  # a row and its number
# One turn of several episodes, by the numbers of their tasks.
Act = Callable[[Mapping[int, Trajectory]], Mapping[int, Action | Lost | None]]


class Player(Protocol):
    """Plays episodes: a call takes numbered rows and returns a trajectory or a `Lost` for each, in order."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the episodes depend on besides the rows, as JSON values."""
        ...

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]: ...

    def close(self) -> None: ...


class ScriptedPlayer:
    """The environment's own expert or wanderer, in several processes.

    Args:
        policy: `random` or `expert`.
        seed: of what is drawn: with the episode's number, it seeds the random generator of an episode.
        timeout: seconds for an episode; one that takes longer, or whose process dies, is lost.
    """

    def __init__(
        self,
        world: World,
        policy: str,
        *,
        seed: int = 0,
        max_turns: int = MAX_TURNS,
        host: rollout.Host = "trl",
        workers: int = 1,
        timeout: float | None = 600.0,
    ) -> None:
        if policy == "expert" and world.expert() is None:
            raise UserError(f"{world.name} has no expert: write expert() beside the class, or take --policy random")
        self.settings = {"policy": policy, "seed": seed, "max_turns": max_turns, "host": host}
        # Schemas are made here, once: loading transformers in every process would take seconds.
        tools = [getattr(world.environment, name) for name in tool_names(world.environment)]
        schemas = {path_of_tool(tool): tool_schema(tool) for tool in tools}
        arguments = (world, policy, seed, max_turns, host, schemas)
        self._workers = Processes(_scripted_function, arguments, workers=workers, timeout=timeout)

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]:
        results = self._workers.map(tasks)
        return [result if isinstance(result, Lost) else read_back(result) for result in results]

    def close(self) -> None:
        self._workers.close()


def _scripted_function(
    world: World, policy: str, seed: int, max_turns: int, host: rollout.Host, schemas: dict[str, dict[str, Any]]
) -> Function:
    READY_SCHEMAS.update(schemas)
    environment = world.make()

    def play_task(task: Task) -> bytes:
        nonlocal environment
        number, row = task
        # A new expert for each episode, so that nothing carries over from the one before.
        choose = world.wanderer(random.Random(f"{seed}/{number}")) if policy == "random" else world.expert()
        assert choose is not None
        try:
            return rollout.play(environment, row, scripted(choose), max_turns=max_turns, host=host).to_bytes()
        except Exception:
            environment = world.make()
            raise

    return play_task


class ThreadPlayer:
    """A policy that mostly waits, in several threads, each with an environment of its own.

    A turn for which it raises `NoAnswer` ends its episode as lost.

    Args:
        policy: the number of an episode -> its policy.
        settings: what the policy depends on, as JSON values.
        workers: episodes at once.
        timeout: seconds for an episode; one that takes longer is lost. None: no limit.
    """

    def __init__(
        self,
        world: World,
        policy: Callable[[int], rollout.Policy],
        settings: Mapping[str, Any],
        *,
        max_turns: int = MAX_TURNS,
        host: rollout.Host = "trl",
        workers: int = 1,
        timeout: float | None = None,
    ) -> None:
        self.settings = {"max_turns": max_turns, "host": host, **settings}

        def start() -> Function:
            environment = world.make()

            def play_task(task: Task) -> Trajectory | Lost:
                number, row = task
                try:
                    return rollout.play(environment, row, policy(number), max_turns=max_turns, host=host)
                except NoAnswer as failure:
                    return Lost(failure.kind, f"the server: {failure}")

            return play_task

        self._workers = Threads(start, workers=workers, timeout=timeout)

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]:
        return self._workers.map(tasks)

    def close(self) -> None:
        self._workers.close()


class ServerPlayer(ThreadPlayer):
    """A model behind a chat server: as many episodes at once as the server takes calls.

    A turn without an answer, after the server's retries, ends its episode as lost.
    """

    def __init__(self, world: World, server: Server, *, seed: int = 0, **options: Any) -> None:
        self.server = server
        settings = {"policy": server.model, "seed": seed, **sampling_of(server)}

        def policy(number: int) -> ServerPolicy:
            return ServerPolicy(server, f"{seed}/{number}")

        super().__init__(world, policy, settings, workers=server.concurrency, **options)


class LocalPlayer:
    """A model in this process: all episodes of a shard take their turns together.

    Args:
        at_once: environments that move at once, each in a thread, for those that wait for a world model.
    """

    def __init__(
        self,
        world: World,
        predictor: LocalPredictor,
        *,
        seed: int = 0,
        max_turns: int = MAX_TURNS,
        host: rollout.Host = "trl",
        at_once: int = 1,
    ) -> None:
        self._world, self._policy, self._seed, self._at_once = world, LocalPolicy(predictor), seed, at_once
        self._max_turns, self._host = max_turns, host
        own = {"policy": "model", "seed": seed, "max_turns": max_turns, "host": host}
        self.settings = {**own, "batch_size": predictor.batch_size, **predictor.settings}

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]:
        def act(states: Mapping[int, Trajectory]) -> dict[int, Action | Lost | None]:
            turn = len(next(iter(states.values())).turns)
            seed = seed_of(f"{self._seed}/{tasks[0][0]}/{turn}")
            return dict(zip(states, self._policy(list(states.values()), seed), strict=True))

        return rounds(self._world, tasks, act, max_turns=self._max_turns, host=self._host, at_once=self._at_once)

    def close(self) -> None:
        """Close nothing."""


def rounds(
    world: World, tasks: Sequence[Task], act: Act, *, max_turns: int, host: rollout.Host, at_once: int = 1
) -> list[Trajectory | Lost]:
    """Play episodes that take their turns together, each in an environment of its own. A `Lost` action ends its episode.

    Args:
        at_once: environments that move at once, each in a thread of its own for the time of a turn.
    """
    episodes = {number: rollout.episode(world.make(), row, max_turns=max_turns, host=host) for number, row in tasks}
    results: dict[int, Trajectory | Lost] = {}
    actions: Mapping[int, Action | Lost | None] = dict.fromkeys(episodes)

    def move(number: int) -> Trajectory | None:
        """Return the trajectory after the episode's action; None at its end."""
        action = actions[number]
        if isinstance(action, Lost):
            results[number] = action
            return None
        try:
            return episodes[number].send(action)
        except StopIteration as end:
            results[number] = end.value
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:  # from `reset` or `get_reward`: what tools raise is an observation
            results[number] = lost_by(error)
        return None

    with ThreadPoolExecutor(at_once) as pool:
        while actions:
            moved = list((map if at_once == 1 else pool.map)(move, actions))
            states = {number: state for number, state in zip(actions, moved, strict=True) if state is not None}
            actions = act(states) if states else {}
    return [results[number] for number, _ in tasks]


def read_back(line: bytes) -> Trajectory | Lost:
    """Read `Trajectory.to_bytes`; lost if no reader would take it, as when an observation is too large."""
    try:
        return Trajectory.model_validate(loads(line))
    except ValueError as error:
        return Lost("unreadable", lost_by(error).reason)
