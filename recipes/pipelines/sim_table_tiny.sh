#!/usr/bin/env bash
# A policy that learns in the real world, in a world model, in one under control, and in the real world and the world model at once:
# from nothing to the table, on a host (trl or verl). run_sim_table_tiny.sh calls it.
#
#   --seeds N     of each arm (3)
#   --steps N     of a training (15)
#   --out DIR     of everything that is made (runs/sim_table_tiny/HOST)
#   --quick       less of the data and of the world model's training, and held-out boards: that it runs, no figures to quote
#
# Further arguments override the host's recipe in all arms. A step whose result is there is not done again. The world: the grid. The
# world model is the tiny policy, which has learnt to predict the grid, trained further on dialogues of an expert's and a wanderer's
# episodes, half of them under control. Ours, as is every number here.
set -euo pipefail
host=$1
shift
seeds=3 steps=15 work=runs/sim_table_tiny/$host episodes=1500 world_steps=300 boards=512 rest=()
while [ $# -gt 0 ]; do
  case $1 in
    --seeds) seeds=$2 && shift 2 ;;
    --steps) steps=$2 && shift 2 ;;
    --out) work=$2 && shift 2 ;;
    --quick) episodes=64 world_steps=4 boards=32 && shift ;;
    *) rest+=("$1") && shift ;;
  esac
done
for number in "$seeds" "$steps"; do
  [[ $number =~ ^[1-9][0-9]{0,4}$ ]] || { echo "sim_table_tiny.sh: --seeds and --steps are whole numbers >= 1, not $number" >&2; exit 2; }
done
if [ "$host" = verl ]; then
  source "$(dirname "${BASH_SOURCE[0]}")/verl_tiny.sh"
else
  source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
fi
prompts=$recipes/pipelines/sim_tiny_prompts.yaml control=$recipes/pipelines/sim_control_tiny.yaml
mkdir -p "$work"

# dialogues NAME SEED COUNT FLAG...: episodes, the same under control, and both as dialogues
dialogues() {
  made "$work/$1.jsonl" python -m wm_plugin.tiny.rollouts --out "$work/$1.jsonl" --seed "$2" --count "$3" "${@:4}"
  made "$work/$1.control.jsonl" wm data control "$work/$1.jsonl" --config "$control" --out "$work/$1.control.jsonl"
  made "$work/$1.both.jsonl" both "$1"
  made "$work/$1.rows.jsonl" wm data build "$work/$1.both.jsonl" --as word2world --prompts "$prompts" --host trl \
    --out "$work/$1.rows.jsonl"
}

both() {
  cat "$work/$1.jsonl" "$work/$1.control.jsonl" > "$work/$1.unfinished"
  mv "$work/$1.unfinished" "$work/$1.both.jsonl"
}

policy=$work/policy world=$work/world
made "$policy/config.json" python -m wm_plugin.tiny --out "$policy" --seed 0
if [ ! -e "$world/config.json" ]; then
  dialogues train 0 "$episodes"
  dialogues held_out 1 32 --held-out
  python -m wm_plugin.tiny.world_model --start "$policy" --rows "$work/train.rows.jsonl" --held-out "$work/held_out.rows.jsonl" \
    --out "$world" --steps "$world_steps"
fi

# measured NAME MODEL STEPS: on held-out boards, in the real world
measured() {
  made "$work/evaluations/$1/result.json" python -m wm_plugin.tiny.sim_table --model "$2" --name "$1" --step "$3" \
    --boards "$boards" --out "$work/evaluations/$1"
}

simulation() { # [WORLDS]: the fields of SimulationConfig, which both hosts read as JSON
  # a T, a V or a ! is no start of a row: an observation that ends so is the last one of the grid, won or not
  printf '{"url": "%s", "model": "world", "prompts": "%s", "max_tokens": 128, "closings": ["!"]%s}' \
    "$WM_TINY_SERVER" "$prompts" "${1:+, \"worlds\": [\"$1\"]}"
}

grid='"count": 960'
rows_of_both() { printf '{"environments": {"grid": {"count": 480}, "sim": {"world": "grid", "count": 480}}, "seed": %s}' "$1"; }

arm_on_trl() { # NAME SEED FOLDER
  local rows=(--train_rows wm_plugin.environments.grid:dataset_rows --train_rows_kwargs "{$grid, \"seed\": $2}")
  local world=(--environment grid)
  case $1 in
    sim) world+=(--simulation "$(simulation)") ;;
    controlled) world+=(--simulation "$(simulation)" --control "$(as_json "$control")") ;;
    mixed)
      world=(--environment '{"grid": "grid", "sim": "grid"}' --simulation "$(simulation sim)")
      rows=(--train_rows wm_plugin.environments.mixture:dataset_rows --train_rows_kwargs "$(rows_of_both "$2")")
      ;;
  esac
  made "$3/model/config.json" python -m wm_plugin.trl.train --config "$recipes/trl/sim_table_tiny.yaml" \
    --model_name_or_path "$policy" --output_dir "$3" --seed "$2" --max_steps "$steps" --save_steps "$steps" \
    "${world[@]}" "${rows[@]}" "${rest[@]}"
}
