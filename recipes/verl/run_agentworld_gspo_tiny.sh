#!/usr/bin/env bash
# Qwen-AgentWorld's GSPO with a rubric and rules, tiny, on CPUs, from a checkout: real transitions of the SQL tasks, WM-SFT, and
# then the reward of a judge on localhost that compares words. Further arguments override the YAML:
# ./run_agentworld_gspo_tiny.sh data.seed=1
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tests=${here%/*/*}/tests
[ -d "$tests/support/verl_cpu" ] || { echo "${0##*/} runs from a checkout only: there is no $tests/support/verl_cpu" >&2; exit 2; }
export PYTHONPATH="$tests${PYTHONPATH:+:$PYTHONPATH}" VERL_USE_EXTERNAL_MODULES=wm_plugin.verl,support.verl_cpu
[ -f runs/rwml_sft_tiny/global_step_180/huggingface/config.json ] || bash "$here/run_rwml_sft_tiny.sh"
work=runs/agentworld_tiny data=(python -m wm_plugin.cli.main data)
rows=(--as agentworld --prompts "${here%/*}/trl/rwml_tiny_prompts.yaml" --domain mcp --host verl)
mkdir -p $work
[ -f $work/one.validation.jsonl ] ||
  "${data[@]}" expand runs/rwml_tiny/rollouts.jsonl --turns one --out $work/one.jsonl --validation-share 0.3
[ -f $work/train.parquet ] || "${data[@]}" build $work/one.jsonl "${rows[@]}" --out $work/train.parquet
[ -f $work/test.parquet ] || "${data[@]}" build $work/one.validation.jsonl "${rows[@]}" --out $work/test.parquet --split test
exec python -m wm_plugin.tiny.judge python -m verl.trainer.main_ppo \
  --config-path pkg://wm_plugin.recipes.verl --config-name agentworld_gspo_tiny "$@"
