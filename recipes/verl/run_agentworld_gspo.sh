#!/usr/bin/env bash
# Qwen-AgentWorld's GSPO with a judge's rubric and rules, 7B on 8 GPUs. TRAJECTORIES is a file of rollouts in any format that wm
# data convert reads, other ones than the other stages'; DOMAIN names the prompts; the judge's server runs beside it. One turn
# of each trajectory is predicted; a twentieth of the tasks is held out (ours). For several domains in one training, as the paper
# has it, DOMAIN="mcp search terminal swe android web os", and TRAJECTORIES is a folder with mcp.jsonl and so on.
# Further arguments override the YAML:
# ./run_agentworld_gspo.sh actor_rollout_ref.rollout.n=16
set -euo pipefail
bash "$(dirname "${BASH_SOURCE[0]}")/../pipelines/agentworld_gspo.sh" verl
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name agentworld_gspo "$@"
