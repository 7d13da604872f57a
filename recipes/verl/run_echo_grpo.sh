#!/usr/bin/env bash
# ECHO on GRPO, 7B on 8 GPUs. Further arguments override the YAML: ./run_echo_grpo.sh wm.coeff=0.005
set -euo pipefail
rows=(python -m wm_plugin.verl.data --rows wm_plugin.worlds.sql:dataset_rows)
[ -f runs/sql/train.parquet ] || "${rows[@]}" --kwargs '{"count": 20000, "seed": 0}' --out runs/sql/train.parquet
[ -f runs/sql/test.parquet ] || "${rows[@]}" --kwargs '{"count": 256, "seed": 1, "held_out": true}' --out runs/sql/test.parquet
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name echo_grpo "$@"
