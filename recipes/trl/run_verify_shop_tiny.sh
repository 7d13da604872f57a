#!/usr/bin/env bash
# Do checks by a world model keep a careless shopper from wrong purchases (Word2World, table 4)? From nothing to the table on a CPU: the
# world model is a model of 1M parameters that is trained on rollouts in which purchases fail. runs/verify_shop_tiny/table.md has success
# by the budget of checks, and how often the world model was right. ../pipelines/verify_shop_tiny.sh has the sizes, and says what --quick
# is, which comes first. Further arguments override the YAML: ./run_verify_shop_tiny.sh --max_steps 600
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verify_shop_tiny.sh"
if [ -z "${WORLD_MODEL:-}" ]; then
  rollouts
  start
  rows
  made "$work/trained/training_args.bin" trl sft --config "$config" "${training[@]}" "${rest[@]}"
fi
checked "${WORLD_MODEL:-$work/trained}"
