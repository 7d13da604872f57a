#!/usr/bin/env bash
# Real world, world model, world model under control, both worlds: a tiny policy learns in each, from nothing to the table of how it
# does in the real world, in runs/sim_table_tiny/trl/table.md, with report.html beside it. ../pipelines/sim_table_tiny.sh says what
# --seeds, --steps, --out and --quick are. Further arguments override the YAML in all arms:
# ./run_sim_table_tiny.sh --seeds 5 --learning_rate 1e-4
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../pipelines/sim_table_tiny.sh" trl "$@"
