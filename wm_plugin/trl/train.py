"""GRPO or SFT with the world-model term by a YAML file: `accelerate launch -m wm_plugin.trl.train --config X.yaml --max_steps 9`.

TRL's own `trl grpo` hard-codes its trainer and takes no tools. Everything else here is TRL's: parser, config classes, trainer. A
flag overrides the file.
"""

import argparse
import contextlib
import dataclasses
import inspect
import itertools
import json
import os
import re
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from textwrap import shorten
from typing import Any

import pyarrow
import yaml
from datasets import Dataset, IterableDataset, load_dataset
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError
from transformers import AutoTokenizer
from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser, get_dataset, get_peft_config

import wm_plugin.trl
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting import config_file
from wm_plugin.hosting.config import RunConfig
from wm_plugin.hosting.rows import find_rows, make_rows
from wm_plugin.options import mapping
from wm_plugin.registry import import_object
from wm_plugin.rewards import REWARDS
from wm_plugin.runtime.command import say
from wm_plugin.tokens.tokenizer import is_missing_folder
from wm_plugin.trl import _compat, gguf, support
from wm_plugin.trl.config import WorldModelGRPOConfig
from wm_plugin.trl.rewards import reward_functions
from wm_plugin.trl.settings import TRAINER_FIELDS, ObjectiveSettings, RunFields, ScriptSettings, help_text
from wm_plugin.trl.templates import put_template, read_template
from wm_plugin.trl.trainer import WorldModelGRPOTrainer
from wm_plugin.untrusted import finite, loads

TRAINERS = ("grpo", "async_grpo", "sft")
_WRITE = {int: "a number", float: "a number", bool: "true or false", str: "text"}  # for settings of one value


_NULLS = ("max_length",)  # where null is a value: no limit


@dataclass
class WorldModelScriptArguments(ScriptSettings, ScriptArguments):
    """TRL's script arguments, and our own."""


@dataclass
class AsyncModelConfig(ModelConfig):
    """TRL's model arguments without those that AsyncGRPOConfig has itself."""

    dtype: str | None = dataclasses.field(default=None, init=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Train. Returns 0, or 2 for bad input with one line on stderr; other errors are raised."""
    arguments = [_as_json(word) for word in (sys.argv[1:] if argv is None else argv)]
    as_json = "--json" in arguments
    if as_json:
        arguments.remove("--json")
    if {"-h", "--help", "--help-all"} & set(arguments):
        print(help_text(_of_host() if "--help-all" in arguments else ()), end="")
        return 0
    try:
        trainer, resume = build(arguments)
    # the host's own checks raise the next three, damaged weights the last two
    except (UserError, ValueError, ImportError, OSError, UnpicklingError, SafetensorError) as error:
        if os.environ.get("WM_TRACEBACK"):
            raise
        return _refuse(error)
    code = 0
    try:
        trainer.train(resume_from_checkpoint=_checkpoint(resume, trainer.args.output_dir))
    except UserError as error:  # errors that only a rollout shows, such as invalid spans
        code = _refuse(error)
        if trainer.state.global_step < trainer.state.max_steps:
            return code
    trainer.save_model(trainer.args.output_dir)  # also of a run that is refused at its end, as one that learnt nothing
    trainer.save_state()  # with the log, which `wm report` reads
    if as_json and trainer.accelerator.is_main_process:
        rows = [finite(row) for row in trainer.state.log_history if "loss" in row]
        print(
            json.dumps({"output_dir": trainer.args.output_dir, "steps": trainer.state.global_step, "last": rows[-1:]})
        )
    return code


def _as_json(word: str) -> str:
    """Return a flag's mapping or list as JSON, if it is written as in a file; TRL's parser takes JSON alone."""
    flag, sign, value = word.partition("=") if word.startswith("--") else ("", "", word)
    if not value.startswith(("{", "[")):
        return word
    try:
        loads(value)
    except ValueError:
        with contextlib.suppress(yaml.YAMLError, TypeError):  # what is neither is refused in the words of its field
            return f"{flag}{sign}{json.dumps(yaml.safe_load(value))}"
    return word


def _checkpoint(resume: str | bool | None, folder: str) -> str | bool | None:
    """Return what TRL resumes from: for `auto` a folder's last complete checkpoint, or None."""
    if resume not in ("auto", True):
        if resume and (problem := _damage(Path(str(resume)))):
            raise UserError(
                f"resume_from_checkpoint: {problem}; write another checkpoint, or auto for the last whole one"
            )
        return resume
    found = [path for path in Path(folder).glob("checkpoint-*") if path.name.rpartition("-")[2].isdecimal()]
    for path in sorted(found, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True):
        problem = _damage(path)
        if not problem:
            return str(path)
        print(f"resume_from_checkpoint: {problem}; {path.name} is left out", file=sys.stderr)
    return None if resume == "auto" else resume


def _damage(checkpoint: Path) -> str:
    """Return what is wrong with a checkpoint's `trainer_state.json`, which is written last; "" if it is whole."""
    path = checkpoint / "trainer_state.json"
    try:
        return "" if isinstance(loads(path.read_bytes()), dict) else f"{path} is damaged"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    except ValueError:
        return f"{path} is damaged"


def build(arguments: list[str]) -> tuple[Any, Any]:
    """Return the trainer that a config file and flags describe, and the checkpoint to resume from.

    Raises:
        UserError: a key, a path or a value is invalid.
    """
    sys.path.insert(0, os.getcwd())
    script, config, model, mixture = parse(arguments)
    if model.model_name_or_path is None:
        raise UserError("model_name_or_path is missing; write a path or a model id")
    of_file = gguf.is_gguf(model.model_name_or_path)
    if not of_file and is_missing_folder(model.model_name_or_path):
        raise UserError(f"model_name_or_path is {model.model_name_or_path!r}: there is no such folder")
    if script.trainer == "sft":
        _check_sft(script)
    if script.eval_rows is not None and config.eval_strategy == "no":
        print("nothing is evaluated on eval_rows: eval_strategy is no", file=sys.stderr)
    environment = run_config(script, config).factory
    reward_funcs = [_reward_func(path) for path in script.reward_funcs or []]
    reward_funcs += reward_functions(_blocks(script.rewards or []))
    settings = {
        "reward_funcs": reward_funcs,
        "args": config,
        "train_dataset": _rows(script, mixture, "train"),
        "peft_config": get_peft_config(model),
        "tools": [import_object(path, field="tools") for path in script.tools or []] or None,
        "environment_factory": environment,
    }
    of_model = {"revision": model.model_revision}
    trainer_class: Any = WorldModelGRPOTrainer
    if script.trainer == "async_grpo":
        _check_async(script, config, model)
        trainer_class = wm_plugin.trl.WorldModelAsyncGRPOTrainer
    else:
        of_model |= {"attn_implementation": model.attn_implementation, "dtype": model.dtype}
        settings["eval_dataset"] = _rows(script, mixture, "eval") if config.eval_strategy != "no" else None
        path = script.rollout_func
        settings["rollout_func"] = import_object(path, field="rollout_func") if path else None
    if script.trainer == "sft":
        trainer_class = wm_plugin.trl.WorldModelSFTTrainer
        for name in ("reward_funcs", "tools", "environment_factory", "rollout_func"):
            del settings[name]
    else:
        support.check_rows(
            settings["train_dataset"], settings.get("eval_dataset"), environments=environment is not None
        )
    name = model.model_name_or_path
    if of_file:
        if script.trainer == "async_grpo" or getattr(config, "use_vllm", False):
            raise UserError(
                f"model_name_or_path is {name!r}, which vLLM would have to load too; save the model as a folder first"
            )
        loaded, settings["processing_class"] = gguf.load(
            name, dtype=model.dtype, attn_implementation=model.attn_implementation
        )
        if script.chat_template is not None:
            put_template(settings["processing_class"], read_template(script.chat_template, "chat_template"))
        return trainer_class(model=loaded, **settings), config.resume_from_checkpoint
    config.model_init_kwargs = {**of_model, **(config.model_init_kwargs or {})}
    if not Path(name).expanduser().exists():
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"no folder {name!r} here; asking the Hub", file=sys.stderr)
        _ask_hub(name, config.model_init_kwargs)
    try:
        if script.chat_template is not None:
            settings["processing_class"] = _tokenizer(script.chat_template, config, model)
        trainer = trainer_class(model=name, **settings)
    except OSError as error:
        if error.errno is not None or Path(name).exists():
            raise  # the system's, or of a file in the folder
        raise _no_model(name, str(error).strip().partition("\n")[0]) from error
    return trainer, config.resume_from_checkpoint


def _reward_func(path: str) -> Any:
    if path in REWARDS:
        raise UserError(f"reward_funcs: {path!r} is a reward of this package; write it under rewards")
    return import_object(path, field="reward_funcs")


def _check_async(script: Any, config: Any, model: Any) -> None:
    """Refuse what TRL's asynchronous trainer does not have."""
    if not support.has_gpu():
        raise UserError(
            "trainer is async_grpo, and there is no GPU, which its attention needs; on a CPU write trainer: grpo"
        )
    for name, here in (
        ("eval_strategy", config.eval_strategy != "no"),
        ("rollout_func", script.rollout_func is not None),
        ("attn_implementation", model.attn_implementation is not None),
    ):
        if here:
            raise UserError(f"{name} is not of trainer: async_grpo; leave it out, or write trainer: grpo")


def _check_sft(script: Any) -> None:
    """Refuse what fine-tuning has no episodes for."""
    names = [*(one.name for one in dataclasses.fields(RunFields)), "tools", "reward_funcs", "rewards", "rollout_func"]
    defaults = {one.name: one.default for one in dataclasses.fields(ScriptSettings)}
    for name in names:
        if getattr(script, name) != defaults[name]:
            raise UserError(
                f"{name} is not of trainer: sft, which plays no episodes; leave it out, or write trainer: grpo"
            )


def _ask_hub(name: str, settings: dict[str, Any]) -> None:
    """Ask the Hub once for a model that is not in its cache; transformers retries for a minute if nothing answers."""
    revision = settings.get("revision")
    try:
        for file in ("config.json", "adapter_config.json"):
            cached = try_to_load_from_cache(name, file, cache_dir=settings.get("cache_dir"), revision=revision)
            if isinstance(cached, str):
                return
        get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision), token=settings.get("token"))
    except EntryNotFoundError:
        return  # the repository is there; an adapter's has no such file
    except Exception as error:  # of the client's library, which changes with releases
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status is None:
            raise _no_model(name, shorten(str(error) or repr(error), 150)) from error
        if status in (401, 404):
            raise _no_model(name, "it has none of this name and revision that your token may read") from error
        # else it is busy, or the model is gated: transformers waits, or says how to get it


def _no_model(name: str, reason: str) -> UserError:
    return UserError(
        f"model_name_or_path is {name!r}: there is no such folder, and no such model came from the Hub ({reason})"
    )


def _tokenizer(template: str, config: Any, model: Any) -> Any:
    """Return the model's tokenizer, as TRL loads it, with another chat template."""
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
    """Return the (script, trainer, model, dataset mixture) arguments.

    Raises:
        UserError: a key does not exist (the message names the nearest one), or the file is not YAML.
    """
    values, arguments = config_file.split(arguments)
    parser = _parser(_trainer(values, arguments))
    keys = {action.dest for action in parser._actions}
    written = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    flags = {name[2:].replace("-", "_"): name for name in written}
    for flag, name in flags.items():
        if flag not in keys | set(config_file.ALIASES):
            raise UserError(f"{name} is not a flag{nearest(f'--{flag}', [f'--{key}' for key in keys])}")
    if len(names := {flag for flag in flags if config_file.ALIASES.get(flag, flag) == "echo_coeff"}) > 1:
        raise UserError(f"--{' and --'.join(sorted(names))} are the same; keep one")
    arguments = [_canonical(argument) for argument in arguments]
    for key in values:
        if key not in keys:
            raise UserError(f"{key!r} in the config file is not a setting{nearest(key, keys)}")
    _check_single(values, parser)
    lists = {action.dest for action in parser._actions if action.nargs in ("+", "*")}
    single = (str, int, float, dict)  # of a list of one, as YAML and a flag may write it
    values = {key: [value] if key in lists and isinstance(value, single) else value for key, value in values.items()}
    parser.set_defaults_with_config(**values)
    parser.error = _raise_user_error  # argparse prints its usage, a thousand lines here, and exits
    return parser.parse_args_into_dataclasses(arguments)


def _of_host() -> list[argparse.Action]:
    """Return the settings of TRL and transformers."""
    ours = {one.name for settings in (ScriptSettings, ObjectiveSettings) for one in dataclasses.fields(settings)}
    return [action for action in _parser()._actions if action.dest not in ours]


def _trainer(values: dict[str, Any], arguments: list[str]) -> str:
    """Return the name of the trainer that a file and flags ask for: its settings are known by it."""
    name = values.get("trainer", TRAINERS[0])
    for argument, following in itertools.pairwise([*arguments, ""]):
        flag, equals, value = argument.partition("=")
        if flag == "--trainer":
            name = value if equals else following
    if name not in TRAINERS:
        raise UserError(f"trainer is {shown(name)}; write {' or '.join(TRAINERS)}")
    return str(name)


def _parser(trainer: str = TRAINERS[0]) -> TrlParser:
    kinds: tuple[Any, ...] = (WorldModelGRPOConfig, ModelConfig)
    if trainer == "async_grpo":
        kinds = (wm_plugin.trl.WorldModelAsyncGRPOConfig, AsyncModelConfig)
    elif trainer == "sft":
        kinds = (wm_plugin.trl.WorldModelSFTConfig, ModelConfig)
    return TrlParser((WorldModelScriptArguments, *kinds, DatasetMixtureConfig), prog="wm train")


def _check_single(values: dict[str, Any], parser: TrlParser) -> None:
    """Refuse a list, a mapping, or a date where the host declares one value: it fails deep in the host, if at all."""
    hints = {name: hint for kind in parser.dataclass_types for name, hint in typing.get_type_hints(kind).items()}
    for name, value in values.items():
        kinds = set(typing.get_args(hints[name]) or [hints[name]]) - {type(None)} if name in hints else set()
        if not kinds or not kinds <= _WRITE.keys() or isinstance(value, tuple(_WRITE)):
            continue
        if value is None and (name in _NULLS or parser.get_default(name) is None or not kinds & {int, float}):
            continue  # a host may take null for a text or a switch, whatever its type says
        write = next(text for kind, text in _WRITE.items() if kind in kinds)
        raise UserError(f"{name} is {shown(value)}; write {write}")


def _canonical(argument: str) -> str:
    for alias, name in config_file.ALIASES.items():
        if argument == f"--{alias}" or argument.startswith(f"--{alias}="):
            return f"--{name}{argument[len(alias) + 2 :]}"
    return argument


def _raise_user_error(message: str) -> Any:
    if found := re.fullmatch(r"argument --(\w+)\S*: invalid (?:float|int) value: (.*)", message):
        message = f"{found[1]} is {found[2]}; write a number"
    raise UserError(message)


def run_config(script: Any, config: Any = None) -> RunConfig:
    """Return the environment that the settings name, and how it is dressed."""
    values = {one.name: getattr(script, one.name) for one in dataclasses.fields(RunFields)}
    values |= {name: getattr(config, name, None) for name in TRAINER_FIELDS}
    return RunConfig.read({name: value for name, value in values.items() if value is not None})


def _blocks(rewards: Any) -> Any:
    """Return the rewards of a file, or of flags, which are names or JSON."""
    if not isinstance(rewards, list):
        return rewards
    return [mapping(one, "rewards") if isinstance(one, str) and one.startswith("{") else one for one in rewards]


def _rows(script: Any, mixture: Any, split: str) -> Any:
    """Return the dataset of a split: the rows function, TRL's dataset mixture, or a dataset by name."""
    field = f"{split}_rows"
    path = getattr(script, field)
    if path is not None:
        arguments = mapping(getattr(script, f"{field}_kwargs") or {}, f"{field}_kwargs")
        if split == "eval" and _are_sets(arguments, find_rows(path, field=field)):
            return {name: _dataset(path, one, field, f"{field}_kwargs.{name}") for name, one in arguments.items()}
        return _dataset(path, arguments, field, f"{field}_kwargs")
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
    """Return whether the keys name sets of rows, rather than arguments of the function that are mappings."""
    if not arguments or not all(isinstance(one, dict) for one in arguments.values()):
        return False
    signature = inspect.signature(function)
    if not arguments.keys() & signature.parameters.keys():
        return True
    try:
        signature.bind(**arguments)
    except TypeError:
        return True  # a set may be called as an argument is: held_out
    return False


def _dataset(path: str, arguments: dict[str, Any], field: str, kwargs: str) -> Dataset | IterableDataset:
    rows = make_rows(path, arguments, field=field, kwargs=kwargs, keep=(Dataset, IterableDataset))
    if isinstance(rows, (Dataset, IterableDataset)):
        return rows
    try:
        return Dataset.from_list(rows)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise UserError(
            f"{field}: a column of {path} has values of different types in different rows: {error}"
        ) from None


def _refuse(error: BaseException) -> int:
    if int(os.environ.get("RANK", "0")) == 0:
        say(f"wm train: {error}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
