#!/usr/bin/env bash
# WMAct on GRPO, tiny, on PROCESSES CPU processes (1). Further arguments override the YAML: ./run_wmact_grpo_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -f runs/tiny/config.json ] || python -m wm_plugin.tiny --out runs/tiny --seed 0
launch=(python)
if [ "${PROCESSES:-1}" -gt 1 ]; then
  # accelerate's CPU launcher wants MPI; the one it has for GPUs starts gloo processes just as well
  launch=(accelerate launch --multi_gpu --num_processes "$PROCESSES" --num_machines 1 --mixed_precision no --dynamo_backend no)
fi
exec "${launch[@]}" -m wm_plugin.trl.train --config "$here/wmact_grpo_tiny.yaml" "$@"
