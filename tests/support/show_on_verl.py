"""`python -m support.show_on_verl metrics.jsonl`: the objective's figures of a run, from verl's file logger, a line a step."""

import json
import math
import sys
from pathlib import Path

COLUMNS = ("echo/nll", "echo/tokens", "echo/coeff", "echo/loss", "actor/pg_loss", "actor/grad_norm", "wm/env/success")


def _number(value: float | None) -> float:
    return math.nan if value is None else value  # the logger writes NaN as null


def main(path: str) -> None:
    print("step", *(f"{name:>16}" for name in COLUMNS))
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        print(f"{row['step']:4}", *(f"{_number(row['data'].get(name)):16.4f}" for name in COLUMNS))


if __name__ == "__main__":
    main(sys.argv[1])
