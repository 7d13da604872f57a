#!/usr/bin/env bash
# ECHO on forth-lang by a host (trl or verl) and a recipe of it, in episodes of TURNS turns (200): the rows, and the trainer.
# run_echo_forth_all.sh and run_echo_forth_code.sh call it, and pass on what overrides the YAML.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
host=$1 recipe=$2 turns=${TURNS:-200} settings=()
limit=$((turns > 12 ? turns : 12))  # the other worlds' own; forth ends its episodes by itself
train="{\"environments\": {\"forth\": {\"count\": 432, \"max_turns\": $turns}}}"
held_out="{\"environments\": {\"forth\": {\"count\": 64, \"max_turns\": $turns}}, \"seed\": 1, \"held_out\": true}"

other() { echo "{\"environments\": {\"$1\": 64}, \"seed\": 1, \"held_out\": true}"; }

if [ "$host" = trl ]; then
  if [ "$turns" != 200 ]; then
    evaluations="{\"forth\": $held_out, \"docs\": $(other docs), \"wordle\": $(other wordle), \"sql\": $(other sql)}"
    settings=(--max_tool_calling_iterations "$limit" --train_rows_kwargs "$train" --eval_rows_kwargs "$evaluations")
  fi
  exec accelerate launch --config_file "$recipes/trl/accelerate_fsdp2.yaml" -m wm_plugin.trl.train \
    --config "$recipes/trl/$recipe.yaml" "${settings[@]}" "${@:3}"
fi

folder=runs/forth
worlds "$folder/train_$turns.parquet" forth "$train"
worlds "$folder/test_$turns.parquet" forth "$held_out"
for world in docs wordle sql; do worlds $folder/$world.parquet $world "$(other $world)"; done
if [ "$turns" != 200 ]; then
  settings=("wm.max_turns=$((limit + 1))" "data.train_files=$folder/train_$turns.parquet"
    "data.val_files=[$folder/test_$turns.parquet,$folder/docs.parquet,$folder/wordle.parquet,$folder/sql.parquet]")
fi
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name "$recipe" "${settings[@]}" "${@:3}"
