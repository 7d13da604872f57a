#!/usr/bin/env bash
# RWML from a world to a trained model, tiny, on CPUs, from a checkout: the steps of run_rwml_alfworld.sh and run_rwml_tau2.sh, and
# GRPO or GSPO (ALGORITHM=gspo). ../pipelines/rwml_tiny.sh says which variables there are: other worlds, and embeddings.
# Further arguments override the YAML: ./run_rwml_pipeline_tiny.sh trainer.total_training_steps=5
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
work=runs/rwml_pipeline_tiny reward=()
bash "$recipes/pipelines/rwml_tiny.sh" verl
if [ -n "${EMBEDDING_MODEL:-}" ]; then
  settings="{tag: next_state, model: '$EMBEDDING_MODEL', threshold: ${THRESHOLD:-0.2}, device: cpu}"
  reward=("~wm.reward" "+wm.reward={path: rwml, kwargs: $settings}")
fi
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name "rwml_${ALGORITHM:-grpo}_tiny" \
  data.train_files=$work/train.parquet data.val_files=$work/test.parquet data.seed="${SEED:-0}" \
  actor_rollout_ref.rollout.seed="${SEED:-0}" \
  actor_rollout_ref.model.path="$work/filter/global_step_${SFT_STEPS:-180}/huggingface" \
  "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]" trainer.default_local_dir=$work/verl trainer.save_freq=1000 \
  "${reward[@]}" "$@"
