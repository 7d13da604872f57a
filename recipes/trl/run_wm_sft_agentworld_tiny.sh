#!/usr/bin/env bash
# World model by SFT with thinking (Qwen-AgentWorld), tiny, on a CPU: the best of three outputs of a server on localhost that
# guesses, by a judge there that compares words. Further arguments override the YAML: ./run_wm_sft_agentworld_tiny.sh
# --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/wm_sft_tiny.sh" trl wm_sft_agentworld_tiny
exec trl sft --config "$here/wm_sft_agentworld_tiny.yaml" "$@"
