"""`wm doctor`."""

import dataclasses
from typing import Any

from rich.console import Console
from rich.text import Text

from wm_plugin.cli.output import prints
from wm_plugin.cli.templates import TokenizerFlags, tokenizer_checks
from wm_plugin.errors import UserError, install
from wm_plugin.hosting import installation
from wm_plugin.hosting.checks import Check

_STYLES = {"ok": "green", "info": "dim", "warn": "yellow", "fail": "bold red"}


def show(result: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for name, version in result["versions"].items():
        console.print(Text(f"{name:<14}{version or 'not installed'}", style="" if version else "dim"))
    console.print()
    for check in result["checks"]:
        detail = check["detail"]
        if check["name"] == "recipes" and check["state"] == "ok":
            detail = f"{detail.count(',') + 1} files in wm_plugin.recipes (wm doctor --json lists them)"
        line = Text(f"{check['state']:<6}", style=_STYLES[check["state"]])
        console.print(line.append(f"{check['name']}: {detail}", style="default"))
        if check["mend"]:
            console.print(Text(f"      → {check['mend']}"))
    console.print("\nReady." if result["ok"] else "\nNot ready: see the lines marked fail.")


@prints(show)
def doctor(*, template: TokenizerFlags = TokenizerFlags()) -> dict[str, Any]:
    """Show versions and hooks, what works with them, and how to mend the rest.

    Exit code 1: the world-model objective will not work here; each failed line says what to do. A warning leaves it 0.
    """
    installed = installation.versions()
    checks = [*installation.check_hosts(installed), *_tokenizer(template, installed), installation.check_recipes()]
    checks += installation.check_patches(installed)
    ok = all(check.state != "fail" for check in checks)
    return {"ok": ok, "checks": [dataclasses.asdict(check) for check in checks], "versions": installed}


def _tokenizer(flags: TokenizerFlags, installed: dict[str, str | None]) -> list[Check]:
    if flags.tokenizer is None:
        if flags.chat_template is not None:
            raise UserError("--chat-template is checked with a tokenizer; name one with --tokenizer PATH")
        return []
    if not installed["trl"] and not installed["verl"]:
        raise UserError("--tokenizer is checked against trl or verl; install one: " + install("trl"))
    return tokenizer_checks(flags.load(), flags.tokenizer)
