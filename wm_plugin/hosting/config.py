"""A run's settings on either host: its environment, the wrappers around it, and its episodes.

TRL reads these fields from the file and the flags of `wm train`, verl from the block `wm`. If a field has an entry in `WRAPPERS`,
that wrapper is put around the environment's class: a new feature is a field and a wrapper.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, InstanceOf, SerializeAsAny, model_validator

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.objectives.base import Objective
from wm_plugin.objectives.echo import EchoConfig
from wm_plugin.objectives.run import Objectives
from wm_plugin.options import Number, Options, Parsed, option, parsed
from wm_plugin.registry import import_object

_WRAPPERS = "wm_plugin.worlds.wrappers"


def _block(name: str, path: str) -> Any:
    """Return the type of a field that holds another model's options, which is imported only if a run sets the field."""

    def read(value: Any) -> Any:
        try:
            value = parsed(value)
        except ValueError as error:
            raise UserError(f"{name} is not JSON: {error}") from None
        if value is None:
            return None
        model = import_object(path, field=name)
        return value if isinstance(value, model) else model.read(value, name)

    return Annotated[Any, BeforeValidator(read)]


def _look_ahead_sets(value: Any) -> Any:
    """Read the evaluation sets that are played looking ahead, each with the fields of `LookAheadConfig`."""
    if value is None:
        return None
    sets = import_object("wm_plugin.lab.agents.lookahead_values:read_sets", field="look_ahead")(value)
    for name, ahead in sets.items():
        if ahead.world_model != "own":
            raise UserError(
                f"look_ahead.{name}.world_model is {ahead.world_model}: in training the policy is its own world model; leave "
                "it out, and compare others with wm eval lookahead"
            )
        ahead.check_marks()
    return sets


def _objectives(value: Any) -> Any:
    try:
        value = parsed(value)
    except ValueError as error:
        raise UserError(f"world_model is not JSON: {error}") from None
    return None if value is None else Objectives.read(value)


class RunConfig(Options):
    """A run's environment and episodes."""

    objective: SerializeAsAny[InstanceOf[Objective]] = option(
        "What the objective counts, and how strongly.", default=EchoConfig()
    )
    environment: Annotated[str | dict[str, str] | None, Parsed] = option(
        "An environment class: a registered name (wm env list), package.module:Class or openenv:http://host:port "
        "(docs/worlds.md); or {name: class}, from which the dataset's column `environment` chooses. Null: the host's own tools.",
        default=None,
        write="a name (wm env list), package.module:Class, or {name: class}",
    )
    simulation: _block("simulation", f"{_WRAPPERS}.simulation_config:SimulationConfig") = option(  # type: ignore[valid-type]
        "A world model in place of the environment: fields of SimulationConfig, such as {url: http://localhost:8000/v1, model: "
        "NAME}. Evaluations play in the real world unless it says evaluation: simulated.",
        default=None,
    )
    control: _block("control", f"{_WRAPPERS}.control.config:ControlConfig") = option(  # type: ignore[valid-type]
        "Perturbations of what training episodes show: {perturbations: [{name: error, rate: 0.1}], seed: 0, curriculum: {by: "
        "step, steps: 200}}. docs/agentworld.md lists them.",
        default=None,
    )
    verify: _block("verify", f"{_WRAPPERS}.verify_config:VerifyConfig") = option(  # type: ignore[valid-type]
        "A check before irreversible actions, by a world model: fields of VerifyConfig, such as {budget: 4, world_model: {url: "
        "http://localhost:8000/v1, model: NAME}}.",
        default=None,
    )
    episode_reward: _block("episode_reward", "wm_plugin.rewards.episode:EpisodeReward") = option(  # type: ignore[valid-type]
        "WMAct's reward of an episode, instead of the environment's own: {rescale: true, format_penalty: 0.1, turn_penalty: 0.0, "
        "action_penalty: 0.0, gamma: 1.0}, or some of these.",
        default=None,
    )
    protocol: Literal["tools", "tags"] = option(
        "How the policy acts in an environment: tools, by calls in the model's own format; or tags, WMAct's "
        "<think>…</think><action>a; b</action>, with no tools in the prompt and observations as user messages.",
        default="tools",
    )
    prediction_reward: _block("prediction_reward", "wm_plugin.rewards.prediction:PredictionReward") = option(  # type: ignore[valid-type]
        "A reward for what the policy predicts in a tag before it acts: {reward: exact, coeff: 0.1, level: turn, tag: "
        "prediction, ask: true}, or some of these (docs/rewards.md).",
        default=None,
    )
    turn_budget: _block("turn_budget", "wm_plugin.hosting.annealing:TurnBudget") = option(  # type: ignore[valid-type]
        "WMAct's annealing of the turns that an episode may take: {start: 30, every: 100}. Evaluations keep the first value.",
        default=None,
    )
    look_ahead: Annotated[dict[str, Any] | None, BeforeValidator(_look_ahead_sets), Parsed] = option(
        "Evaluation sets in which the policy looks ahead with itself as the world model, each with fields of LookAheadConfig: "
        "{held_out: {continuations: 16, depth: 6, marks: {over: '!', won: P}}} (docs/evaluation.md).",
        default=None,
        write="a mapping, e.g. {held_out: {continuations: 16, depth: 6}}",
    )
    max_lost: Number = option(
        "The share of a step's episodes whose world may be lost, or on verl whose agent loop may fail, before the run stops.",
        default=0.5,
        ge=0,
        le=1,
    )

    world_model: Annotated[Any, BeforeValidator(_objectives)] = option(
        "Several objectives in one run, by names of their own, each with the fields of EchoConfig, or of the class that its "
        "`objective` names: {tools: {coeff: 0.05, roles: [tool]}, users: {coeff: 0.01, roles: [user]}}. Their figures are "
        "echo/<name>/...",
        default=None,
    )

    @model_validator(mode="after")
    def _check_objectives(self) -> Self:
        changed = self.objective.changed() if self.world_model is not None else {}
        if changed:
            raise UserError(f"world_model names the run's objectives; write {', '.join(changed)} in one of them")
        return self

    @model_validator(mode="after")
    def _check_environment(self) -> Self:
        if self.environment == {}:
            raise UserError("environment is {}; write a name (wm env list), package.module:Class, or {name: class}")
        if self.environment is None:
            others = {"objective", "world_model", "environment", "max_lost"}
            for name in type(self).model_fields.keys() & RunConfig.model_fields.keys() - others:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise UserError(f"{name} is for episodes in an environment, and environment is null; name one")
        for name in WRAPPERS:
            for world in getattr(getattr(self, name), "worlds", None) or ():
                if world not in self.named:
                    raise UserError(
                        f"{name}.worlds: there is no environment {shown(world)}{nearest(world, self.named)}"
                    )
        if self.look_ahead and self.protocol == "tags":
            raise UserError("look_ahead needs protocol: tools, and protocol is tags; leave one out")
        return self

    @property
    def objectives(self) -> Objectives:
        """The run's objectives, by name."""
        return Objectives.read(self.objective) if self.world_model is None else self.world_model

    @property
    def named(self) -> Mapping[str, str]:
        """The environments' paths by the names that rows use; a single environment's name is its path."""
        if self.environment is None:
            return {}
        return {self.environment: self.environment} if isinstance(self.environment, str) else self.environment

    def classes(self) -> dict[str, type]:
        """Return the wrapped class of each environment, by the name that rows use.

        Raises:
            UserError: an environment does not exist, or does not fit its wrappers.
        """
        return {name: self.dressed(name) for name in self.named}

    def dressed(self, name: str) -> type:
        """Return an environment's class inside the wrappers that this run sets for it."""
        environments = import_object("wm_plugin.worlds:ENVIRONMENTS", field="environment")
        check_world = import_object("wm_plugin.worlds.kit.protocol:check_world", field="environment")
        environment: type = environments.get(self.named[name])
        for feature, path in WRAPPERS.items():
            config = getattr(self, feature)
            worlds = getattr(config, "worlds", None)
            if config not in (None, "tools") and (worlds is None or name in worlds):
                wrap: Any = import_object(path, field=feature)
                environment = wrap(environment, config)
            elif feature == "simulation":
                check_world(environment)
        return environment

    @property
    def factory(self) -> Any:
        """The value of TRL's `environment_factory`: a class, a mapping of names to several classes, or None without any."""
        classes = self.classes()
        return classes if isinstance(self.environment, dict) else next(iter(classes.values()), None)

    def class_of(self, row: Mapping[str, Any]) -> type | None:
        """Return the class for a row; None for the host's own tools.

        Raises:
            UserError: there are several classes, and the row's column `environment` names none of them.
        """
        if not self.named:
            return None
        if not isinstance(row, Mapping):
            raise UserError(f"a row's columns are {shown(row)}; write a mapping")
        if isinstance(self.environment, str):
            return self.dressed(self.environment)
        name = row.get("environment")
        if not isinstance(name, str) or name not in self.named:
            raise UserError(
                f"a row's column `environment` is {shown(name)}, and environment has {', '.join(map(repr, self.named))}"
            )
        return self.dressed(name)

    def columns_of(self, row: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the columns of a row that go to `reset`. With several worlds, null marks the other worlds' columns."""
        several = isinstance(self.environment, dict)
        columns = (row or {}).items()
        return {name: value for name, value in columns if not several or (value is not None and name != "environment")}

    @property
    def simulates_all(self) -> bool:
        """Whether all training episodes are simulated."""
        worlds = getattr(self.simulation, "worlds", None)
        return self.simulation is not None and (worlds is None or set(self.named) <= set(worlds))


WRAPPERS = {  # by field, the innermost first
    "simulation": f"{_WRAPPERS}.simulated:simulated",
    "control": f"{_WRAPPERS}.control:controlled",
    "verify": f"{_WRAPPERS}.verified:verified",
    "episode_reward": f"{_WRAPPERS}.rewarded:rewarded",
    "protocol": "wm_plugin.hosting.tags:in_tags",
    "prediction_reward": "wm_plugin.hosting.predictions:predicted",
}


def read_field(name: str, value: Any) -> Any:
    """Return a single field's value as `RunConfig` reads it.

    Raises:
        UserError: the value does not fit.
    """
    try:
        for part in reversed(RunConfig.model_fields[name].metadata):  # as pydantic runs them
            if isinstance(part, BeforeValidator):
                value = part.func(value)  # type: ignore[call-arg]
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{name} is not JSON ({error})") from None
    return value


def check_tool_names(named: Iterable[str] | None, known: Iterable[str], where: str) -> None:
    """Raise a UserError if `tools` of the objective names a tool that is not among `known`."""
    known = set(known)
    for name in named or ():
        if name not in known:
            raise UserError(f"{where}: there is no tool {name!r}{nearest(name, known)}")
