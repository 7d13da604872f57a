"""The flags that several verbs share, as options models: `def verb(source: str, /, *, model: ModelFlags = ModelFlags())`.

Where a verb has other defaults, they stand in the parameter's: `writer: ModelFlags = ModelFlags(max_new_tokens=4096)`.
"""

import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from wm_plugin.cli.support import quiet
from wm_plugin.client.answers import LocalModel, Model, ServerModel
from wm_plugin.client.predict import LocalPredictor, ServerPredictor
from wm_plugin.client.server import Server
from wm_plugin.data.contexts import Contexts, load_contexts
from wm_plugin.data.hidden import Shown, parse_parts
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.lab.agents.synthesize import wandering
from wm_plugin.options import Number, Options, Whole, default, option
from wm_plugin.tokens.tokenizer import is_missing_folder
from wm_plugin.worlds.agents.acting import LocalActor, ServerActor
from wm_plugin.worlds.agents.players import MAX_TURNS, SCRIPTED, LocalPlayer, Player, ScriptedPlayer, ServerPlayer
from wm_plugin.worlds.simulated_world import SimulatedWorld
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.verified import VerifiedWorld

AgentHost = Annotated[
    Literal["trl", "verl"], Parameter(help="Whose error messages an agent reads after a call that failed.")
]
WorldName = Annotated[
    str, Parameter(help="A world by name (wm env list), package.module:Class, or openenv:http://host:port.")
]
PromptsName = Annotated[str, Parameter(help="The prompts that the world model was trained with.")]


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def prefixed(prefix: str) -> Parameter:
    """Begin the flags of a group with a prefix, as `Annotated[Output, prefixed("agent")]`."""
    return Parameter(name="*", name_transform=lambda name: f"{prefix}-{name.replace('_', '-')}")


class Output(Options):
    """How a model writes."""

    temperature: Number = option("Sampling temperature; 0 is greedy.", default=1.0, ge=0)
    max_new_tokens: Whole = option("Longest output, in tokens.", default=1024, ge=1)


class Requests(Output):
    """How a model behind a server is asked."""

    concurrency: Whole = option("Requests at once, to a server.", default=32, ge=1)
    no_seed: bool = option("Send a server no seeds (vLLM crashes on them on a CPU); runs then differ.", default=False)

    def client(self, url: str, name: str, **more: Any) -> Server:
        """The client of a server.

        Args:
            more: other arguments of `Server`.
        """
        seed = None if self.no_seed else "auto"
        own = {"temperature": self.temperature, "max_tokens": self.max_new_tokens, "seed": seed}
        return Server(url, name, **{"concurrency": self.concurrency, "timeout": 600.0, **own, **more})


class Sampling(Requests):
    """How a model writes, behind a server or in this process."""

    batch_size: Whole = option("Outputs at once, of a model in this process.", default=64, ge=1)

    def load(self, path: str | Path) -> LocalPredictor:
        """The model of a folder or a name on the Hub, in this process."""
        quiet()
        return LocalPredictor(
            path, temperature=self.temperature, max_new_tokens=self.max_new_tokens, batch_size=self.batch_size
        )

    def actor(self, place: str, name: str | None, flag: str, scripted: Iterable[str]) -> Model:
        """The agent in a folder, or behind the URL of a server.

        Args:
            name: the name under which the server has the model.
            flag: the flag that names the place.
            scripted: what the flag takes besides, for the hint.
        """
        if not is_url(place):
            check_folder(place, flag, scripted)
            return LocalActor(self.load(place))
        if name is None:
            raise UserError(f"{flag} is a server; name its model with {flag}-model")
        return ServerActor(self.client(place, name))


class Named(Options):
    """Which model is asked."""

    model: str | None = option("A model's folder, or its name on the Hub, to run in this process.", default=None)
    server: str | None = option("Or an OpenAI-compatible server, like http://localhost:8000/v1.", default=None)
    server_model: str | None = option("The name under which the server has the model.", default=None)

    @property
    def name(self) -> str:
        return self.model or self.server_model or ""

    def check(self, others: Mapping[str, Any] = MappingProxyType({}), prefix: str = "--") -> None:
        """Check before hours of work that one model is named, in one way.

        Args:
            others: flags of the verb that take the place of a model, with their values.
            prefix: what the flags begin with.
        """
        flags = {f"{prefix}model": self.model, **others, f"{prefix}server": self.server}
        named = [flag for flag, value in flags.items() if value]
        if len(named) != 1:
            known = f"{', '.join(list(flags)[:-1])} or {prefix}server"
            raise UserError(f"name one model: {known}" + (f"; not {' and '.join(named)}" if named else ""))
        if (self.server is None) is not (self.server_model is None):
            raise UserError(f"{prefix}server URL and {prefix}server-model NAME go together: give both or none")
        if self.model and is_missing_folder(self.model):
            raise UserError(f"{prefix}model {self.model}: there is no such folder")


@Parameter(name="*", group=Group("Model", sort_key=1))
class ModelFlags(Sampling, Named):
    """The model that a verb asks, and how."""

    temperature: Number = default(Sampling, "temperature", 0.0)

    def predictor(self, *, thinking: bool, path: str | Path | None = None) -> Any:
        """The predictor of transitions that the flags describe; with `path`, of the model there."""
        if self.server and self.server_model and path is None:
            return ServerPredictor(self.client(self.server, self.server_model), thinking=thinking)
        return self.load(path or self.name)

    def asked(self) -> Model:
        """The model that the flags describe, for `Answers`."""
        if self.server and self.server_model:
            return ServerModel(self.client(self.server, self.server_model))
        return LocalModel(self.load(self.name))


class WorkFlags(Options):
    """Where a run that was killed continues."""

    work: str | None = option(
        "Folder that keeps what is done, from which a killed run continues (default: X.work beside X).", default=None
    )
    shard_size: Whole = option("Samples of a shard: a killed run loses at most so many.", default=256, ge=1)


@Parameter(name="*", group=Group("State", sort_key=2))
class StateFlags(Options):
    """What of the state a world model is shown, and what is known of it beside what rollouts carry."""

    hidden: str | None = option(
        "What of the state the world model is shown, beside the turns: some of initial-state, summary, permissions, "
        "availability, final-state, or all, or none. The first is what the agent sees, too; no agent sees the others. "
        "Default: all for word2world, initial-state for the other kinds of wm data build.",
        default=None,
    )
    world_context: Annotated[bool | None, Parameter(negative="--no-world-context")] = option(
        "The same as --hidden all; with --no-: as --hidden initial-state.", default=None
    )
    context_file: str | None = option(
        "Hidden contexts by hand, .yaml or .json: a task's id -> summary, permissions, availability, final_state.",
        default=None,
    )

    def shown(self) -> Shown | None:
        """What is shown; None if no flag says it."""
        if self.hidden is None:
            return self.world_context
        if self.world_context is not None:
            raise UserError("--hidden and --world-context say the same: leave one of them out")
        return parse_parts(self.hidden)

    def shown_or_all(self) -> Shown:
        chosen = self.shown()
        return True if chosen is None else chosen

    def contexts(self) -> Contexts | None:
        return None if self.context_file is None else load_contexts(self.context_file)


@Parameter(name="*", group=Group("Tasks", sort_key=3))
class RowFlags(Options):
    """Which rows of a world."""

    level: str | None = option("A level of the world (wm env list names them; default: the first).", default=None)
    seed: Whole = option("Seed of the tasks.", default=0)
    held_out: bool = option("Rows that nothing should be trained on.", default=False)
    split: str | None = option("train, seen or unseen, of a world that can tell them apart.", default=None)

    def rows(self, world: World, count: int, max_turns: int | None = None) -> list[dict[str, Any]]:
        """The first `count` rows."""
        if self.held_out and self.split:
            raise UserError("--held-out and --split say the same: leave one of them out")
        return world.rows(count, self.seed, self.held_out, self.level, self.split, max_turns)


@Parameter(name="*", group=Group("Agent", sort_key=1))
class PolicyFlags(Sampling):
    """The agent that plays, and how."""

    policy: str = option(
        "random, expert (in a real environment), a folder with a model, or the URL of an OpenAI-compatible server.",
        default=...,
    )
    model: str | None = default(Named, "server_model", None)
    column: tuple[str, ...] = option(
        "NAME=VALUE: a column that every row gets, such as user_model=NAME, which plays the customer of tau2 and dialogue "
        "(repeatable).",
        default=(),
    )
    sampling_seed: Whole | None = option(
        "Seed of the agent's sampling (default: --seed): with another one it plays the same tasks differently.",
        default=None,
    )
    max_turns: Whole | None = option("Longest episode, in turns; a world may end it earlier.", default=None, ge=1)
    host: AgentHost = "trl"
    workers: Whole = option("Processes, for random and expert.", default=1, ge=1)
    timeout: Number | None = option(
        "Longest time for an episode, in seconds, after which it is lost (default: 600 for random and expert, else no limit).",
        default=None,
        gt=0,
        le=10_000_000,
    )
    request_timeout: Number = option("Longest time for a request, in seconds.", default=600.0, gt=0)
    retries: Whole = option("Attempts after one that failed.", default=4, ge=0)

    def player(self, world: World, seed: int) -> tuple[Player, Server | None]:
        """The player, and its server if it is behind one."""
        simulation = world.config if isinstance(world, SimulatedWorld) else None
        seed = seed if self.sampling_seed is None else self.sampling_seed
        common: dict[str, Any] = {"seed": seed, "max_turns": self.max_turns or MAX_TURNS, "host": self.host}
        if self.policy == "expert" and simulation is not None:
            raise UserError(
                "--policy expert looks into its environment, and a world model has none to look into; name a model, or random"
            )
        if self.policy == "random" and simulation is not None:
            return wandering(world, workers=self.workers, timeout=self.timeout, **common), None
        if self.policy in SCRIPTED:
            timeout = 600.0 if self.timeout is None else self.timeout
            return ScriptedPlayer(world, self.policy, workers=self.workers, timeout=timeout, **common), None
        if is_url(self.policy):
            if self.model is None:
                raise UserError("--policy is a server; name its model with --model")
            server = self.client(self.policy, self.model, timeout=self.request_timeout, max_retries=self.retries)
            return ServerPlayer(world, server, timeout=self.timeout, **common), server
        check_folder(self.policy, "--policy", SCRIPTED)
        asked = world.config.world_model if isinstance(world, VerifiedWorld) else simulation
        at_once = 1 if asked is None else asked.concurrency
        return LocalPlayer(world, self.load(self.policy), at_once=at_once, **common), None

    def columns(self, world: World) -> dict[str, str | int]:
        """The values of `--column` by name; digits are a whole number."""
        parameters = list(inspect.signature(world.environment.reset).parameters.values())[1:]  # type: ignore[attr-defined]
        known = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        found: dict[str, str | int] = {}
        for pair in self.column:
            name, equals, value = pair.partition("=")
            if not equals:
                raise UserError(f"--column is {shown(pair)}; write NAME=VALUE")
            if name not in known:
                raise UserError(f"--column: {world.name} takes no column {shown(name)}{nearest(name, known)}")
            found[name] = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else value
        return found


def check_folder(path: str, flag: str, known: Any) -> None:
    """Raise a UserError for a model that is neither a folder nor, with its slash, a name on the Hub.

    Args:
        known: what the flag takes besides, for the hint.
    """
    if "/" not in path and not os.path.exists(path):
        raise UserError(f"{flag} {path!r} is no folder with a model, and no URL{nearest(path, known)}")
