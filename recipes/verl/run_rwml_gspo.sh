#!/usr/bin/env bash
# RWML on GSPO, 7B on 8 GPUs. TRAJECTORIES is a file of rollouts in any format that wm data convert reads; a tenth of the tasks is held
# out, as in the paper. Its easy filter goes between the two steps: wm data easy.
# Further arguments override the YAML: ./run_rwml_gspo.sh wm.reward.kwargs.threshold=0.4 actor_rollout_ref.rollout.n=16
set -euo pipefail
work=runs/rwml data=(python -m wm_plugin.cli.main data)
mkdir -p $work
[ -f $work/transitions.validation.jsonl ] || "${data[@]}" expand "${TRAJECTORIES:?a file of rollouts}" \
  --out $work/transitions.jsonl --validation-share 0.1
[ -f $work/train.parquet ] ||
  "${data[@]}" build $work/transitions.jsonl --as rwml --host verl --out $work/train.parquet
[ -f $work/test.parquet ] ||
  "${data[@]}" build $work/transitions.validation.jsonl --as rwml --host verl --out $work/test.parquet --split test
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name rwml_gspo "$@"
