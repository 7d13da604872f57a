# What the scripts of recipes share. A step whose result is there is not done again: after a failure the same command goes on.
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

wm() { python -m wm_plugin "$@"; }

# what RWML leaves out: turns of invalid actions (paper), and episodes that the world lost (ours)
rwml_filters=empty_actions,invalid_actions,environment_failures

made() { [ -e "$1" ] || "${@:2}"; } # a file, or what makes it

# worlds FILE DATA_SOURCE ARGUMENTS: rows of worlds for verl
worlds() {
  made "$1" python -m wm_plugin.verl.data --rows wm_plugin.worlds.mixture:dataset_rows --data-source "$2" --out "$1" \
    --kwargs "$3"
}

# split_rows NAME SOURCE FLAG...: the rows of train or test, where recipes of $host read them in $work
split_rows() {
  local file=$work/$1.parquet
  if [ "$host" = trl ]; then file=$work/data/$1.jsonl; fi
  mkdir -p "${file%/*}"
  made "$file" wm data build "$2" --host "$host" --out "$file" --split "$1" "${@:3}"
}
