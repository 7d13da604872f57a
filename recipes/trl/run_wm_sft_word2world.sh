#!/usr/bin/env bash
# World model by SFT on dialogues (Word2World), 7B on 8 GPUs.
# TRAJECTORIES is a file of rollouts in any format that wm data convert reads. No filter comes before: won and lost episodes and
# failed actions are what a world model learns (paper). The hidden state that rollouts carry is shown to it; without:
# --no-world-context. Longer samples are cut at their end, as the released configuration does; instead: --too-long drop.
# Further arguments override the YAML: ./run_wm_sft_word2world.sh --learning_rate 5e-6
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/wm_sft.sh" trl wm_sft_word2world
exec trl sft --config "$here/wm_sft_word2world.yaml" --accelerate_config "$here/accelerate_fsdp2.yaml" "$@"
