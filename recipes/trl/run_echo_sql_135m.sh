#!/usr/bin/env bash
# ECHO on GRPO with SmolLM2-135M on the SQL tasks, from nothing to figures: the warm start, GRPO without the term and with it, and
# the figures of each model in runs/sql_135m/trl/figures.md. A step whose result is there is not done again.
# ../pipelines/sql_135m.sh says what --quick is, which comes first. Further arguments override the YAML in both arms:
# ./run_echo_sql_135m.sh --quick --max_steps 1
set -euo pipefail
host=trl
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/sql_135m.sh"
made "$work/trl/cloned/config.json" bash "$recipes/trl/run_clone_sql_135m.sh" ${quick:+--quick}
sizes=()
if [ -n "$quick" ]; then sizes=(--max_steps 1 --gradient_accumulation_steps 4); fi

arm() { # NAME FLAG...
  made "$work/trl/$1/training_args.bin" python -m wm_plugin.trl.train --config "$recipes/trl/echo_sql_135m.yaml" \
    --model_name_or_path "$work/trl/cloned" --output_dir "$work/trl/$1" --bf16 "$(bfloat16)" "${sizes[@]}" "${@:2}" "${rest[@]}"
}

figures start $model
figures cloned "$work/trl/cloned"
arm grpo --echo_coeff 0
arm echo
figures grpo "$work/trl/grpo"
figures echo "$work/trl/echo"
figures_table
