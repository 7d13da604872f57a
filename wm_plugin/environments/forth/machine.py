"""Forth programs of a model's, run by gforth in the sandbox, and gforth's own glossary.

One process a run, with limits on its time, memory and output: some 50 ms. What it writes is the same for the same program:
clocks stand still and addresses are not random where the host allows that (a container may not). A program that is stopped at
a limit of time says only that, because how far it came is chance.
"""

import re
import shutil
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from wm_plugin.environments.kit.search import Index
from wm_plugin.errors import UserError
from wm_plugin.runtime import sandbox

TIMEOUT = 20.0  # seconds until a run is given up, however busy the host is
LIMITS = {"cpu": 1, "as": 256 << 20, "fsize": 1 << 16, "nofile": 16, "core": 0}  # of prlimit: seconds and bytes
KILLED = 128 + 9  # by SIGKILL, which is what a limit of time ends with
BUFFER = 4096  # a write that would pass the limit is left out whole
SHOWN = 2000  # characters of a run
ENTRY = 1500  # characters of a glossary entry
BEGIN, END, NEXT = "\x01", "\x02", "\x03"  # around what a test prints and how it ended
# Outputs go one way, in their order. Tests leave nothing behind for the next one but what they defined.
PRELUDE = f"""
warnings @ warnings off
: utime 0. ; : cputime 0. 0. ; : time&date 0 0 0 1 1 2000 ;
warnings !
stderr to outfile-id
: wm-test ( c-addr u -- )
  {ord(BEGIN)} emit ['] evaluate catch {ord(END)} emit decimal 0 .r space depth 0 .r {ord(NEXT)} emit clearstack ;
{ord(BEGIN)} emit
"""


class LostError(Exception):
    """gforth did not start, which is not the program's doing."""


class Ran(NamedTuple):
    """What a program printed, errors included, and whether it came to its end without one."""

    text: str
    ended: bool


class Entry(NamedTuple):
    """A word of the glossary: its name, and what is known about it, the name and the stack effect first."""

    name: str
    text: str


def check() -> None:
    """Nothing, if programs can run here.

    Raises:
        UserError: gforth or bubblewrap is not installed, or may not run.
    """
    _starter()


def execute(*sources: str) -> Ran:
    """Run one or two files of Forth, the second after the first.

    Raises:
        UserError: see `check`.
        LostError: the process could not be started.
    """
    output, code = _run(*sources)
    if len(output) >= LIMITS["fsize"] - BUFFER:
        return Ran(f"{output[:SHOWN]}\nStopped: the program printed too much.", False)
    if code in (None, KILLED):
        return Ran("Stopped: the program ran too long.", False)
    text = re.sub(r"^\$[0-9A-F]+ ", "", output, flags=re.MULTILINE).strip()  # addresses in backtraces: of this build
    return Ran(text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)", code == 0)


def test(code: str, inputs: Sequence[str]) -> list[str | None]:
    """What each line of Forth prints after `code`, with single spaces; None where it fails or leaves something on the stack.

    All lines run in one process, and those after one that ends it or hangs are None. What they should print is not known in
    there.
    """
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in inputs]
    output, _ = _run(code, "".join(f's\\" {line}" wm-test\n' for line in escaped))
    found: list[str | None] = []
    for part in output.split(BEGIN)[1:]:
        printed, _, ending = part.partition(END)
        found.append(" ".join(printed.split()) if ending.partition(NEXT)[0] == "0 0" else None)
    return (found + [None] * len(inputs))[: len(inputs)]


def _run(*sources: str) -> tuple[str, int | None]:
    """What was printed after the prelude, and the exit code."""
    files = {"/prelude.fs": PRELUDE, **dict(zip(("/code.fs", "/input.fs"), sources, strict=False))}
    try:
        ran = sandbox.run(
            [*_starter(), *files, "-e", "bye"],
            files={name: source.encode() for name, source in files.items()},
            timeout=TIMEOUT,
            most=LIMITS["fsize"],
            errors=True,
        )
    except OSError as error:
        raise LostError(str(error)) from None
    start, began, output = ran.output.decode(errors="replace").partition(BEGIN)
    if not began and ran.code is not None:
        raise LostError(start)
    return output, ran.code


@cache
def _starter() -> tuple[str, ...]:
    """gforth with its limits, in the sandbox's words."""
    gforth = shutil.which("gforth")
    if not gforth:
        raise UserError("the world forth needs gforth: install the system package gforth")
    limited = ["/usr/bin/prlimit", *(f"--{name}={most}" for name, most in LIMITS.items()), gforth]
    fixed = ["/usr/bin/setarch", "-R", *limited]
    try:
        sandbox.check("Forth runs", [*fixed, "-e", "bye"])
    except UserError:
        sandbox.check("Forth runs", [*limited, "-e", "bye"])  # where a container's own filter denies personality()
        return tuple(limited)
    return tuple(fixed)


DEFINITION = re.compile(r"(\S+)\s+(\( [^)]*\))[ \t]*\\?[ \t]*(.*)$")  # name ( stack -- effect ) \ set of words
PRIMITIVE = re.compile(r'^(\S+)\t+(\( [^)]*\))\s+(\S+)[^\n]*\n(?:""(.*?)"")?', re.MULTILINE | re.DOTALL)
MARKUP = re.compile(r"@\w+\{([^{}]*)\}")


@cache
def glossary() -> dict[str, Entry]:
    """The words that gforth's installed sources explain, by their names in lower case.

    Raises:
        UserError: gforth or its sources are not installed.
    """
    check()
    folder = Path(_starter()[-1]).resolve().parent.parent / "share" / "gforth"
    entries: dict[str, Entry] = {}
    for path in sorted(folder.rglob("prim")):
        for name, effect, words, text in PRIMITIVE.findall(path.read_text(errors="replace")):
            _add(entries, name, effect, words, text)
    for path in sorted(folder.rglob("*.fs")):
        if "test" in path.parts:
            continue
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            found = DEFINITION.search(line)
            comments = list(takewhile(lambda one: one.lstrip().startswith("\\G "), lines[number + 1 : number + 40]))
            if found and (comments or re.match(r"(core|string|double|gforth)\b", found[3])):
                text = "\n".join(one.strip()[3:] for one in comments)
                _add(entries, found[1], found[2], found[3], text)
    if not entries:
        raise UserError(
            f"the world forth looks words up in gforth's sources, and {folder} has none: install gforth-common"
        )
    return entries


def _add(entries: dict[str, Entry], name: str, effect: str, words: str, text: str) -> None:
    while (plain := MARKUP.sub(r"\1", text)) != text:
        text = plain
    kind = words.split("\t")[0].split("  ")[0].strip()
    entry = f"{name} {effect} {kind}\n{' '.join(text.replace('@@', '@').split())}".strip()
    entries.setdefault(name.lower(), Entry(name, entry[:ENTRY]))


@cache
def _index() -> Index:
    return Index([entry.text for entry in glossary().values()])


def look_up(query: str) -> tuple[str, bool]:
    """What the glossary says about a word, or the three entries that fit a query best; and whether there are any."""
    entries = glossary()
    words = query.split()
    if len(words) == 1 and (entry := entries.get(words[0].lower())):
        return entry.text, True
    best = _index().search(query, 3, least=1.0)
    if best:
        every = list(entries.values())
        return "\n\n".join(every[place].text for place in best), True
    near = get_close_matches(query.lower()[:40], entries, n=1, cutoff=0.0)
    return f"Nothing found. Try: {entries[near[0]].name}", False
