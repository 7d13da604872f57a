# What recipes need before they train, by their names; launch.sh sources it. Functions set `model`, `rows` or `data` where no flag did.

rwml_filters=empty_actions,invalid_actions,environment_failures # paper: turns of invalid actions; ours: episodes that the world lost

# The recipe of TRL whose rows verl's has, too.
stem_on_trl() {
  case $name in
    echo_deepdive | policy_tau2) echo "$name" ;;
    echo_ppo_tiny | wmact_*_tiny | sim_table_tiny | prediction_*_tiny) echo echo_grpo_tiny ;;
    wmact_*) echo wmact_grpo ;;
    *) basename "$config" .yaml ;;
  esac
}

tiny_policy() { # FOLDER [FLAG...]
  model=${model:-$1}
  [ "$model" != "$1" ] || made "$1/config.json" python -m wm_plugin.lab.tiny --out "$1" --seed "${seed:-0}" "${@:2}"
}

build() { wm data build "$1" --host "$host" --out "$rows" "${@:2}"; } # SOURCE FLAG...: rows of SFT

# best SOURCE SERVER FLAG...: the best of three outputs of a reasoning model, by an independent judge, as rows of SFT
best() {
  wm lab best "$1" --turn-information --n 3 --server "$2" --judge rubric --judge-args "{\"server\": $judge, \"scale\": \"unit\"}" \
    --compare reference --compare-args "{\"server\": $judge}" --host $host --out "$rows" "${@:3}"
}

# both_parts TRAIN TEST FLAG...: rows of a reward on predictions, in DATA
both_parts() {
  local end=parquet part source
  [ $host = verl ] || end=jsonl
  mkdir -p "$data"
  for part in train test; do
    source=$1
    [ $part = train ] || source=$2
    made "$data/$part.$end" wm data build "$source" --host $host --out "$data/$part.$end" --split $part "${@:3}"
  done
}

filtered() { # of a DOMAIN of Qwen-AgentWorld
  made "$2" wm data filter "$1" --for agentworld --domain "$domain" --out "$2"
}

needs_of_sft() {
  local rollouts=${TRAJECTORIES:-} tokenizer=${model:-Qwen/Qwen2.5-7B-Instruct} domain=${DOMAIN:-} judge file corpora=()
  local whole=(--tokenizer "$tokenizer" --max-tokens 12288 --too-long truncate)
  rows=${rows:-$out/$host.parquet}
  [ ! -e "$rows" ] || return 0
  case $name in
    wm_*agentworld) : "${DOMAIN:?mcp, search, terminal, swe, android, web or os}" ;;
    wm_sft_rwml) [ -n "$rollouts" ] || : "${TRANSITIONS:?RWML\'s own samples, or TRAJECTORIES}" ;;
  esac
  [ -n "$rollouts" ] || [ "$name" = wm_sft_rwml ] || : "${TRAJECTORIES:?a file of rollouts}"
  case $name in
    # won and lost episodes and failed actions are what a world model learns (paper); --no-world-context would hide the state
    wm_sft_word2world) build "$rollouts" --as word2world "${whole[@]}" ;;
    agent_sft | agent_sft_echo) build "$rollouts" --as imitation "${whole[@]}" ;; # of `wm env rollout`, `wm lab synthesize`, or both
    wm_sft_rwml) # TRANSITIONS=FILE takes RWML's own samples in the place of TRAJECTORIES, to compare with it as the paper does
      file=${TRANSITIONS:-$out/rollouts.jsonl}
      [ -n "${TRANSITIONS:-}" ] || made "$file" wm data filter "$rollouts" --out "$file" --filters $rwml_filters
      build "$file" --as rwml-sft --tokenizer "$tokenizer" --max-tokens 8192
      ;;
    wm_cpt_agentworld) # CORPUS="a.txt b.jsonl" has texts of your own
      for file in ${CORPUS:-}; do corpora+=(--corpus "$file"); done
      filtered "$rollouts" "$out/rollouts.jsonl"
      build "$out/rollouts.jsonl" --as cpt --prompts "$domain" "${corpora[@]}" --tokenizer "$tokenizer" --max-tokens 16384
      ;;
    wm_sft_agentworld) # SERVER and SERVER_MODEL predict, JUDGE and JUDGE_MODEL score; a winner reaches THRESHOLD (0.6 of 1: ours)
      judge="{\"base_url\": \"${JUDGE:?the address of a judge}\", \"model\": \"${JUDGE_MODEL:?its name}\"}"
      filtered "$rollouts" "$out/rollouts.jsonl"
      made "$out/one.jsonl" wm data expand "$out/rollouts.jsonl" --turns one --out "$out/one.jsonl"
      best "$out/one.jsonl" "${SERVER:?the address of a reasoning model}" --server-model "${SERVER_MODEL:?its name}" \
        --prompts "$domain" --max-new-tokens 8192 --threshold "${THRESHOLD:-0.6}" --tokenizer "$tokenizer" --max-tokens 16384
      ;;
  esac
}

needs_of_tiny_sft() {
  local texts=runs/tiny_random way judge='{"base_url": "http://127.0.0.1:8399/v1", "model": "judge"}'
  local given=$rows
  rows=${rows:-$out/$host.parquet}
  [ -z "$given" ] || return 0
  if [ "$name" = rwml_sft_tiny ]; then
    sql_transitions
    tiny_policy runs/rwml_tiny/random --random --texts
    made "$rows" build runs/rwml_tiny/transitions.jsonl --as rwml-sft --prompts "$recipes/trl/rwml_tiny_prompts.yaml" \
      --tokenizer "$model"
    return
  fi
  if [ "$name" = clone_sql_135m ]; then
    model=${model:-runs/smollm2_135m}
    made "$model/config.json" python -m wm_plugin.lab.tiny pretrained --out "$model" ${WEIGHTS:+--weights "$WEIGHTS"}
    made "$out/expert.jsonl" wm env rollout sql --policy expert --count 400 --out "$out/expert.jsonl"
    made "$rows" build "$out/expert.jsonl" --as imitation --tokenizer "$model" --max-tokens 1024
    return
  fi
  tiny_policy $texts --random
  made $texts/rollouts.jsonl python -m wm_plugin.lab.tiny rollouts --out $texts/rollouts.jsonl --count 256
  [ ! -e "$rows" ] || return 0
  case $name in
    wm_sft_rwml_tiny) build $texts/rollouts.jsonl --as rwml-sft --tokenizer "$model" ;;
    wm_sft_word2world_tiny) build $texts/rollouts.jsonl --as word2world --tokenizer "$model" ;;
    agent_sft_tiny | agent_sft_echo_tiny) build $texts/rollouts.jsonl --as rft --tokenizer "$model" ;;
    wm_cpt_agentworld_tiny)
      for way in up down left right; do
        printf '{"text": "A grid has walls. Who moves %s leaves a cell and stands in the next one, unless a wall is there."}\n' $way
      done > "$out/corpus.jsonl"
      build $texts/rollouts.jsonl --as cpt --prompts mcp --corpus "$out/corpus.jsonl" --tokenizer "$model" --max-tokens 4096
      ;;
    wm_sft_agentworld_tiny) # the best of three outputs of a server on localhost that guesses, by a judge there that compares words
      made "$out/one.jsonl" wm data expand $texts/rollouts.jsonl --turns one --out "$out/one.jsonl"
      beside_wm=(python -m wm_plugin.lab.tiny judge)
      best "$out/one.jsonl" http://127.0.0.1:8399/v1 --server-model reasoner --prompts mcp --threshold 0.1 --tokenizer "$model" \
        --max-tokens 4096
      beside_wm=()
      ;;
  esac
}

# Rollouts of the SQL tasks, three in ten of them held out.
sql_transitions() {
  made runs/rwml_tiny/rollouts.jsonl python -m wm_plugin.lab.tiny rollouts --out runs/rwml_tiny/rollouts.jsonl --environment sql \
    --count 1200 --seed "${seed:-0}"
  made runs/rwml_tiny/transitions.validation.jsonl wm data expand runs/rwml_tiny/rollouts.jsonl \
    --out runs/rwml_tiny/transitions.jsonl --validation-share 0.3
}

# Rows of rewards on predictions, and the model that WM-SFT left.
needs_of_predictions() {
  local work domain domains samples part end=parquet trajectories
  case $name in
    rwml_g?po_tiny | agentworld_gspo_tiny)
      sql_transitions
      model=${model:-runs/rwml_sft_tiny/model}
      [ "$model" != runs/rwml_sft_tiny/model ] || made $model/config.json bash "$here/run.sh" rwml_sft_tiny ${seed:+--seed "$seed"}
      if [ "$name" = agentworld_gspo_tiny ]; then
        beside=(python -m wm_plugin.lab.tiny judge)
        made runs/agentworld_tiny/one.validation.jsonl wm data expand runs/rwml_tiny/rollouts.jsonl --turns one \
          --out runs/agentworld_tiny/one.jsonl --validation-share 0.3
        both_parts runs/agentworld_tiny/one.jsonl runs/agentworld_tiny/one.validation.jsonl --as agentworld \
          --prompts "$recipes/trl/rwml_tiny_prompts.yaml" --domain mcp
      elif [ -z "$data" ]; then
        data=runs/rwml_tiny/data
        both_parts runs/rwml_tiny/transitions.jsonl runs/rwml_tiny/transitions.validation.jsonl --as rwml \
          --prompts "$recipes/trl/rwml_tiny_prompts.yaml"
      fi
      ;;
    agentworld_gspo)
      [ -z "$data" ] || return 0
      [ $host = verl ] || end=jsonl
      read -ra domains <<< "${DOMAIN:?one or more of mcp, search, terminal, swe, android, web, os}"
      trajectories=${TRAJECTORIES:?a file of rollouts, or a folder with a DOMAIN.jsonl of each domain}
      for domain in "${domains[@]}"; do
        work=runs/agentworld/$domain data=runs/agentworld/$domain/data
        mkdir -p "$work"
        part=$trajectories
        [ ${#domains[@]} = 1 ] || part=$trajectories/$domain.jsonl
        filtered "$part" "$work/rollouts.jsonl"
        made "$work/one.validation.jsonl" wm data expand "$work/rollouts.jsonl" --turns one --out "$work/one.jsonl" \
          --validation-share 0.05
        samples=(--as agentworld --prompts "$domain" --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 28672)
        both_parts "$work/one.jsonl" "$work/one.validation.jsonl" "${samples[@]}"
      done
      [ ${#domains[@]} -gt 1 ] || return 0
      data=runs/agentworld/data
      domains=("${domains[@]/#/runs/agentworld/}")
      for part in train test; do
        made "$data/$part.$end" wm lab mix "${domains[@]/%//data/$part.$end}" --count all --out "$data/$part.$end"
      done
      ;;
    *) [ -n "$data" ] || data=runs/${name%_g?po}/data ;; # `wm lab pipeline rwml_rl` has made them
  esac
}

needs() {
  case $name in
    words_sft_tiny) ;; # the pipelines name the model and the rows
    *_sft_*tiny | wm_cpt_*_tiny | clone_sql_135m) needs_of_tiny_sft ;;
    *sft* | wm_cpt*) needs_of_sft ;;
    rwml_* | agentworld_*) needs_of_predictions ;;
    echo_sql_135m) model=${model:-runs/clone_sql_135m/model} && made "$model/config.json" bash "$here/run.sh" clone_sql_135m ;;
    echo_g?po_tiny | echo_ppo_tiny) if [ $host = verl ]; then tiny_policy runs/tiny_random --random; else tiny_policy runs/tiny; fi ;;
    prediction_*_tiny) if [ $host = verl ]; then tiny_policy runs/tiny_predicts_verl --predicts; else tiny_policy runs/tiny_predicts --predicts; fi ;;
    *_tiny) if [ $host = verl ]; then tiny_policy runs/tiny_verl; else tiny_policy runs/tiny; fi ;;
  esac
}
