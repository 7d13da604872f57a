"""`wm env list`."""

from typing import Any

from wm_plugin.cli.output import prints
from wm_plugin.worlds import SPECS


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
    print("A call of a tool with ! cannot be undone.")


@prints(show)
def list() -> dict[str, Any]:
    """List the worlds and what they need.

    As JSON, `environments` has each one's name, summary, tools, irreversible tools, levels, splits, extra and what is missing.
    """
    environments = [
        {
            "name": spec.name,
            "summary": spec.summary,
            "tools": [*spec.tools],
            "irreversible": [*spec.irreversible],
            "levels": [*spec.levels],
            "splits": [*spec.splits],
            "extra": spec.needs.extra,
            "missing": spec.needs.missing(),
        }
        for spec in SPECS.values()
    ]
    return {"environments": environments}
