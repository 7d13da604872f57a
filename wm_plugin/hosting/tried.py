"""Which releases of the hosts were tried, by `make compat`, and what `wm doctor` says about the installed one."""

from importlib import resources
from typing import Any

import yaml
from packaging.version import Version

from wm_plugin.hosting.checks import Check


def tried() -> list[dict[str, Any]]:
    """Return the rows of tried.yaml, a release of a host each, the oldest first."""
    text = resources.files("wm_plugin.hosting").joinpath("tried.yaml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = yaml.safe_load(text)
    return rows


def check_tried(host: str, version: str) -> Check:
    """Return whether this release was tried, when and with what; of others, the nearest that were."""
    rows = {Version(row["release"]): row for row in tried() if row["host"] == host and row["ok"]}
    name, here = f"{host} tried", Version(version)
    if row := rows.get(here):
        beside = f"transformers {row['transformers']} and torch {row['torch']}"
        detail = f"{version} on {row['date']} with {beside}: its hooks, and two training steps"
        return Check(name, "ok", detail)
    older, newer = (
        max((one for one in rows if one < here), default=None),
        min((one for one in rows if one > here), default=None),
    )
    near = " and ".join(f"{one} ({rows[one]['date']})" for one in (older, newer) if one is not None)
    return Check(name, "info", f"{version} was not; the nearest that were: {near}")


def page() -> str:
    """Return docs/compatibility.md."""
    lines = [
        f"| {row['host']} {row['release']} | {row['transformers']} | {row['torch']} | {row['python']} | {row['hooks']} | "
        f"{row['steps']}{'' if row['ok'] else ': failed'} | {row['date']} |\n"
        for row in tried()
    ]
    return _START + "".join(lines) + _END


_START = """# Compatibility

Releases of the hosts that were tried, each in an environment of its own: tests of every name that we override, call or read in
the host, then a training run of two steps. `make compat` does it and writes the table; `wm doctor` says when yours was tried.

| host | transformers | torch | Python | hooks | two steps | date |
|---|---|---|---|---|---|---|
"""
_END = """
Other releases in the supported ranges (`trl>=1.0,<2`, `verl>=0.9.1,<0.10`) should work: if one has moved a name, a run
stops before its first step and says which. Every night the tests run on the newest releases, and the names are looked for on both
hosts' main branches; what has moved there becomes an issue. [The support table](support.md) says what was tested of
each option of a host.
"""
