#!/usr/bin/env bash
# policy_rows.sh WORLD CUSTOMER FOLDER: rows of policy RL for verl, in a world (alfworld or tau2). run_policy_*.sh and pipelines call it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
world=$1 customer=$2 work=$3

alfworld() { # SPLIT COUNT
  made "$work/$1.parquet" python -m wm_plugin.verl.data --rows wm_plugin.environments.alfworld:dataset_rows --data-source "$1" \
    --out "$work/$1.parquet" --kwargs "{\"count\": $2, \"level\": \"data\", \"split\": \"$1\", \"max_turns\": 15, \"think\": true}"
}

domain() { # NAME COUNT: its tasks, with the customer of the paper
  printf '"%s": {"world": "tau2", "level": "%s", "count": %s, "user_model": "%s", "user_url": "%s"}' \
    "$1" "$1" "$2" Qwen/Qwen3-235B-A22B-Instruct-2507 "$customer"
}

case $world in
  alfworld)
    alfworld train 2048
    alfworld seen 140
    alfworld unseen 134
    ;;
  tau2)
    worlds "$work/train.parquet" tau2 "{\"environments\": {$(domain retail 74), $(domain airline 30), $(domain telecom 74)}}"
    worlds "$work/test.parquet" tau2 \
      "{\"environments\": {$(domain retail 40), $(domain airline 20), $(domain telecom 40)}, \"held_out\": true}"
    ;;
  *) echo "policy_rows.sh: WORLD is alfworld or tau2, not $world" >&2; exit 2 ;;
esac
