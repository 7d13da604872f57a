#!/usr/bin/env bash
# The warm start of SmolLM2-135M on the SQL tasks, on a CPU, from a checkout: the model's folder, an expert's episodes, and cloning
# of them. ../pipelines/sql_135m.sh says what --quick is, which comes first. Further arguments override the YAML:
# ./run_clone_sql_135m.sh --quick optim.lr=5e-5
set -euo pipefail
host=verl
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/sql_135m.sh"
cloning_rows
sizes=()
if [ -n "$quick" ]; then
  sizes=("data.train_files=$work/verl.parquet" "trainer.default_local_dir=$work/verl/cloned" trainer.total_training_steps=10)
fi
exec torchrun --standalone --nproc_per_node=1 -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name clone_sql_135m "${sizes[@]}" "${rest[@]}"
