"""GRPO with the world-model term from a YAML file: `accelerate launch -m wm_plugin.trl.train --config X.yaml --max_steps 9`.

TRL's own `trl grpo` hard-codes its trainer and takes no tools. Everything else here is TRL's: parser, config classes, trainer. A
flag overrides the file.
"""

import inspect
import json
import os
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset, load_dataset
from transformers import AutoTokenizer
from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser, get_dataset, get_peft_config

from wm_plugin.environments import ENVIRONMENTS
from wm_plugin.environments.rewarded import rewarded
from wm_plugin.environments.tags import PROTOCOLS, in_tags
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.registry import import_object
from wm_plugin.runtime.command import say
from wm_plugin.tokens.tokenizer import is_missing_folder
from wm_plugin.trl import _compat
from wm_plugin.trl.config import WorldModelGRPOConfig
from wm_plugin.trl.rewards import reward_functions
from wm_plugin.trl.templates import put_template, read_template
from wm_plugin.trl.trainer import WorldModelGRPOTrainer
from wm_plugin.untrusted import loads

ALIASES = {"alpha": "echo_coeff", "echo_alpha": "echo_coeff"}
_ENVIRONMENT = "write a name (wm env list), package.module:Class, or {name: class}"
_WRITE = {int: "a number", float: "a number", bool: "true or false", str: "text"}  # for settings of one value


@dataclass
class WorldModelScriptArguments(ScriptArguments):
    """Environment, rewards and data. Dotted paths are `package.module:name`; the working directory is on the path."""

    chat_template: str | None = field(
        default=None,
        metadata={
            "help": "A chat template instead of the tokenizer's: a file, or the name of one that TRL ships, such as qwen2_5. The "
            "model is saved with it."
        },
    )
    environment: dict | str | None = field(
        default=None,
        metadata={
            "help": f"An environment class: one of {', '.join(ENVIRONMENTS)}, or a dotted path; or {{name: class}}, and the "
            "dataset's column `environment` says which."
        },
    )
    episode_reward: dict | str | None = field(
        default=None,
        metadata={
            "help": "WMAct's reward of the environment's episodes, instead of the environment's own: {rescale: true, "
            "format_penalty: 0.1, turn_penalty: 0.0, action_penalty: 0.0, gamma: 1.0}, or some of these; as a flag JSON."
        },
    )
    protocol: str = field(
        default="tools",
        metadata={
            "help": "How the policy acts in an environment: tools, by calls in the model's own format; or tags, WMAct's "
            "<think>…</think><action>a; b</action>, with no tools in the prompt and observations as the user's."
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


def main(argv: Sequence[str] | None = None) -> int:
    """Train. Returns 0, or 2 for bad input with one line on stderr; other errors are raised."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    if as_json:
        arguments.remove("--json")
    if {"-h", "--help", "--help-all"} & set(arguments):
        print(help_text(everything="--help-all" in arguments), end="")
        return 0
    try:
        trainer, resume = build(arguments)
    except (UserError, ValueError, ImportError, OSError) as error:  # the host's own checks raise the last three
        if os.environ.get("WM_TRACEBACK"):
            raise
        return _refuse(error)
    try:
        trainer.train(resume_from_checkpoint=resume)
    except UserError as error:  # errors that only a rollout shows, such as invalid spans
        return _refuse(error)
    trainer.save_model(trainer.args.output_dir)
    if as_json and trainer.accelerator.is_main_process:
        rows = [row for row in trainer.state.log_history if "loss" in row]
        print(
            json.dumps({"output_dir": trainer.args.output_dir, "steps": trainer.state.global_step, "last": rows[-1:]})
        )
    return 0


def build(arguments: list[str]) -> tuple[WorldModelGRPOTrainer, Any]:
    """The trainer that a config file and flags describe, and the checkpoint to resume from.

    Raises:
        UserError: a key, a path or a value is invalid.
    """
    if not arguments:
        raise UserError(
            "nothing to train on; give --config X.yaml (examples: the package wm_plugin.recipes.trl), or flags"
        )
    sys.path.insert(0, os.getcwd())
    script, config, model, mixture = parse(arguments)
    if model.model_name_or_path is None:
        raise UserError("model_name_or_path is missing; write a path or a model id")
    if is_missing_folder(model.model_name_or_path):
        raise UserError(f"model_name_or_path is {model.model_name_or_path!r}: there is no such folder")
    environment = _environment(script.environment, script.episode_reward, script.protocol)
    reward_funcs = [import_object(path, field="reward_funcs") for path in script.reward_funcs or []]
    reward_funcs += reward_functions(_blocks(script.rewards or []))
    config.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(config.model_init_kwargs or {}),
    }
    settings = {
        "reward_funcs": reward_funcs,
        "args": config,
        "train_dataset": _rows(script, mixture, "train"),
        "eval_dataset": _rows(script, mixture, "eval") if config.eval_strategy != "no" else None,
        "peft_config": get_peft_config(model),
        "tools": [import_object(path, field="tools") for path in script.tools or []] or None,
        "rollout_func": import_object(script.rollout_func, field="rollout_func") if script.rollout_func else None,
        "environment_factory": environment,
    }
    if not Path(model.model_name_or_path).expanduser().exists() and int(os.environ.get("RANK", "0")) == 0:
        print(f"no folder {model.model_name_or_path!r} here; asking the Hub", file=sys.stderr)
    try:
        if script.chat_template is not None:
            settings["processing_class"] = _tokenizer(script.chat_template, config, model)
        trainer = WorldModelGRPOTrainer(model=model.model_name_or_path, **settings)
    except OSError as error:
        if error.errno is not None or Path(model.model_name_or_path).exists():
            raise  # the system's, or of a file in the folder
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"model_name_or_path is {model.model_name_or_path!r}: there is no such folder, and no such model came from the Hub "
            f"({reason})"
        ) from error
    return trainer, config.resume_from_checkpoint


def _tokenizer(template: str, config: Any, model: Any) -> Any:
    """The model's tokenizer, as TRL loads it, with another chat template."""
    text = read_template(template, "chat_template")
    tokenizer = AutoTokenizer.from_pretrained(
        model.model_name_or_path,
        revision=model.model_revision,
        truncation_side="left",
        padding_side="left",
        trust_remote_code=_compat.trusts_remote_code(config, model),
    )
    put_template(tokenizer, text)
    return tokenizer


def parse(arguments: list[str]) -> tuple[Any, ...]:
    """The (script, trainer, model, dataset mixture) arguments.

    Raises:
        UserError: a key does not exist (the message names the nearest one), or the file is not YAML.
    """
    parser = _parser()
    keys = {action.dest for action in parser._actions}
    flags = [argument.split("=")[0][2:].replace("-", "_") for argument in arguments if argument.startswith("--")]
    for flag in flags:
        if flag not in keys | {"config"} | set(ALIASES):
            raise UserError(f"--{flag} is not a flag{nearest(flag, keys)}")
    if len(names := {flag for flag in flags if ALIASES.get(flag, flag) == "echo_coeff"}) > 1:
        raise UserError(f"--{' and --'.join(sorted(names))} are the same; keep one")
    arguments = [_canonical(argument) for argument in arguments]
    if "--config" in arguments:
        index = arguments.index("--config")
        if index + 1 == len(arguments):
            raise UserError("--config needs a path to a YAML file")
        values = _read_yaml(arguments[index + 1])
        arguments = arguments[:index] + arguments[index + 2 :]
        for key in values:
            if key not in keys:
                raise UserError(f"{key!r} in the config file is not a setting{nearest(key, keys)}")
        _check_single(values, parser)
        lists = {action.dest for action in parser._actions if action.nargs in ("+", "*")}
        single = (str, int, float, dict)  # of a list of one, as YAML and a flag may write it
        values = {
            key: [value] if key in lists and isinstance(value, single) else value for key, value in values.items()
        }
        parser.set_defaults_with_config(**values)
    parser.error = _raise_user_error  # argparse prints its usage, a thousand lines here, and exits
    return parser.parse_args_into_dataclasses(arguments)


def help_text(everything: bool) -> str:
    """Our own settings, and after them those of TRL and transformers if they are asked for."""
    parser = _parser()
    parser.usage = "wm train --config X.yaml [--NAME VALUE ...] [--json]"
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, [], [])
    formatter.add_text("The file holds the same settings as the flags, as NAME: VALUE; a flag overrides it.")
    sections: dict[str, Iterable[str]] = {
        "environment, rewards and data": vars(WorldModelScriptArguments)["__annotations__"],
        "the objective": vars(WorldModelGRPOConfig)["__annotations__"],
    }
    sections["the objective"] = [name for name in sections["the objective"] if name != "echo_guard"]  # reserved
    ours = {name for names in sections.values() for name in names}
    if everything:
        sections["of TRL and transformers"] = [
            action.dest for action in parser._actions if action.dest not in ours | {"echo_guard"}
        ]
    for title, names in sections.items():
        formatter.start_section(title)
        formatter.add_arguments([action for action in parser._actions if action.dest in names])
        formatter.end_section()
    if not everything:
        formatter.add_text(
            "Every setting of TRL's GRPOConfig, ModelConfig and ScriptArguments works too: wm train --help-all"
        )
    return formatter.format_help()


def _parser() -> TrlParser:
    return TrlParser(
        (WorldModelScriptArguments, WorldModelGRPOConfig, ModelConfig, DatasetMixtureConfig), prog="wm train"
    )


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the config file {path}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also of a date or a number
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no mapping of settings; write lines such as 'echo_coeff: 0.05'")
    variables = values.pop("env", None) or {}
    if not isinstance(variables, dict):
        raise UserError(f"{path}: env is {shown(variables)}; write environment variables as NAME: value")
    for name, value in variables.items():  # TrlParser's convention
        os.environ[str(name)] = str(value)
    settings: dict[str, Any] = {}
    for key, value in values.items():
        name = ALIASES.get(str(key), str(key))
        if name in settings:
            raise UserError(f"{path} gives {name!r} twice (as {str(key)!r} too); keep one")
        settings[name] = value
    return settings


def _check_single(values: dict[str, Any], parser: TrlParser) -> None:
    """Refuse a list, a mapping, or a date where the host declares one value: it fails deep in the host, if at all."""
    hints = {name: hint for kind in parser.dataclass_types for name, hint in typing.get_type_hints(kind).items()}
    for name, value in values.items():
        kinds = set(typing.get_args(hints[name]) or [hints[name]]) - {type(None)} if name in hints else set()
        if not kinds or not kinds <= _WRITE.keys() or isinstance(value, tuple(_WRITE)):
            continue
        if value is None and (parser.get_default(name) is None or not kinds & {int, float}):
            continue  # a host may take null for a text or a switch, whatever its type says
        write = next(text for kind, text in _WRITE.items() if kind in kinds)
        raise UserError(f"{name} is {shown(value)}; write {write}")


def _canonical(argument: str) -> str:
    for alias, name in ALIASES.items():
        if argument == f"--{alias}" or argument.startswith(f"--{alias}="):
            return f"--{name}{argument[len(alias) + 2 :]}"
    return argument


def _raise_user_error(message: str) -> Any:
    raise UserError(message)


def _environment(value: Any, reward: Any = None, protocol: str = PROTOCOLS[0]) -> Any:
    if protocol not in PROTOCOLS:
        raise UserError(f"protocol is {protocol!r}; write {' or '.join(PROTOCOLS)}")
    if value is None:
        if protocol == "tags":
            raise UserError("protocol is of actions in an environment, and there is no environment; name one")
        if reward is not None:
            raise UserError("episode_reward is of episodes in an environment, and there is no environment; name one")
        return None
    settings = None if reward is None else _mapping(reward, "episode_reward")

    def load(path: str) -> type:
        environment: type = ENVIRONMENTS.get(path)
        if settings is not None:
            environment = rewarded(environment, **settings)
        return in_tags(environment) if protocol == "tags" else environment

    if isinstance(value, str) and not value.startswith("{"):
        return load(value)
    if not isinstance(value, str | dict):
        raise UserError(f"environment is {shown(value)}; {_ENVIRONMENT}")
    mapping = _mapping(value, "environment")
    for name, path in mapping.items():
        if not isinstance(path, str):
            raise UserError(f"environment.{name} is {shown(path)}; write a name (wm env list), or package.module:Class")
    return {name: load(path) for name, path in mapping.items()}


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = loads(value)
        except ValueError as error:
            raise UserError(f"{name} is not JSON ({error}); write '{{\"count\": 100}}'") from None
    if not isinstance(value, dict):
        raise UserError(f"{name} is {value!r:.100}; write a mapping")
    return value


def _blocks(rewards: Any) -> Any:
    """The rewards of a file, or of flags, which are names or JSON."""
    if not isinstance(rewards, list):
        return rewards
    return [_mapping(one, "rewards") if isinstance(one, str) and one.startswith("{") else one for one in rewards]


def _rows(script: Any, mixture: Any, split: str) -> Any:
    """The dataset of a split: the rows function, TRL's dataset mixture, or a dataset by name."""
    path = script.train_rows if split == "train" else script.eval_rows
    if path is not None:
        function: Callable[..., Any] = import_object(path, field=f"{split}_rows")
        arguments = _mapping(
            (script.train_rows_kwargs if split == "train" else script.eval_rows_kwargs) or {}, f"{split}_rows_kwargs"
        )
        if split == "eval" and _are_sets(arguments, function):
            return {name: _call(path, function, one, f"eval_rows_kwargs.{name}") for name, one in arguments.items()}
        return _call(path, function, arguments, f"{split}_rows_kwargs")
    name = script.dataset_train_split if split == "train" else script.dataset_test_split
    if mixture.datasets:
        dataset = get_dataset(mixture)
    elif script.dataset_name:
        dataset = load_dataset(script.dataset_name, name=script.dataset_config, streaming=script.dataset_streaming)
    elif split == "train" and script.environment is not None:
        return None  # the environment's reset supplies every prompt
    else:
        raise UserError(f"there is no {split} dataset; write {split}_rows, dataset_name or datasets")
    if name not in dataset:
        raise UserError(f"the dataset has no split {name!r}{nearest(name, dataset)}")
    return dataset[name]


def _are_sets(arguments: dict[str, Any], function: Callable[..., Any]) -> bool:
    """Whether the keys name sets of rows, rather than arguments of the function that are mappings."""
    mappings = bool(arguments) and all(isinstance(one, dict) for one in arguments.values())
    return mappings and not arguments.keys() & inspect.signature(function).parameters.keys()


def _call(path: str, function: Callable[..., Any], arguments: dict[str, Any], field: str) -> Any:
    try:
        rows = function(**arguments)
    except TypeError as error:
        raise UserError(f"{field} do not fit {path}: {error}") from None
    return rows if hasattr(rows, "column_names") else Dataset.from_list(list(rows))


def _refuse(error: BaseException) -> int:
    if int(os.environ.get("RANK", "0")) == 0:
        say(f"wm train: {error}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
