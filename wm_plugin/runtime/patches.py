"""The diffs in `wm_plugin.patches`, and whether the installed hosts have them. Nothing is applied here.

A file is a header, `Name: text` with continuation lines that begin with white space, an empty line, and a unified diff.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement

State = Literal["applied", "fits", "does not fit"]
# Of a header. `Releases` are those that it was made for. It may also have `Beside`: what must be installed, too, to be hit.
FIELDS = ("Package", "Releases", "Problem", "Hits", "Instead", "Remove", "Upstream")


@dataclass(frozen=True)
class Patch:
    """One diff: its name, its header, and the text before and after each of its hunks by file."""

    name: str
    header: dict[str, str]
    hunks: tuple[tuple[str, str, str], ...]
    path: str = ""  # of its file

    @property
    def package(self) -> str:
        return self.header["Package"]

    @property
    def where(self) -> str:
        """The releases that it was made for, in words."""
        beside = self.header.get("Beside")
        return f"{self.package} {self.header['Releases']}" + (f" beside {beside}" if beside else "")

    def hits(self, installed: Mapping[str, str | None]) -> bool:
        """Tell whether what it needs to hit is installed, by the versions of packages (None: missing)."""
        if "Beside" not in self.header:
            return True
        other = Requirement(self.header["Beside"])
        version = installed.get(other.name)
        return version is not None and other.specifier.contains(version, prereleases=True)

    def state(self, site: Path) -> State:
        """Tell whether the packages in a folder have it: all of its new texts, or all of its old ones."""
        files = {name: _text(site / name) for name, _, _ in self.hunks}
        if all(after in files[name] for name, _, after in self.hunks):
            return "applied"
        return "fits" if all(before in files[name] for name, before, _ in self.hunks) else "does not fit"


def load(folder: Any = None) -> list[Patch]:
    """Return all patches, by name; none in a checkout that is only on the path.

    Args:
        folder: of the files; None for the installed package's.
    """
    try:
        folder = resources.files("wm_plugin.patches") if folder is None else folder
    except ModuleNotFoundError:
        return []
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".patch")), key=lambda file: file.name)
    return [parse(file.name.removesuffix(".patch"), file.read_text(encoding="utf-8"), str(file)) for file in files]


def parse(name: str, text: str, path: str = "") -> Patch:
    """Read a patch from the text of its file."""
    head, _, diff = text.partition("\n\n")
    header: dict[str, str] = {}
    field = ""
    for line in head.splitlines():
        if not line[:1].isspace():
            field, _, line = line.partition(":")
        header[field] = f"{header.get(field, '')} {line.strip()}".strip()
    hunks: list[tuple[str, str, str]] = []
    file = ""
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            file = line.removeprefix("+++ b/")
        elif line.startswith("@@"):
            hunks.append((file, "", ""))
        elif hunks and line[:1] in " +-" and not line.startswith("--- a/"):
            _, before, after = hunks[-1]
            kept = line[1:] + "\n"
            hunks[-1] = (file, before + kept * (line[:1] != "+"), after + kept * (line[:1] != "-"))
    return Patch(name, header, tuple(hunks), path)


def site_of(package: str) -> Path | None:
    """Return the folder that holds a package, without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parents[1] if spec and spec.origin else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
