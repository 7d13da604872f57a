"""Where releases of TRL and its libraries differ, a name each. Each says which of our floors ends it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import accelerate
import transformers
import trl
from packaging.version import Version

# Claims that need a newer release than the floor; `wm doctor` names those that do not hold.
EXACT_DAPO = Version("1.9.1")  # TRL's own dapo normalisation; ends with trl >= 1.9.1
LIGER_WITH_LOGPS = Version("1.14.0")  # the Liger loss has per-token log-probabilities; ends with trl >= 1.14
ENVIRONMENT_POOLS = Version("1.8.0")  # environments are made for each batch, with get_reward; ends with trl >= 1.8
ASYNC_ROWS = Version("1.16.0")  # AsyncGRPOTrainer packs rows as trees, in a module of its own; ends with trl >= 1.16
# SFTTrainer's head has log-probabilities in place of logits; older ones were not tried; ends with trl >= 1.16
SFT_HEAD = Version("1.16.0")
_CONTINUOUS = ("use_transformers_continuous_batching", "use_transformers_paged")


def installed() -> Version:
    return Version(trl.__version__)


def cut_results_keep_their_message() -> bool:
    """Return whether a tool result over the length limit is cut and its message kept. Ends with trl >= 1.9, which drops both."""
    return installed() < Version("1.9.0")


def liger_has_logps() -> bool:
    return installed() >= LIGER_WITH_LOGPS


def has_environments(trainer: Any) -> bool:
    """Return whether a trainer was given environments. Before trl 1.8 it makes one a completion, at construction."""
    return bool(trainer.environment_factories if installed() >= ENVIRONMENT_POOLS else trainer.environments)


def all_environments(trainer: Any) -> list[Any]:
    """Return an instance of each environment of a trainer. Ends with trl >= 1.8."""
    if installed() < ENVIRONMENT_POOLS:
        return list((trainer.environments or [])[:1])
    return [pool[0] for pool in trainer._environment_pool.values()] if trainer.environment_factories else []


def tools_of_prompts(trainer: Any) -> dict[str | None, list[Any]]:
    """Return the tools that prompts show, by the rows' environment; None: those of every row. Ends with trl >= 1.8."""
    if installed() < ENVIRONMENT_POOLS or not trainer.environment_factories:
        return {None: trainer.tools or []}
    return dict(trainer._env_tools)


def answer_in_text(trainer: Any, reader: Callable[..., Any], **settings: Any) -> None:
    """Read answers with `reader(tokenizer, **settings)`, and leave the tools of environments, which are called all the same, out
    of prompts. Needs trl >= 1.8."""
    trainer._tokenizer = reader(trainer._tokenizer, **settings)
    trainer._env_tools = {name: [] for name in trainer._env_tools}


def ranks_that_share_a_batch(accelerator: Any) -> int:
    """Ranks under tensor, context or sequence parallelism. Ends with accelerate >= 1.10, which has `parallelism_config`."""
    if Version(accelerate.__version__) < Version("1.10.0") or accelerator.parallelism_config is None:
        return 1
    return int(accelerator.parallelism_config.non_data_parallel_size)


def batches_continuously(config: Any) -> bool:
    """Return whether transformers' continuous batching generates. Ends with trl >= 2, which has the first name alone."""
    names = {field.name for field in dataclasses.fields(config)}
    return any(getattr(config, name) for name in _CONTINUOUS if name in names)


def supports_tool_calling(tokenizer: Any) -> bool:
    """Return whether TRL takes a tokenizer's chat template for tools. Ends with trl >= 1.1, before which it does not ask."""
    if installed() < Version("1.1.0"):
        return True
    from trl.chat_template_utils import supports_tool_calling as answer

    return bool(answer(tokenizer))


def trusts_remote_code(config: Any, model: Any) -> bool:
    """Return what TRL loads models and tokenizers with. Ends with trl >= 1.7, which moved the field."""
    return bool(config.trust_remote_code if installed() >= Version("1.7.0") else model.trust_remote_code)


def dequantized() -> dict[str, Any]:
    """Return what asks transformers for a GGUF file's dense weights. Ends with transformers >= 5.19."""
    if Version(transformers.__version__) < Version("5.19.0"):
        return {}
    return {"quantization_config": transformers.GgufConfig(dequantize=True)}
