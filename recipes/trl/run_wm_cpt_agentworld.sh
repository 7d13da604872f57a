#!/usr/bin/env bash
# World model by continual pre-training (Qwen-AgentWorld), 7B on 8 GPUs. TRAJECTORIES is a file of rollouts in any format that
# wm data convert reads, other ones than the other stages'; DOMAIN names the prompts, and CORPUS files of your own texts (.txt,
# .md, .jsonl). Further arguments override the YAML: ./run_wm_cpt_agentworld.sh --learning_rate 5e-6
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
domain=${DOMAIN:?mcp, search, terminal, swe, android, web or os}
work=runs/wm_cpt_agentworld out=$work/trl.parquet data=(python -m wm_plugin.cli.main data) corpora=()
for file in ${CORPUS:-}; do corpora+=(--corpus "$file"); done
mkdir -p "$work"
[ -f "$work/rollouts.jsonl" ] ||
  "${data[@]}" filter "${TRAJECTORIES:?a file of rollouts}" --domain "$domain" --out "$work/rollouts.jsonl"
[ -f "$out" ] || "${data[@]}" build "$work/rollouts.jsonl" --as cpt --prompts "$domain" "${corpora[@]}" \
  --host trl --out "$out" --tokenizer Qwen/Qwen2.5-7B --max-tokens 16384
exec trl sft --config "$here/wm_cpt_agentworld.yaml" --accelerate_config "$here/accelerate_fsdp2.yaml" "$@"
