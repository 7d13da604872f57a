#!/usr/bin/env bash
# An agent by SFT on successful trajectories of the grid (Word2World, section 7.2), tiny, on a CPU.
# Further arguments override the YAML: ./run_agent_sft_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/wm_sft_tiny.sh" trl agent_sft_tiny
exec trl sft --config "$here/agent_sft_tiny.yaml" "$@"
