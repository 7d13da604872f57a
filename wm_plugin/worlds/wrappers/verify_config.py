"""The config of checks before irreversible actions: `verify:` in a file for `wm train`, `wm.verify` on verl, and the file of
`wm env rollout --verify`."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, InstanceOf, field_validator, model_validator

from wm_plugin.client.server import ServerOptions
from wm_plugin.errors import MissingExtraError, UserError, nearest, shown
from wm_plugin.options import Names, Number, Options, Parsed, Whole, option
from wm_plugin.registry import import_object
from wm_plugin.rewards.rule_places import regex
from wm_plugin.worlds.agents.controls import CONTROLS
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

Then = Literal["execute", "refuse"]
REFUSAL = (
    "This was not done: a check predicts that it would not complete the task, and it cannot be undone. Look again at what is "
    "asked for and at what you have, change what is wrong, and go on."
)
# Fields of a simulated world, which has an end and a judge of its own.
_SIMULATED = ("max_turns", "success", "verifier", "rule", "threshold", "scenarios", "worlds", "evaluation")
_RECORDED = ("model", "temperature", "max_tokens", "timeout")  # fields of the agent


class AgentServer(ServerOptions):
    """The agent that plays on in an imagined continuation, behind a server that takes tools."""

    example: ClassVar[str] = "{url: http://localhost:8001/v1, model: NAME}"

    timeout: float = option("Seconds of an attempt.", default=120.0, gt=0)
    max_tokens: Whole | None = option("New tokens of an action.", default=1024, ge=1)


def _simulation(value: Any) -> Any:
    if value is None or isinstance(value, SimulationConfig):
        return value
    return SimulationConfig.from_mapping(value, where="world_model")


def _agent(value: Any) -> Any:
    return {AgentServer.aliases.get(key, key): one for key, one in value.items()} if isinstance(value, dict) else value


class VerifyConfig(Options):
    """Which actions are checked by a world model before they go out, how often, and what follows.

    Raises:
        UserError: a value is out of its range, or does not go with another one.
        MissingExtraError: `pattern` is given, and google-re2 is not installed.
    """

    example: ClassVar[str] = "{budget: 4, world_model: {url: http://localhost:8000/v1, model: NAME}}"

    world_model: Annotated[InstanceOf[SimulationConfig] | None, BeforeValidator(_simulation), Parsed] = option(
        "Who is asked: fields of SimulationConfig, such as {url: http://localhost:8000/v1, model: NAME}. Budget 0 needs none.",
        default=None,
    )
    control: str | None = option(
        "Who is asked in the place of a world model, to compare with it: refuse, accept, coin or oracle (the real environment).",
        default=None,
    )
    budget: Whole = option("Checks of an episode, at most. 0: no action is checked.", default=4, ge=0)
    tools: Names | None = option(
        "The tools whose calls are checked. Without tools, pattern and when: the world's `irreversible`.",
        default=None,
        write="a list of names, or budget: 0 to check nothing",
        min_length=1,
    )
    pattern: str | None = option(
        'A regular expression (RE2) for calls that are checked, found anywhere in name({"argument": "value"}).',
        default=None,
    )
    when: str | None = option("package.module:name(call, trajectory) -> bool: whether a call is checked.", default=None)
    depth: Whole = option(
        "Turns of an imagined continuation. 1: the outcome of the action itself. More: `agent` plays on.",
        default=1,
        ge=1,
    )
    agent: Annotated[AgentServer | None, BeforeValidator(_agent), Parsed] = option(
        "Who plays on: {url: http://localhost:8001/v1, model: NAME}.", default=None
    )
    samples: Whole = option("Continuations of a check.", default=1, ge=1)
    threshold: Number = option(
        "The share of them that must succeed.", default=0.5, write="a share > 0, up to 1", gt=0, le=1
    )
    spent: Then = option(
        "What becomes of such an action when the budget is used up: execute or refuse.", default="execute"
    )
    unanswered: Then = option(
        "What becomes of it when the world model gives no answer: execute or refuse.", default="execute"
    )
    refusal: str = option("What the agent reads in the place of the result.", default=REFUSAL)
    worlds: Names | None = option(
        "Which of several environments are verified, by their names; null: all.", default=None
    )

    @field_validator("control")
    @classmethod
    def _known(cls, control: str | None) -> str | None:
        if control is not None and control not in CONTROLS:
            raise UserError(f"control is {shown(control)}{nearest(control, CONTROLS)}")
        return control

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            _compiled(pattern)
        return pattern

    @field_validator("when")
    @classmethod
    def _exists(cls, when: str | None) -> str | None:
        if when is not None and not callable(import_object(when, field="when")):
            raise UserError(f"when: {when} is not a function")
        return when

    @field_validator("refusal")
    @classmethod
    def _says_something(cls, refusal: str) -> str:
        if not refusal.strip():
            raise UserError(f"refusal is {shown(refusal)}; write what the agent reads")
        return refusal

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.control is not None:
            self._check_control()
        elif self.budget and self.world_model is None:
            raise UserError(
                "world_model is missing; write {url: http://localhost:8000/v1, model: NAME}, or budget: 0 to check nothing"
            )
        if (self.depth > 1) is (self.agent is None):
            raise UserError(
                f"depth is {self.depth}, and agent is {'missing' if self.agent is None else 'given'}; write agent where depth is "
                "more than 1, and only there"
            )
        if self.world_model is None:
            return self
        for one in dataclasses.fields(SimulationConfig):
            if one.name in _SIMULATED and getattr(self.world_model, one.name) != one.default:
                raise UserError(f"world_model.{one.name} is for simulated worlds; leave it out here")
        drawn = self.world_model.temperature > 0 or (self.agent is not None and self.agent.temperature != 0)
        if self.samples > 1 and not drawn:
            raise UserError(
                f"samples is {self.samples}, and at temperature 0 all are the same; write world_model.temperature > 0, or 1"
            )
        return self

    def _check_control(self) -> None:
        for name in ("world_model", "depth", "agent", "samples", "threshold"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise UserError(f"{name} is for a world model, and control is {self.control}; leave one of them out")

    @classmethod
    def from_mapping(cls, values: Any, where: str = "verify") -> Self:
        """Read a file's block; see `Options.read`."""
        return cls.read(values, where)

    def as_mapping(self) -> dict[str, Any]:
        """Return JSON values for records of what was played, without addresses and the names of keys' variables."""
        found: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        if self.world_model is not None:
            block = dataclasses.asdict(self.world_model)
            found["world_model"] = {key: value for key, value in block.items() if key not in ("url", "api_key_env")}
        if self.agent is not None:
            found["agent"] = {name: getattr(self.agent, name) for name in _RECORDED}
        record: dict[str, Any] = json.loads(json.dumps(found, default=repr))
        return record

    @property
    def asks_world(self) -> bool:
        """Whether the world says which of its tools are checked."""
        return self.tools is None and self.pattern is None and self.when is None

    def of(self, name: str) -> bool:
        """Whether the environment of this name is verified."""
        return self.worlds is None or name in self.worlds

    def check_names(self, names: Mapping[str, Any], where: str = "verify") -> None:
        """Raise a UserError if `worlds` names an environment that is not among `names`."""
        for name in self.worlds or ():
            if name not in names:
                raise UserError(f"{where}.worlds: there is no environment {name!r}{nearest(name, names)}")


def _compiled(pattern: str) -> Any:
    try:
        return regex(pattern)
    except MissingExtraError:
        raise MissingExtraError("pattern", "google-re2", "rules") from None
    except ValueError as error:
        raise UserError(f"pattern: {error}") from None
