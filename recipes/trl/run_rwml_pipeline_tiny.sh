#!/usr/bin/env bash
# RWML from a world to a trained model, tiny, on a CPU: the steps of run_rwml_alfworld.sh and run_rwml_tau2.sh, and GRPO or GSPO
# (ALGORITHM=gspo). ../pipelines/rwml_tiny.sh says which variables there are: other worlds, and embeddings.
# Further arguments override the YAML: ./run_rwml_pipeline_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=runs/rwml_pipeline_tiny reward=()
bash "$here/../pipelines/rwml_tiny.sh" trl
if [ -n "${EMBEDDING_MODEL:-}" ]; then
  settings="{\"tag\": \"next_state\", \"model\": \"$EMBEDDING_MODEL\", \"threshold\": ${THRESHOLD:-0.2}, \"device\": \"cpu\"}"
  reward=(--rewards "{\"path\": \"rwml\", \"kwargs\": $settings}")
fi
exec python -m wm_plugin.trl.train --config "$here/rwml_${ALGORITHM:-grpo}_tiny.yaml" --model_name_or_path $work/filter \
  --dataset_name $work/data --output_dir $work/trl --seed "${SEED:-0}" "${reward[@]}" "$@"
