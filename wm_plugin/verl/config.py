"""The block `wm` of a run's config: the fields of `EchoConfig`, and what the adapter itself needs."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig, read_sets
from wm_plugin.objectives import EchoConfig
from wm_plugin.verl.names import SEARCH_PATH
from wm_plugin.worlds import ENVIRONMENTS
from wm_plugin.worlds.wrappers.annealing import TurnBudget
from wm_plugin.worlds.wrappers.control import ControlConfig, controlled
from wm_plugin.worlds.wrappers.rewarded import rewarded
from wm_plugin.worlds.wrappers.simulated import placed
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig
from wm_plugin.worlds.wrappers.tags import PROTOCOLS, in_tags
from wm_plugin.worlds.wrappers.verified import verified
from wm_plugin.worlds.wrappers.verify_config import VerifyConfig

REWARD_KEYS = ("reward", "reward_batch", "reward_wait_ms")  # read by wm_plugin.verl.rewards


def _help(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class WorldModelConfig:
    """What `wm.*` says, beside the rewards.

    Raises:
        UserError: a value is out of its range; the message names the field, the value and what to write.
    """

    objective: EchoConfig
    environment: str | Mapping[str, str] | None = _help(
        "An environment class that the agent loop drives: a registered name such as grid, or package.module:Class; or "
        "{name: class}, and the rows' column `environment` says which. None: verl's own tools."
    )
    max_turns: int | None = _help("Turns of the policy in a trajectory. None: verl's max_assistant_turns.")
    turn_budget: TurnBudget | None = _help(
        "WMAct's annealing: {start: 30, every: 100}. Turns in the environment; the policy has one more, in which it ends. "
        "Validation has the first value."
    )
    episode_reward: Mapping[str, Any] | None = _help(
        "WMAct's reward of an episode: the fields of EpisodeReward, {rescale, format_penalty, turn_penalty, action_penalty, "
        "gamma}. None: the environment's own."
    )
    control: ControlConfig | None = _help(
        "Perturbations of what the environment's training episodes show: {perturbations: [{name: error, rate: 0.1}], seed: 0, "
        "curriculum: {by: step, steps: 200}}; docs/control.md lists them. None: episodes as they are."
    )
    protocol: str = _help(
        "How the policy acts in an environment: tools, by calls in the model's own format; or tags, WMAct's <think>…</think>"
        "<action>a; b</action>, with no tools in the prompt and observations as the user's.",
        "tools",
    )
    simulation: SimulationConfig | None = _help(
        "A world model in the environment's place: the fields of SimulationConfig, {url: http://host:8000/v1, model: NAME}. "
        "Validations are in the real world, unless its field evaluation says simulated."
    )
    verify: VerifyConfig | None = _help(
        "A check before irreversible actions, by a world model: the fields of VerifyConfig, {budget: 4, world_model: {url: "
        "http://host:8000/v1, model: NAME}}. None: actions go out unchecked."
    )
    max_turn_tokens: int | None = _help(
        "Tokens that the policy may sample in a turn. None: as many as the response has left."
    )
    validation_nll: bool = _help(
        "Measure the environment tokens of validation rollouts too, by a pass of the actor in each validation. wm.guard turns "
        "it on.",
        False,
    )
    look_ahead: Mapping[str, LookAheadConfig] | None = _help(
        "Validation sets, by their rows' data_source, whose episodes the policy plays looking ahead with itself, each with "
        "fields of LookAheadConfig: {held_out: {continuations: 16, depth: 6, marks: {over: '!', won: P}}}; docs/lookahead.md."
    )
    max_lost: float = _help(
        "The share of a step's trajectories that may fail in the agent loop, or whose world may be lost, before the run stops.",
        0.5,
    )

    def __post_init__(self) -> None:
        named = self.environment.values() if isinstance(self.environment, Mapping) else [self.environment or ""]
        if not named or not all(isinstance(name, str) for name in named):
            raise UserError(
                f"wm.environment is {shown(self.environment)}; write a name such as grid, package.module:Class, or "
                "{name: class}"
            )
        if self.max_turns is not None and (type(self.max_turns) is not int or self.max_turns < 1):
            raise UserError(f"wm.max_turns is {shown(self.max_turns)}; write a whole number of turns >= 1, or null")
        if self.turn_budget is not None:
            if self.max_turns is not None:
                raise UserError("wm.turn_budget says what wm.max_turns says; leave one of them out")
            if self.environment is None:
                raise UserError("wm.turn_budget counts turns in an environment, and wm.environment is null; name one")
        if self.episode_reward is not None and not isinstance(self.episode_reward, Mapping):
            raise UserError(f"wm.episode_reward is {shown(self.episode_reward)}; write fields, e.g. {{rescale: true}}")
        if self.episode_reward is not None and self.environment is None:
            raise UserError("wm.episode_reward is of episodes in an environment, and wm.environment is null; name one")
        if self.episode_reward is not None:
            try:
                self.environments  # noqa: B018 - it says what is wrong with the reward
            except UserError as error:
                raise UserError(f"wm.{error}" if str(error).startswith("episode_reward") else str(error)) from None
        if self.simulation is not None:
            self._check_simulation(self.simulation)
        if self.control is not None:
            if self.environment is None:
                raise UserError("wm.control is of episodes in an environment, and wm.environment is null; name one")
            try:
                self.control.check_worlds(self.environment if isinstance(self.environment, Mapping) else ())
                self.environments  # noqa: B018 - it says which tool an environment does not have
            except UserError as error:
                raise UserError(f"wm.{error}" if str(error).startswith("control") else str(error)) from None
        if self.verify is not None:
            self._check_verify(self.verify)
        if self.protocol not in PROTOCOLS:
            raise UserError(f"wm.protocol is {shown(self.protocol)}; write {' or '.join(PROTOCOLS)}")
        if self.protocol == "tags":
            if self.environment is None:
                raise UserError("wm.protocol is of actions in an environment, and wm.environment is null; name one")
            try:
                self.environments  # noqa: B018 - it says which of them has no text of actions
            except UserError as error:
                raise UserError(f"wm.{error}" if str(error).startswith("protocol") else str(error)) from None
        if self.max_turn_tokens is not None and (type(self.max_turn_tokens) is not int or self.max_turn_tokens < 1):
            raise UserError(
                f"wm.max_turn_tokens is {shown(self.max_turn_tokens)}; write a whole number of tokens >= 1, or null"
            )
        for name, ahead in (self.look_ahead or {}).items():
            if ahead.world_model != "own":
                raise UserError(
                    f"wm.look_ahead.{name}.world_model is {ahead.world_model}: in a training the policy is its own world model; "
                    "leave it out"
                )
            try:
                ahead.check_marks()
            except UserError as error:
                raise UserError(f"wm.{error}") from None
        if self.look_ahead and (self.environment is None or self.protocol == "tags"):
            raise UserError("wm.look_ahead is for episodes in wm.environment that are played by tools; leave it out")
        if not isinstance(self.validation_nll, bool):
            raise UserError(f"wm.validation_nll is {shown(self.validation_nll)}; write true or false")
        if type(self.max_lost) not in (int, float) or not 0 <= self.max_lost <= 1:
            raise UserError(f"wm.max_lost is {shown(self.max_lost)}; write a share between 0 and 1")

    def _check_simulation(self, simulation: SimulationConfig) -> None:
        if self.environment is None:
            raise UserError("wm.simulation is of an environment, and wm.environment is null; name one")
        simulation.check_names(self._named, "wm.simulation")
        self.environments  # noqa: B018 - it says which of them cannot be simulated

    def _check_verify(self, verify: VerifyConfig) -> None:
        if self.environment is None:
            raise UserError("wm.verify is of actions in an environment, and wm.environment is null; name one")
        verify.check_names(self._named, "wm.verify")
        self.environments  # noqa: B018 - it says which of them cannot be verified

    @property
    def environments(self) -> list[type]:
        """Every class that a trajectory may be of."""
        return [self._class(name, path) for name, path in self._named.items()]

    @property
    def simulates_all(self) -> bool:
        """Whether no training episode is in a real world."""
        if self.simulation is None:
            return False
        return all(map(self.simulation.of, self._named))

    @property
    def _named(self) -> Mapping[str, str]:
        """The path of each environment by the name that rows have for it; a single one has its own."""
        if self.environment is None:
            return {}
        return {self.environment: self.environment} if isinstance(self.environment, str) else self.environment

    @property
    def measures_validation(self) -> bool:
        """Whether validations measure environment tokens."""
        return self.validation_nll or self.objective.guard is not None

    @property
    def first_turns(self) -> int | None:
        """Turns of the policy where nothing has been annealed; None: verl's own limit."""
        return self.max_turns if self.turn_budget is None else self.turn_budget.start + 1

    def _class(self, name: str, path: str) -> type:
        """The class at a path, for rows of this name."""
        environment = placed(ENVIRONMENTS.get(path), self.simulation, name)
        if self.control is not None and self.control.of(name):
            environment = controlled(environment, self.control)
        if self.verify is not None and self.verify.of(name):
            try:
                environment = verified(environment, self.verify)
            except UserError as error:
                raise UserError(f"wm.{error}") from None
        if self.episode_reward is not None:
            environment = rewarded(environment, **self.episode_reward)
        return in_tags(environment) if self.protocol == "tags" else environment

    def environment_of(self, row: Mapping[str, Any]) -> type | None:
        """The class that a row of the dataset is for; None: verl's own tools.

        Args:
            row: its `extra_info`.

        Raises:
            UserError: there are several, and its column `environment` names none of them.
        """
        if not self.environment:
            return None
        if not isinstance(row, Mapping):
            raise UserError(f"a row's `extra_info` is {shown(row)}; write a mapping of columns")
        if isinstance(self.environment, str):
            return self._class(self.environment, self.environment)
        name = row.get("environment")
        if not isinstance(name, str) or name not in self.environment:
            raise UserError(
                f"a row's column `environment` is {shown(name)}, and wm.environment has {', '.join(map(repr, self.environment))}"
            )
        return self._class(name, self.environment[name])

    def columns_of(self, row: Mapping[str, Any] | None) -> dict[str, Any]:
        """What a row's `extra_info` gives to `reset`. A file of several worlds' rows has null in the others' columns."""
        several = isinstance(self.environment, Mapping)
        columns = (row or {}).items()
        return {name: value for name, value in columns if not several or (value is not None and name != "environment")}


def check_tool_names(objective: EchoConfig, known: Collection[str]) -> None:
    """Raises:
    UserError: `wm.tools` names a tool that is not among `known`.
    """
    for name in objective.tool_names or ():
        if name not in known:
            raise UserError(f"wm.tools: there is no tool {name!r}{nearest(name, known)}")


def read_config(config: Any) -> WorldModelConfig:
    """The block `wm` of a trainer's config.

    Raises:
        UserError: there is none, a key does not exist (with the nearest one), or a value does not fit.
    """
    block = config.get("wm")
    if block is None:
        raise UserError(f"the config has no block wm; add 'hydra.searchpath=[{SEARCH_PATH}]' +wm=echo")
    values = OmegaConf.to_container(block, resolve=True) if OmegaConf.is_config(block) else block
    if isinstance(values, str | list):  # +wm=echo, and Hydra looked for no group of that name where ours are
        raise UserError(
            f"wm is {shown(values)}, a plain value: Hydra does not find our groups without 'hydra.searchpath=[{SEARCH_PATH}]'; "
            "add that to the command"
        )
    if not isinstance(values, Mapping):
        raise UserError(f"wm is {shown(values)}; write fields, e.g. wm.coeff=0.05")
    objective_keys = {*EchoConfig.model_fields, *EchoConfig.aliases}
    own_keys = {f.name for f in dataclasses.fields(WorldModelConfig)} - {"objective"}
    objective, own = {}, {}
    for key, value in values.items():
        if key in objective_keys:
            objective[key] = value
        elif key in own_keys:
            own[key] = value
        elif key not in REWARD_KEYS:
            raise UserError(f"wm has no field {key!r}{nearest(key, objective_keys | own_keys | set(REWARD_KEYS))}")
    if {"alpha", "coeff"} <= objective.keys():
        raise UserError("wm.alpha is another name of wm.coeff, which the group +wm=echo sets; write wm.coeff alone")
    if own.get("turn_budget") is not None:
        try:
            own["turn_budget"] = TurnBudget.from_mapping(own["turn_budget"])
        except UserError as error:
            raise UserError(f"wm.{error}") from None
    if own.get("look_ahead") is not None:
        try:
            own["look_ahead"] = read_sets(own["look_ahead"])
        except UserError as error:
            raise UserError(f"wm.{error}") from None
    if own.get("control") is not None:
        try:
            own["control"] = ControlConfig.from_mapping(own["control"])
        except UserError as error:
            raise UserError(f"wm.{error}") from None
    if own.get("simulation") is not None:
        own["simulation"] = SimulationConfig.from_mapping(own["simulation"], where="wm.simulation")
    if own.get("verify") is not None:
        own["verify"] = VerifyConfig.from_mapping(own["verify"], where="wm.verify")
    return WorldModelConfig(EchoConfig.read(objective, "wm"), **own)
