"""`wm env check`."""

from typing import Annotated, Any

from cyclopts import Parameter

from wm_plugin.cli.flags import WorldName
from wm_plugin.cli.numbers import Count
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import find
from wm_plugin.errors import UserError
from wm_plugin.worlds import SPECS
from wm_plugin.worlds import check as checks
from wm_plugin.worlds.worlds import load

_MARKS = {"ok": "ok", "note": "--", "fail": "FAILS"}


def show(result: dict[str, Any]) -> None:
    for report in result["checked"]:
        level = f" ({report['level']})" if report["level"] else ""
        print(f"{report['environment']}{level}: {'ok' if report['ok'] else 'FAILS'}")
        for finding in report["findings"]:
            print(f"  {_MARKS[finding['state']]:<5} {finding['name']}: {finding['detail']}")
        for use in report["uses"]:
            add = f"add {'; '.join(use['add'])} ({use['docs']})" if use["add"] else "ready"
            print(f"  {'--' if use['add'] else 'ok':<5} {use['name']}: {add}")
        memory = report["bytes_an_instance"]
        size = "unknown memory" if memory is None else f"{memory / 1024:,.1f} KB"
        speeds = f"{report['steps_per_second']:,.0f} steps/s, {report['resets_per_second']:,.0f} resets/s"
        print(f"        {speeds}, {size} an instance")
    for name, missing in result["skipped"].items():
        print(f"{name}: skipped, it needs {' and '.join(missing)}")


@prints(show)
def check(
    name: WorldName | None = None,
    /,
    *,
    every: Annotated[bool, Parameter(name="--all")] = False,
    level: str | None = None,
    seeds: Count = 20,
) -> dict[str, Any]:
    """Does a world keep the protocol, is it deterministic, how fast is it, and what is it ready for?

    Plays rows with the world's wanderer and its expert: with one instance, with new ones, and in another process. Then says what
    training, held-out evaluation, the verifier and consistency still need; what is missing there is no failure. As JSON,
    `checked` has a report for each world, with `findings` and `uses`; `skipped` what the others need.

    Args:
        every: Check every world of this package that can run here.
        level: A level of the world (default: the first).
        seeds: Rows to play.
    """
    if every is (name is not None):
        raise UserError("name one world, or write --all")
    if every and level:
        raise UserError("--level is of one world: name it")
    missing = {name: spec.needs.missing() for name, spec in SPECS.items()} if name is None else {}
    skipped = {name: what for name, what in missing.items() if what}
    worlds = [find(name)] if name else [load(name) for name in SPECS if name not in skipped]
    reports = [checks.check(world, seeds=seeds, level=level).as_dict() for world in worlds]
    return {"checked": reports, "skipped": skipped, "ok": all(report["ok"] for report in reports)}
