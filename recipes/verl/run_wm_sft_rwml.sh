#!/usr/bin/env bash
# World model by SFT on transitions (RWML's baseline WM-SFT), 7B on 8 GPUs.
# TRAJECTORIES is a file of rollouts in any format that wm data convert reads.
# Further arguments override the YAML: ./run_wm_sft_rwml.sh optim.lr=5e-6
set -euo pipefail
out=runs/wm_sft_rwml/verl.parquet
mkdir -p "${out%/*}"
[ -f "$out" ] || python -m wm_plugin.cli.main data build "${TRAJECTORIES:?a file of rollouts}" --as rwml-sft \
  --host verl --out "$out" --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 8192
exec torchrun --standalone --nproc_per_node=8 -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name wm_sft_rwml "$@"
