#!/usr/bin/env bash
# ECHO (all) with evaluations on several worlds, tiny, on CPUs, from a checkout. Further arguments override the YAML:
# ./run_echo_forth_all_tiny.sh wm.coeff=0
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tests
[ -d "$tests/support/verl_cpu" ] || { echo "${0##*/} runs from a checkout only: there is no $tests/support/verl_cpu" >&2; exit 2; }
export PYTHONPATH="$tests${PYTHONPATH:+:$PYTHONPATH}" VERL_USE_EXTERNAL_MODULES=wm_plugin.verl,support.verl_cpu
policy=runs/tiny_verl
[ -f $policy/config.json ] || python -m wm_plugin.tiny --out $policy --seed 0
rows=(python -m wm_plugin.verl.data --rows wm_plugin.environments.mixture:dataset_rows)
[ -f $policy/worlds.parquet ] || "${rows[@]}" --data-source worlds --out $policy/worlds.parquet \
  --kwargs '{"environments": {"grid": 240, "forth": {"count": 16, "max_turns": 4}}}'
[ -f $policy/grid_test.parquet ] || "${rows[@]}" --data-source grid --out $policy/grid_test.parquet \
  --kwargs '{"environments": {"grid": 8}, "seed": 1, "held_out": true}'
[ -f $policy/forth_test.parquet ] || "${rows[@]}" --data-source forth --out $policy/forth_test.parquet \
  --kwargs '{"environments": {"forth": {"count": 4, "max_turns": 4}}, "seed": 1, "held_out": true}'
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name echo_forth_all_tiny "$@"
