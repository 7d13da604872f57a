"""What a config says of checks before irreversible actions: `verify:` in a file for `wm train`, `wm.verify` on verl, and the file
of `wm env rollout --verify`."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from wm_plugin.errors import MissingExtraError, UserError, check_keys, nearest, shown
from wm_plugin.registry import import_object
from wm_plugin.rewards.rule_places import regex
from wm_plugin.worlds.agents.controls import CONTROLS
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

Then = Literal["execute", "refuse"]
REFUSAL = (
    "This was not done: a check predicts that it would not complete the task, and it cannot be undone. Look again at what is "
    "asked for and at what you have, change what is wrong, and go on."
)
# of a simulated world, which has an end and a judge of its own
_NOT_OURS = ("max_turns", "success", "verifier", "rule", "threshold", "scenarios", "worlds", "evaluation")


def _help(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class AgentServer:
    """The agent that plays on in an imagined continuation, behind a server that takes tools.

    Raises:
        UserError: a value is out of its range.
    """

    url: str = _help("An OpenAI-compatible server, such as http://localhost:8001/v1.", "")
    model: str = _help("The model's name there.", "")
    api_key_env: str | None = _help("The environment variable of the server's key.", "OPENAI_API_KEY")
    temperature: float = _help("Of its actions.", 0.0)
    max_tokens: int = _help("New tokens of an action.", 1024)
    timeout: float = _help("Seconds of an attempt.", 120.0)

    def __post_init__(self) -> None:
        for name in ("url", "model"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise UserError(f"{name} is missing; write a server's address, and the name of its model")
        if not isinstance(self.api_key_env, str | None):
            raise UserError(f"api_key_env is {shown(self.api_key_env)}; write the name of an environment variable")
        _check_number("temperature", self.temperature, float, 0)
        _check_number("max_tokens", self.max_tokens, int, 1)
        _check_number("timeout", self.timeout, float, 0)


@dataclass(frozen=True)
class VerifyConfig:
    """Which actions are checked by a world model before they go out, how often, and what follows.

    Raises:
        UserError: a value is out of its range, or does not go with another one.
        MissingExtraError: `pattern` is given, and google-re2 is not installed.
    """

    world_model: SimulationConfig | None = _help(
        "Who is asked: fields of SimulationConfig, such as {url: http://localhost:8000/v1, model: NAME}. Budget 0 needs none."
    )
    control: str | None = _help(
        "Who is asked in the place of a world model, to compare with it: refuse, accept, coin or oracle (the real environment)."
    )
    budget: int = _help("Checks of an episode, at most. 0: no action is checked.", 4)
    tools: tuple[str, ...] | None = _help(
        "The tools whose calls are checked. Without tools, pattern and when: the world's `irreversible`."
    )
    pattern: str | None = _help(
        'A regular expression (RE2) for calls that are checked, found anywhere in name({"argument": "value"}).'
    )
    when: str | None = _help("package.module:name(call, trajectory) -> bool: whether a call is checked.")
    depth: int = _help(
        "Turns of an imagined continuation. 1: the outcome of the action itself. More: `agent` plays on.", 1
    )
    agent: AgentServer | None = _help("Who plays on: {url: http://localhost:8001/v1, model: NAME}.")
    samples: int = _help("Continuations of a check.", 1)
    threshold: float = _help("The share of them that must succeed.", 0.5)
    spent: Then = _help("What becomes of such an action when the budget is used up: execute or refuse.", "execute")
    unanswered: Then = _help("What becomes of it when the world model gives no answer: execute or refuse.", "execute")
    refusal: str = _help("What the agent reads in the place of the result.", REFUSAL)
    worlds: tuple[str, ...] | None = _help("Which of several environments are verified, by their names; null: all.")

    def __post_init__(self) -> None:
        for name, kind in (("world_model", SimulationConfig), ("agent", AgentServer)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                object.__setattr__(self, name, _block(kind, value, name))
        for name in ("tools", "worlds"):
            value = getattr(self, name)
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, name, value)
            if value is not None and not (isinstance(value, tuple) and all(isinstance(one, str) for one in value)):
                raise UserError(f"{name} is {shown(value)}; write a list of names, or null")
        if self.tools == ():
            raise UserError("tools is empty; name some, or write budget: 0 to check nothing")
        _check_number("budget", self.budget, int, 0)
        _check_number("depth", self.depth, int, 1)
        _check_number("samples", self.samples, int, 1)
        _check_number("threshold", self.threshold, float, 0)
        if not 0 < self.threshold <= 1:
            raise UserError(f"threshold is {self.threshold}; write a share > 0, up to 1")
        for name in ("spent", "unanswered"):
            if (value := getattr(self, name)) not in get_args(Then):
                raise UserError(f"{name} is {shown(value)}{nearest(value, get_args(Then))}")
        if not isinstance(self.refusal, str) or not self.refusal.strip():
            raise UserError(f"refusal is {shown(self.refusal)}; write what the agent reads")
        for name in ("pattern", "when"):
            if not isinstance(getattr(self, name), str | None):
                raise UserError(f"{name} is {shown(getattr(self, name))}; write a text, or null")
        if self.pattern is not None:
            _compiled(self.pattern)
        if self.when is not None and not callable(import_object(self.when, field="when")):
            raise UserError(f"when: {self.when} is no function")
        self._check_together()

    def _check_together(self) -> None:
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
            return
        for one in dataclasses.fields(SimulationConfig):
            if one.name in _NOT_OURS and getattr(self.world_model, one.name) != one.default:
                raise UserError(f"world_model.{one.name} is of a simulated world, and nothing here; leave it out")
        drawn = self.world_model.temperature > 0 or (self.agent is not None and self.agent.temperature > 0)
        if self.samples > 1 and not drawn:
            raise UserError(
                f"samples is {self.samples}, and at temperature 0 all are the same; write world_model.temperature > 0, or 1"
            )

    def _check_control(self) -> None:
        if not isinstance(self.control, str) or self.control not in CONTROLS:
            raise UserError(f"control is {shown(self.control)}{nearest(str(self.control), CONTROLS)}")
        for one in dataclasses.fields(self):
            if (
                one.name in ("world_model", "depth", "agent", "samples", "threshold")
                and getattr(self, one.name) != one.default
            ):
                raise UserError(f"{one.name} is of a world model, and control is {self.control}; leave one of them out")

    def __hash__(self) -> int:
        return hash(json.dumps(dataclasses.asdict(self), sort_keys=True, default=repr))

    @classmethod
    def from_mapping(cls, values: Any, where: str = "verify") -> Self:
        """The config of a file's block.

        Raises:
            UserError: it is no mapping, has a key that does not exist, or a value does not fit; the message names the key.
        """
        if not isinstance(values, Mapping):
            raise UserError(
                f"{where} is {shown(values)}; write fields, e.g. "
                "{budget: 4, world_model: {url: http://localhost:8000/v1, model: NAME}}"
            )
        check_keys(where, values, [one.name for one in dataclasses.fields(cls)])
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"{where}.{error}") from None

    def as_mapping(self) -> dict[str, Any]:
        """As JSON values, for records of what was played: without addresses, and without the names of keys' variables."""
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=repr))
        for name in ("world_model", "agent"):
            block = found[name] or {}
            found[name] = {key: value for key, value in block.items() if key not in ("url", "api_key_env")} or None
        return found

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


def _check_number(name: str, value: Any, kind: type, least: float) -> None:
    whole = type(value) is int
    if not (whole or (kind is float and isinstance(value, float) and math.isfinite(value))) or value < least:
        what = "a whole number" if kind is int else "a number"
        raise UserError(f"{name} is {shown(value)}; write {what} >= {least}")


def _block(kind: Any, value: Any, name: str) -> Any:
    """A block of the config, whose errors name it."""
    if kind is SimulationConfig:
        return SimulationConfig.from_mapping(value, where=name)
    if not isinstance(value, Mapping):
        raise UserError(f"{name} is {shown(value)}; write {{url: http://localhost:8001/v1, model: NAME}}")
    check_keys(name, value, [one.name for one in dataclasses.fields(kind)])
    try:
        return kind(**value)
    except UserError as error:
        raise UserError(f"{name}.{error}") from None


def _compiled(pattern: str) -> Any:
    try:
        return regex(pattern)
    except MissingExtraError:
        raise MissingExtraError("pattern", "google-re2", "rules") from None
    except ValueError as error:
        raise UserError(f"pattern: {error}") from None
