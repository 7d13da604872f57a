#!/usr/bin/env bash
# The rows of WMAct for verl, in runs/wmact: to train on, and a set for every level, in many turns and in one (as the paper scores
# it). run_wmact_grpo.sh and run_wmact_ppo.sh call it. TRL makes the same rows itself, as wmact_grpo.yaml says.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

rows() { worlds "runs/wmact/$1.parquet" "$1" "{\"environments\": {\"$2\": {$3}}, \"seed\": $4}"; } # NAME WORLD OPTIONS SEED

both() { # NAME WORLD OPTIONS
  rows "$1" "$2" "\"count\": 256, \"held_out\": true$3" 1
  rows "$1_single" "$2" "\"count\": 256, \"held_out\": true, \"max_turns\": 1$3" 1
}

rows train sokoban '"count": 10000' 0
both sokoban sokoban ''
both sokoban_hard-1 sokoban ', "level": "hard-1"'
both sokoban_hard-2 sokoban ', "level": "hard-2"'
both maze maze ', "view": "wmact"'
both maze_hard-1 maze ', "view": "wmact", "level": "hard-1"'
both taxi_256_over_60 taxi ', "repeat": true'
