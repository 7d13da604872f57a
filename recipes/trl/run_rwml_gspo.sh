#!/usr/bin/env bash
# RWML on GSPO, 7B on 8 GPUs. TRAJECTORIES is a file of rollouts in any format that wm data convert reads; the embeddings'
# server runs beside it. Further arguments override the YAML: ./run_rwml_gspo.sh --num_generations 8
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=runs/rwml data=(python -m wm_plugin.cli.main data)
rows=(--as rwml --host trl --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 8192)
mkdir -p $work/data
[ -f $work/transitions.validation.jsonl ] ||
  "${data[@]}" expand "${TRAJECTORIES:?a file of rollouts}" --out $work/transitions.jsonl --validation-share 0.1
[ -f $work/data/train.jsonl ] || "${data[@]}" build $work/transitions.jsonl "${rows[@]}" --out $work/data/train.jsonl
[ -f $work/data/test.jsonl ] || "${data[@]}" build $work/transitions.validation.jsonl "${rows[@]}" --out $work/data/test.jsonl
exec accelerate launch --config_file "$here/accelerate_fsdp2.yaml" -m wm_plugin.trl.train --config "$here/rwml_gspo.yaml" "$@"
