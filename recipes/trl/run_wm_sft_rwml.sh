#!/usr/bin/env bash
# World model by SFT on transitions (RWML's baseline WM-SFT), 7B on 8 GPUs.
# TRAJECTORIES is a file of rollouts in any format that wm data convert reads; turns of invalid actions are left out (paper). To
# compare with RWML, as the paper does, on its own samples: TRANSITIONS=runs/rwml_alfworld/hard.jsonl in the place of TRAJECTORIES.
# Further arguments override the YAML: ./run_wm_sft_rwml.sh --learning_rate 5e-6
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/wm_sft.sh" trl wm_sft_rwml
exec trl sft --config "$here/wm_sft_rwml.yaml" --accelerate_config "$here/accelerate_fsdp2.yaml" "$@"
