#!/usr/bin/env bash
# ECHO on forth-lang or deepdive by a host (trl or verl) and a recipe of it, in episodes of TURNS turns (200): the rows, and the trainer.
# On forth-lang RUN takes the settings of another run of the paper: 500 (so many steps; batch 256, groups of 16, alpha 0.05; and 1.0) or
# glm (GLM-4.5-Air; batch 128, groups of 16, alpha 0.005, and 0.05, signSGD). run_echo_{forth_all,forth_code,deepdive}.sh call it, and
# pass on what overrides all of it. LAUNCH has further flags of accelerate launch, for several machines.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
host=$1 recipe=$2 turns=${TURNS:-200} run=${RUN:-} settings=()
case $recipe in *deepdive) world=deepdive other=forth count=2230 ;; *) world=forth other=deepdive count=432 ;; esac
limit=$((turns > 12 ? turns : 12)) # the other worlds' own; forth and deepdive end their episodes by themselves

rows() { echo "{\"environments\": {\"$1\": {\"count\": $2, \"max_turns\": $3}}${4:-}}"; }
own() { echo "{\"environments\": {\"$1\": 64}$apart}"; }
apart=', "seed": 1, "held_out": true'
train=$(rows $world $count "$turns")
held_out=$(rows $world 64 "$turns" "$apart")
elsewhere=$(rows $other 64 "$limit" "$apart")

case "$host $world $run" in
  "trl forth 500") # ours: 8 GPUs, so 1 x 8 x 32 completions a step
    settings=(--max_steps 500 --num_generations 16 --gradient_accumulation_steps 32 --echo_coeff 0.05) ;;
  "trl forth glm") # ours: 32 GPUs, so 1 x 32 x 4; the steps, since the paper says "after around 500"; vLLM over 8 GPUs
    settings=(--model_name_or_path zai-org/GLM-4.5-Air --max_steps 500 --num_generations 16 --gradient_accumulation_steps 4
      --echo_coeff 0.005 --optimizer sign_sgd --vllm_tensor_parallel_size 8 --vllm_gpu_memory_utilization 0.45) ;;
  "verl forth 500")
    settings=(trainer.total_training_steps=500 trainer.total_epochs=19 actor_rollout_ref.rollout.n=16 wm.coeff=0.05) ;;
  "verl forth glm")
    settings=(actor_rollout_ref.model.path=zai-org/GLM-4.5-Air trainer.total_training_steps=500 trainer.total_epochs=10
      data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.rollout.n=16 wm.coeff=0.005
      actor_rollout_ref.actor.optim.optimizer=SignSGD trainer.nnodes=4 actor_rollout_ref.rollout.tensor_model_parallel_size=8
      actor_rollout_ref.rollout.multi_turn.format=glm) ;;
  *" ") ;;
  *) echo "echo.sh: RUN is '$run'; write 500 or glm, of forth-lang, or leave it out" >&2; exit 2 ;;
esac

if [ "$host" = trl ]; then
  if [ "$turns" != 200 ]; then
    evaluations="{\"$world\": $held_out, \"$other\": $elsewhere, \"wordle\": $(own wordle), \"sql\": $(own sql)}"
    settings+=(--max_tool_calling_iterations "$limit" --train_rows_kwargs "$train" --eval_rows_kwargs "$evaluations")
  fi
  # shellcheck disable=SC2086 # several words
  exec accelerate launch --config_file "$recipes/trl/accelerate_fsdp2.yaml" ${LAUNCH:-} -m wm_plugin.trl.train \
    --config "$recipes/trl/$recipe.yaml" "${settings[@]}" "${@:3}"
fi

folder=runs/$world
worlds "$folder/train_$turns.parquet" $world "$train"
worlds "$folder/test_$turns.parquet" $world "$held_out"
worlds "$folder/${other}_$limit.parquet" $other "$elsewhere"
for name in wordle sql; do worlds $folder/$name.parquet $name "$(own $name)"; done
if [ "$turns" != 200 ]; then
  settings+=("wm.max_turns=$((limit + 1))" "data.train_files=$folder/train_$turns.parquet"
    "data.val_files=[$folder/test_$turns.parquet,$folder/${other}_$limit.parquet,$folder/wordle.parquet,$folder/sql.parquet]")
fi
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name "$recipe" "${settings[@]}" "${@:3}"
