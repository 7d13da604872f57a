"""A world under control, for hosts: `controlled(World, config)` is the same class, and what its episodes show is perturbed.

    environment_factory=controlled(SqlEnvironment, {"perturbations": [{"name": "error", "rate": 0.1}]})     # TRL
    control: {perturbations: [{name: error, rate: 0.1}]}                                                  # a file for wm train
    'wm.control={perturbations: [{name: error, rate: 0.1}]}'                                              # verl

A real world's answers are perturbed by rule. A call that fails does not reach the world, which neither moves on nor counts a
turn, and so it can be tried again; all other calls are carried out as ever. A simulated world is told instead.
"""

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.hosting.world import Start, Wrapper, dress, is_over, layer_of, layers_of, options_of, tool_names
from wm_plugin.worlds.wrappers.control.config import FIELD, ControlConfig
from wm_plugin.worlds.wrappers.control.episode import ControlEpisode, Plan


def config_of(environment: Any) -> ControlConfig | None:
    """Return the control of an environment or of its class; None if it has none."""
    config: ControlConfig | None = options_of(environment, Controlled)
    return config


def control_of(environment: Any) -> ControlEpisode | None:
    """Return the control of the episode that runs; None if its class has none, or the episode is left as it is."""
    layer = layer_of(environment, Controlled)
    return None if layer is None else layer.control


def controlled(environment: type, config: ControlConfig | Mapping[str, Any]) -> type:
    """Return the class of `environment` whose episodes are perturbed as `config` says.

    `metrics` has the counts `control/calls` and `control/<name>`, too.

    Raises:
        UserError: the config does not fit, or names a tool that the environment does not have; or evaluations are to be
            perturbed that a simulated world leaves to the real one.
    """
    made = ControlConfig.read(config, FIELD)
    made.check_tools(tool_names(environment), environment.__name__)
    layers = layers_of(environment) if made.evaluation else ()
    if any(kind.is_simulated and options.evaluation == "real" for kind, options, _ in layers):
        raise UserError(
            "control.evaluation is true, and evaluations play in the real world beside this simulation, which is not perturbed; "
            "write simulation.evaluation: simulated, or leave control.evaluation out"
        )
    return dress(environment, Controlled, made)


class Controlled(Wrapper):
    """A world whose calls are perturbed by rule, or which is told of it where it is simulated."""

    is_turn_aware = True

    def __init__(self, world: Wrapper, options: ControlConfig, environment: type) -> None:
        super().__init__(world, options, environment)
        self._tells = any(kind.is_simulated for kind, *_ in layers_of(environment))
        self.control: ControlEpisode | None = None  # of the episode

    def reset(self, columns: dict[str, Any], start: Start) -> Any:
        self.control = None
        if start.training or self.options.evaluation:
            self.options.check_columns(columns, self.environment.__name__)
            self.control = ControlEpisode(
                self.options,
                _task(columns),
                columns=columns,
                strength=start.strength,
                irreversible=getattr(self.environment, "irreversible", ()),
            )
        return self.world.reset(columns, replace(start, control=self.control))

    def turn(self, action: Any, results: Sequence[str]) -> None:
        if self.control is not None and not self._tells:
            self.control.begin_turn()
        self.world.turn(action, results)

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        control = self.control
        if control is None or self._tells or is_over(self.world):
            return self.world.call(tool, arguments)
        plan = control.plan(tool)
        text = control.failure(plan)
        if text is None and (page := control.next_page(plan, arguments)) is not None:
            text = control.perturbed(plan, page, page=True)
        if text is not None:  # the call does not reach the world
            return text
        try:
            answer = self.world.call(tool, arguments)
        except Exception as error:
            raise control.raised(plan, error) from None
        if inspect.isawaitable(answer):
            return _awaited(answer, control, plan, arguments)
        return control.perturbed(plan, str(answer), arguments)

    @property
    def metrics(self) -> dict[str, float]:
        """The world's, and the control's counts."""
        own = {} if self.control is None else self.control.figures
        return {**(getattr(self.world, "metrics", None) or {}), **own}

    def notes(self, failed: bool) -> dict[str, Any]:
        own: dict[str, Any] = {}
        if self.control is not None:
            own, self.control.data = self.control.data, {}
        return {**self.world.notes(failed), **({} if failed else own)}

    def about(self) -> dict[str, Any]:
        own = {} if self.control is None else {FIELD: self.options.as_mapping()}
        return {**self.world.about(), **own}


async def _awaited(answer: Any, control: ControlEpisode, plan: Plan, arguments: dict[str, Any]) -> str:
    try:
        return control.perturbed(plan, str(await answer), arguments)
    except Exception as error:
        raise control.raised(plan, error) from None


def _task(columns: Mapping[str, Any]) -> str:
    """Return a digest of the columns, on which the draws depend. A column without a value is as if it were not there: datasets of
    several worlds have those."""
    here = {name: value for name, value in columns.items() if value is not None and name != "prompt"}
    return hashlib.sha256(json.dumps(here, sort_keys=True, default=str).encode()).hexdigest()[:16]
