#!/usr/bin/env bash
# last_model.sh FOLDER: FOLDER/model becomes a link to the model of verl's last checkpoint in FOLDER. Pipelines call it where the number
# of steps follows from the data.
set -euo pipefail
cd "$1"
last=$(ls -d global_step_*/huggingface global_step_*/actor/huggingface 2> /dev/null | sort -V | tail -n 1)
[ -n "$last" ] || { echo "last_model.sh: $1 has no model in a global_step_*" >&2; exit 1; }
ln -sfn "$last" model
