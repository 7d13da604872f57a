"""Writes docs/licences.md, the licences of what an installation brings, from the metadata of the packages in some folders.

    python docs/licences.py .venv-trl/lib/python3*/site-packages .venv-verl/lib/python3*/site-packages

A dependency that is in none of them keeps its row. Exit code 1 if it has none: write it by hand.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
OURS = "wm-plugin"
TOOLS = ("dev",)  # extras for developers of the package
# What classifiers and free texts call them.
NAMES = (
    (r"AGPL|Affero", "AGPL"),
    (r"LGPL|Lesser", "LGPL"),
    (r"GPL ?v?-?3|GNU General Public License v3", "GPL-3.0"),
    (r"GPL|GNU General Public", "GPL-2.0"),
    (r"MPL|Mozilla", "MPL-2.0"),
    (r"Apache", "Apache-2.0"),
    (r"BSD", "BSD"),
    (r"\bMIT\b", "MIT"),
    (r"\bISC\b", "ISC"),
    (r"PSF|Python Software Foundation", "PSF-2.0"),
    (r"Unlicense|public domain", "public domain"),
    (r"Historical Permission|HPND", "HPND"),
    (r"zlib", "Zlib"),
)
COPYLEFT = ("AGPL", "LGPL", "GPL-3.0", "GPL-2.0", "MPL-2.0")
START = """# Licences

`wm-plugin` is Apache-2.0. `make generate` makes this page from the metadata of the packages that `make test` installs.

## What it depends on

| package | for | licence |
|---|---|---|
"""
MIDDLE = """
## Copyleft

Of all packages that these bring in turn, those with conditions on their source, by the extra that brings them. An extra that is
not named brings none besides those of the core. ALFWorld also compiles Fast Downward (GPL-3.0) when it is installed.

| extra | packages |
|---|---|
"""


def licence(one: Distribution) -> str:
    """The licence as an SPDX expression where the package gives one, else by the usual names."""
    if expression := one.metadata.get("License-Expression"):
        return str(expression)
    classifiers = [text for text in one.metadata.get_all("Classifier") or () if text.startswith("License ::")]
    texts = [*classifiers, (one.metadata.get("License") or "").strip()[:200]]
    texts = (
        texts
        if any(texts)
        else [str(file.read_text())[:300] for file in one.files or () if "LICEN" in file.name.upper()]
    )
    found = {name for text in texts for name in [_named(text)] if name}
    return " AND ".join(sorted(found)) or "not stated"


def _named(text: str) -> str | None:
    return next((name for pattern, name in NAMES if re.search(pattern, text, re.I)), None)


def requirements() -> Iterator[tuple[str, str]]:
    """(package, extra) of pyproject.toml; the core's extra is empty."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, texts in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for text in texts:
            name = canonicalize_name(Requirement(text).name)
            if name != OURS and extra not in TOOLS:
                yield name, extra


def closure(names: Iterable[str], installed: dict[str, Distribution]) -> set[str]:
    """The installed packages that these bring, themselves included."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in found or name not in installed:
            continue
        found.add(name)
        for text in installed[name].requires or ():
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                left.append(canonicalize_name(one.name))
    return found


def copyleft(name: str, installed: dict[str, Distribution]) -> str | None:
    """The licence, if it is one with conditions on the source and there is no choice of another."""
    text = licence(installed[name])
    parts = re.sub(r"\([^()]* OR [^()]*\)", "", text)  # a choice in brackets
    return text if any(one in parts for one in COPYLEFT) and " OR " not in parts else None


def rows(text: str) -> dict[str, str]:
    """The row of each package in a page's first table."""
    first = text.partition("## Copyleft")[0]
    return {match[1]: match[0] for match in re.finditer(r"^\| `([^`]+)` \| .* \|$", first, re.M)}


def page(installed: dict[str, Distribution], before: str) -> str:
    """The page. `before` is the one that is there, for what is not installed."""
    extras: dict[str, list[str]] = {}
    for name, extra in requirements():
        extras.setdefault(name, []).append(f"`{extra}`" if extra else "core")
    old, lines, missing = rows(before), [], []
    for name in sorted(extras):
        if name in installed:
            lines.append(f"| `{name}` | {', '.join(extras[name])} | {licence(installed[name])} |")
        elif name in old:
            lines.append(f"| `{name}` | {', '.join(extras[name])} | {old[name].rsplit('|', 2)[1].strip()} |")
        else:
            missing.append(name)
    if missing:
        raise SystemExit(f"not installed, and without a row in {PAGE.name}: {', '.join(missing)}")
    core = closure([name for name, extra in requirements() if not extra], installed)
    brought = []
    for extra in ("", *dict.fromkeys(extra for _, extra in requirements() if extra)):
        names = closure([name for name, of in requirements() if of == extra], installed) - (core if extra else set())
        found = [f"{name} ({text})" for name in sorted(names) if (text := copyleft(name, installed))]
        if found:
            brought.append(f"| {f'`{extra}`' if extra else 'core'} | {', '.join(found)} |")
    return START + "\n".join(lines) + "\n" + MIDDLE + "\n".join(brought) + "\n"


def installed_in(folders: Sequence[str]) -> dict[str, Distribution]:
    """Packages by name; where several folders have one, the first folder's."""
    found: dict[str, Distribution] = {}
    for one in distributions(path=list(folders)):
        if name := one.metadata.get("Name"):
            found.setdefault(canonicalize_name(name), one)
    return found


if __name__ == "__main__":
    PAGE.write_text(page(installed_in(sys.argv[1:] or sys.path), PAGE.read_text() if PAGE.exists() else ""))
