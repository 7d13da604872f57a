#!/usr/bin/env bash
# WMAct on GRPO, 7B on 8 GPUs, Sokoban. Further arguments override the YAML: ./run_wmact_grpo.sh wm.turn_budget.every=50
# Its boards take six minutes to make, once.
set -euo pipefail
rows=(python -m wm_plugin.verl.data --rows wm_plugin.environments.sokoban:dataset_rows)
[ -f runs/sokoban/train.parquet ] || "${rows[@]}" --kwargs '{"count": 10000, "seed": 0}' \
  --data-source sokoban --out runs/sokoban/train.parquet
[ -f runs/sokoban/test.parquet ] || "${rows[@]}" --kwargs '{"count": 256, "seed": 1, "held_out": true}' \
  --data-source sokoban --out runs/sokoban/test.parquet
[ -f runs/sokoban/test_single.parquet ] || "${rows[@]}" --kwargs '{"count": 256, "seed": 1, "held_out": true, "max_turns": 1}' \
  --data-source sokoban_single --out runs/sokoban/test_single.parquet
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name wmact_grpo "$@"
