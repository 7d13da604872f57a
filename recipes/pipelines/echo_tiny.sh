#!/usr/bin/env bash
# A tiny policy and the rows of ECHO on a world (forth or deepdive) beside the grid for verl, in runs/tiny_verl. The recipes
# run_echo_{forth_all,forth_code,deepdive}_tiny.sh call it. TRL makes the same rows itself.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
policy=runs/tiny_verl world=$1
made $policy/config.json python -m wm_plugin.lab.tiny --out $policy --seed 0
worlds "$policy/worlds_$world.parquet" worlds "{\"environments\": {\"grid\": 240, \"$world\": {\"count\": 16, \"max_turns\": 4}}}"
worlds $policy/grid_test.parquet grid '{"environments": {"grid": 8}, "seed": 1, "held_out": true}'
worlds "$policy/${world}_test.parquet" "$world" \
  "{\"environments\": {\"$world\": {\"count\": 4, \"max_turns\": 4}}, \"seed\": 1, \"held_out\": true}"
