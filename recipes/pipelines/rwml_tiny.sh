#!/usr/bin/env bash
# RWML's data of a small world, from the world to the rows of a host (trl or verl), in runs/rwml_pipeline_tiny, on a CPU.
# run_rwml_pipeline_tiny.sh calls it: the same steps as for ALFWorld and τ²-bench, with less of everything.
#
# A model of 0.16M parameters can neither act nor write an answer, so that a wanderer acts, and the filter model is the start of the
# training too; validation is on rows that are held out in the world. Ours, as is every number here.
#   WORLD=textworld TASKS=40 PER_TASK=3   other worlds, and more of them (sql, 24 tasks, 3 rollouts each)
#   EMBEDDING_MODEL=PATH                  for worlds that speak themselves or by users, a model for sentence-transformers
#   SEED=1 SFT_STEPS=180 K=4              of everything that is drawn; of the filter model; predictions a transition
set -euo pipefail
host=$1 work=runs/rwml_pipeline_tiny model=runs/rwml_pipeline_tiny/random longest=96 share=0.3
held_out=$work/held_out.jsonl threshold=(--target-easy-share 0.3) changes=(--mask-values --profile)
source "$(dirname "${BASH_SOURCE[0]}")/rwml.sh"
prompts=$recipes/trl/rwml_tiny_prompts.yaml
if [ -n "${TRAJECTORIES:-}" ]; then held_out=$work/transitions.validation.jsonl; fi
world=${WORLD:-sql} seed=${SEED:-0}

rollouts() {
  local tasks=${TASKS:-24} episodes=(--policy random --max-turns "${TURNS:-12}" --seed "$seed")
  made "$work/rollouts.held_out.jsonl" wm env rollout "$world" "${episodes[@]}" --count $((tasks / 3)) --held-out \
    --out "$work/rollouts.held_out.jsonl"
  made "$held_out" wm data filter "$work/rollouts.held_out.jsonl" --out "$held_out" --filters $rwml_filters "${changes[@]}"
  wm env rollout "$world" "${episodes[@]}" --count "$tasks" --per-task "${PER_TASK:-3}" --out "$work/rollouts.jsonl"
}

filter_model() {
  local steps=${SFT_STEPS:-180} rows=$work/filter/$host.parquet
  made "$model/config.json" python -m wm_plugin.lab.tiny --out "$model" --seed "$seed" --random --texts
  made "$rows" wm data build "$work/transitions.validation.jsonl" --as rwml-sft --host "$host" --prompts "$prompts" --out "$rows" \
    --tokenizer "$model" --max-tokens 256
  if [ "$host" = trl ]; then
    filter=$work/filter
    sed "s#runs/rwml_tiny/sft#$filter/trl#; s#runs/rwml_tiny#$work#; s#runs/rwml_sft_tiny#$filter#" \
      "$recipes/trl/rwml_sft_tiny.yaml" > "$filter/sft.yaml"
    made "$filter/config.json" trl sft --config "$filter/sft.yaml" --max_steps "$steps" --seed "$seed" --disable_tqdm true
  else
    filter=$work/filter/global_step_$steps/huggingface
    made "$filter/config.json" torchrun --standalone --nproc_per_node=1 -m verl.trainer.sft_trainer \
      --config-path pkg://wm_plugin.recipes.verl --config-name rwml_sft_tiny model.path="$model" data.train_files="$rows" \
      trainer.default_local_dir="$work/filter" trainer.total_training_steps="$steps" trainer.save_freq=-1
  fi
}

easy() {
  wm data easy "$work/transitions.jsonl" --out "$work/hard.jsonl" --prompts "$prompts" --filter-model "$filter" \
    --max-new-tokens 100 --temperature 1 --k "${K:-4}" --tau-easy 0 --keep 0.1 "${threshold[@]}" --seed "$seed" \
    ${EMBEDDING_MODEL:+--embedding-model "$EMBEDDING_MODEL"}
}

rwml
