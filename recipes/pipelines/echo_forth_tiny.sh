#!/usr/bin/env bash
# A tiny policy and the rows of ECHO on forth-lang beside the grid for verl, in runs/tiny_verl. run_echo_forth_all_tiny.sh and
# run_echo_forth_code_tiny.sh call it. TRL makes the same rows itself.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
policy=runs/tiny_verl
made $policy/config.json python -m wm_plugin.tiny --out $policy --seed 0
worlds $policy/worlds.parquet worlds '{"environments": {"grid": 240, "forth": {"count": 16, "max_turns": 4}}}'
worlds $policy/grid_test.parquet grid '{"environments": {"grid": 8}, "seed": 1, "held_out": true}'
worlds $policy/forth_test.parquet forth '{"environments": {"forth": {"count": 4, "max_turns": 4}}, "seed": 1, "held_out": true}'
