#!/usr/bin/env bash
# An agent by SFT on trajectories (Word2World, sections 7.2 and 7.3), 7B on 8 GPUs.
# TRAJECTORIES is a file of successful trajectories: of wm env rollout, wm lab synthesize, or both (wm lab mix). Start each mixture
# in a folder of its own: rows and model are in runs/ below it. Longer samples are cut at their end, as in wm_sft_word2world.
# Further arguments override the YAML: after early experience, --model_name_or_path runs/wm_sft_word2world
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/wm_sft.sh" trl agent_sft
exec trl sft --config "$here/agent_sft.yaml" --accelerate_config "$here/accelerate_fsdp2.yaml" "$@"
