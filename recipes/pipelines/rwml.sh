# What RWML's pipelines share, the same on both hosts; rwml_alfworld.sh, rwml_tau2.sh and rwml_tiny.sh source it. They set
#
#   host       trl or verl
#   work       the folder of all results
#   model      the model that is trained, and from which the filter model is
#   prompts    the family of prompts
#   longest    tokens of a sample, or of a prompt; longer ones are left out and counted
#   share      of the tasks, for the filter model and for validation
#   threshold  flags of wm data easy that say which predictions are right
#   changes    flags of wm data filter beside the filters
#
# and `rollouts`, which writes $work/rollouts.jsonl, and call `rwml`. With TRAJECTORIES=FILE, rollouts of your own take its place.
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
server=http://localhost:8000/v1                          # of the model that acts, and of the filter model: started here
embeddings=${EMBEDDINGS:-http://localhost:8001/v1}       # of the embeddings: yours, as it is needed in training too

# serving MODEL COMMAND...: while vLLM serves MODEL, on GPUS (8) of this machine, by the name "model"
serving() {
  local process
  if (exec 3<> /dev/tcp/localhost/8000) 2> /dev/null; then # of which the command would ask another model
    echo "rwml.sh: a server is at port 8000 already; end it" >&2
    exit 1
  fi
  vllm serve "$1" --served-model-name model --port 8000 --dtype bfloat16 --data-parallel-size "${GPUS:-8}" \
    --enable-auto-tool-choice --tool-call-parser hermes &
  process=$!
  trap "kill $process 2> /dev/null || true" EXIT
  until curl --silent --fail --output /dev/null "$server/models"; do
    kill -0 $process 2> /dev/null || { echo "rwml.sh: vllm serve $1 ended" >&2; exit 1; }
    sleep 1
  done
  "${@:2}" # where it fails, the script ends, and the server with it
  kill $process 2> /dev/null || true
  wait $process || true
  trap - EXIT
}

# the filter model: WM-SFT on the tasks that are held out, by the host's own trainer
filter_model() {
  local rows=$work/filter/$host.parquet
  made "$rows" wm data build "$work/transitions.validation.jsonl" --as rwml-sft --host "$host" --prompts "$prompts" \
    --out "$rows" --tokenizer "$model" --max-tokens "$longest"
  if [ "$host" = trl ]; then
    filter=$work/filter
    sed "s#runs/wm_sft_rwml#$filter#" "$recipes/trl/wm_sft_rwml.yaml" > "$filter/sft.yaml"
    made "$filter/config.json" trl sft --config "$filter/sft.yaml" --accelerate_config "$recipes/trl/accelerate_fsdp2.yaml" \
      --model_name_or_path "$model" --save_strategy no
  else
    compgen -G "$work/filter/global_step_*/huggingface" > /dev/null ||
      torchrun --standalone --nproc_per_node=8 -m verl.trainer.sft_trainer --config-path pkg://wm_plugin.recipes.verl \
        --config-name wm_sft_rwml model.path="$model" data.train_files="$rows" trainer.default_local_dir="$work/filter" \
        "checkpoint.save_contents=[model,hf_model]" trainer.save_freq=-1
    for filter in "$work"/filter/global_step_*/huggingface; do :; done
  fi
}

# ten predictions a transition; of the easy ones one in ten stays (paper). A mean reward over 0 is easy: see samples/easy.py
easy() {
  serving "$filter" wm data easy "$work/transitions.jsonl" --out "$work/hard.jsonl" --prompts "$prompts" \
    --server $server --server-model model --temperature 1 --k 10 --tau-easy 0 --keep 0.1 "${threshold[@]}" \
    --embedding-model Qwen/Qwen3-Embedding-8B --embedding-server "$embeddings"
}

rwml() {
  local played=${TRAJECTORIES:-$work/rollouts.jsonl} filter
  local samples=(--as rwml --prompts "$prompts" --tokenizer "$model" --max-tokens "$longest")
  mkdir -p "$work/filter"
  [ -n "${TRAJECTORIES:-}" ] || made "$played" rollouts
  made "$work/filtered.jsonl" wm data filter "$played" --out "$work/filtered.jsonl" \
    --filters $rwml_filters "${changes[@]}"
  made "$work/transitions.validation.jsonl" wm data expand "$work/filtered.jsonl" --out "$work/transitions.jsonl" \
    --validation-share "$share"
  filter_model
  made "$work/hard.jsonl" easy
  split_rows train "$work/hard.jsonl" "${samples[@]}"
  split_rows test "$held_out" "${samples[@]}"
}
