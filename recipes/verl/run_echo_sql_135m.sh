#!/usr/bin/env bash
# ECHO on GRPO with SmolLM2-135M on the SQL tasks, on CPUs, from a checkout, from nothing to figures: the warm start, GRPO without the
# term and with it, and the figures of each model in runs/sql_135m/verl/figures.md. A step whose result is there is not done again.
# ../pipelines/sql_135m.sh says what --quick is, which comes first. Further arguments override the YAML in both arms:
# ./run_echo_sql_135m.sh --quick trainer.total_training_steps=1
set -euo pipefail
host=verl
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/sql_135m.sh"
sizes=()
if [ -n "$quick" ]; then
  sizes=(trainer.total_training_steps=1 data.train_batch_size=1 actor_rollout_ref.actor.ppo_mini_batch_size=1 actor_rollout_ref.rollout.n=2)
fi

saved() { compgen -G "$1/global_step_*/${2:+$2/}huggingface" | tail -n 1; } # FOLDER [PART]: where verl wrote a model

saved "$work/verl/cloned" > /dev/null || bash "$recipes/verl/run_clone_sql_135m.sh" ${quick:+--quick}
cloned=$(saved "$work/verl/cloned")
made "$work/verl/rows.parquet" python -m wm_plugin.verl.data --rows wm_plugin.worlds.sql:dataset_rows \
  --kwargs '{"count": 2000, "seed": 1}' --out "$work/verl/rows.parquet"

arm() { # NAME SETTING...
  saved "$work/verl/$1" actor > /dev/null || python -m verl.trainer.main_ppo \
    --config-path pkg://wm_plugin.recipes.verl --config-name echo_sql_135m \
    "data.train_files=$work/verl/rows.parquet" "data.val_files=$work/verl/rows.parquet" \
    "actor_rollout_ref.model.path=$cloned" "trainer.default_local_dir=$work/verl/$1" "${sizes[@]}" "${@:2}" "${rest[@]}"
}

figures start $model
figures cloned "$cloned"
arm grpo wm.coeff=0
arm echo
figures grpo "$(saved "$work/verl/grpo" actor)"
figures echo "$(saved "$work/verl/echo" actor)"
figures_table
