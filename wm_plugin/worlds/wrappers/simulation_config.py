"""What a config says of simulated environments: `simulation:` in a file for `wm train`, `wm.simulation` on verl."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from wm_plugin.data.hidden import parse_parts
from wm_plugin.errors import UserError, check_keys, nearest, shown

Success = Literal["predicted", "answer", "verifier", "rule"]
Evaluation = Literal["real", "simulated"]
CLOSINGS = ("The episode is over.",)  # of our own worlds


def _help(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class SimulationConfig:
    """Who plays the world, and what decides an episode.

    Raises:
        UserError: a value is out of its range, or does not go with another one.
    """

    model: str = _help(
        "The world model: its name on the server, or without url a folder, for a model in this process.", ""
    )
    url: str | None = _help("An OpenAI-compatible server, such as http://localhost:8000/v1.")
    api_key_env: str | None = _help("The environment variable of the server's key.", "OPENAI_API_KEY")
    prompts: str = _help("The family or file of prompts that the world model was trained with.", "word2world")
    hidden: Any = _help(
        "What of the state the world model is shown: some of initial-state, summary, permissions, availability, final-state; or "
        "all, or none.",
        "all",
    )
    context_file: str | None = _help("Hidden contexts by hand, .yaml or .json; see wm_plugin.data.contexts.")
    seed: int = _help("Of the prompts' variants, and of asking again.", 0)
    temperature: float = _help("Of the observations.", 0.0)
    max_tokens: int = _help("New tokens of an answer.", 1024)
    parameters: Mapping[str, Any] | None = _help("Further fields of a request's body.")
    concurrency: int = _help("Requests at once, of a process; in this process, answers of a batch.", 64)
    timeout: float = _help("Seconds of an attempt.", 120.0)
    patience: float = _help(
        "Seconds of a request with all its attempts: so long it waits for a server that starts again.", 300.0
    )
    repair: int = _help("How often an answer that is cut, empty, or without what it should have is asked for again.", 1)
    repair_temperature: float = _help("The temperature of asking again.", 0.7)
    deadline: float | None = _help("Seconds that an episode may wait for the world model in all.")
    max_requests: int | None = _help("Requests of an episode.")
    max_total_tokens: int | None = _help("Tokens of an episode's requests and answers, as the server counts them.")
    max_turns: int | None = _help("Tool calls of an episode. The world's own limit counts too.")
    success: Success = _help(
        "Who decides: predicted, the world model's mark of success; answer, the real world's check of the answer (sql, docs, "
        "fictional); verifier, a judge of the whole trajectory; rule, a function of the answer.",
        "predicted",
    )
    verifier: Any = _help("The judge, as in rewards: {path: NAME, kwargs: {...}}.")
    rule: str | None = _help("package.module:name(answer, columns) -> float.")
    threshold: float = _help("The least score of a verifier or rule that is a success.", 0.5)
    closings: tuple[str, ...] = _help("How an observation ends that ends an episode without a success.", CLOSINGS)
    cache: bool | str = _help("Keep answers at temperature 0: true, in memory; a path, in that file too.", True)
    control_tokens: tuple[str, ...] = _help(
        "Control tokens of the model's tokenizer that are written in no usual way.", ()
    )
    scenarios: bool = _help("Whether rows are those of wm lab scenarios, which bring their own initial state.", False)
    worlds: tuple[str, ...] | None = _help("Which of several environments are simulated, by their names; null: all.")
    evaluation: Evaluation = _help("Where evaluations play: real, in the real world, or simulated.", "real")

    def __post_init__(self) -> None:
        for name in ("closings", "control_tokens", "worlds"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
            value = getattr(self, name)
            if not (name == "worlds" and value is None) and not _are_texts(value):
                raise UserError(f"{name} is {shown(value)}; write a list of texts")
        if not isinstance(self.model, str) or not self.model:
            raise UserError("model is missing; write its name on the server at url, or without url a folder")
        for name, kind, least, optional in (
            ("seed", int, 0, False),
            ("temperature", float, 0, False),
            ("max_tokens", int, 1, False),
            ("concurrency", int, 1, False),
            ("timeout", float, 0, False),
            ("patience", float, 0, False),
            ("repair", int, 0, False),
            ("repair_temperature", float, 0, False),
            ("deadline", float, 0, True),
            ("max_requests", int, 1, True),
            ("max_total_tokens", int, 1, True),
            ("max_turns", int, 1, True),
            ("threshold", float, -math.inf, False),
        ):
            value = getattr(self, name)
            if value is None and optional:
                continue
            whole = type(value) is int
            if not (whole or (kind is float and isinstance(value, float) and math.isfinite(value))) or value < least:
                what = "a whole number" if kind is int else "a number"
                raise UserError(
                    f"{name} is {shown(value)}; write {what}" + (f" >= {least}" if math.isfinite(least) else "")
                )
        for name in ("url", "api_key_env", "rule", "context_file"):
            if not isinstance(getattr(self, name), str | None):
                raise UserError(f"{name} is {shown(getattr(self, name))}; write a text")
        if not isinstance(self.prompts, str):
            raise UserError(
                f"prompts is {shown(self.prompts)}; write a family such as word2world, or the path of a file"
            )
        parse_parts(self.hidden, "hidden")
        if not isinstance(self.scenarios, bool):
            raise UserError(f"scenarios is {shown(self.scenarios)}; write true or false")
        if not isinstance(self.cache, bool | str):
            raise UserError(f"cache is {shown(self.cache)}; write true, false or a path")
        if not isinstance(self.parameters, Mapping | None) or not _has_names(self.parameters):
            raise UserError(f"parameters is {shown(self.parameters)}; write fields of a request by their names")
        for name, known in (("success", get_args(Success)), ("evaluation", get_args(Evaluation))):
            if (value := getattr(self, name)) not in known:
                raise UserError(f"{name} is {shown(value)}{nearest(value, known)}")
        for name in ("verifier", "rule"):
            if (self.success == name) is (getattr(self, name) is None):
                raise UserError(f"{name} and success: {name} go together; write both or neither")
        if self.scenarios and self.success == "answer":
            raise UserError(
                "success is answer, which a world checks for its own questions, and scenarios have others; write verifier or rule"
            )
        if self.url is None and (self.max_total_tokens is not None or self.parameters):
            raise UserError("max_total_tokens and parameters are of a server; give its url, or leave them out")

    def __hash__(self) -> int:
        return hash(json.dumps(dataclasses.asdict(self), sort_keys=True, default=repr))

    @classmethod
    def from_mapping(cls, values: Any, where: str = "simulation") -> Self:
        """The config of a file's block.

        Raises:
            UserError: it is no mapping, has a key that does not exist, or a value does not fit; the message names the key.
        """
        if not isinstance(values, Mapping):
            raise UserError(
                f"{where} is {shown(values)}; write fields, e.g. {{url: http://localhost:8000/v1, model: NAME}}"
            )
        check_keys(where, values, [one.name for one in dataclasses.fields(cls)])
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"{where}.{error}") from None

    def of(self, name: str) -> bool:
        """Whether the environment of this name is simulated."""
        return self.worlds is None or name in self.worlds

    def check_names(self, names: Mapping[str, Any], where: str = "simulation") -> None:
        """Raise a UserError if `worlds` names an environment that is not among `names`."""
        for name in self.worlds or ():
            if name not in names:
                raise UserError(f"{where}.worlds: there is no environment {name!r}{nearest(name, names)}")


def _are_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(text, str) and text for text in value)


def _has_names(value: Any) -> bool:
    """Whether all keys of a value are texts, as in JSON; YAML has others."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_names(item) for key, item in value.items())
    return all(map(_has_names, value)) if isinstance(value, list) else True
