#!/usr/bin/env bash
# run.sh RECIPE [SETTING...]: make what a recipe needs, and train it on verl. ../README.md lists the recipes, ../launch.sh the flags that
# both hosts share; others are Hydra's overrides. PROCESSES is for tiny SFT (1).
set -euo pipefail
host=verl
actor=actor_rollout_ref.actor rollout=actor_rollout_ref.rollout
gspo=+method=gspo
gspo_tiny="+method=gspo $actor.ppo_mini_batch_size=8" # two updates a step: in the second one ratios are not 1
ppo="+method=ppo wm.zero_variance_groups=keep data.train_batch_size=32 $actor.optim.lr_warmup_steps=20 $rollout.n=8" # WMAct's numbers
ppo_tiny='+method=ppo critic.ppo_mini_batch_size=2'
code='wm.tools=[submit_code,run_code]'
run_500="--coeff 0.05 trainer.total_training_steps=500 trainer.total_epochs=19 $rollout.n=16"
run_glm="--model zai-org/GLM-4.5-Air --coeff 0.005 trainer.total_training_steps=500 trainer.total_epochs=10 data.train_batch_size=8
  $rollout.n=16 $actor.optim.optimizer=SignSGD trainer.nnodes=4 $rollout.tensor_model_parallel_size=8 $rollout.multi_turn.format=glm"
deepdive="--coeff 0.05 $rollout.n=16
  trainer.total_training_steps=500 trainer.total_epochs=4"
deepdive_tiny='--environment {"grid":"grid","deepdive":"deepdive"} --coeff 0.05
  --train_rows_kwargs {"environments":{"grid":240,"deepdive":{"count":16,"max_turns":4}}}
  --eval_rows_kwargs {"grid":{"environments":{"grid":8},"seed":1,"held_out":true},"deepdive":{"environments":{"deepdive":{"count":4,"max_turns":4}},"seed":1,"held_out":true}}'
swe_tiny='--environment {"grid":"grid","swe":"swe"} --coeff 0.05
  --train_rows_kwargs {"environments":{"grid":240,"swe":{"count":16,"level":"hard-1","max_turns":4}}}
  --eval_rows_kwargs {"grid":{"environments":{"grid":8},"seed":1,"held_out":true},"swe":{"environments":{"swe":{"count":4,"level":"hard-1","max_turns":4}},"seed":1,"held_out":true}}'
hybrid='{"path":"hybrid","kwargs":{"tag":"next_state","rubric":{"server":{"base_url":"http://127.0.0.1:8399/v1","model":"judge"}},"rules":{"verifier":{"error":"target"}}}}'
tau2="--model Qwen/Qwen3-8B wm.environment={retail:tau2,airline:tau2,telecom:tau2} wm.max_turns=31 data.max_prompt_length=12288
  $actor.ppo_max_token_len_per_gpu=28672 trainer.total_training_steps=200" # paper: 30 turns, and the turn after the last one
rwml_tau2="--model Qwen/Qwen3-8B $rollout.n=16 --rewards
  "'{"path":"rwml","kwargs":{"tag":"next_state","model":"Qwen/Qwen3-Embedding-8B","base_url":"http://localhost:8001/v1","threshold":0.4,"step":0.2}}' # paper
rwml='data.train_batch_size=32 data.max_length=8192 data.max_token_len_per_gpu=16384 optim.lr=2.0e-6 optim.lr_warmup_steps=-1
  optim.clip_grad=1.0 trainer.total_epochs=2'
agentworld='data.max_length=16384 data.max_token_len_per_gpu=32768 optim.clip_grad=1.0'
clone='--batch 4 --steps 20 data.max_length=1024 data.micro_batch_size_per_gpu=2 optim.lr=1.0e-4 optim.lr_warmup_steps=3'
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
[ -z "$tiny" ] || export VERL_PLATFORM=${VERL_PLATFORM:-cpu}
needs

settings=("trainer.default_local_dir=$out" "trainer.experiment_name=$name")
hydra() { sed -E 's/"([A-Za-z_]+)": ?/\1: /g' <<< "$1"; } # JSON as Hydra reads it: keys have no quotes
if [ $kind = sft ]; then
  settings+=("data.train_files=$rows" ${model:+"model.path=$model"} ${seed:+"trainer.seed=$seed"} ${batch:+"data.train_batch_size=$batch"}
    ${steps:+"trainer.total_training_steps=$steps"})
  processes=8 trainer=verl.trainer.sft_trainer
  [ -z "$coeff" ] || { trainer=wm_plugin.verl.sft_trainer && settings+=(+wm=sft "wm.coeff=$coeff"); }
  [ -z "$tiny" ] || processes=${PROCESSES:-1}
  torchrun --standalone --nproc_per_node="$processes" -m "$trainer" \
    --config-path pkg://wm_plugin.recipes.verl --config-name "$(basename "$config" .yaml)" "${settings[@]}" "${rest[@]}"
else
  settings+=(${model:+"actor_rollout_ref.model.path=$model"} ${coeff:+"wm.coeff=$coeff"}
    ${seed:+"data.seed=$seed" "actor_rollout_ref.rollout.seed=$seed"}
    ${steps:+"trainer.total_training_steps=$steps" "trainer.save_freq=$steps"})
  [ -z "${TURNS:-}" ] || settings+=("wm.max_turns=$((TURNS > 12 ? TURNS + 1 : 13))") # wordle and sql take 12
  case "$steps $name" in [0-9]*rwml_g?po_tiny) settings+=("trainer.test_freq=$steps") ;; esac
  own=() rewards='' given=("${rest[@]}") rest=()
  [ "$(stem_on_trl)" != wmact_grpo ] || own=('train_rows_kwargs={environments: {sokoban: {count: 10000}}, seed: 0}')
  default=runs/rows/$(stem_on_trl) folder=$default
  set -- "${given[@]}"
  while [ $# -gt 0 ]; do
    case $1 in
      --train_rows | --train_rows_kwargs | --eval_rows | --eval_rows_kwargs) own+=("${1#--}=$2") folder=$out/rows && shift 2 ;;
      --environment) settings+=("~wm.environment" "+wm.environment=$(hydra "$2")") && shift 2 ;;
      --simulation | --control) settings+=("wm.${1#--}=$(hydra "$2")") && shift 2 ;;
      --rewards) rewards=$2 && shift 2 ;;
      *) rest+=("$1") && shift ;;
    esac
  done
  [ -z "$rewards" ] || settings+=("~wm.reward" "+wm.reward=$(hydra "$rewards")")
  if [ -n "$data" ]; then
    settings+=("data.train_files=$data/train.parquet" "data.val_files=$data/test.parquet")
  else
    recipe=$recipes/trl/$(stem_on_trl).yaml
    [ ! -e "$out/recipe.yaml" ] || { recipe=$out/recipe.yaml && folder=$out/rows; }
    made "$folder/train.parquet" python "$recipes/rows.py" "$recipe" "$folder" "${own[@]}"
    if [ "$folder" != "$default" ] || [ "$name" = echo_deepdive ] || [ "$name" = policy_tau2 ]; then
      settings+=("data.train_files=$folder/train.parquet" "data.val_files=[$(python "$recipes/rows.py" --names "$recipe" "$folder" "${own[@]}")]")
    fi
  fi
  # verl begins the file of its log anew with every start: what killed runs had logged comes first in the end
  export VERL_FILE_LOGGER_PATH=${VERL_FILE_LOGGER_PATH:-$out/log.jsonl}
  [ ! -s "$VERL_FILE_LOGGER_PATH" ] || grep '}}$' "$VERL_FILE_LOGGER_PATH" >> "$out/log.earlier" || true
  "${beside[@]}" python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl \
    --config-name "$(basename "$config" .yaml)" "${settings[@]}" "${rest[@]}"
  if [ -e "$out/log.earlier" ]; then
    cat "$VERL_FILE_LOGGER_PATH" >> "$out/log.earlier"
    mv "$out/log.earlier" "$VERL_FILE_LOGGER_PATH"
  fi
fi
last=$(ls -d "$out"/global_step_*/huggingface "$out"/global_step_*/actor/huggingface 2> /dev/null | sort -V | tail -n 1) || true
[ -z "$last" ] || ln -sfn "${last#"$out/"}" "$out/model"
