"""Who plays episodes: an environment's own expert or wanderer, a model behind a server, or a model in this process."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import wm_plugin.agents.rollout as rollout
from wm_plugin.agents.policies import LocalPolicy, NoAnswer, ServerPolicy
from wm_plugin.agents.scripted import scripted
from wm_plugin.environments.kit.protocol import READY_SCHEMAS, path_of_tool, tool_names, tool_schema
from wm_plugin.environments.worlds import World, load
from wm_plugin.errors import UserError
from wm_plugin.runtime.predict import LocalPredictor, seed_of
from wm_plugin.runtime.server import Server
from wm_plugin.runtime.workers import Function, Lost, Processes, Threads
from wm_plugin.trajectories.schema import Action, Trajectory

SCRIPTED = ("random", "expert")
MAX_TURNS = 64  # where nothing else is said; environments end on their own

Row = Mapping[str, Any]
Task = tuple[int, Row]  # a row and its number


class Player(Protocol):
    """Plays episodes.

    A call takes rows with their numbers and returns what came of each in order: a trajectory, or a `Lost`.
    """

    @property
    def settings(self) -> dict[str, Any]:
        """What the episodes depend on beside the rows, as JSON values."""
        ...

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]: ...

    def close(self) -> None: ...


class ScriptedPlayer:
    """The environment's own expert or wanderer, in several processes.

    Args:
        policy: `random` or `expert`. Each episode has a generator of its own, from `seed` and the row's number.
        timeout: seconds that an episode may take; one that takes longer, or whose process dies, is lost.
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
        # Loading transformers takes seconds: schemas are made once, and not in every process.
        tools = [getattr(world.environment, name) for name in tool_names(world.environment)]
        schemas = {path_of_tool(tool): tool_schema(tool) for tool in tools}
        arguments = (world.name, policy, seed, max_turns, host, schemas)
        self._workers = Processes(_scripted_function, arguments, workers=workers, timeout=timeout)

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]:
        found = self._workers.map(tasks)
        return [one if isinstance(one, Lost) else Trajectory.model_validate_json(one) for one in found]

    def close(self) -> None:
        self._workers.close()


class ServerPlayer:
    """A model behind a chat server: as many episodes at once as the server takes calls.

    What a turn gets no answer to, after the server's retries, fails its episode.
    """

    def __init__(
        self,
        world: World,
        server: Server,
        *,
        seed: int = 0,
        max_turns: int = MAX_TURNS,
        host: rollout.Host = "trl",
        timeout: float | None = None,
    ) -> None:
        parameters = {name: value for name, value in server.parameters.items() if name != "seed"}
        self.settings = {"policy": server.model, "seed": seed, "max_turns": max_turns, "host": host, **parameters}
        self.server = server

        def start() -> Function:
            environment = world.make()

            def one(task: Task) -> Trajectory | Lost:
                number, row = task
                try:
                    policy = ServerPolicy(server, f"{seed}/{number}")
                    return rollout.play(environment, row, policy, max_turns=max_turns, host=host)
                except NoAnswer as failure:
                    return Lost(failure.kind, f"the server: {failure}")

            return one

        self._workers = Threads(start, workers=server.concurrency, timeout=timeout)

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]:
        return self._workers.map(tasks)

    def close(self) -> None:
        self._workers.close()


class LocalPlayer:
    """A model in this process: all episodes of a shard take their turns together."""

    def __init__(
        self,
        world: World,
        predictor: LocalPredictor,
        *,
        seed: int = 0,
        max_turns: int = MAX_TURNS,
        host: rollout.Host = "trl",
    ) -> None:
        self._world, self._policy = world, LocalPolicy(predictor)
        self._seed, self._max_turns, self._host = seed, max_turns, host
        self.settings = {
            "policy": "model",
            "seed": seed,
            "max_turns": max_turns,
            "host": host,
            "batch_size": predictor.batch_size,
            **predictor.settings,
        }

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]:
        episodes = [
            rollout.episode(self._world.make(), row, max_turns=self._max_turns, host=self._host) for _, row in tasks
        ]
        found: dict[int, Trajectory | Lost] = {}
        actions: dict[int, Action | None] = dict.fromkeys(range(len(tasks)))
        turn = 0
        while actions:
            states: dict[int, Trajectory] = {}
            for index, action in actions.items():
                try:
                    states[index] = episodes[index].send(action)
                except StopIteration as end:
                    found[index] = end.value
                except UserError:
                    raise
                except Exception as error:  # of the environment; what its tools raise is an observation
                    found[index] = Lost("error", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            seed = seed_of(f"{self._seed}/{tasks[0][0]}/{turn}")
            actions = dict(zip(states, self._policy(list(states.values()), seed), strict=True)) if states else {}
            turn += 1
        return [found[index] for index in range(len(tasks))]

    def close(self) -> None:
        """Nothing is kept."""


def _scripted_function(
    name: str, policy: str, seed: int, max_turns: int, host: rollout.Host, schemas: dict[str, dict[str, Any]]
) -> Function:
    READY_SCHEMAS.update(schemas)
    world = load(name)
    environment = world.make()

    def one(task: Task) -> bytes:
        nonlocal environment
        number, row = task
        # Another expert for each episode: what it has seen of one has no say in the next.
        choose = world.wanderer(random.Random(f"{seed}/{number}")) if policy == "random" else world.expert()
        assert choose is not None
        try:
            return rollout.play(environment, row, scripted(choose), max_turns=max_turns, host=host).to_bytes()
        except Exception:
            environment = world.make()
            raise

    return one
