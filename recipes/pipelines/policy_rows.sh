#!/usr/bin/env bash
# policy_rows.sh WORLD CUSTOMER FOLDER [TURNS THINK]: rows of policy RL for verl, in a world (alfworld, scienceworld or tau2). TURNS (15) and
# THINK (true) are of alfworld: how many turns its prompt allows, and whether it asks for thoughts. run_policy_*.sh and pipelines call it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
world=$1 customer=$2 work=$3
asked=", \"max_turns\": ${4:-15}, \"think\": ${5:-true}"

text() { # LEVEL SPLIT COUNT MORE: rows of a world of text
  made "$work/$2.parquet" python -m wm_plugin.verl.data --rows "wm_plugin.worlds.$world:dataset_rows" --data-source "$2" \
    --out "$work/$2.parquet" --kwargs "{\"count\": $3, \"level\": \"$1\", \"split\": \"$2\"$4}"
}

domain() { # NAME COUNT: its tasks, with the customer of the paper
  printf '"%s": {"world": "tau2", "level": "%s", "count": %s, "user_model": "%s", "user_url": "%s"}' \
    "$1" "$1" "$2" Qwen/Qwen3-235B-A22B-Instruct-2507 "$customer"
}

case $world in
  alfworld)
    text data train 2048 "$asked"
    text data seen 140 "$asked"
    text data unseen 134 "$asked"
    ;;
  scienceworld)
    text standard train 800 ""
    text standard seen 200 ""
    text standard unseen 200 ""
    ;;
  tau2)
    worlds "$work/train.parquet" tau2 "{\"environments\": {$(domain retail 74), $(domain airline 30), $(domain telecom 74)}}"
    worlds "$work/test.parquet" tau2 \
      "{\"environments\": {$(domain retail 40), $(domain airline 20), $(domain telecom 40)}, \"held_out\": true}"
    ;;
  *) echo "policy_rows.sh: WORLD is alfworld, scienceworld or tau2, not $world" >&2; exit 2 ;;
esac
