#!/usr/bin/env bash
# Consistency (Real, WM, W2R, CR) of a world model of textworld (default) or scienceworld, before and after a short SFT on a CPU:
# `tiny`, a model of 1M parameters from scratch (default), or `135m`, SmolLM2-135M-Instruct. Some ten minutes each on two cores.
# ../pipelines/consistency_tiny.sh has the sizes, and says what --quick is, which comes first. Further arguments override the YAML:
# ./run_consistency_tiny.sh scienceworld 135m --learning_rate 1e-4
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/consistency_tiny.sh"
rollouts
start
rows
measured before "$work/start"
made "$work/trained/training_args.bin" trl sft --config "$config" "${training[@]}" "${rest[@]}"
measured after "$work/trained"
