"""What our adapter relies on in verl, and what it refuses.

`check_config` runs in the driver before Ray starts, and once more where the trainer is made: a run that could not be exact stops
before its first step.
"""

from typing import Any

import verl
from packaging.version import Version

from wm_plugin.errors import UserError
from wm_plugin.runtime import hooks
from wm_plugin.runtime.hooks import Hook, VersionRange
from wm_plugin.verl.config import WorldModelConfig, read_config
from wm_plugin.verl.names import REWARD_MANAGER, REWARDS_MODULE, SAMPLER_MODULE, TRAINER_MODE

# 0.9.0 builds a rollout's tokens in another way by default
SUPPORTED = VersionRange("verl", Version("0.9.1"), Version("0.10"), "verl")
# Engines that divide a loss by the counts of the whole mini-batch, as ours is.
STRATEGIES = ("fsdp", "fsdp2", "megatron")

_TRAINER = "verl.trainer.ppo.v1.trainer_base"
_TOOL_LOOP = "verl.experimental.agent_loop.tool_agent_loop"
_AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"
_CONTINUOUS = "verl.utils.tokenizer.continuous_token"
_TEMPLATE = "verl.utils.tokenizer.chat_template"
_REPLAY = "verl.trainer.ppo.v1.replay_buffer"
_WORKERS = "verl.workers.engine_workers"
_REWARDS = "verl.experimental.reward_loop.reward_manager.base"
# Everything that we override, call, replace or read upstream. A test closes the list.
HOOKS = (
    Hook(_TRAINER, "TRAINER_REGISTRY"),
    Hook(_TRAINER, "PPOTrainer._init_tokenizer"),
    Hook(_TRAINER, "PPOTrainer._init_dataloader"),
    Hook(_TRAINER, "PPOTrainer._init_resource_pool_mgr"),
    Hook(_TRAINER, "PPOTrainer._setup"),
    Hook(_TRAINER, "PPOTrainer._next_train_batch"),
    Hook(_TRAINER, "PPOTrainer._step_once", ("metrics", "timing_raw", "sample_batch_size")),
    Hook(_TRAINER, "PPOTrainer._balance_batch", ("batch",)),
    Hook(_TRAINER, "PPOTrainer._compute_advantage", ("batch", "metrics")),
    Hook(_TRAINER, "PPOTrainer._update_actor", ("batch", "metrics")),
    Hook(_TRAINER, "PPOTrainer._save_checkpoint"),
    Hook(_TRAINER, "PPOTrainer._load_checkpoint"),
    Hook("verl.trainer.ppo.v1.trainer_sync", "PPOTrainerSync"),
    Hook(_WORKERS, "ActorRolloutRefWorker.actor_worker_cls"),
    Hook(_WORKERS, "ActorRolloutRefWorker.init_model"),
    Hook(_WORKERS, "TrainingWorker.set_loss_fn", ("loss_fn",)),
    Hook(_WORKERS, "TrainingWorker.train_batch", ("data",)),
    Hook("verl.workers.utils.losses", "ppo_loss", ("model_output", "data", "dp_group")),
    Hook("verl.workers.utils.padding", "no_padding_2_padding", ("tensor", "data")),
    Hook("verl.utils.metric", "Metric", ("aggregation", "value")),
    Hook("verl.utils.config", "validate_config", ("config",)),
    Hook(_AGENT_LOOP, "_agent_loop_registry"),
    Hook(_TOOL_LOOP, "ToolAgentLoop.run", ("sampling_params",)),
    Hook(_TOOL_LOOP, "ToolAgentLoop._call_tool", ("tool_call", "tools_kwargs", "agent_data")),
    Hook(_TOOL_LOOP, "ToolAgentLoop._handle_processing_tools_state", ("agent_data",)),
    Hook(_TOOL_LOOP, "ToolAgentLoop._build_assistant_message", ("content", "agent_data")),
    Hook(_AGENT_LOOP, "AgentLoopBase.ct_merge_context_msg", ("previous_messages", "updated_messages")),
    Hook(_REWARDS, "RewardManagerBase.run_single", ("data",)),
    Hook(_REWARDS, "RewardManagerBase.__init__", ("config", "tokenizer", "compute_score")),
    Hook("verl.experimental.reward_loop.reward_loop", "RewardLoopWorker._init_reward_fn"),
    Hook(_REPLAY, "ReplayBuffer._sync_metadata_from_transfer_queue"),
    Hook(_REPLAY, "ReplayBuffer.sample", ("global_steps", "partition_id", "batch_size")),
    Hook(_REPLAY, "ReplayBufferAsync.sample", ("global_steps", "partition_id", "batch_size")),
    Hook("verl.tools.function_tool", "FunctionTool.call", ("parameters",)),
    Hook("verl.tools.function_tool", "normalize_function_tool_return", ("ret",)),
    Hook(_TEMPLATE, "apply_chat_template", ("messages", "tools", "add_generation_prompt")),
    Hook(_CONTINUOUS, "_SYNTHETIC_SYSTEM_MESSAGE"),
    Hook(_CONTINUOUS, "_SYNTHETIC_USER_MESSAGE"),
    Hook(_CONTINUOUS, "ContinuousTokenBuilder._synthetic_assistant_for_tools", ("tool_messages",)),
    Hook(_CONTINUOUS, "ContinuousTokenBuilder._should_fuse_generation_prompt_with_last_group"),
    Hook(
        f"{_CONTINUOUS}_wiring",
        "create_continuous_token_builder",
        ("hf_model_type", "chat_template_kwargs", "processor"),
    ),
    # attributes of instances
    *(
        Hook(_TRAINER, f"PPOTrainer.{name}")
        for name in (
            "actor_rollout_wg",
            "config",
            "global_steps",
            "processor",
            "role_worker_mapping",
            "tokenizer",
            "train_dataset",
        )
    ),
    *(
        Hook(_TOOL_LOOP, f"ToolAgentLoop.{name}")
        for name in (
            "config",
            "continuous_token_builder",
            "max_assistant_turns",
            "max_parallel_calls",
            "max_tool_response_length",
            "response_length",
            "tokenizer",
            "tool_schemas",
            "tools",
        )
    ),
    *(Hook(_WORKERS, f"TrainingWorker.{name}") for name in ("device_name", "engine", "loss_fn")),
    *(Hook(_WORKERS, f"ActorRolloutRefWorker.{name}") for name in ("actor", "loss_fn")),
    Hook(_REPLAY, "ReplayBuffer.failure_keys"),
    Hook(_REWARDS, "RewardManagerBase.tokenizer"),
)


def missing_hooks() -> list[str]:
    """The hooks that the installed verl lacks or has changed, by name, with what moved."""
    return hooks.missing_hooks(HOOKS)


def check_config(config: Any) -> WorldModelConfig:
    """Refuse what is not known to be exact. At coefficient 0 only what cannot be read is refused: such a run is verl's own.

    Args:
        config: the whole config of the run.

    Raises:
        UserError: one line with the reason and the way out.
    """
    wm = read_config(config)
    if wm.environment is not None:
        _ = wm.environments  # each of them can be imported
        multi_turn = config.actor_rollout_ref.rollout.multi_turn
        if multi_turn.get("function_tool_path") or multi_turn.get("tool_config_path"):
            raise UserError("wm.environment brings its own tools; leave function_tool_path and tool_config_path out")
    manager = config.reward.reward_manager
    if config.wm.get("reward") is not None and manager.get("source") != "importlib":
        raise UserError(
            "wm.reward is set, but verl's own reward manager would not ask it; add '+wm=[echo,reward]' (the group reward), or "
            f"reward.reward_manager.source=importlib reward.reward_manager.name={REWARD_MANAGER} "
            f"reward.reward_manager.module.path={REWARDS_MODULE}"
        )
    if manager.get("source") == "importlib" and manager.get("name") == REWARD_MANAGER:
        from wm_plugin.verl.rewards import check_reward

        check_reward(config.wm.get("reward"))  # misspelt, it would stop a reward worker only
    sampler = config.trainer.v1.get("sampler") or {}
    if (sampler.get("custom_sampler") or {}).get("path") == SAMPLER_MODULE:
        check_filters(config, sampler)
    if wm.objective.active and (reason := refusal(config, wm)):
        raise UserError(reason)
    return wm


def check_filters(config: Any, sampler: Any) -> None:
    """Refuse what verl leaves out, without a word, as soon as a run has a sampler of its own."""
    filters = config.algorithm.get("filter_groups") or {}
    for name, on in (
        ("algorithm.filter_groups.enable", filters.get("enable")),
        ("trainer.v1.sampler.sync_refill_failed_groups", sampler.get("sync_refill_failed_groups")),
    ):
        if on:
            raise UserError(
                f"{name} is true, which verl has for its own sampler only; add trainer.v1.sampler.custom_sampler.path=null "
                "(figures of rewards are in validation then, and not in training)"
            )


def refusal(config: Any, wm: WorldModelConfig) -> str | None:
    """Why the term could not be exact in this run, and the way out; None if it is."""
    mode = config.trainer.v1.trainer_mode
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    if problem := SUPPORTED.problem(verl.__version__):
        return problem
    if moved := missing_hooks():
        return f"verl {verl.__version__} lacks what the world-model term needs: {'; '.join(moved)}; install another version"
    if not config.trainer.get("use_v1", True):
        return "trainer.use_v1 is false: the legacy trainer has no hooks for the world-model term; write trainer.use_v1=true"
    if mode != TRAINER_MODE:
        return (
            f"trainer.v1.trainer_mode is {mode!r}: the world-model term needs trainer.v1.trainer_mode={TRAINER_MODE} "
            "(synchronous); asynchronous modes train on mixtures of policy versions, for which it is not known to be exact"
        )
    if rollout.temperature != 1.0 and not wm.objective.tempered:
        return (
            f"rollout.temperature is {rollout.temperature}: the actor's log-probabilities are divided by it and are not the "
            "model's; write actor_rollout_ref.rollout.temperature=1.0, or wm.tempered=true for the tempered likelihood"
        )
    if actor.strategy not in STRATEGIES:
        return f"actor.strategy is {actor.strategy!r}; the world-model term is known to be exact on {', '.join(STRATEGIES)}"
    if (actor.get("megatron") or {}).get("dynamic_context_parallel", False):
        return (
            "actor.megatron.dynamic_context_parallel is true: it spreads one batch over all ranks, for which the count of "
            "environment tokens is not known to be exact; set it to false"
        )
    distillation = config.get("distillation")
    if distillation is not None and distillation.get("enabled", False):
        return "distillation.enabled is true: with it the actor may compute no log-probabilities of its own; turn one of them off"
    return None


def check_tokenizer(tokenizer: Any, processor: Any, chat_template_kwargs: Any, model_type: str | None) -> None:
    """Refuse a tokenizer or a chat template by which the content of tool results cannot be located.

    `model_type` is that of the model's config.json, by which verl chooses how turns are joined.

    Raises:
        UserError: one line with the reason and the way out.
    """
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    from wm_plugin.tokens.spans import SpanError
    from wm_plugin.verl.spans import probe

    if processor is not None:
        raise UserError(
            f"{type(processor).__name__}: vision-language processors are not supported by the world-model term "
            "(image tokens in tool results have no text to locate); use a text model, or wm.coeff=0"
        )
    if not tokenizer.is_fast:
        raise UserError(
            f"{type(tokenizer).__name__} is a slow tokenizer: it gives no character offsets, by which "
            "the content of tool results is located; use a model with a fast one"
        )
    builder = create_continuous_token_builder(
        tokenizer,
        hf_model_type=model_type,
        chat_template_kwargs=chat_template_kwargs,
        processor=None,
    )
    try:
        probe(builder)
    except (SpanError, ValueError) as error:  # verl's builders refuse a template by a ValueError
        raise UserError(str(error).strip().partition("\n")[0]) from error
