#!/usr/bin/env bash
# RWML on GSPO, tiny, on CPUs, from a checkout. Further arguments override the YAML: ./run_rwml_gspo_tiny.sh data.seed=1
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tests=${here%/*/*}/tests
[ -d "$tests/support/verl_cpu" ] || { echo "${0##*/} runs from a checkout only: there is no $tests/support/verl_cpu" >&2; exit 2; }
export PYTHONPATH="$tests${PYTHONPATH:+:$PYTHONPATH}" VERL_USE_EXTERNAL_MODULES=wm_plugin.verl,support.verl_cpu
[ -f runs/rwml_sft_tiny/global_step_180/huggingface/config.json ] || bash "$here/run_rwml_sft_tiny.sh"
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name rwml_gspo_tiny "$@"
