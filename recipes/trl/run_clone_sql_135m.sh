#!/usr/bin/env bash
# The warm start of SmolLM2-135M on the SQL tasks: the model's folder, an expert's episodes, and cloning of them.
# ../pipelines/sql_135m.sh says what --quick is, which comes first. Further arguments override the YAML:
# ./run_clone_sql_135m.sh --quick --learning_rate 5e-5
set -euo pipefail
host=trl
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/sql_135m.sh"
cloning_rows
config=$recipes/trl/clone_sql_135m.yaml
if [ -n "$quick" ]; then
  sed "s#runs/sql_135m#$work#; s#max_steps: .*#max_steps: 10#" "$config" > "$work/trl/clone.yaml"
  config=$work/trl/clone.yaml
fi
exec trl sft --config "$config" --bf16 "$(bfloat16)" "${rest[@]}"
