"""What TRL's asynchronous trainer and its rollouts must be for the world-model term to be exact."""

from typing import Any

import trl

from wm_plugin.errors import UserError
from wm_plugin.hosting import hooks
from wm_plugin.hosting.hooks import Hook
from wm_plugin.hosting.tags import takes_tags
from wm_plugin.hosting.world import tool_names
from wm_plugin.objectives.run import Objectives
from wm_plugin.trl import _compat, support
from wm_plugin.trl.versions import ASYNC_GONE, of_release

_ASYNC = "trl.experimental.async_grpo"
# What we override, call or read of it, in the releases that have all of it: `_compat.ASYNC_ROWS` and newer.
HOOKS = (
    Hook(f"{_ASYNC}.async_grpo_trainer", "AsyncGRPOTrainer.compute_loss", ("model", "inputs", "return_outputs")),
    *(
        Hook(f"{_ASYNC}.async_grpo_trainer", f"AsyncGRPOTrainer.{name}")
        for name in (
            "_metrics",
            "_prepare_inputs",
            "accelerator",
            "add_callback",
            "args",
            "get_batch_samples",
            "get_train_dataloader",
            "is_deepspeed_enabled",
            "log",
            "model",
            "optimizer",
            "optimizer_cls_and_kwargs",
            "processing_class",
            "rollout_worker",
            "state",
        )
    ),
    Hook(
        f"{_ASYNC}.async_rollout_worker",
        "_AsyncRolloutLoop._generate_one",
        ("prompt", "tool_dict", "tools", "group_id"),
    ),
    Hook(f"{_ASYNC}.async_rollout_worker", "_AsyncRolloutLoop._generate_one_turn", ("prompt_ids",)),
    Hook(f"{_ASYNC}.async_rollout_worker", "_AsyncRolloutLoop._execute_tool_calls", ("tool_calls", "tool_dict")),
    Hook(f"{_ASYNC}.async_rollout_worker", "parse_response", ("tokenizer", "ids", "prefix", "tools")),
    Hook(f"{_ASYNC}.async_rollout_worker", "_AsyncRolloutLoop._score_group", ("group",)),
    Hook(f"{_ASYNC}.async_rollout_worker", "_AsyncRolloutLoop._push_metrics", ("values",)),
    *(
        Hook(f"{_ASYNC}.async_rollout_worker", path)
        for path in (
            "_AsyncRolloutLoop.chat_template",
            "_AsyncRolloutLoop.chat_template_kwargs",
            "_AsyncRolloutLoop.eos_token_ids",
            "_AsyncRolloutLoop.max_tool_calling_iterations",
            "_AsyncRolloutLoop.run",
            "_AsyncRolloutLoop.tokenizer",
            "AsyncRolloutWorker._loop_cls",
            "RolloutGroup.completions_sequences",
            "RolloutSample.metrics",
            "TrainingSequence.input_ids",
        )
    ),
    Hook(f"{_ASYNC}.packing", "TreeRow.pack"),
    Hook(f"{_ASYNC}.packing", "TreeRow.samples"),
)

# The same of its rollouts by agents that own their loop; they need OpenEnv.
HARNESS_HOOKS = (
    Hook(
        f"{_ASYNC}.openenv_harness", "_HarnessRolloutLoop._generate_one", ("prompt", "tool_dict", "tools", "group_id")
    ),
    Hook(f"{_ASYNC}.openenv_harness", "_HarnessRolloutLoop._run_session", ("prompt", "group_id")),
    Hook(
        f"{_ASYNC}.openenv_harness",
        "_HarnessRolloutLoop._sample_turn",
        ("turns", "turn_times", "messages", "tools", "sampling"),
    ),
    Hook(f"{_ASYNC}.openenv_harness", "_HarnessRolloutLoop", ("rollout_reward_fn",)),
    *(
        Hook(f"{_ASYNC}.openenv_harness", path)
        for path in (
            "_HarnessRolloutLoop._fork_threshold_tokens",
            "_HarnessRolloutLoop._push_metrics",
            "HarnessRolloutOutcome.env_reward",
            "HarnessRolloutOutcome.timed_out",
            "HarnessRolloutOutcome.trace",
        )
    ),
    Hook(f"{_ASYNC}.async_rollout_worker", "_chain_to_sequences", ("turns", "rollout_id", "fork_threshold")),
    *(
        Hook(f"{_ASYNC}.async_rollout_worker", path)
        for path in (
            "TrainingSequence.old_log_probs",
            "TurnRecord.output_ids",
            "TurnRecord.output_log_probs",
            "TurnRecord.output_mask",
            "TurnRecord.prompt_ids",
        )
    ),
)


def problem() -> str | None:
    """Return what to say of a TRL whose asynchronous trainer cannot carry the term, and the way out; None if it can."""
    if _compat.installed() < _compat.ASYNC_ROWS:
        return (
            f"the world-model term on AsyncGRPOTrainer needs trl>={_compat.ASYNC_ROWS}, and trl {trl.__version__} is "
            "installed; install it, or use WorldModelGRPOTrainer"
        )
    if of_release(_compat.installed()) >= ASYNC_GONE:
        return (
            f"the world-model term on AsyncGRPOTrainer needs trl<{ASYNC_GONE}, and trl {trl.__version__} is installed; install "
            "an older one, or use WorldModelGRPOTrainer"
        )
    if moved := hooks.missing_hooks(HOOKS):
        return (
            f"trl {trl.__version__} lacks what the world-model term on AsyncGRPOTrainer needs: {'; '.join(moved)}; install "
            "another version, or use WorldModelGRPOTrainer"
        )
    return None


def require() -> None:
    """Raises UserError where `problem` has something to say."""
    if text := problem():
        raise UserError(text)


def require_harness() -> None:
    """Raises UserError where the installed TRL or OpenEnv lacks what the term needs of the rollouts of agents."""
    if moved := hooks.missing_hooks(HARNESS_HOOKS):
        raise UserError(
            f"trl {trl.__version__} lacks what the world-model term on HarnessRolloutWorker needs: {'; '.join(moved)}; "
            "install another version"
        )


def check(trainer: Any, objectives: Objectives, tools: set[str], worker: Any) -> None:
    """Refuse what is not known to be exact on the asynchronous trainer.

    Args:
        tools: the names of its tools and of its environments'.
        worker: a rollout worker of the user's own, whose tools are not known.

    Raises:
        UserError: one line with the reason and the way out.
    """
    support.check_temperature(trainer, objectives)
    support.check_likelihood(trainer, objectives)
    if objectives.refills:
        raise UserError(
            "zero_variance_groups refill asks for further rollouts of the policy that is trained, and those of AsyncGRPOTrainer "
            "come from a queue; write zero_variance_groups: drop"
        )
    if any(one.select_rollout for one in objectives.values()):
        raise UserError(
            "select_rollout reads a completion's messages, which AsyncGRPOTrainer's samples do not have; leave it out, or use "
            "WorldModelGRPOTrainer"
        )
    if any(one.guard is not None and one.active for one in objectives.values()):
        raise UserError(
            "guard watches evaluations, and AsyncGRPOTrainer has none; leave it out, or use WorldModelGRPOTrainer"
        )
    if not tools and worker is None:
        raise UserError(
            "no environment tokens can occur: pass environment_factory or tools to the trainer, or use coeff 0"
        )
    if tools:
        support.check_tools(tools, objectives)
    if not objectives.active and trainer.accelerator.device.type != "cpu":
        raise UserError(
            f"on {trainer.accelerator.device.type} AsyncGRPOTrainer computes the log-probabilities of the tokens alone that it "
            "trains on"
        )


def names_of_tools(tools: list[Any] | None, environments: Any) -> set[str]:
    """Return the names of a trainer's tools and of its environments'.

    Args:
        environments: a function that makes an environment, or {name: function}; a class is asked without making one.

    Raises:
        UserError: an environment acts by tags.
    """
    names = {tool.__name__ for tool in tools or ()}
    made = environments.values() if isinstance(environments, dict) else [environments]
    for make in made:
        if make is None:
            continue
        cls = make if isinstance(make, type) else type(make())
        if support.predictions_of([cls]) is not None:
            raise UserError(
                f"{cls.__name__} has a prediction_reward, which the rollouts of AsyncGRPOTrainer do not score; leave it out, or "
                "use WorldModelGRPOTrainer"
            )
        if takes_tags(cls):
            raise UserError(
                f"{cls.__name__} takes actions by tags, which the rollouts of AsyncGRPOTrainer do not read; write protocol: "
                "tools, or use WorldModelGRPOTrainer"
            )
        names |= set(tool_names(cls))
    return names
