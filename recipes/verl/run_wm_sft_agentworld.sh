#!/usr/bin/env bash
# World model by SFT with thinking (Qwen-AgentWorld), 7B on 8 GPUs. TRAJECTORIES is a file of rollouts in any format that wm
# data convert reads, other ones than the other stages'; DOMAIN names the prompts. SERVER and SERVER_MODEL are a reasoning model
# that predicts, JUDGE and JUDGE_MODEL an independent one that scores and compares; THRESHOLD (0.6 of 1, ours: the paper does
# not say) is what a winner must reach. Further arguments override the YAML: ./run_wm_sft_agentworld.sh optim.lr=5e-6
set -euo pipefail
domain=${DOMAIN:?mcp, search, terminal, swe, android, web or os}
work=runs/wm_sft_agentworld out=$work/verl.parquet data=(python -m wm_plugin.cli.main data)
judge="{\"base_url\": \"${JUDGE:?the address of a judge}\", \"model\": \"${JUDGE_MODEL:?its name}\"}"
mkdir -p "$work"
[ -f "$work/rollouts.jsonl" ] ||
  "${data[@]}" filter "${TRAJECTORIES:?a file of rollouts}" --domain "$domain" --out "$work/rollouts.jsonl"
[ -f "$work/one.jsonl" ] || "${data[@]}" expand "$work/rollouts.jsonl" --turns one --out "$work/one.jsonl"
[ -f "$out" ] || "${data[@]}" best "$work/one.jsonl" --prompts "$domain" --turn-information --n 3 \
  --server "${SERVER:?the address of a reasoning model}" --server-model "${SERVER_MODEL:?its name}" --max-new-tokens 8192 \
  --judge rubric --judge-args "{\"server\": $judge, \"scale\": \"unit\"}" \
  --compare reference --compare-args "{\"server\": $judge}" --threshold "${THRESHOLD:-0.6}" \
  --host verl --out "$out" --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 16384
exec torchrun --standalone --nproc_per_node=8 -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name wm_sft_agentworld "$@"
