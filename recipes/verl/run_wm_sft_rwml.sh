#!/usr/bin/env bash
# World model by SFT on transitions (RWML's baseline WM-SFT), 7B on 8 GPUs.
# TRAJECTORIES is a file of rollouts in any format that wm data convert reads; turns of invalid actions are left out (paper). To
# compare with RWML, as the paper does, on its own samples: TRANSITIONS=runs/rwml_alfworld/hard.jsonl in the place of TRAJECTORIES.
# Further arguments override the YAML: ./run_wm_sft_rwml.sh optim.lr=5e-6
set -euo pipefail
bash "$(dirname "${BASH_SOURCE[0]}")/../pipelines/wm_sft.sh" verl wm_sft_rwml
exec torchrun --standalone --nproc_per_node=8 -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name wm_sft_rwml "$@"
