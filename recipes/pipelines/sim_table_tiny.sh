#!/usr/bin/env bash
# A policy that learns in the real world, in a world model, in one under control, and in the real world and the world model at once:
# from nothing to the table, on a host (trl or verl). run_sim_table_tiny.sh calls it.
#
#   --seeds N     of each arm (3)
#   --steps N     of a training (15)
#   --out DIR     of everything that is made (runs/sim_table_tiny/HOST)
#   --quick       a policy that has learnt nothing, and less of everything else: that it runs, no figures to quote
#
# Further arguments override the host's recipe in all arms. A step whose result is there is not done again. The world: the grid. The
# world model is the tiny policy, which has learnt to predict the grid, trained further on dialogues of an expert's and a wanderer's
# episodes, half of them under control. Ours, as is every number here.
set -euo pipefail
arguments=("$@")
host=$1
shift
seeds=3 steps=15 work=runs/sim_table_tiny/$host episodes=1500 world_steps=300 boards=512 untrained=() rest=()
while [ $# -gt 0 ]; do
  case $1 in
    --seeds) seeds=$2 && shift 2 ;;
    --steps) steps=$2 && shift 2 ;;
    --out) work=$2 && shift 2 ;;
    --quick) episodes=64 world_steps=4 boards=32 untrained=(--random) && shift ;;
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
  made "$work/$1.jsonl" python -m wm_plugin.lab.tiny.rollouts --out "$work/$1.jsonl" --seed "$2" --count "$3" "${@:4}"
  made "$work/$1.control.jsonl" wm lab control "$work/$1.jsonl" --config "$control" --out "$work/$1.control.jsonl"
  made "$work/$1.both.jsonl" both "$1"
  made "$work/$1.rows.jsonl" wm data build "$work/$1.both.jsonl" --as word2world --prompts "$prompts" --host trl \
    --out "$work/$1.rows.jsonl"
}

both() {
  cat "$work/$1.jsonl" "$work/$1.control.jsonl" > "$work/$1.unfinished"
  mv "$work/$1.unfinished" "$work/$1.both.jsonl"
}

policy=$work/policy world=$work/world
made "$policy/config.json" python -m wm_plugin.lab.tiny --out "$policy" --seed 0 "${untrained[@]}"
if [ ! -e "$world/config.json" ]; then
  dialogues train 0 "$episodes"
  dialogues held_out 1 32 --held-out
  python -m wm_plugin.lab.tiny.world_model --start "$policy" --rows "$work/train.rows.jsonl" --held-out "$work/held_out.rows.jsonl" \
    --out "$world" --steps "$world_steps"
fi

# measured NAME MODEL STEPS: on held-out boards, in the real world
measured() {
  made "$work/evaluations/$1/result.json" python -m wm_plugin.lab.tiny.sim_table --model "$2" --name "$1" --step "$3" \
    --boards "$boards" --out "$work/evaluations/$1"
}

# what both hosts read as JSON: the fields of SimulationConfig, for one of several worlds; those of ControlConfig; rows of two worlds
simulation() {
  printf '{"url": "%s", "api_key_env": null, "model": "world", "prompts": "%s", "max_tokens": 128, "closings": ["!"]%s}' \
    "$WM_TINY_SERVER" "$prompts" "${1:+, \"worlds\": [\"$1\"]}"
}
perturbations() { grep -v '^#' "$control"; }
of_hydra() { sed -E 's/"([a-z_]+)": /\1: /g'; } # whose keys have no quotes
both_worlds='{"environments": {"grid": {"count": 480}, "sim": {"world": "grid", "count": 480}}, "seed": '

trained_by_trl() { # NAME ARM SEED
  local rows=(--train_rows wm_plugin.worlds.grid:dataset_rows --train_rows_kwargs "{\"count\": 960, \"seed\": $3}")
  local world=(--environment grid) folder=$work/arms/$1
  case $2 in
    sim) world+=(--simulation "$(simulation)") ;;
    controlled) world+=(--simulation "$(simulation)" --control "$(perturbations)") ;;
    mixed)
      world=(--environment '{"grid": "grid", "sim": "grid"}' --simulation "$(simulation sim)")
      rows=(--train_rows wm_plugin.worlds.mixture:dataset_rows --train_rows_kwargs "$both_worlds$3}")
      ;;
  esac
  made "$folder/training_args.bin" python -m wm_plugin.trl.train --config "$recipes/trl/sim_table_tiny.yaml" \
    --model_name_or_path "$policy" --output_dir "$folder" --seed "$3" --max_steps "$steps" --save_steps "$steps" \
    --disable_tqdm true "${world[@]}" "${rows[@]}" "${rest[@]}"
  measured "$1" "$folder" "$steps"
}

trained_by_verl() { # NAME ARM SEED
  local rows=$work/rows/grid_s$3.parquet world=(wm.environment=grid) folder=$work/arms/$1
  local model=$folder/global_step_$steps/actor/huggingface
  case $2 in
    sim) world+=("wm.simulation=$(simulation | of_hydra)") ;;
    controlled) world+=("wm.simulation=$(simulation | of_hydra)" "wm.control=$(perturbations | of_hydra)") ;;
    mixed)
      world=("wm.environment={grid: grid, sim: grid}" "wm.simulation=$(simulation sim | of_hydra)")
      rows=$work/rows/mixed_s$3.parquet
      worlds "$rows" grid "$both_worlds$3}"
      ;;
  esac
  made "$rows" python -m wm_plugin.verl.data --rows wm_plugin.worlds.grid:dataset_rows --data-source grid \
    --kwargs "{\"count\": 960, \"seed\": $3}" --out "$rows"
  if [ ! -e "$model/config.json" ]; then
    rm -f "$work/logs/$1.jsonl" # of a training that did not end
    mkdir -p "$work/logs"
    VERL_FILE_LOGGER_PATH=$work/logs/$1.jsonl python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl \
      --config-name sim_table_tiny "actor_rollout_ref.model.path=$policy" "data.train_files=$rows" "data.val_files=$rows" \
      "data.seed=$3" "actor_rollout_ref.rollout.seed=$3" "trainer.total_training_steps=$steps" "trainer.save_freq=$steps" \
      "trainer.default_local_dir=$folder" "trainer.experiment_name=$1" "${world[@]}" "${rest[@]}"
  fi
  measured "$1" "$model" "$steps"
}

# while the world model is served, by a process whose command this script is once more
if [ -z "${WM_TINY_SERVER:-}" ]; then
  measured start "$policy" 0
  python -m wm_plugin.lab.tiny.serve --model "$world" bash "${BASH_SOURCE[0]}" "${arguments[@]}"
  exit
fi
patterns=() runs=$work/arms
if [ "$host" = verl ]; then runs=$work/logs; fi
for arm in real sim controlled mixed; do
  for ((seed = 0; seed < seeds; seed++)); do
    "trained_by_$host" "${arm}_s$seed" $arm "$seed"
  done
  patterns+=(--arm "$arm=${arm}_s*")
done
wm report "$runs" "$work/evaluations" "${patterns[@]}" --out "$work/report.html" > /dev/null
python -m wm_plugin.lab.tiny.sim_table --table "$work/evaluations" --out "$work/table.json"
