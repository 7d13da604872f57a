#!/usr/bin/env bash
# ECHO (code) on forth-lang, 4B on 8 GPUs, episodes of TURNS turns (200). Further arguments override the YAML:
# TURNS=10 ./run_echo_forth_code.sh --echo_coeff 0.05
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
turns=()
if [ "${TURNS:-200}" != 200 ]; then
  others='"docs": {"environments": {"docs": 64}, "seed": 1, "held_out": true},
    "wordle": {"environments": {"wordle": 64}, "seed": 1, "held_out": true},
    "sql": {"environments": {"sql": 64}, "seed": 1, "held_out": true}'
  held_out="\"forth\": {\"environments\": {\"forth\": {\"count\": 64, \"max_turns\": $TURNS}}, \"seed\": 1, \"held_out\": true}"
  limit=$((TURNS > 12 ? TURNS : 12))  # the other worlds' own; forth ends its episodes by itself
  turns=(--max_tool_calling_iterations "$limit" --eval_rows_kwargs "{$held_out, $others}"
    --train_rows_kwargs "{\"environments\": {\"forth\": {\"count\": 432, \"max_turns\": $TURNS}}}")
fi
exec accelerate launch --config_file "$here/accelerate_fsdp2.yaml" -m wm_plugin.trl.train --config "$here/echo_forth_code.yaml" \
  "${turns[@]}" "$@"
