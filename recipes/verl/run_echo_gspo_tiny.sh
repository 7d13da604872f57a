#!/usr/bin/env bash
# ECHO on GSPO, tiny, on CPUs, from a checkout. Further arguments override the YAML: ./run_echo_gspo_tiny.sh wm.coeff=0
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tests
[ -d "$tests/support/verl_cpu" ] || { echo "${0##*/} runs from a checkout only: there is no $tests/support/verl_cpu" >&2; exit 2; }
export PYTHONPATH="$tests${PYTHONPATH:+:$PYTHONPATH}" VERL_USE_EXTERNAL_MODULES=wm_plugin.verl,support.verl_cpu
policy=runs/tiny_random
[ -f $policy/config.json ] || python -m wm_plugin.tiny --out $policy --seed 0 --random
[ -f $policy/grid.parquet ] || python -m wm_plugin.verl.data --rows wm_plugin.environments.grid:dataset_rows \
  --kwargs '{"count": 960, "seed": 0}' --out $policy/grid.parquet
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name echo_gspo_tiny "$@"
