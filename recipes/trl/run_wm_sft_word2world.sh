#!/usr/bin/env bash
# World model by SFT on dialogues (Word2World), 7B on 8 GPUs.
# TRAJECTORIES is a file of rollouts in any format that wm data convert reads. No filter comes before: won and lost episodes and
# failed actions are what a world model learns (paper). The hidden state that rollouts carry is shown to it; without:
# --no-world-context. Longer samples are cut at their end, as the released configuration does; instead: --too-long drop.
# Further arguments override the YAML: ./run_wm_sft_word2world.sh --learning_rate 5e-6
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=runs/wm_sft_word2world/trl.parquet
mkdir -p "${out%/*}"
[ -f "$out" ] || python -m wm_plugin.cli.main data build "${TRAJECTORIES:?a file of rollouts}" --as word2world \
  --host trl --out "$out" --tokenizer Qwen/Qwen2.5-7B --max-tokens 12288 --too-long truncate
exec trl sft --config "$here/wm_sft_word2world.yaml" --accelerate_config "$here/accelerate_fsdp2.yaml" "$@"
