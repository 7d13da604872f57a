#!/usr/bin/env bash
# Qwen-AgentWorld's GSPO with a rubric and rules, tiny, on a CPU: real transitions of the SQL tasks, WM-SFT, and then the reward
# of a judge on localhost that compares words. Further arguments override the YAML: ./run_agentworld_gspo_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -f runs/rwml_sft_tiny/config.json ] || "$here/run_rwml_sft_tiny.sh"
work=runs/agentworld_tiny data=(python -m wm_plugin.cli.main data)
rows=(--as agentworld --prompts "$here/rwml_tiny_prompts.yaml" --domain mcp --host trl)
mkdir -p $work/data
[ -f $work/one.validation.jsonl ] ||
  "${data[@]}" expand runs/rwml_tiny/rollouts.jsonl --turns one --out $work/one.jsonl --validation-share 0.3
[ -f $work/data/train.jsonl ] || "${data[@]}" build $work/one.jsonl "${rows[@]}" --out $work/data/train.jsonl
[ -f $work/data/test.jsonl ] || "${data[@]}" build $work/one.validation.jsonl "${rows[@]}" --out $work/data/test.jsonl
exec python -m wm_plugin.tiny.judge python -m wm_plugin.trl.train --config "$here/agentworld_gspo_tiny.yaml" "$@"
