#!/usr/bin/env bash
# World model by SFT on dialogues (Word2World), tiny, on a CPU.
# Further arguments override the YAML: ./run_wm_sft_word2world_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/wm_sft_tiny.sh" trl wm_sft_word2world_tiny
exec trl sft --config "$here/wm_sft_word2world_tiny.yaml" "$@"
