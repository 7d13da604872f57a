# What both launchers do first, with `host` set: find the recipe's line, read the flags that hosts share, and make what it needs.
#
#   #: NAME | SYSTEM | ALGORITHM | NEEDS | RUN HERE | FLAGS
#
# is the recipe's line at the head of its YAML; FLAGS may name the shell variables of the launcher. Shared flags:
#
#   --model M --out DIR --seed N --steps N   the model, where results go (runs/NAME), the seed, the training steps
#   --rows FILE --batch N                    of SFT: rows of `wm data build`, rows a step
#   --data DIR --rewards JSON                of rewards on predictions: train and test rows of `wm data build`, the reward
#   --coeff X                                of ECHO
#   --environment, --train_rows, --train_rows_kwargs, --simulation, --control    as `wm train` takes them
#
# All others are the trainer's own, and override the YAML. What is there is not made again. The last model is at OUT/model.
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
here=$recipes/$host
source "$recipes/rows.sh"

fail() { echo "recipes/$host/run.sh: $1" >&2; exit 2; }
beside_wm=()
wm() { "${beside_wm[@]}" python -m wm_plugin "$@"; }
made() { [ -e "$1" ] || "${@:2}"; } # a file, or what makes it

name=${1:-}
line=$(grep -h "^#: $name |" "$here"/*.yaml) || fail "there is no recipe '$name'; recipes/README.md lists them"
config=$(grep -l "^#: $name |" "$here"/*.yaml)
IFS='|' read -r _ _ algorithm _ _ words <<< "$line"
algorithm=${algorithm// /} kind=rl tiny=
case $algorithm in SFT | CPT) kind=sft ;; esac
case $name in *_tiny | *_135m) tiny=yes ;; esac
set -f
eval "set -- $words \"\${@:2}\""
set +f

model='' out=runs/$name seed='' steps='' rows='' batch='' data='' coeff='' rest=() beside=()
while [ $# -gt 0 ]; do
  case $1 in
    --model | --out | --seed | --steps | --rows | --batch | --data | --coeff)
      [ $# -gt 1 ] || fail "$1 needs a value"
      declare "${1#--}=$2" && shift 2
      ;;
    *) rest+=("$1") && shift ;;
  esac
done
mkdir -p "$out"

# The recipe's YAML of TRL, with episodes of TURNS turns, and the customer at CUSTOMER.
if [ -n "${TURNS:-}${CUSTOMER:-}" ] && [ $kind = rl ]; then
  python -m wm_plugin.hosting.config_file "$recipes/trl/$(stem_on_trl).yaml" |
    sed "s#max_turns: 200#max_turns: ${TURNS:-200}#; s#http://localhost:8002/v1#${CUSTOMER:-http://localhost:8002/v1}#" > "$out/recipe.yaml"
fi
