"""`wm env list`: which worlds there are, and what they need."""

import argparse
from typing import Any


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser("list", help="which worlds there are, and what they need")
    parser.set_defaults(run=run, show=show)
    return parser


def run(_args: argparse.Namespace) -> dict[str, Any]:
    """`environments`: each with `name`, `summary`, `tools`, `irreversible`, `levels`, `splits`, `extra` and what is `missing`."""
    from wm_plugin.worlds import SPECS

    environments = [
        {
            "name": spec.name,
            "summary": spec.summary,
            "tools": list(spec.tools),
            "irreversible": list(spec.irreversible),
            "levels": list(spec.levels),
            "splits": list(spec.splits),
            "extra": spec.needs.extra,
            "missing": spec.needs.missing(),
        }
        for spec in SPECS.values()
    ]
    return {"environments": environments}


def show(result: dict[str, Any]) -> None:
    width = max(len(row["name"]) for row in result["environments"]) + 2
    for row in result["environments"]:
        print(f"{row['name']:<{width}}{row['summary']}")
        tools = ", ".join(f"{name}!" if name in row["irreversible"] else name for name in row["tools"])
        levels = ", ".join(row["levels"]) or "one"
        splits = f"; splits: {', '.join(row['splits'])}" if row["splits"] else ""
        needs = f"; extra {row['extra']}" if row["extra"] else ""
        print(f"{'':<{width}}tools: {tools}; levels: {levels}{splits}{needs}")
        if row["missing"]:
            print(f"{'':<{width}}missing: {' and '.join(row['missing'])}")
    print("A tool with ! does what nothing takes back.")
