#!/usr/bin/env bash
# whole_log.sh FOLDER COMMAND...: runs verl's trainer, which begins the file VERL_FILE_LOGGER_PATH anew with every start. What killed
# runs had logged is kept in FOLDER, and comes first in the file when the command has ended. Pipelines call it.
set -euo pipefail
log=$VERL_FILE_LOGGER_PATH earlier=$1/log.earlier.jsonl
if [ -s "$log" ]; then
  mkdir -p "$1"
  grep '}}$' "$log" >> "$earlier" || true # lines that were written to their end
fi
"${@:2}"
if [ -e "$earlier" ]; then
  cat "$log" >> "$earlier"
  mv "$earlier" "$log"
fi
