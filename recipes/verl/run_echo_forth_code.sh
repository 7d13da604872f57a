#!/usr/bin/env bash
# ECHO (code) on forth-lang, 4B on 8 GPUs, episodes of TURNS turns (200). Further arguments override the YAML:
# TURNS=10 ./run_echo_forth_code.sh wm.coeff=0.05
set -euo pipefail
turns=${TURNS:-200}
folder=runs/forth
rows=(python -m wm_plugin.verl.data --rows wm_plugin.environments.mixture:dataset_rows)
[ -f $folder/train_"$turns".parquet ] || "${rows[@]}" --data-source forth --out $folder/train_"$turns".parquet \
  --kwargs "{\"environments\": {\"forth\": {\"count\": 432, \"max_turns\": $turns}}}"
[ -f $folder/test_"$turns".parquet ] || "${rows[@]}" --data-source forth --out $folder/test_"$turns".parquet \
  --kwargs "{\"environments\": {\"forth\": {\"count\": 64, \"max_turns\": $turns}}, \"seed\": 1, \"held_out\": true}"
for world in docs wordle sql; do
  [ -f $folder/$world.parquet ] || "${rows[@]}" --data-source $world --out $folder/$world.parquet \
    --kwargs "{\"environments\": {\"$world\": 64}, \"seed\": 1, \"held_out\": true}"
done
settings=()
if [ "$turns" != 200 ]; then
  limit=$((turns > 12 ? turns : 12))  # the other worlds' own; forth ends its episodes by itself
  settings=("wm.max_turns=$((limit + 1))" "data.train_files=$folder/train_$turns.parquet"
    "data.val_files=[$folder/test_$turns.parquet,$folder/docs.parquet,$folder/wordle.parquet,$folder/sql.parquet]")
fi
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name echo_forth_code "${settings[@]}" "$@"
