#!/usr/bin/env bash
# run.sh RECIPE [FLAG...]: make what a recipe needs, and train it on TRL. ../README.md lists the recipes, ../launch.sh the flags that
# both hosts share; others are TRL's. LAUNCH has flags of accelerate for several machines, PROCESSES the processes of tiny ones (1).
set -euo pipefail
host=trl
gspo="--config $(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/gspo.yaml"
gspo_tiny="$gspo --epsilon 0.2 --epsilon_high 0.2"
# ours: 8 GPUs, so 1 x 8 x 32 completions a step. GLM: 32 GPUs, so 1 x 32 x 4; the steps, since the paper says "after around 500"
run_500='--steps 500 --num_generations 16 --gradient_accumulation_steps 32 --coeff 0.05'
run_glm='--model zai-org/GLM-4.5-Air --steps 500 --num_generations 16 --gradient_accumulation_steps 4 --coeff 0.005 --optimizer sign_sgd
  --vllm_tensor_parallel_size 8 --vllm_gpu_memory_utilization 0.45'
deepdive='--environment {"grid":"grid","deepdive":"deepdive"}
  --train_rows_kwargs {"environments":{"grid":240,"deepdive":{"count":16,"max_turns":4}}}
  --eval_rows_kwargs {"grid":{"environments":{"grid":8},"seed":1,"held_out":true},"deepdive":{"environments":{"deepdive":{"count":4,"max_turns":4}},"seed":1,"held_out":true}}'
swe='--environment {"grid":"grid","swe":"swe"}
  --train_rows_kwargs {"environments":{"grid":240,"swe":{"count":16,"level":"hard-1","max_turns":4}}}
  --eval_rows_kwargs {"grid":{"environments":{"grid":8},"seed":1,"held_out":true},"swe":{"environments":{"swe":{"count":4,"level":"hard-1","max_turns":4}},"seed":1,"held_out":true}}'
hybrid='{"path":"hybrid","kwargs":{"tag":"next_state","rubric":{"server":{"base_url":"http://127.0.0.1:8399/v1","model":"judge"}},"rules":{"verifier":{"error":"target"}}}}'
base='--model Qwen/Qwen2.5-7B --eos_token <|im_end|>'
rwml='--max_length 8192 --learning_rate 2.0e-6 --lr_scheduler_type constant --warmup_steps 0 --max_grad_norm 1.0
  --gradient_accumulation_steps 4 --num_train_epochs 2'
agentworld='--max_length 16384 --max_grad_norm 1.0'
from_words='--learning_rate 2.0e-3 --lr_scheduler_type cosine --warmup_steps 20 --batch 4 --steps 300 --logging_steps 5'
clone='--max_length 1024 --learning_rate 1.0e-4 --lr_scheduler_type linear --warmup_steps 3 --adam_beta2 0.999 --batch 2
  --gradient_accumulation_steps 2 --steps 20'
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
needs

flags=(--output_dir "$out" ${model:+--model_name_or_path "$model"} ${seed:+--seed "$seed"} ${steps:+--max_steps "$steps"}
  ${batch:+--per_device_train_batch_size "$batch"} ${data:+--dataset_name "$data"} ${coeff:+--echo_coeff "$coeff"})
fsdp=$here/accelerate_fsdp2.yaml
case $name in
  *_135m) # a CPU without bfloat16 emulates it, many times slower than 32 bits
    if grep -qswE 'avx512_bf16|amx_bf16|bf16' /proc/cpuinfo; then flags+=(--bf16 true); else flags+=(--bf16 false); fi ;;
esac
if [ $kind = sft ]; then
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(getconf _NPROCESSORS_ONLN)} # `trl sft` takes one thread unless it is told
  python -m wm_plugin.hosting.config_file "$config" "datasets=[{path: parquet, data_files: '$rows'}]" > "$out/sft.yaml"
  launch=(trl sft)
  [ -n "$tiny" ] || launch+=(--accelerate_config "$fsdp")
  if [ -n "$coeff" ]; then # TRL's own command has no term
    # shellcheck disable=SC2206 # several words
    if [ -n "$tiny" ]; then launch=(python); else launch=(accelerate launch --config_file "$fsdp" ${LAUNCH:-}); fi
    launch+=(-m wm_plugin.trl.train) && flags+=(--trainer sft)
  fi
  "${launch[@]}" --config "$out/sft.yaml" "${flags[@]}" "${rest[@]}"
else
  [ ! -e "$out/recipe.yaml" ] || config=$out/recipe.yaml
  [ -z "${TURNS:-}" ] || flags+=(--max_tool_calling_iterations $((TURNS > 12 ? TURNS : 12))) # wordle and sql take 12
  launch=(python)
  if [ -z "$tiny" ]; then
    # shellcheck disable=SC2206 # several words
    launch=(accelerate launch --config_file "$fsdp" ${LAUNCH:-}) && flags+=(--resume_from_checkpoint auto) # as verl does
  elif [ "${PROCESSES:-1}" -gt 1 ]; then
    # accelerate's CPU launcher wants MPI; the one it has for GPUs starts gloo processes just as well
    launch=(accelerate launch --multi_gpu --num_processes "$PROCESSES" --num_machines 1 --mixed_precision no --dynamo_backend no)
  fi
  case "$steps $name" in
    [0-9]*sim_table_tiny) flags+=(--save_steps "$steps") ;;
    [0-9]*rwml_g?po_tiny) flags+=(--eval_steps "$steps") ;;
  esac
  "${beside[@]}" "${launch[@]}" -m wm_plugin.trl.train --config "$config" "${flags[@]}" "${rest[@]}"
fi
ln -sfn . "$out/model"
