"""Options of checks before irreversible actions: `verify:` in a file for `wm train`, `wm.verify` on verl, and the file of
`wm env rollout --verify`."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from wm_plugin.client.server import ServerOptions
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.options import Names, Number, Options, Parsed, Whole, option
from wm_plugin.registry import import_object
from wm_plugin.rewards.rule_places import regex
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

Then = Literal["execute", "refuse"]
REFUSAL = (
    "This was not done: a check predicts that it would not complete the task, and it cannot be undone. Look again at what is "
    "asked for and at what you have, change what is wrong, and go on."
)
_RECORDED = ("model", "temperature", "max_tokens", "timeout")  # fields of the agent
# Fields of a simulated world, which has an end and a judge of its own.
_OF_SIMULATIONS = ("max_turns", "success", "verifier", "rule", "threshold", "scenarios", "worlds", "evaluation")


def _compiled(pattern: str | None) -> str | None:
    if pattern is not None:
        try:
            regex(pattern)
        except MissingExtraError:
            raise MissingExtraError("pattern", "google-re2", "rules") from None
        except ValueError as error:
            raise UserError(f"pattern: {error}") from None
    return pattern


def _function(path: str | None) -> str | None:
    if path is not None and not callable(import_object(path, field="when")):
        raise UserError(f"when: {path} is not a function")
    return path


class AgentServer(ServerOptions):
    """The agent that plays on in an imagined continuation, behind a server that takes tools."""

    example = "{url: http://localhost:8001/v1, model: NAME}"

    timeout: float = option("Seconds of an attempt.", default=120.0, gt=0)
    max_tokens: Whole | None = option("New tokens of an action.", default=1024, ge=1)


def _agent(value: Any) -> Any:
    return {AgentServer.aliases.get(key, key): one for key, one in value.items()} if isinstance(value, dict) else value


class VerifyConfig(Options):
    """Which actions are checked by a world model before they go out, how often, and what follows.

    Raises:
        UserError: a value is out of its range, or does not go with another one.
        MissingExtraError: `pattern` is given, and google-re2 is not installed.
    """

    example = "{budget: 4, world_model: {url: http://localhost:8000/v1, model: NAME}}"

    world_model: Annotated[SimulationConfig | None, Parsed] = option(
        "Who is asked: fields of SimulationConfig, such as {url: http://localhost:8000/v1, model: NAME}. Budget 0 needs none.",
        default=None,
    )
    control: Literal["refuse", "accept", "coin", "oracle"] | None = option(
        "Who is asked instead of a world model, for comparison: refuse, accept, coin or oracle (the real environment).",
        default=None,
    )
    budget: Whole = option("Checks of an episode, at most. 0: no action is checked.", default=4, ge=0)
    tools: Names | None = option(
        "The tools whose calls are checked. Without tools, pattern and when: the world's `irreversible`.",
        default=None,
        min_length=1,
        write="a list of names, or budget: 0 to check nothing",
    )
    pattern: Annotated[str | None, AfterValidator(_compiled)] = option(
        'A regular expression (RE2) for calls that are checked, found anywhere in name({"argument": "value"}).',
        default=None,
    )
    when: Annotated[str | None, AfterValidator(_function)] = option(
        "package.module:name(call, trajectory) -> bool: whether a call is checked.", default=None
    )
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
        "The share of them that must succeed.", default=0.5, gt=0, le=1, write="a share > 0, up to 1"
    )
    spent: Then = option(
        "What happens to such an action when the budget is used up: execute or refuse.", default="execute"
    )
    unanswered: Then = option(
        "What happens to it when the world model gives no answer: execute or refuse.", default="execute"
    )
    refusal: str = option(
        "What the agent reads instead of the result.", default=REFUSAL, pattern=r"\S", write="what the agent reads"
    )
    worlds: Names | None = option(
        "Which of several environments are verified, by their names; null: all.", default=None
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.control is not None:
            for name in ("world_model", "depth", "agent", "samples", "threshold"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise UserError(
                        f"{name} is for a world model, and control is {self.control}; leave one of them out"
                    )
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
        for name in _OF_SIMULATIONS:
            if getattr(self.world_model, name) != SimulationConfig.model_fields[name].default:
                raise UserError(f"world_model.{name} is for simulated worlds; leave it out here")
        drawn = self.world_model.temperature > 0 or (self.agent is not None and self.agent.temperature != 0)
        if self.samples > 1 and not drawn:
            raise UserError(
                f"samples is {self.samples}, and at temperature 0 all are the same; write world_model.temperature > 0, or 1"
            )
        return self

    def as_mapping(self) -> dict[str, Any]:
        """Return JSON values for records of what was played, without addresses and the names of keys' variables."""
        found = self.model_dump(
            mode="json", exclude={"agent": True, "world_model": {"url", "api_key_env"}}, fallback=repr
        )
        agent = None if self.agent is None else {name: getattr(self.agent, name) for name in _RECORDED}
        return {name: agent if name == "agent" else found[name] for name in type(self).model_fields}

    @property
    def asks_world(self) -> bool:
        """Whether the world says which of its tools are checked."""
        return self.tools is None and self.pattern is None and self.when is None
