#!/usr/bin/env bash
# Qwen-AgentWorld's GSPO with a judge's rubric and rules, 7B on 8 GPUs. TRAJECTORIES is a file of rollouts in any format that wm
# data convert reads, other ones than the other stages'; DOMAIN names the prompts; the judge's server runs beside it. One turn
# of each trajectory is predicted; a twentieth of the tasks is held out (ours). Further arguments override the YAML:
# ./run_agentworld_gspo.sh --beta 0.01
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
domain=${DOMAIN:?mcp, search, terminal, swe, android, web or os}
work=runs/agentworld data=(python -m wm_plugin.cli.main data)
rows=(--as agentworld --prompts "$domain" --host trl --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 28672)
mkdir -p $work/data
[ -f $work/rollouts.jsonl ] ||
  "${data[@]}" filter "${TRAJECTORIES:?a file of rollouts}" --domain "$domain" --out $work/rollouts.jsonl
[ -f $work/one.validation.jsonl ] ||
  "${data[@]}" expand $work/rollouts.jsonl --turns one --out $work/one.jsonl --validation-share 0.05
[ -f $work/data/train.jsonl ] || "${data[@]}" build $work/one.jsonl "${rows[@]}" --out $work/data/train.jsonl
[ -f $work/data/test.jsonl ] || "${data[@]}" build $work/one.validation.jsonl "${rows[@]}" --out $work/data/test.jsonl
exec accelerate launch --config_file "$here/accelerate_fsdp2.yaml" -m wm_plugin.trl.train --config "$here/agentworld_gspo.yaml" "$@"
