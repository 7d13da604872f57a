"""What our adapter relies on in verl, and what it refuses.

`check_config` runs in the driver before Ray starts, and once more where the trainer is made: a run that could not be exact stops
before its first step.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import verl
from omegaconf import OmegaConf
from packaging.version import Version

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting import hooks, optimizers
from wm_plugin.hosting.config import check_tool_names
from wm_plugin.hosting.dialogues import check_objectives
from wm_plugin.hosting.hooks import Hook, VersionRange
from wm_plugin.hosting.world import tool_names
from wm_plugin.objectives import EchoConfig, Objectives
from wm_plugin.objectives.empty_batches import config_warning
from wm_plugin.tokens.tokenizer import is_missing_folder
from wm_plugin.untrusted import loads
from wm_plugin.verl.config import SFT_COEFF, WorldModelConfig, read_config
from wm_plugin.verl.names import (
    AGENT_LOOP,
    AGENT_NAME,
    REWARD_MANAGER,
    REWARDS_MODULE,
    SAMPLER_MODULE,
    TRAINER_MODE,
    TRAINER_MODES,
    VERL_TOOL_LOOP,
)

# 0.9.0 builds a rollout's tokens in another way by default
SUPPORTED = VersionRange("verl", Version("0.9.1"), Version("0.10"), "verl")
# Engines that divide a loss by the counts of the whole mini-batch, as ours is.
STRATEGIES = ("fsdp", "fsdp2", "megatron")
# what to write so that our agent loop makes the rollouts
OUR_LOOP = f"actor_rollout_ref.rollout.agent.default_agent_loop={AGENT_LOOP}"

_TRAINER = "verl.trainer.ppo.v1.trainer_base"
_TOOL_LOOP = "verl.experimental.agent_loop.tool_agent_loop"
_AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"
_CONTINUOUS = "verl.utils.tokenizer.continuous_token"
_TEMPLATE = "verl.utils.tokenizer.chat_template"
_REPLAY = "verl.trainer.ppo.v1.replay_buffer"
_WORKERS = "verl.workers.engine_workers"
_REWARD_LOOP = "verl.experimental.reward_loop"
_REWARDS = f"{_REWARD_LOOP}.reward_manager.base"
_AGENT = "actor_rollout_ref.rollout.agent"
_MANAGER = "verl.trainer.ppo.v1.AgentLoopManagerTQ"
_LOSSES_OF_TRAJECTORIES = ("geo_mean",)
GIVES_SPANS = "gives_env_spans"  # what a manager of the user's own declares
# Everything that we override, call, replace or read upstream. A test closes the list.
HOOKS = (
    Hook(_TRAINER, "TRAINER_REGISTRY"),
    Hook(_TRAINER, "PPOTrainer._init_tokenizer"),
    Hook(_TRAINER, "PPOTrainer._init_dataloader"),
    Hook(_TRAINER, "PPOTrainer._init_resource_pool_mgr"),
    Hook(_TRAINER, "PPOTrainer._build_replay_buffer"),
    Hook(_TRAINER, "PPOTrainer._setup"),
    Hook(_TRAINER, "PPOTrainer.fit", ("agent_loop_manager",)),
    Hook("verl.trainer.ppo.v1.agent_loop_tq", "AgentLoopManagerTQ.generate_sequences", ("prompts",)),
    Hook("verl.experimental.agent_loop", "AgentLoopManager.generate_sequences", ("prompts",)),
    Hook("verl.utils.import_utils", "load_class_from_fqn", ("fqn", "description")),
    Hook(_TRAINER, "PPOTrainer._next_train_batch"),
    Hook(_TRAINER, "PPOTrainer._step_once", ("metrics", "timing_raw", "sample_batch_size")),
    Hook(_TRAINER, "PPOTrainer._add_prompts_to_generate", ("num_prompts",)),
    Hook(_TRAINER, "PPOTrainer._balance_batch", ("batch",)),
    Hook(_TRAINER, "PPOTrainer._compute_advantage", ("batch", "metrics")),
    Hook(_TRAINER, "PPOTrainer._update_actor", ("batch", "metrics")),
    Hook(_TRAINER, "PPOTrainer._validate"),
    Hook(_TRAINER, "PPOTrainer._log_rollout_data", ("batch",)),
    Hook(
        _TRAINER,
        "PPOTrainer._dump_generations",
        ("inputs", "outputs", "gts", "scores", "reward_extra_infos_dict", "dump_path"),
    ),
    Hook(_TRAINER, "PPOTrainer._save_checkpoint"),
    Hook(_TRAINER, "PPOTrainer._load_checkpoint"),
    Hook("verl.trainer.ppo.v1.trainer_sync", "PPOTrainerSync"),
    Hook("verl.trainer.ppo.v1.trainer_colocate_async", "PPOTrainerColocateAsync"),
    Hook("verl.trainer.ppo.v1.trainer_separate_async", "PPOTrainerSeparateAsync"),
    Hook("verl.trainer.ppo.v1.trainer_separate_async", "PPOTrainerSeparateAsync.switch_to_trainer"),
    Hook("verl.trainer.ppo.v1.trainer_separate_async", "PPOTrainerSeparateAsync.current_mode"),
    Hook("verl.trainer.ppo.v1.trainer_separate_async", "HybridEngineMode.ROLLOUT"),
    Hook("verl.checkpoint_engine.base", "CheckpointEngineManager.sleep_replicas"),
    Hook("verl.checkpoint_engine.base", "CheckpointEngineManager.update_weights", ("global_steps",)),
    Hook("verl.checkpoint_engine.base", "CheckpointEngineManager.abort_replicas"),
    Hook("verl.checkpoint_engine.base", "CheckpointEngineManager.resume_generation_replicas"),
    Hook("verl.experimental.separation.engine_workers", "DetachActorWorker"),
    Hook(_WORKERS, "ActorRolloutRefWorker.actor_worker_cls"),
    Hook(_WORKERS, "ActorRolloutRefWorker.init_model"),
    Hook(_WORKERS, "ActorRolloutRefWorker.compute_log_prob", ("data",)),
    Hook(_WORKERS, "TrainingWorker.set_loss_fn", ("loss_fn",)),
    Hook(_WORKERS, "TrainingWorker.train_batch", ("data",)),
    Hook("verl.workers.utils.losses", "ppo_loss", ("model_output", "data", "dp_group")),
    Hook("verl.workers.utils.padding", "no_padding_2_padding", ("tensor", "data")),
    Hook("verl.workers.utils.padding", "response_from_nested", ("tensor", "response_mask")),
    Hook("verl.utils.metric", "Metric", ("aggregation", "value")),
    Hook("verl.utils.config", "validate_config", ("config",)),
    Hook(_AGENT_LOOP, "_agent_loop_registry"),
    Hook("verl.utils.import_utils", "resolve_config_path", ("config_path",)),
    Hook("verl.tools.function_tool", "load_function_tools_from_path", ("path",)),
    Hook(f"{_REWARD_LOOP}.reward_manager", "get_reward_manager_cls", ("name",)),
    Hook("verl.utils.reward_score", "default_compute_score", ("data_source", "solution_str", "ground_truth")),
    Hook(_TOOL_LOOP, "ToolAgentLoop.run", ("sampling_params",)),
    Hook(_TOOL_LOOP, "ToolAgentLoop._call_tool", ("tool_call", "tools_kwargs", "agent_data")),
    Hook(_TOOL_LOOP, "ToolAgentLoop._handle_processing_tools_state", ("agent_data",)),
    Hook(_TOOL_LOOP, "ToolAgentLoop._handle_generating_state", ("agent_data", "sampling_params")),
    Hook(_TOOL_LOOP, "AgentState.PROCESSING_TOOLS"),
    Hook(_TOOL_LOOP, "AgentState.TERMINATED"),
    Hook("verl.experimental.agent_loop.tool_parser", "ToolParser.extract_tool_calls", ("responses_ids", "tools")),
    Hook("verl.experimental.agent_loop.tool_parser", "ToolParser.stop_token_ids"),
    Hook("verl.experimental.agent_loop.tool_parser", "FunctionCall"),
    Hook(_TOOL_LOOP, "ToolAgentLoop._build_assistant_message", ("content", "agent_data")),
    Hook(_AGENT_LOOP, "AgentLoopBase.ct_merge_context_msg", ("previous_messages", "updated_messages")),
    Hook(_REWARDS, "RewardManagerBase.run_single", ("data",)),
    Hook(_REWARDS, "RewardManagerBase.__init__", ("config", "tokenizer", "compute_score")),
    Hook(f"{_REWARD_LOOP}.reward_loop", "RewardLoopWorker._init_reward_fn"),
    Hook(_REPLAY, "ReplayBuffer._evict_terminal_groups", ("global_steps", "partition_id", "eviction_reasons")),
    Hook(_REPLAY, "ReplayBuffer._sync_metadata_from_transfer_queue"),
    Hook(_REPLAY, "ReplayBuffer.refill_fn"),
    Hook(_REPLAY, "ReplayBuffer.sample", ("global_steps", "partition_id", "batch_size")),
    Hook(_REPLAY, "ReplayBufferAsync.sample", ("global_steps", "partition_id", "batch_size")),
    Hook("verl.tools.function_tool", "FunctionTool.call", ("parameters",)),
    Hook("verl.tools.function_tool", "normalize_function_tool_return", ("ret",)),
    Hook(_TEMPLATE, "apply_chat_template", ("messages", "tools", "add_generation_prompt")),
    Hook(_CONTINUOUS, "_SYNTHETIC_SYSTEM_MESSAGE"),
    Hook(_CONTINUOUS, "_SYNTHETIC_USER_MESSAGE"),
    Hook(_CONTINUOUS, "ContinuousTokenBuilder._synthetic_assistant_for_tools", ("tool_messages",)),
    Hook(_CONTINUOUS, "ContinuousTokenBuilder._should_fuse_generation_prompt_with_last_group"),
    Hook(_CONTINUOUS, "ContinuousTokenBuilder._tokenize_generation_prompt_delta", ("updated_messages", "tools")),
    Hook(_CONTINUOUS, "Gemma4ContinuousTokenBuilder"),
    Hook(_CONTINUOUS, "GptOssContinuousTokenBuilder._format_tool_response", ("tool_message", "tool_name")),
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
            "checkpoint_manager",
            "config",
            "global_steps",
            "local_trigger_step",
            "parameter_sync_step",
            "total_training_steps",
            "processor",
            "replay_buffer",
            "role_worker_mapping",
            "tokenizer",
            "train_dataset",
            "trainer_mode",
            "val_dataset",
        )
    ),
    *(
        Hook(_TOOL_LOOP, f"ToolAgentLoop.{name}")
        for name in (
            "apply_chat_template_kwargs",
            "config",
            "continuous_token_builder",
            "max_assistant_turns",
            "max_parallel_calls",
            "max_tool_response_length",
            "max_user_turns",
            "response_length",
            "server_manager",
            "tokenizer",
            "tool_parser",
            "tool_schemas",
            "tools",
        )
    ),
    *(Hook(_WORKERS, f"TrainingWorker.{name}") for name in ("device_name", "engine", "loss_fn")),
    *(Hook(_WORKERS, f"ActorRolloutRefWorker.{name}") for name in ("actor", "loss_fn")),
    Hook(_REPLAY, "ReplayBuffer.failure_keys"),
    Hook(_REPLAY, "ReplayBuffer.filter_groups_metric"),
    Hook(_REPLAY, "ReplayBuffer.partitions"),
    Hook(_REWARDS, "RewardManagerBase.tokenizer"),
)

# What `wm_plugin.verl.cpu` relies on besides.
CPU_HOOKS = (
    Hook("verl.plugin.platform", "PlatformBase"),
    Hook("verl.plugin.platform", "PlatformRegistry.register", ("platform",)),
    Hook("verl.workers.rollout.base", "BaseRollout"),
    Hook("verl.workers.rollout.base", "_ROLLOUT_REGISTRY"),
    Hook("verl.workers.rollout.replica", "RolloutReplica"),
    Hook("verl.workers.rollout.replica", "RolloutReplicaRegistry.register"),
    Hook("verl.workers.rollout.replica", "TokenOutput"),
    Hook("verl.workers.rollout.utils", "ensure_async_iterator"),
    Hook("verl.experimental.agent_loop.tool_parser", "ToolParser.register", ("name",)),
    Hook("verl.utils.distributed", "initialize_global_process_group"),
    Hook("verl.utils.distributed", "initialize_global_process_group_ray", ("backend",)),
    Hook("verl.workers.engine.fsdp.transformer_impl", "CPUOffloadPolicy"),
    Hook(
        "verl.utils.model", "load_valuehead_model", ("local_path", "torch_dtype", "model_config", "trust_remote_code")
    ),
    Hook(_REPLAY, "ReplayBuffer.__init__", ("poll_interval",)),
)


_SFT = "verl.trainer.sft_trainer"
# The same of the SFT trainer.
SFT_HOOKS = (
    Hook(_SFT, "run_sft", ("config",)),
    Hook(_SFT, "Tracking.log", ("data", "step")),
    Hook(_SFT, "SFTTrainer.__init__", ("config",)),
    Hook(_SFT, "SFTTrainer._build_dataset"),
    Hook(_SFT, "SFTTrainer._build_engine"),
    Hook(_SFT, "SFTTrainer.fit"),
    *(
        Hook(_SFT, f"SFTTrainer.{name}")
        for name in ("loss_fn", "model_config", "resume_global_step", "train_dataset", "training_client", "val_dataset")
    ),
    Hook(_WORKERS, "TrainingWorker.set_loss_fn", ("loss_fn",)),
    Hook(_WORKERS, "TrainingWorker.train_batch", ("data",)),
    Hook(_WORKERS, "TrainingWorker.infer_batch", ("data",)),
    Hook(_WORKERS, "TrainingWorker.device_name"),
    Hook(_WORKERS, "TrainingWorker.engine"),
)


def missing_hooks() -> list[str]:
    """Return the hooks that the installed verl lacks or has changed, by name, with what moved."""
    return hooks.missing_hooks(HOOKS)


def choose_trainer(config: Any) -> None:
    """Write our trainer of the mode that the user chose, by verl's name of it, into the config of a run with the term.

    A block `wm` without a coefficient, of a reward alone, leaves verl's own there.
    """
    block, v1 = config.get("wm"), config.trainer.v1
    if OmegaConf.is_dict(block) and any(name in block for name in ("coeff", *EchoConfig.aliases)):
        v1.trainer_mode = TRAINER_MODES.get(v1.trainer_mode, v1.trainer_mode)


def check_sft(config: Any) -> Objectives:
    """Return the objectives of the block `wm` of a config of the SFT trainer.

    Raises:
        UserError: verl is not supported, or a setting has no meaning in fine-tuning or is not known to be exact.
    """
    if problem := SUPPORTED.problem(verl.__version__):
        raise UserError(problem)
    if moved := hooks.missing_hooks(SFT_HOOKS):
        raise UserError(
            f"verl {verl.__version__} lacks what +wm=sft needs: {'; '.join(moved)}; install another version"
        )
    wm = read_config(config, SFT_COEFF)
    for name, declared in WorldModelConfig.model_fields.items():
        if name not in ("objective", "world_model") and getattr(wm, name) != declared.default:
            raise UserError(f"wm.{name} is of rollouts, which fine-tuning does not make; leave it out")
    objectives = wm.objectives
    check_objectives(objectives, "wm.")
    if any(one.guard is not None for one in objectives.values()):
        raise UserError(
            "wm.guard: the state of a guard has no place in the checkpoints of verl's SFT trainer; leave it out, or use TRL's"
        )
    if config.engine.strategy not in ("fsdp", "fsdp2"):
        raise UserError(
            f"engine.strategy is {config.engine.strategy}, on which +wm=sft was not tried; write fsdp or fsdp2"
        )
    if config.data.pad_mode != "no_padding":
        raise UserError(f"data.pad_mode is {config.data.pad_mode}, which verl's engines do not take; write no_padding")
    several = config.data.use_dynamic_bsz or config.data.train_batch_size > config.data.micro_batch_size_per_gpu
    objectives.check_split(2 if several else 1)
    return objectives


def check_sft_tools(objectives: Objectives, tools: set[str]) -> None:
    """Raise a UserError if an objective names a tool that no row has."""
    for one in objectives.values():
        check_tool_names(one.tool_names, tools, "wm.tools")


def check_config(config: Any) -> WorldModelConfig:
    """Refuse what is not known to be exact. At coefficient 0 only what cannot be read is refused: such a run is verl's own.

    Args:
        config: the whole config of the run.
    """
    wm = read_config(config)
    _check_optimizer(config.actor_rollout_ref.actor)
    if wm.environment is not None:
        wm.classes()  # each of them can be imported
        multi_turn = config.actor_rollout_ref.rollout.multi_turn
        if multi_turn.get("function_tool_path") or multi_turn.get("tool_config_path"):
            raise UserError("wm.environment brings its own tools; leave function_tool_path and tool_config_path out")
        if problem := _foreign_loop(config):
            raise UserError(f"wm.environment is driven by our agent loop, and {problem}")
        _check_rewards(config, wm)
        _check_predictions(config, wm)
    if wm.environment is not None or wm.objectives.active:
        _check_manager(config)
        _check_rows_loops(config, wm)
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
    custom = (sampler.get("custom_sampler") or {}).get("path")
    if custom == SAMPLER_MODULE:
        check_filters(config, sampler)
    if custom and wm.objectives.refills:
        raise UserError(
            f"wm.zero_variance_groups is refill, by verl's own sampler, and the run has another one ({custom}); add "
            "trainer.v1.sampler.custom_sampler.path=null, or write wm.zero_variance_groups=drop"
        )
    mode = config.trainer.v1.trainer_mode
    if wm.objectives.refills and mode != TRAINER_MODE and mode in TRAINER_MODES.values():
        raise UserError(
            "wm.zero_variance_groups is refill, whose wm.max_refills bounds the further prompts of one step, and in an "
            "asynchronous mode a step trains on prompts of others; write wm.zero_variance_groups=drop, or let verl filter "
            "without a bound (algorithm.filter_groups.enable=true)"
        )
    if wm.objectives.active:
        if reason := refusal(config, wm):
            raise UserError(reason)
        if any(one.guard is not None for one in wm.objectives.values()) and config.trainer.test_freq <= 0:
            raise UserError(
                f"wm.guard watches validations, and trainer.test_freq is {config.trainer.test_freq}; write trainer.test_freq=10, "
                "and held-out rows as data.val_files"
            )
        known = _declared_tools(config, wm)
        if known is not None:
            for one in wm.objectives.values():
                check_tool_names(one.tool_names, known, "wm.tools")
        silence(config, wm)
    return wm


def is_one_machine(config: Any) -> bool:
    """Return whether this machine is all that Ray will have."""
    ray_init = (config.get("ray_kwargs") or {}).get("ray_init") or {}
    return not (config.trainer.nnodes > 1 or ray_init.get("address") or os.environ.get("RAY_ADDRESS"))


def check_model_folder(config: Any) -> None:
    """Refuse the folder of a model that is not there, which verl's workers would find out after minutes.

    On one machine only: of a cluster, another one may have it.
    """
    if not is_one_machine(config):
        return
    for name in ("path", "hf_config_path", "tokenizer_path"):
        path = str(config.actor_rollout_ref.model.get(name) or "")
        where = f"actor_rollout_ref.model.{name} is {path!r}"
        if path.startswith("~") and Path(path).expanduser().is_dir():
            raise UserError(f"{where}, and verl does not expand ~; write {str(Path(path).expanduser())!r}")
        if is_missing_folder(path):
            raise UserError(
                f"{where}: there is no such folder; name one that is there, or a model on the Hub (owner/name)"
            )


def silence(config: Any, wm: WorldModelConfig) -> str | None:
    """Return what to warn of before the run because no token can count; None if some may.

    Raises:
        UserError: the run is to stop.
    """
    for one in wm.objectives.values():
        if text := config_warning(one):
            return text
    ours = config.trainer.v1.trainer_mode in TRAINER_MODES.values()
    if ours and not wm.objectives.written:
        return "wm.coeff is not written: nothing is trained on environment tokens; write wm.coeff=0.05, or 0 if that is meant"
    multi_turn = config.actor_rollout_ref.rollout.multi_turn
    tools = wm.environment or multi_turn.get("tool_config_path") or multi_turn.get("function_tool_path")
    if not wm.objectives.active or tools or _loop_name(config) != AGENT_LOOP:  # another loop may have its own
        return None
    text = (
        "the world-model objective has no token to train on: the run has no tools; write wm.environment=NAME, or "
        "actor_rollout_ref.rollout.multi_turn.function_tool_path=FILE or tool_config_path=FILE"
    )
    if any(one.on_silence == "stop" for one in wm.objectives.values()):
        raise UserError(f"{text} (wm.on_silence is stop)")
    return text


def _loop_name(config: Any) -> str:
    return str(config.actor_rollout_ref.rollout.agent.default_agent_loop)


def agent_loops(config: Any) -> dict[str, str] | None:
    """Return each agent loop's path by its name: verl's, ours and the user's; None if the user's file cannot be read here."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    loops = {known: str(entry["_target_"]) for known, entry in _agent_loop_registry.items()}
    if path := config.actor_rollout_ref.rollout.agent.get("agent_loop_config_path"):
        own = _load_yaml(path)
        if own is None:
            return None
        loops |= {str(entry.get("name")): str(entry.get("_target_")) for entry in own}
    return loops


def in_place_of_verls(config: Any) -> dict[str, str]:
    """Agent loops that rows may name -> the one that plays them. A loop of the user's own keeps its rows, whatever its name."""
    path = (agent_loops(config) or {}).get(VERL_TOOL_LOOP, "verl.")
    return {VERL_TOOL_LOOP: AGENT_LOOP} if path.startswith("verl.") else {}


def _foreign_loop(config: Any) -> str | None:
    """Return why the configured agent loop cannot say which tokens the environment wrote, and the way out; None if it may."""
    name, loops = _loop_name(config), agent_loops(config)
    if loops is None:
        return None
    if name not in loops:
        return None if _registers_elsewhere(config) else f"default_agent_loop is {name!r}{nearest(name, loops)}"
    if not loops[name].startswith("verl."):  # a user's own: it may give env_spans
        return None
    return f"default_agent_loop is verl's {name!r}, which does not say which tokens are the environment's; write {OUR_LOOP}"


def _registers_elsewhere(config: Any) -> bool:
    """Return whether a module that only the workers import may register further agent loops."""
    model, agent = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout.agent
    return bool(agent.get("agent_loop_manager_class") or model.get("external_lib"))


def _check_manager(config: Any) -> None:
    """Refuse a manager of the user's own that cannot be made, or whose rollouts may not say where tokens come from."""
    from verl.experimental.agent_loop import AgentLoopManager
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ
    from verl.utils.import_utils import load_class_from_fqn

    path = config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
    if not path:
        return
    where = f"{_AGENT}.agent_loop_manager_class is {path!r}"
    try:
        manager = load_class_from_fqn(path, "agent loop manager")
    except (ValueError, ImportError, AttributeError) as error:
        raise UserError(f"{where}: {' '.join(str(error).split())}") from None
    if missing := [name for name in ("create", "generate_sequences") if not callable(getattr(manager, name, None))]:
        raise UserError(f"{where}, which has no {missing[0]}; derive it from {_MANAGER}")
    if isinstance(manager, type) and issubclass(manager, AgentLoopManagerTQ):  # it runs agent loops, which say it
        return
    if manager.generate_sequences is AgentLoopManager.generate_sequences:
        raise UserError(
            f"{where}, which returns its rollouts, and the trainer waits for them in the TransferQueue; derive it from {_MANAGER}"
        )
    if not getattr(manager, GIVES_SPANS, False):
        raise UserError(
            f"{where}, and whether its rollouts say which tokens are the environment's is not known; derive it from {_MANAGER}, "
            f"or let each return env_spans in extra_fields and write {GIVES_SPANS} = True into the class"
        )


def _check_rows_loops(config: Any, wm: WorldModelConfig) -> None:
    """Refuse rows whose `agent_name`, which wins over default_agent_loop, is a loop that is not there or calls no tools."""
    loops = agent_loops(config)
    if loops is None:
        return
    for files in ("train_files", "val_files"):
        names = {name for name in _column(config, files, AGENT_NAME) if name is not None}
        way_out = f"drop the column, or write {VERL_TOOL_LOOP}, in whose place {AGENT_LOOP} plays"
        for name in sorted(names - loops.keys()):
            if not _registers_elsewhere(config):
                raise UserError(
                    f"data.{files}: rows have the {AGENT_NAME} {name!r}, and there is no such agent loop{nearest(name, loops)}; "
                    f"{way_out}"
                )
        silent = {name for name in names if name != VERL_TOOL_LOOP and loops.get(name, "").startswith("verl.")}
        if silent and (wm.environment is not None or (files == "train_files" and silent == names)):
            raise UserError(
                f"data.{files}: rows have the {AGENT_NAME} {min(silent)!r}, which calls no tools; {way_out}"
            )


def _load_yaml(path: str) -> list[Any] | None:
    """Return a file of verl's that lists loops; None if it cannot be read here, which verl says later."""
    from verl.utils.import_utils import resolve_config_path

    try:
        return [entry for entry in OmegaConf.load(resolve_config_path(path)) if OmegaConf.is_dict(entry)]
    except Exception:
        return None


def _declared_tools(config: Any, wm: WorldModelConfig) -> set[str] | None:
    """Return the names of the tools that the policy may call; None if they are only known where rollouts are made."""
    from verl.tools.function_tool import load_function_tools_from_path
    from verl.utils.import_utils import resolve_config_path

    if all(one.tool_names is None for one in wm.objectives.values()) or _loop_name(config) != AGENT_LOOP:
        return None
    if wm.environment is not None:
        return {name for environment in wm.classes().values() for name in tool_names(environment)}
    multi_turn, names = config.actor_rollout_ref.rollout.multi_turn, set()
    try:
        if path := multi_turn.get("tool_config_path"):
            # not made, as verl does it: a tool may start processes; one without a schema here names itself
            entries = OmegaConf.load(resolve_config_path(path)).tools
            names |= {str(entry.tool_schema.function.name) for entry in entries}
        if path := multi_turn.get("function_tool_path"):
            names |= {tool.name for tool in load_function_tools_from_path(resolve_config_path(path))}
    except Exception:  # verl says what is wrong with a user's files
        return None
    return names or None


def _check_rewards(config: Any, wm: WorldModelConfig) -> None:
    """Refuse environments without `get_reward` where nothing else gives a reward."""
    without = [cls.__name__ for cls in wm.classes().values() if not hasattr(cls, "get_reward")]
    if not without:
        return
    reward = config.reward
    if reward.get("num_workers") == 0:
        raise UserError(
            f"{without[0]} has no get_reward, and reward.num_workers=0 asks no other reward; write 1 or more"
        )
    manager = reward.reward_manager
    if (
        (reward.get("custom_reward_function") or {}).get("path")
        or (reward.get("reward_model") or {}).get("enable")
        or manager.get("source") != "register"
        or not _is_verls(manager.get("name"))
    ):
        return
    for source in _column(config, "train_files", "data_source"):
        if not _verl_scores(source):
            rows = "" if source is None else f" (verl has none for rows of data_source {shown(source)})"
            raise UserError(
                f"{without[0]} has no get_reward, and no reward is configured{rows}; write get_reward, or wm.reward=NAME with "
                "'+wm=[echo,reward]', or reward.custom_reward_function.path=FILE"
            )


def _check_predictions(config: Any, wm: WorldModelConfig) -> None:
    """Refuse advantages of turns where the policy's loss has one advantage a trajectory, or verl's own trainer runs."""
    if wm.prediction_reward is None or not wm.prediction_reward.of_turns:
        return
    mode = config.actor_rollout_ref.actor.policy_loss.get("loss_mode", "vanilla")
    if mode in _LOSSES_OF_TRAJECTORIES:
        raise UserError(
            f"actor.policy_loss.loss_mode is {mode}, which averages the advantages of a trajectory's tokens; write another one, "
            "or wm.prediction_reward.level=sum"
        )
    trainer = config.trainer.v1.trainer_mode
    if trainer not in TRAINER_MODES.values():
        raise UserError(
            f"trainer.v1.trainer_mode is {shown(trainer)}, and advantages of turns are added by our trainers; write "
            f"trainer.v1.trainer_mode={TRAINER_MODES.get(trainer, TRAINER_MODE)}, or wm.prediction_reward.level=sum"
        )


def _is_verls(manager: Any) -> bool:
    """Return whether a reward manager is one of verl's, which ask a function by the rows' `data_source`."""
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

    try:
        return bool(get_reward_manager_cls(manager).__module__.startswith("verl."))
    except Exception:  # there is none of this name here
        return False


def _column(config: Any, field: str, name: str) -> Iterator[str | None]:
    """Yield the values of a column of texts in the files of `data` as far as they lie here; None for rows or files without it.

    Of a file of JSON lines the first row is read.
    """
    if (config.data.get("custom_cls") or {}).get("path"):
        return
    files = config.data.get(field)
    for file in [files] if isinstance(files, str) else files or ():
        if "://" in file:
            continue
        path = Path(file).expanduser()
        try:
            if path.suffix == ".parquet":
                with pyarrow.parquet.ParquetFile(path) as table:
                    values = table.read([name])[name].unique().to_pylist()
                yield from (None if value is None else str(value) for value in values)
            else:
                with path.open(encoding="utf-8") as lines:
                    yield loads(lines.readline()).get(name)
        except (OSError, LookupError, ValueError, AttributeError, pyarrow.ArrowException):
            yield None


def _verl_scores(source: str | None) -> bool:
    """Return whether verl's own reward function knows a `data_source`."""
    from verl.utils.reward_score import default_compute_score

    try:
        default_compute_score(str(source), "", "")
    except NotImplementedError:
        return False
    except Exception:  # it has begun to score
        return True
    return True


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


def _check_optimizer(actor: Any) -> None:
    """Refuse Muon where a worker would stop, with Ray running."""
    optim = actor.get("optim") or {}
    name = optim.get("optimizer")
    if name == "Muon":
        raise UserError(
            "actor.optim.optimizer is Muon, which takes matrices alone; write actor.optim.optimizer=MuonWithAdamW "
            f"actor.optim.optimizer_impl={optimizers.__name__}"
        )
    if name == optimizers.MuonWithAdamW.__name__:
        optimizers.check_torch()
        if actor.strategy != "fsdp2":
            way = (
                "actor.optim.optimizer=muon, Megatron's own" if actor.strategy == "megatron" else "actor.strategy=fsdp2"
            )
            raise UserError(
                f"actor.optim.optimizer is {name} and actor.strategy {actor.strategy}, which leaves no matrices; write {way}"
            )


def refusal(config: Any, wm: WorldModelConfig) -> str | None:
    """Return why the term could not be exact in this run, and the way out; None if it is."""
    mode = config.trainer.v1.trainer_mode
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    if problem := SUPPORTED.problem(verl.__version__):
        return problem
    if moved := missing_hooks():
        return f"verl {verl.__version__} lacks what the world-model term needs: {'; '.join(moved)}; install another version"
    if not config.trainer.get("use_v1", True):
        return "trainer.use_v1 is false: the legacy trainer has no hooks for the world-model term; write trainer.use_v1=true"
    if mode not in TRAINER_MODES.values():
        return (
            f"trainer.v1.trainer_mode is {mode!r}: the columns of the world-model term are written by our trainers, which are "
            f"subclasses of verl's for {', '.join(TRAINER_MODES)}; write trainer.v1.trainer_mode="
            f"{TRAINER_MODES.get(mode, TRAINER_MODE)}"
        )
    if rollout.temperature != 1.0 and not all(one.tempered for one in wm.objectives.values()):
        return (
            f"rollout.temperature is {rollout.temperature}: the actor's log-probabilities are divided by it and are not the "
            "model's; write actor_rollout_ref.rollout.temperature=1.0, or wm.tempered=true for the tempered likelihood"
        )
    try:
        wm.objectives.check_split(_micro_batches(config))
    except UserError as error:
        return str(error)
    if actor.strategy not in STRATEGIES:
        return f"actor.strategy is {actor.strategy!r}; the world-model term is known to be exact on {', '.join(STRATEGIES)}"
    megatron = (actor.get("megatron") or {}) if actor.strategy == "megatron" else {}
    if megatron.get("dynamic_context_parallel", False):
        return (
            "actor.megatron.dynamic_context_parallel is true: it spreads one batch over all ranks, for which the count of "
            "environment tokens is not known to be exact; set it to false"
        )
    if (ranks := megatron.get("context_parallel_size") or 1) > 1:
        return (
            f"actor.megatron.context_parallel_size is {ranks}: there the engine multiplies the whole loss by a count of tokens, "
            "and Megatron divides it by one that is rounded down in each micro-batch, so that the term is not exact; set it to 1"
        )
    if problem := _foreign_loop(config):
        return problem
    distillation = config.get("distillation")
    if distillation is not None and distillation.get("enabled", False):
        return "distillation.enabled is true: with it the actor may compute no log-probabilities of its own; turn one of them off"
    return None


def _micro_batches(config: Any) -> int:
    """Return how many micro-batches a rank's share of a mini-batch has, by rows; 2 or more where lengths decide."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    size = actor.get("ppo_micro_batch_size_per_gpu")
    if actor.get("use_dynamic_bsz") or not size:
        return 2
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    return max(1, math.ceil(actor.ppo_mini_batch_size * rollout.n / ranks / size))


def check_tokenizer(
    tokenizer: Any,
    processor: Any,
    chat_template_kwargs: Any,
    model_type: str | None,
    reminder: str | None = None,
    *,
    parallel: bool = True,
) -> None:
    """Refuse a tokenizer or a chat template by which the content of tool results cannot be located.

    `reminder` is what follows them in the protocol of tags. `model_type` is that of the model's config.json, by which verl
    chooses how turns are joined. `parallel`: whether several calls of a turn are run.
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
    try:
        builder = create_continuous_token_builder(
            tokenizer,
            hf_model_type=model_type,
            chat_template_kwargs=chat_template_kwargs,
            processor=None,
        )
        probe(builder, reminder, parallel=parallel)
    except SpanError as error:
        raise UserError(str(error)) from error
    except (
        Exception
    ) as error:  # verl's builders refuse a template by a ValueError; the template itself may raise anything
        reason = str(error).strip().partition("\n")[0]
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise UserError(f"verl refuses the chat template for tool results: {kind}{reason}") from error
