#!/usr/bin/env bash
# World model by SFT on dialogues (Word2World), 7B on 8 GPUs.
# TRAJECTORIES is a file of rollouts in any format that wm data convert reads. No filter comes before: won and lost episodes and
# failed actions are what a world model learns (paper). The hidden state that rollouts carry is shown to it; without:
# --no-world-context. Longer samples are cut at their end, as the released configuration does; instead: --too-long drop.
# Further arguments override the YAML: ./run_wm_sft_word2world.sh optim.lr=5e-6
set -euo pipefail
bash "$(dirname "${BASH_SOURCE[0]}")/../pipelines/wm_sft.sh" verl wm_sft_word2world
exec torchrun --standalone --nproc_per_node=8 -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name wm_sft_word2world "$@"
