#!/usr/bin/env bash
# World model by SFT with thinking (Qwen-AgentWorld), 7B on 8 GPUs. TRAJECTORIES is a file of rollouts in any format that wm
# data convert reads, other ones than the other stages'; DOMAIN names the prompts. SERVER and SERVER_MODEL are a reasoning model
# that predicts, JUDGE and JUDGE_MODEL an independent one that scores and compares; THRESHOLD (0.6 of 1, ours: the paper does
# not say) is what a winner must reach. Further arguments override the YAML: ./run_wm_sft_agentworld.sh --learning_rate 5e-6
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/wm_sft.sh" trl wm_sft_agentworld
exec trl sft --config "$here/wm_sft_agentworld.yaml" --accelerate_config "$here/accelerate_fsdp2.yaml" "$@"
