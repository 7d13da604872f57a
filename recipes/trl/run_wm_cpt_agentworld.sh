#!/usr/bin/env bash
# World model by continual pre-training (Qwen-AgentWorld), 7B on 8 GPUs. TRAJECTORIES is a file of rollouts in any format that
# wm data convert reads, other ones than the other stages'; DOMAIN names the prompts, and CORPUS files of your own texts (.txt,
# .md, .jsonl). Further arguments override the YAML: ./run_wm_cpt_agentworld.sh --learning_rate 5e-6
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/wm_sft.sh" trl wm_cpt_agentworld
exec trl sft --config "$here/wm_cpt_agentworld.yaml" --accelerate_config "$here/accelerate_fsdp2.yaml" "$@"
