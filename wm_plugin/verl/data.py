"""Dataset rows as the parquet file that verl reads.

    python -m wm_plugin.verl.data --rows wm_plugin.worlds.grid:dataset_rows --kwargs '{"count": 64}' --out train.parquet

A row keeps its `prompt`. Its other columns go into `extra_info`; verl passes these fields to the agent loop, which passes them to
the environment's `reset`.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow
import pyarrow.parquet

from wm_plugin.data.outputs import atomic, check_apart, check_out, files_in
from wm_plugin.errors import UserError
from wm_plugin.hosting.rows import make_rows
from wm_plugin.options import mapping

ABILITY = "agent"  # verl only groups by it


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file. Returns 0, or 2 for bad input with one line on stderr; other errors are raised."""
    try:
        options = _parser().parse_args(argv)
        arguments = mapping(options.kwargs, "--kwargs")
        check_apart(files_in(arguments), {"--out": options.out})
        rows = make_rows(options.rows, arguments, field="--rows", kwargs="--kwargs")
        source = options.data_source or options.rows.replace(":", ".").rpartition(".")[0]
        write(verl_rows(rows, source), options.out)
    except UserError as error:
        print(f"wm_plugin.verl.data: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(f"{options.out}: {len(rows)} rows")
    return 0


def verl_rows(rows: Sequence[Mapping[str, Any]], data_source: str) -> list[dict[str, Any]]:
    """Rows in verl's layout, from rows with a `prompt` of messages.

    Raises:
        UserError: a row has no prompt, or has a column `index`, which verl uses itself.
    """
    converted = []
    for index, row in enumerate(rows):
        prompt = row.get("prompt")
        if not isinstance(prompt, list) or not prompt or not all(_is_message(message) for message in prompt):
            raise UserError(f"row {index} has no prompt; write a list of messages, each with a role and a content")
        if "index" in row:
            raise UserError(f"row {index} has a column 'index', which verl uses itself; rename it")
        converted.append(
            {
                "prompt": prompt,
                "data_source": data_source,
                "ability": ABILITY,
                "reward_model": {"style": "environment", "ground_truth": ""},
                "extra_info": {"index": index} | {name: value for name, value in row.items() if name != "prompt"},
            }
        )
    return converted


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Write one parquet file, and create its folder.

    Raises:
        UserError: the name does not end in .parquet, a column mixes types, or the file cannot be written.
    """
    if path.suffix != ".parquet":
        raise UserError(f"--out is {path}; verl knows the format by the name: write one that ends in .parquet")
    try:
        table = pyarrow.Table.from_pylist(rows)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise UserError(f"a column has values of different types in different rows: {error}") from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_out(path)
        with atomic(path) as unfinished:
            pyarrow.parquet.write_table(table, unfinished)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error}") from None


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and "role" in message and "content" in message


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")


def _parser() -> _Parser:
    parser = _Parser(prog="python -m wm_plugin.verl.data", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", required=True, help="a function that returns rows: package.module:name")
    parser.add_argument("--kwargs", default="{}", help="its arguments, as JSON")
    parser.add_argument("--out", required=True, type=Path, help="the file to write, *.parquet")
    parser.add_argument("--data-source", help="the column data_source; the function's module by default")
    return parser


if __name__ == "__main__":
    sys.exit(main())
