"""Our settings in a config file and among the flags, without trl, which `wm train --help` must not wait for."""

import argparse
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field, make_dataclass
from typing import Any, Literal, Self, get_origin

from pydantic.fields import FieldInfo

from wm_plugin.errors import UserError, nearest
from wm_plugin.hosting.config import RunConfig, read_field
from wm_plugin.objectives import EchoConfig, Objectives
from wm_plugin.objectives.echo import PRESET_FIELDS
from wm_plugin.options import members

PREFIX = "echo_"


def _host_field(name: str, declared: FieldInfo, prefix: str = "") -> tuple[str, Any, Any]:
    """Return a field of a model as TRL's parser takes it: a plain type, or JSON for what has none."""
    kinds = {part for part in members(declared.annotation) if part is not type(None)}
    kind: Any = next(iter(kinds))
    if get_origin(kind) is Literal:
        kind = str
    elif len(kinds) > 1 or kind not in (bool, int, float):
        kind = dict | str | list | int | None  # the parser reads the second member of a union as the flag's type
    elif declared.default is None:
        kind = kind | None
    default, note = declared.default, ""
    if prefix and name in PRESET_FIELDS and default is not None:
        # None: nobody wrote it, which is told from the default
        value = "0 with a warning" if name == "coeff" else str(default).lower()
        kind, default, note = kind | None, None, f" Not written, it is echo_preset's, or {value}."
    return f"{prefix}{name}", kind, field(default=default, metadata={"help": f"{declared.description}{note}"})


EchoFields = make_dataclass("EchoFields", [_host_field(*one, PREFIX) for one in EchoConfig.model_fields.items()])
# of `RunConfig`, which the trainer itself reads
TRAINER_FIELDS = ("turn_budget", "look_ahead", "world_model", "max_lost")
MAX_LOST: float = RunConfig.model_fields["max_lost"].default
TrainerFields = make_dataclass(
    "TrainerFields", [_host_field(name, RunConfig.model_fields[name]) for name in TRAINER_FIELDS]
)
RunFields = make_dataclass(
    "RunFields",
    [_host_field(*one) for one in RunConfig.model_fields.items() if one[0] not in ("objective", *TRAINER_FIELDS)],
)


@dataclass
class ObjectiveSettings(TrainerFields, EchoFields):  # type: ignore[misc, valid-type]  # made of the model's fields
    """The fields of `EchoConfig`, each with the prefix `echo_`, and those of `RunConfig` that a trainer reads."""

    optimizer: str | None = field(
        default=None,
        metadata={
            "help": "An optimizer that TRL's optim does not have, with its learning rate, decay and betas: muon (torch >= 2.9; "
            "AdamW for what is no hidden matrix) or sign_sgd."
        },
    )

    def __new__(cls, *_args: Any, **values: Any) -> Self:
        """Refuse unknown names, in words."""
        known = [one.name for one in dataclasses.fields(cls)]
        for name in values.keys() - set(known):
            raise UserError(f"{cls.__name__} has no field {name!r}{nearest(name, known)}")
        return super().__new__(cls)

    def echo_config(self) -> EchoConfig:
        values = {one.removeprefix(PREFIX): getattr(self, one) for one in self.echo_fields_set()}
        try:
            return EchoConfig.read(values)
        except UserError as error:
            raise UserError(f"{PREFIX}{error}") from None

    def objectives(self) -> Objectives:
        """Return the run's objectives: those of `world_model`, or the one of the echo_ fields.

        Raises:
            UserError: both are given, or a value does not fit.
        """
        several = read_field("world_model", self.world_model)
        if several is None:
            return Objectives.read(self.echo_config())
        if fields := self.echo_fields_set():
            raise UserError(
                f"world_model names the run's objectives; write {', '.join(fields)} in one of them, without echo_"
            )
        return several

    def objective_fields_set(self) -> list[str]:
        """Return the fields that say what is trained besides the reward and differ from their defaults."""
        return [*self.echo_fields_set(), *(["world_model"] if self.world_model is not None else [])]

    def echo_fields_set(self) -> list[str]:
        """Return the echo_ fields that differ from their defaults."""
        return [one.name for one in dataclasses.fields(EchoFields) if getattr(self, one.name) != one.default]


@dataclass
class ScriptSettings(RunFields):  # type: ignore[misc, valid-type]
    """Environment, rewards and data. Dotted paths are `package.module:name`; the working directory is on the path."""

    trainer: str = field(
        default="grpo",
        metadata={
            "help": "grpo; or async_grpo, TRL's AsyncGRPOTrainer, whose rollouts come from a vLLM server while it trains, "
            "without evaluation, rollout_func, turn_budget and more (docs/trl.md); or sft, TRL's SFTTrainer on an agent's "
            "dialogues (docs/sft.md)."
        },
    )
    chat_template: str | None = field(
        default=None,
        metadata={
            "help": "A chat template instead of the tokenizer's: a file, or the name of one that TRL ships, such as qwen2_5. The "
            "model is saved with it."
        },
    )
    tools: list[str] | None = field(default=None, metadata={"help": "Dotted paths of tool functions."})
    reward_funcs: list[str] | None = field(default=None, metadata={"help": "Dotted paths of reward functions."})
    rewards: list[str] | None = field(  # a file may have mappings in it
        default=None,
        metadata={
            "help": "Rewards of predictions, beside reward_funcs: {path: NAME, kwargs: {...}}, or NAME where it needs no "
            "arguments; as a flag, JSON."
        },
    )
    rollout_func: str | None = field(default=None, metadata={"help": "Dotted path of a rollout function."})
    train_rows: str | None = field(
        default=None,
        metadata={"help": "Dotted path of a function that returns the training rows, instead of a dataset_name."},
    )
    train_rows_kwargs: dict | str | None = field(
        default=None, metadata={"help": "Its arguments, as a mapping or JSON."}
    )
    eval_rows: str | None = field(default=None, metadata={"help": "The same for the evaluation rows."})
    eval_rows_kwargs: dict | str | None = field(
        default=None,
        metadata={
            "help": "Its arguments, as a mapping or JSON; or {name: arguments}, a set of rows each, whose figures are logged as "
            "eval_<name>_..."
        },
    )


def help_text(of_host: Iterable[argparse.Action] = ()) -> str:
    """Our own settings, and after them those of TRL and transformers if they are given."""
    parser = argparse.ArgumentParser(
        prog="wm train", add_help=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    formatter = parser._get_formatter()
    formatter.add_usage("wm train --config X.yaml [--NAME VALUE ...] [--json]", [], [])
    formatter.add_text("The file holds the same settings as the flags, as NAME: VALUE; a flag overrides it.")
    sections: dict[str, list[argparse.Action]] = {}
    for title, settings in (("environment, rewards and data", ScriptSettings), ("the objective", ObjectiveSettings)):
        sections[title] = [
            parser.add_argument(f"--{one.name}", default=one.default, help=one.metadata["help"])
            for one in dataclasses.fields(settings)
        ]
    if others := list(of_host):
        sections["of TRL and transformers"] = others
    for title, actions in sections.items():
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
    if not others:
        formatter.add_text(
            "Every setting of TRL's GRPOConfig (of trainer: sft, SFTConfig), ModelConfig and ScriptArguments works too: wm train "
            "--help-all"
        )
    return formatter.format_help()
