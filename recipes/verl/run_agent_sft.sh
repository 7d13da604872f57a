#!/usr/bin/env bash
# An agent by SFT on trajectories (Word2World, sections 7.2 and 7.3), 7B on 8 GPUs.
# TRAJECTORIES is a file of successful trajectories: of wm env rollout, wm lab synthesize, or both (wm lab mix). Start each mixture
# in a folder of its own: rows and model are in runs/ below it. Longer samples are cut at their end, as in wm_sft_word2world.
# Further arguments override the YAML: after early experience, model.path=FOLDER, of the model that run_wm_sft_word2world.sh trained
set -euo pipefail
bash "$(dirname "${BASH_SOURCE[0]}")/../pipelines/wm_sft.sh" verl agent_sft
exec torchrun --standalone --nproc_per_node=8 -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name agent_sft "$@"
