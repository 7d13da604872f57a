"""Errors that are the user's to mend: one line that says what, where, and what to write instead.

The command line prints them without a traceback and exits with 2.
"""

import difflib
import json
import reprlib
import shlex
import sys
from collections.abc import Collection, Iterable
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

_OTHER_HOST = {"trl": "verl", "demo": "verl", "verl": "trl"}  # by extra: they want different releases of transformers


class UserError(ValueError):
    """Something in a config, a flag, a dataset or a file that the user can mend. The message is one line."""


class MissingExtraError(UserError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, needs: str, package: str, extra: str) -> None:
        super().__init__(f"{needs} needs {package}: {install(extra)}")


def no_host(name: str) -> NoReturn:
    """Refuse to import the adapter of a host that is not installed; in one line for `python -m` of a module in it."""
    error = MissingExtraError(f"wm_plugin.{name}", name, name)
    if sys.argv[:1] == ["-m"] and any(word.startswith(f"wm_plugin.{name}.") for word in sys.orig_argv):
        print(error, file=sys.stderr)  # Python still looks for the module, whose own `main` would say it
        raise SystemExit(2)
    raise error


def install(extra: str = "") -> str:
    """Return the command that installs this package, with an extra, from where it came."""
    options, other = f"[{extra}]" if extra else "", _OTHER_HOST.get(extra, "")
    checkout = Path(__file__).resolve().parents[1]
    if _is_ours(checkout / "pyproject.toml"):
        command = f"pip install -e {shlex.quote(f'{checkout}{options}')}"
    else:
        command = f"pip install {shlex.quote(f'wm-plugin{options}{_source()}')}"
    if not _is_installed(other):
        return command
    return (
        f"{command} in an environment of its own ({other}, which is in this one, wants other releases of transformers)"
    )


def _is_ours(project: Path) -> bool:
    try:
        return '\nname = "wm-plugin"\n' in project.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False  # the package is installed, or lies in somebody else's project


def _source() -> str:
    """Return the end of a requirement that says where the installed package came from; empty for an index."""
    try:
        record = json.loads(metadata.distribution("wm-plugin").read_text("direct_url.json") or "{}")  # PEP 610
    except (metadata.PackageNotFoundError, ValueError):
        record = {}
    url = record.get("url", "")
    if repository := record.get("vcs_info"):
        return f" @ {repository['vcs']}+{url}@{repository['commit_id']}"
    if url.startswith("file:") and not Path(unquote(urlsplit(url).path)).exists():
        return ""  # what it was installed from is gone
    return f" @ {url}" if url else ""


def _is_installed(package: str) -> bool:
    try:
        return bool(package) and bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


class _Short(reprlib.Repr):
    """`repr` of a few levels and parts: aliases in 700 bytes of YAML may stand for more than can ever be written."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 10
        self.maxstring = self.maxother = self.maxlong = 200

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        """Keep the order of the keys in the file."""
        if level <= 0 and value:
            return "{...}"
        parts = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value[key], level - 1)}" for key in islice(value, self.maxdict)
        ]
        return f"{{{', '.join(parts)}{', ...' if len(value) > self.maxdict else ''}}}"


_SHORT = _Short()


def shown(value: Any) -> str:
    """Write a value as a message shows it: one line, cut."""
    try:
        written = _SHORT.repr(value)
    except ValueError:  # an integer of more digits than Python writes
        written = type(value).__name__
    written = " ".join(written.encode(errors="backslashreplace").decode().split())
    return written if len(written) <= 40 else f"{written[:40]}..."


_NAMES = 40  # that a line has room for


def nearest(name: object, known: Iterable[str]) -> str:
    """Write a hint for a misspelt name: `; did you mean 'x'?`, or the names that exist, the first of them if they are many."""
    names = sorted(known)
    match = difflib.get_close_matches(name if isinstance(name, str) else shown(name), names, n=1)
    if match:
        return f"; did you mean {match[0]!r}?"
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"; there is {', '.join(map(repr, names[:_NAMES]))}{more}" if names else "; there is none"


def check_keys(where: str, keys: Iterable[object], names: Collection[str]) -> None:
    """Refuse a key of a config's block that is not among its fields."""
    for key in keys:
        if key not in names:
            raise UserError(f"{where} has no field {shown(key)}{nearest(key, names)}")
