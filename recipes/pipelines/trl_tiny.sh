# What TRL's tiny recipes share: a policy in runs/tiny, and `launch`, which starts PROCESSES CPU processes (1).
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
made runs/tiny/config.json python -m wm_plugin.lab.tiny --out runs/tiny --seed 0
launch=(python)
if [ "${PROCESSES:-1}" -gt 1 ]; then
  # accelerate's CPU launcher wants MPI; the one it has for GPUs starts gloo processes just as well
  launch=(accelerate launch --multi_gpu --num_processes "$PROCESSES" --num_machines 1 --mixed_precision no --dynamo_backend no)
fi
