"""The file of a family of prompts that a search wrote. Its first line tells whether somebody changed it since."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import yaml

from wm_plugin.data.outputs import atomic, check_derived
from wm_plugin.data.prompts import Prompts
from wm_plugin.lab.evaluation.prompt_trials import Candidate

_HEAD = "# Prompts of wm lab search-prompts. A copy of your own may be changed, this file not: sha256 "


def family_text(prompts: Prompts, chosen: Sequence[Candidate]) -> str:
    """Write a family as a file of prompts, with a hash of the rest in its first line."""
    stages = {name: stage for stage, names in prompts.stages.items() for name in names}
    lines = [
        f"# {one.style}: {stages[one.style]}, of round {one.round}, {one.score:.4f} in the search" for one in chosen
    ]
    values = prompts.model_dump(exclude={"name"}, exclude_defaults=True)
    values["variants"] = values.pop("variants")  # last
    body = "\n".join(lines) + "\n" + yaml.dump(values, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=130)
    return f"{_HEAD}{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def write_family(prompts: Prompts, chosen: Sequence[Candidate], path: Path) -> None:
    """Write a family, completely or not at all, unless somebody changed the file that an earlier search wrote there."""
    with atomic(path, check=lambda: check_family(path)) as unfinished:
        unfinished.write_text(family_text(prompts, chosen), encoding="utf-8", newline="\n")


def check_family(path: Path) -> None:
    """Raise UserError if another file than an earlier search's is at `path`, or it cannot be written."""
    check_derived(path, _is_unchanged, "the prompts that a search wrote", "move it, or name another folder")


def _is_unchanged(path: Path) -> bool:
    head, _, body = path.read_bytes().partition(b"\n")
    return head == f"{_HEAD}{hashlib.sha256(body).hexdigest()}".encode()


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.represent_text)
