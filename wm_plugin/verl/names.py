"""Every name by which verl, or another of our processes on verl, finds our code and data. Imports nothing."""

# In a run's config.
TRAINER_MODE = "world_model"  # trainer.v1.trainer_mode, synchronous
TRAINER_MODES = {  # verl's -> ours
    "sync": TRAINER_MODE,
    "colocate_async": f"{TRAINER_MODE}_colocate_async",
    "separate_async": f"{TRAINER_MODE}_separate_async",
}
AGENT_LOOP = "wm_tool_agent"  # actor_rollout_ref.rollout.agent.default_agent_loop
AGENT_NAME = "agent_name"  # verl's column of a dataset that names a row's agent loop
VERL_TOOL_LOOP = "tool_agent"  # verl's name of the loop that ours is built on
SEARCH_PATH = "pkg://wm_plugin.recipes.verl"  # hydra.searchpath
SAMPLER_MODULE = "pkg://wm_plugin.verl.sampler"  # trainer.v1.sampler.custom_sampler.path
REWARDS_MODULE = "pkg://wm_plugin.verl.rewards"  # reward.reward_manager.module.path
CPU_ROLLOUT = "hf_cpu"  # actor_rollout_ref.rollout.name, where VERL_PLATFORM is cpu
TINY_PARSER = "wm_tiny"  # actor_rollout_ref.rollout.multi_turn.format of the tiny recipes
REWARD_MANAGER = "BatchedRewardManager"  # reward.reward_manager.name, in that module

# Fields of a trajectory's `extra_fields`: written by the agent loop, read by the trainer.
ORIGINS = "wm_origins"  # `tokens.spans.Origin.pack` of each span of environment tokens
ERROR = "wm_error"  # why the origins are missing
TOOLS = "wm_tools"  # the names of the tools that the policy may call
RESULTS = "wm_results"  # [how many results its calls had, how many of them verl cut at max_tool_response_length]
INFO = "wm_info"  # the environment's figures; a reward worker overwrites verl's own `reward_extra_info`
SCORES = "wm_scores"  # the score of each turn's prediction; None: the turn is not scored
MESSAGES = "wm_messages"  # the completion's messages, for `select_rollout`
PROMPT = "wm_prompt"  # the prompt's messages and tools (`dumps.Shown`), where verl dumps rollouts

# Columns of the prompts: written by the trainer, read by the agent loop.
MAX_TURNS = "wm_max_turns"  # this step's turn budget
TRAINING = "wm_training"  # this step's factor of a control's rates, 1.0 without a curriculum; validations have none

# Columns of the actor's batch: written by the trainer, read by the workers.
# Each objective has its own, by its name in the run (see `objectives.run.column`).
WEIGHTS = "wm_weights"  # (rows, response) float32, 0 = the token does not count
TOOL_IDS = "wm_tool_ids"  # (rows, response) int16, 0 = not selected, k = the k-th tool
COUNTS = "wm_counts"  # (rows, 1) int64: what the row adds to N

# Single values that travel with that batch, one for each objective.
COEFF = "wm_coeff"
NUM_TOOLS = "wm_num_tools"
NUM_TOKENS = "wm_num_tokens"  # N of the mini-batch, over all ranks; written by the worker
SENT = (WEIGHTS, TOOL_IDS, COUNTS, COEFF, NUM_TOOLS)  # by the trainer
SILENT = "wm_silent"  # 1.0 if all advantages of the mini-batch are 0; one value, written by the worker

# Metrics of the workers, which the trainer takes apart.
SUMS = "wm_sums"  # prefix of the sums behind an objective's figures
