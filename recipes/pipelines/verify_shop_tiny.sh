# What run_verify_shop_tiny.sh does, by steps: rollouts of the shop by its expert, its wanderer and a careless shopper, whose purchases
# often fail; a model, rows of word2world, and the careless shopper on held-out tasks with 0, 2, 4, 10 and 50 checks an episode, by the
# model and by controls that know nothing (always refuse, a coin) or everything (the oracle). It is sourced with the script's own arguments, [--quick] FLAG..., and leaves the flags in `rest`. A step whose result is there is not done
# again.
#
#   --quick           less of everything, in runs/verify_shop_tiny_quick
#   SEED=1            of the tasks, what the shoppers draw, the model and the training (0); in runs/verify_shop_tiny/seed1
#   WORLD_MODEL=DIR   another world model: its folder, and nothing is trained. With WORLD_MODEL_URL, its name at that server
#
# The budgets are the paper's. Sizes are chosen for the time, and all are ours.
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(getconf _NPROCESSORS_ONLN)} # `trl sft` takes one thread unless it is told
work=runs/verify_shop_tiny seed=${SEED:-0} episodes=1000 others=100 held_out=96 vocabulary=1536 budgets=(0 2 4 10 50)
controls=(refuse coin oracle) # to accept every purchase is a budget of 0
training=(--seed "$seed")
if [ "${1:-}" = --quick ]; then
  shift
  work=runs/verify_shop_tiny_quick episodes=4 others=2 held_out=2 vocabulary=512 budgets=(0 2)
  training+=(--max_steps 2 --per_device_train_batch_size 1)
fi
if [ "$seed" != 0 ]; then work=$work/seed$seed; fi
rest=("$@")

rollouts() {
  local rows=(--count $others --seed "$seed")
  mkdir -p "$work"
  made "$work/expert.jsonl" wm env rollout shop --policy expert "${rows[@]}" --out "$work/expert.jsonl"
  made "$work/random.jsonl" wm env rollout shop --policy random "${rows[@]}" --max-turns 12 --out "$work/random.jsonl"
  made "$work/careless.jsonl" python -m wm_plugin.lab.tiny.rollouts --environment shop --count $episodes --seed "$seed" \
    --out "$work/careless.jsonl"
  made "$work/rollouts.jsonl" joined
}

joined() {
  if [ ! -e "$work/careless.jsonl" ]; then return; fi # where nothing is really run
  cat "$work/expert.jsonl" "$work/random.jsonl" "$work/careless.jsonl" > "$work/rollouts.jsonl.unfinished"
  mv "$work/rollouts.jsonl.unfinished" "$work/rollouts.jsonl"
}

# the model that training begins with
start() {
  made "$work/words.jsonl" wm data build "$work/rollouts.jsonl" --as word2world --host trl --out "$work/words.jsonl"
  made "$work/start/config.json" python -m wm_plugin.lab.tiny --words "$work/words.jsonl" --vocabulary $vocabulary --seed "$seed" \
    --out "$work/start"
}

rows() {
  made "$work/rows.parquet" wm data build "$work/rollouts.jsonl" --as word2world --host trl --out "$work/rows.parquet" \
    --tokenizer "$work/start" --max-tokens 4096 --too-long truncate
  config=$work/sft.yaml
  sed "s#runs/verify_shop_tiny#$work#" "$recipes/trl/verify_shop_tiny.yaml" > "$config"
}

# checked MODEL: the careless shopper with every budget, checked by the model and by each control, and the table
checked() {
  local budget control play=(python -m wm_plugin.lab.tiny.verify_table --count $held_out --seed "$seed")
  for budget in "${budgets[@]}"; do
    made "$work/episodes/model_$budget.jsonl" "${play[@]}" --model "$1" ${WORLD_MODEL_URL:+--url "$WORLD_MODEL_URL"} \
      --budget "$budget" --cache "$work/episodes/answers.cache" --out "$work/episodes/model_$budget.jsonl"
    if [ "$budget" = 0 ]; then continue; fi
    for control in "${controls[@]}"; do
      made "$work/episodes/${control}_$budget.jsonl" "${play[@]}" --control "$control" --budget "$budget" \
        --out "$work/episodes/${control}_$budget.jsonl"
    done
  done
  python -m wm_plugin.lab.tiny.verify_table --table "$work/episodes" --out "$work/table.json"
}
