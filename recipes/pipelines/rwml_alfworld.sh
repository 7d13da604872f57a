#!/usr/bin/env bash
# RWML's data on ALFWorld, from the world to the rows of a host (trl or verl), in runs/rwml_alfworld. run_rwml_alfworld.sh calls it.
#
# Paper: 2,048 train tasks, N = 3 rollouts each by the model that is trained, at temperature 1, of 30 steps at most; turns of invalid
# actions are left out; a tenth is held out, trains the filter model and validates; easy at 0.1, which are 30%, and p = 0.1.
# Ours: the agent acts by tool calls; the tenth is of the tasks; episodes that the world lost are left out too.
# Needs: ALFWORLD_DATA with ALFWorld's games, 8 GPUs, and a server of the embeddings at EMBEDDINGS:
#   vllm serve Qwen/Qwen3-Embedding-8B --port 8001
set -euo pipefail
host=$1 work=runs/rwml_alfworld model=Qwen/Qwen2.5-7B-Instruct prompts=rwml longest=8192 share=0.1
held_out=$work/transitions.validation.jsonl threshold=(--threshold 0.1) changes=()
source "$(dirname "${BASH_SOURCE[0]}")/rwml.sh"

rollouts() {
  serving "$model" wm env rollout alfworld --level data --count 2048 --per-task 3 --max-turns 30 --out "$work/rollouts.jsonl" \
    --policy $server --model model --temperature 1
}

rwml
