#!/usr/bin/env bash
# The start of the tiny RWML recipes, on a CPU: rollouts of the SQL tasks, rows of them for all three, and WM-SFT.
# Three in ten tasks are held out. SEED=1 makes another model and other data; further arguments override the YAML.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/rwml_sft_tiny.sh" trl
exec trl sft --config "$here/rwml_sft_tiny.yaml" --seed "${SEED:-0}" "$@"
