"""A world model in place of a world: to a host the same class, but with predicted observations.

Both hosts take this class (Sim RL of Qwen-AgentWorld; Word2World's world models as simulators):

    environment_factory=simulated(GridEnvironment, {"url": "http://localhost:8000/v1", "model": "world"}) # TRL
    simulation: {url: http://localhost:8000/v1, model: world}                                             # a file for wm train
    wm.environment=grid 'wm.simulation={url: http://localhost:8000/v1, model: world}'                         # verl

The real world gives the first observation and, to the world model alone, the hidden state. After that the world model answers
every call: the world's own check of actions does not run. Requests equal the dialogues that world models are trained on, byte for
byte (`Simulation`), except that control tokens of chat templates are made harmless (`harmless`).

If the world model gives no answer, the episode is lost, like one of a world whose process died: it is over, without success, and
`metrics["lost"]` is 1. The config's `success` decides all other episodes (`simulated_success`).
"""

import inspect
import logging
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from wm_plugin.data.schema import Action
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import Start, Wrapper, by_name, dress, layers_of, tool_names
from wm_plugin.worlds.scenarios import staged
from wm_plugin.worlds.wrappers.simulated_session import Session
from wm_plugin.worlds.wrappers.simulated_success import judge
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

logger = logging.getLogger(__name__)


def simulated(environment: type, config: SimulationConfig | Mapping[str, Any]) -> type:
    """Return a class like `environment` whose observations a world model predicts.

    Its `metrics` have `actions`, `effective` and `invalid`, counted from observations (see `Counts`), `lost`, and figures of
    the requests under `simulation/`.

    Raises:
        UserError: the config does not fit, or a method of the world is asynchronous.
    """
    config = SimulationConfig.read(config, "simulation")
    check_awaits_nothing(environment, "simulation")
    if hasattr(environment, "_wm_file"):  # there is no real world to evaluate in
        config = config.replace(evaluation="simulated")
    if not hasattr(environment, "answer_tool"):
        if config.success == "answer":
            raise UserError(
                f"simulation.success is answer, and {environment.__name__} has no tool whose argument is the answer "
                "(`answer_tool`); write predicted, verifier or rule"
            )
    elif config.success == "predicted" and not config.scenarios:
        _warn_of_answers(environment.__name__)
    return dress(_staged(environment) if config.scenarios else environment, Simulated, config)


_staged = cache(staged)  # the same class each time a config is read


@lru_cache
def _warn_of_answers(name: str) -> None:
    logger.warning(
        "simulation: %s can check answers itself, but with success: predicted the world model decides, whatever the answer; "
        "write success: answer to have the world check it. wm/env/simulation/answer logs what that would give",
        name,
    )


def check_awaits_nothing(environment: type, field: str) -> None:
    """Raise a UserError if a method of a world's class is asynchronous."""
    for name in ("reset", "get_reward", *tool_names(environment)):
        if inspect.iscoroutinefunction(getattr(environment, name, None)):
            raise UserError(f"{field}: {environment.__name__}.{name} is asynchronous; write a plain method")


def is_simulated(environment: Any) -> bool:
    """Whether `simulated` made the class of an environment, or this class."""
    return any(kind.is_simulated for kind, *_ in layers_of(environment))


class Simulated(Wrapper):
    """A world whose calls a world model answers; with `evaluation: real`, evaluations go to the real world."""

    is_turn_aware = is_simulated = True

    def __init__(self, world: Wrapper, options: SimulationConfig, environment: type) -> None:
        super().__init__(world, options, environment)
        self.session = Session(environment, world, options)
        self._is_real = False  # an evaluation in the real world
        self._columns = inspect.signature(environment.reset)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if self._is_real else getattr(self.session, name)

    @classmethod
    def has_reward(cls, environment: type, options: SimulationConfig) -> bool:
        """Whether the class has a reward: its own, or that of a verifier or a rule. Otherwise the trainer has one."""
        return hasattr(environment, "get_reward") or options.success != "predicted"

    def reset(self, columns: dict[str, Any], start: Start) -> Any:
        self._is_real = self.options.evaluation == "real" and not start.training
        first = self.world.reset(columns, start)
        if not self._is_real:
            row = by_name(self._columns.bind(None, **columns))
            self.session.begin(columns.get("prompt", start.prompt), row, first, start.control)
        return first

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return self.world.call(tool, arguments) if self._is_real else self.session.call(tool, arguments)

    def turn(self, action: Action, results: Sequence[str]) -> None:
        if not self._is_real:
            self.session.note(action, results)

    async def ready(self) -> None:
        await self.session.ready()

    @classmethod
    def finalize(cls, episodes: Sequence["Simulated"]) -> None:
        judge([one.session for one in episodes if not one._is_real])
