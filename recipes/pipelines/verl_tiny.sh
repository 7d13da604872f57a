# What verl's tiny recipes share: verl's support of CPUs, which is among the tests, so that they run from a checkout only.
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
tests=${recipes%/*}/tests
[ -d "$tests/support/verl_cpu" ] || { echo "${0##*/} runs from a checkout only: there is no $tests/support/verl_cpu" >&2; exit 2; }
export PYTHONPATH="$tests${PYTHONPATH:+:$PYTHONPATH}" VERL_USE_EXTERNAL_MODULES=wm_plugin.verl,support.verl_cpu

# on_the_grid FOLDER [FLAG...]: a policy, and rows of the grid
on_the_grid() {
  made "$1/config.json" python -m wm_plugin.lab.tiny --out "$1" --seed 0 "${@:2}"
  made "$1/grid.parquet" python -m wm_plugin.verl.data --rows wm_plugin.worlds.grid:dataset_rows \
    --kwargs '{"count": 960, "seed": 0}' --out "$1/grid.parquet"
}
