#!/usr/bin/env bash
# Qwen-AgentWorld's GSPO with a rubric and rules, tiny, on a CPU: real transitions of the SQL tasks, WM-SFT, and then the reward
# of a judge on localhost that compares words. Further arguments override the YAML: ./run_agentworld_gspo_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -f runs/rwml_sft_tiny/config.json ] || bash "$here/run_rwml_sft_tiny.sh"
bash "$here/../pipelines/agentworld_gspo_tiny.sh" trl
exec python -m wm_plugin.lab.tiny.judge python -m wm_plugin.trl.train --config "$here/agentworld_gspo_tiny.yaml" "$@"
