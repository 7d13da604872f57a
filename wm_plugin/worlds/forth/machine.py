"""Runs a model's Forth programs with gforth in the sandbox, and looks words up in gforth's own glossary.

Each run is a process of about 50 ms, with limits on time, memory and output. The same program gives the same output: clocks stand
still, and addresses are not random if the host allows that (a container may not). For a program that runs into the time limit the
output is only a message, because how far it came is chance. A program does not sleep, but what it asks for counts as time.
"""

import re
import shutil
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from wm_plugin.errors import UserError
from wm_plugin.runtime import sandbox
from wm_plugin.worlds.kit.search import Index

TIMEOUT = 20.0  # seconds for a run, also on a busy host
LIMITS = {"cpu": 1, "as": 256 << 20, "fsize": 1 << 16, "nofile": 16, "core": 0}  # of prlimit: seconds and bytes
KILLED = 128 + 9  # the exit code after SIGKILL, which ends a run at its time limit
BUFFER = 4096  # a write that would exceed the limit is dropped as a whole
MAX_OUTPUT = 2000  # characters of a run that are shown
MAX_ENTRY = 1500  # characters of a glossary entry
BEGIN, END, NEXT = "\x01", "\x02", "\x03"  # around the output of a test and its exit state
# The last output of a program is END and a digit: whether all of its source was read and executed.
WHOLE, COMPILING, SKIPPING = "012"
MISSING_PAREN = "warning: ')' missing"  # gforth's own words; it goes on without an error
UNFINISHED = {
    COMPILING: "Unfinished code: a definition has no `;`, or `]` no `[`.",
    SKIPPING: "Unfinished code: an `[if]` has no `[then]`, or a `{` no `}`.",
    MISSING_PAREN: "Unfinished code: a comment `(` has no `)`.",
}
ENDED_EARLY = "Stopped: the session ended before the end of the code (`bye`, `quit`, or input was awaited)."
# Output and errors go to one stream, in order. Of a test, only its definitions remain for the next one.
PRELUDE = f"""
warnings @ warnings off
: utime 0. ; : cputime 0. 0. ; : time&date 0 0 0 1 1 2000 ;
variable wm-slept
: ms ( u -- )
  dup {LIMITS["cpu"] * 1000} u> if drop {LIMITS["cpu"] * 1000 + 1} then wm-slept +!
  wm-slept @ {LIMITS["cpu"] * 1000} u> if {KILLED} (bye) then ;
: wm-end {ord(END)} emit state @ if {ord(COMPILING)} else {ord(WHOLE)} then emit 0 (bye) ; immediate
:noname {ord(END)} emit {ord(SKIPPING)} emit 0 (bye) ; is bootmessage
warnings !
stderr to outfile-id
: wm-test ( c-addr u -- )
  {ord(BEGIN)} emit ['] evaluate catch {ord(END)} emit decimal 0 .r space depth 0 .r {ord(NEXT)} emit clearstack ;
{ord(BEGIN)} emit
"""


class LostError(Exception):
    """gforth did not start, through no fault of the program."""


class Result(NamedTuple):
    """The output of a program, errors included, and whether it ended without an error."""

    text: str
    ended: bool


def check() -> None:
    """Raise a UserError if gforth or bubblewrap is not installed, or may not run."""
    _starter()


def execute(*sources: str) -> Result:
    """Run one or two files of Forth, the second after the first. Source that ends too early is an error, which the text names.

    Raises:
        LostError: the process could not be started.
    """
    output, code = _run(*sources)
    if len(output) >= LIMITS["fsize"] - BUFFER:
        return Result(f"{output[:MAX_OUTPUT]}\nStopped: the program printed too much.", False)
    if code in (None, KILLED):
        return Result("Stopped: the program ran too long.", False)
    ending = output[-1:] if output[-2:-1] == END and output[-1:] in (WHOLE, COMPILING, SKIPPING) else ""
    text = output[:-2] if ending else output
    text = re.sub(r"^\$[0-9A-F]+ ", "", text, flags=re.MULTILINE).strip()  # addresses in backtraces: of this build
    problem = UNFINISHED.get(ending, "") if ending else ENDED_EARLY if code == 0 else ""
    if not problem and text.endswith(MISSING_PAREN):
        problem, text = UNFINISHED[MISSING_PAREN], text.removesuffix(MISSING_PAREN).strip()
    text = text if len(text) <= MAX_OUTPUT else f"{text[:MAX_OUTPUT]}... ({len(text)} characters)"
    return Result(f"{text}\n{problem}".strip(), code == 0 and not problem)


def test(code: str, inputs: Sequence[str]) -> list[str | None]:
    """Return the output of each line of Forth after `code`, with single spaces; None if it fails or leaves a value on the stack.

    All lines run in one process; those after a line that ends the process or hangs are None. The process does not know the
    expected outputs.
    """
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in inputs]
    output, _ = _run(code, "".join(f's\\" {line}" wm-test\n' for line in escaped))
    results: list[str | None] = []
    for part in output.split(BEGIN)[1:]:
        output_text, _, ending = part.partition(END)
        results.append(" ".join(output_text.split()) if ending.partition(NEXT)[0] == "0 0" else None)
    return (results + [None] * len(inputs))[: len(inputs)]


def _run(*sources: str) -> tuple[str, int | None]:
    """Return the output after the prelude, and the exit code."""
    files = {"/prelude.fs": PRELUDE, **dict(zip(("/code.fs", "/input.fs"), sources, strict=False))}
    try:
        process = sandbox.run(
            [*_starter(), *files, "-e", "wm-end"],
            files={name: source.encode() for name, source in files.items()},
            timeout=TIMEOUT,
            most=LIMITS["fsize"],
            errors=True,
        )
    except OSError as error:
        raise LostError(str(error)) from None
    start, marker, output = process.output.decode(errors="replace").partition(BEGIN)
    if not marker and process.code is not None:
        raise LostError(start)
    return output, process.code


@cache
def _starter() -> tuple[str, ...]:
    """Return the command that starts gforth with its limits."""
    gforth = shutil.which("gforth")
    if not gforth:
        raise UserError("the world forth needs gforth: install the system package gforth")
    with_limits = ["/usr/bin/prlimit", *(f"--{name}={most}" for name, most in LIMITS.items()), gforth]
    without_randomisation = ["/usr/bin/setarch", "-R", *with_limits]
    try:
        sandbox.check("Forth runs", [*without_randomisation, "-e", "bye"])
    except UserError:
        sandbox.check("Forth runs", [*with_limits, "-e", "bye"])  # the filter of a container may deny personality()
        return tuple(with_limits)
    return tuple(without_randomisation)


DEFINITION = re.compile(r"(\S+)\s+(\( [^)]*\))[ \t]*\\?[ \t]*(.*)$")  # name ( stack -- effect ) \ set of words
PRIMITIVE = re.compile(r'^(\S+)\t+(\( [^)]*\))\s+(\S+)[^\n]*\n(?:""(.*?)"")?', re.MULTILINE | re.DOTALL)
MARKUP = re.compile(r"@\w+\{([^{}]*)\}")


@cache
def glossary() -> dict[str, tuple[str, str]]:
    """Return the words that gforth's installed sources document, by their names in lower case: (name, text).

    A text starts with the name and the stack effect.
    """
    check()
    folder = Path(_starter()[-1]).resolve().parent.parent / "share" / "gforth"
    entries: dict[str, tuple[str, str]] = {}
    for path in sorted(folder.rglob("prim")):
        for name, effect, words, text in PRIMITIVE.findall(path.read_text(errors="replace")):
            _add(entries, name, effect, words, text)
    for path in sorted(folder.rglob("*.fs")):
        if "test" in path.parts:
            continue
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            definition = DEFINITION.search(line)
            following = lines[number + 1 : number + 40]
            comments = list(takewhile(lambda comment: comment.lstrip().startswith("\\G "), following))
            if definition and (comments or re.match(r"(core|string|double|gforth)\b", definition[3])):
                text = "\n".join(comment.strip()[3:] for comment in comments)
                _add(entries, definition[1], definition[2], definition[3], text)
    if not entries:
        raise UserError(
            f"the world forth looks words up in gforth's sources, which {folder} lacks: install gforth-common"
        )
    return entries


def _add(entries: dict[str, tuple[str, str]], name: str, effect: str, words: str, text: str) -> None:
    while (plain := MARKUP.sub(r"\1", text)) != text:
        text = plain
    kind = words.split("\t")[0].split("  ")[0].strip()
    entry = f"{name} {effect} {kind}\n{' '.join(text.replace('@@', '@').split())}".strip()
    entries.setdefault(name.lower(), (name, entry[:MAX_ENTRY]))


@cache
def _index() -> Index:
    return Index([text for _, text in glossary().values()])


def look_up(query: str) -> tuple[str, bool]:
    """Return the glossary's entry of a word, or the three entries that fit a query best, and whether there is any."""
    entries = glossary()
    words = query.split()
    if len(words) == 1 and (entry := entries.get(words[0].lower())):
        return entry[1], True
    best = _index().search(query, 3, least=1.0)
    if best:
        texts = [text for _, text in entries.values()]
        return "\n\n".join(texts[place] for place in best), True
    near = get_close_matches(query.lower()[:40], entries, n=1, cutoff=0.0)
    return f"Nothing found. Try: {entries[near[0]][0]}", False
