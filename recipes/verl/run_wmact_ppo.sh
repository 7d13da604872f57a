#!/usr/bin/env bash
# WMAct on PPO, 7B on 8 GPUs, Sokoban. Further arguments override the YAML: ./run_wmact_ppo.sh wm.turn_budget.every=50
# Its levels take some ten minutes to make, once.
set -euo pipefail
# train, and a set for every level, in many turns and in one (as the paper scores it)
rows() {
  [ -f "runs/wmact/$1.parquet" ] || python -m wm_plugin.verl.data --rows wm_plugin.environments.mixture:dataset_rows \
    --kwargs "{\"environments\": {\"$2\": {$3}}, \"seed\": $4}" --data-source "$1" --out "runs/wmact/$1.parquet"
}
both() {
  rows "$1" "$2" "\"count\": 256, \"held_out\": true$3" 1
  rows "$1_single" "$2" "\"count\": 256, \"held_out\": true, \"max_turns\": 1$3" 1
}
rows train sokoban '"count": 10000' 0
both sokoban sokoban ''
both sokoban_hard-1 sokoban ', "level": "hard-1"'
both sokoban_hard-2 sokoban ', "level": "hard-2"'
both maze maze ', "view": "wmact"'
both maze_hard-1 maze ', "view": "wmact", "level": "hard-1"'
both taxi_256_over_60 taxi ', "repeat": true'
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name wmact_ppo "$@"
