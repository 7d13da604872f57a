"""The cases of rule-based verification, on its three axes. `rules` checks them, and scores a model by them.

Each asks for the form of the real observation besides what the case is about, and its rules must refuse whoever copies words of
the prompt, says the same of everything or echoes what was said before (`rule_form`): nothing is simulated by that.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wm_plugin.data.schema import Action, Observation
from wm_plugin.lab.evaluation.rule_commands import Command, commands_of, texts_of
from wm_plugin.lab.evaluation.rule_form import WORD, first_line, fixed, form, top_keys, unsimulated
from wm_plugin.lab.evaluation.rules import Case, Session
from wm_plugin.rewards.json_match import NO_JSON
from wm_plugin.rewards.json_match import parse as parse_json
from wm_plugin.rewards.rule_errors import error_kind

_NO_ERRORS = ("search",)  # the domain without cases of error handling in the paper
_CHANCE = (
    "timeout",
    "rate_limit",
    "connection",
    "memory",
    "other",
)  # kinds of errors that do not follow from an action
_LONGEST = 20_000  # characters of an observation that a case is made of
_MASK = "[withheld]"
_KEPT = 64  # files, tables and values of a table that are looked for
_LINES, _VALUES = 3, 5  # lines of a file and values of a row that a prediction must have
_SHORTEST = 3  # characters of a value that is looked for
_HEAD = 200  # characters of a command's first line
_BEFORE = 2  # observations and writing actions before the turn that an echo repeats


def build(source: Iterable[Session], *, seed: int = 0) -> Iterator[Case]:
    """The cases of sessions, in order. A session gives one of each kind of controllability, and all of the others."""
    for session in source:
        yield from _controllability(session, seed)
        yield from _errors(session)
        yield from _consistency(session)


def _observed(session: Session) -> Iterator[tuple[int, Action, str]]:
    """(turn, action, observation) of the turns with one observation, which no filter marked."""
    for number, turn in enumerate(session.trajectory.turns):
        if turn.actor == "agent" and len(turn.observations) == 1:
            observation: Observation = turn.observations[0]
            if observation.data.get("target") is not False and len(observation.text) <= _LONGEST:
                yield number, turn.action, observation.text


# Controllability


def _controllability(session: Session, seed: int) -> Iterator[Case]:
    """One case of each kind, of turns that a hash of the seed picks."""
    turns = [
        (number, action, text)
        for number, action, text in _observed(session)
        if number in session.turns and text.strip() and error_kind(text) is None
    ]
    turns.sort(key=lambda turn: _hash(seed, session.name, turn[0]))
    for number, action, text in turns:
        if case := _failure(session, number, action, text, seed):
            yield case
            break
    always = set.intersection(*(set(WORD.findall(text)) for *_, text in turns)) if len(turns) > 1 else set()
    for number, action, text in turns:
        if value := _telling(text, _words(action) | always):
            yield _replaced(session, number, action, text, value, _MASK, "withheld")
            yield _replaced(session, number, action, text, value, changed(value), "replaced")
            return


def _failure(session: Session, turn: int, action: Action, text: str, seed: int) -> Case | None:
    """The action fails, and the observation keeps its keys or its first line; None where it has no such form."""
    code = f"E{1000 + _hash(seed, session.name, turn, 'code') % 9000}"
    message, value = f"the operation failed with the code {code}", parse_json(text)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if isinstance(value, dict):
        keys = [key for key in value if key != "error"]
        told = (
            "has the same keys as usual, each with null, and beside them a key `error`, whose text holds the code "
            f"{code}."
        )
        right = json.dumps({**dict.fromkeys(keys), "error": message})
        rules: list[Any] = [{"json": {"path": "$.error", "pattern": rf"\b{code}\b"}}]
        rules += [{"json": {"path": path, "type": "null"}} for path in top_keys(value) if path != "$.error"]
    elif value is NO_JSON and len(lines) > 1 and lines[0].strip() != lines[1].strip():
        told = f"has its first line as usual, and in place of all that would follow an error with the code {code}."
        right = f"{lines[0]}\nError: {message}"
        rules = [
            {"regex": first_line(text, _words(action))},
            {"not": {"regex": rf"(?m)^\s*{re.escape(lines[1].strip())}\s*$"}},
        ]
    else:
        return None
    instruction = f"The next action fails, whatever it does. The observation {told}"
    rules += [{"error": True}, {"regex": rf"\b{code}\b"}]
    wrong = (text, f"{text}\nError: {message}", *_unsimulated(session, turn, (code, message, instruction)))
    return _case(session, turn, "controllability", "failure", {"all": rules}, (right,), wrong, instruction)


def _replaced(session: Session, turn: int, action: Action, text: str, value: str, other: str, kind: str) -> Case:
    instruction = (
        "The next observation is as usual but for one thing: "
        f'wherever it would hold "{value}", it holds "{other}" instead.'
    )
    right = _put(text, value, other)
    rules = [{"not": {"regex": _whole(value)}}, {"regex": re.escape(other)}, *form(right, _words(action))]
    wrong = (text, f"{text}\n{other}", *_unsimulated(session, turn, (other, instruction)))
    return _case(session, turn, "controllability", kind, {"all": rules}, (right,), wrong, instruction)


def _telling(text: str, known: set[str]) -> str:
    """A word of an observation that is neither known nor of its form; the longest with digits before others, "" if there is
    none."""
    known = known | fixed(text)
    words = dict.fromkeys(word for word in WORD.findall(text) if 4 <= len(word) <= 40 and word not in known)
    return max(words, key=lambda word: (any(sign.isdigit() for sign in word), len(word)), default="")


def _words(action: Action) -> set[str]:
    return set(WORD.findall("\n".join(texts_of(action))))


def _unsimulated(session: Session, turn: int, copied: Sequence[str], more: Sequence[str] = ()) -> tuple[str, ...]:
    """`rule_form.unsimulated`, with the observations before a turn.

    Args:
        more: further texts that an echo repeats.
    """
    turns = session.trajectory.turns
    seen = [one.text for before in turns[:turn] for one in before.observations][-_BEFORE:]
    action = "\n".join(command.text for command in commands_of(turns[turn].action)) or turns[turn].action.text
    return tuple(unsimulated(copied, [*seen, *more], action))


# Error handling


def _errors(session: Session) -> Iterator[Case]:
    if session.domain in _NO_ERRORS:
        return
    observed = list(_observed(session))
    successes = [text for _, _, text in observed if text.strip() and error_kind(text) is None]
    for number, action, text in observed:
        kind = error_kind(text)
        if number in session.turns and kind is not None and kind not in _CHANCE:
            rules = {"all": [{"error": kind}, *form(text, _words(action))]}
            wrong = (*successes[:_VALUES], *_unsimulated(session, number, ()))
            yield _case(session, number, "error handling", kind, rules, (text,), wrong)


# Consistency


@dataclass
class _State:
    """What earlier turns wrote, with the turn that did: contents of files, values of variables, values of rows by table."""

    files: dict[str, tuple[int, str]]
    variables: dict[str, tuple[int, str]]
    rows: dict[str, dict[str, int]]


def _consistency(session: Session) -> Iterator[Case]:
    state = _State({}, {}, {})
    observed = {number: (action, text) for number, action, text in _observed(session)}
    for number, turn in enumerate(session.trajectory.turns):
        commands = list(commands_of(turn.action))
        if number in session.turns and number in observed:
            yield from _reads(session, number, *observed[number], commands, state)
        for command in commands:
            _write(command, number, state)


def _reads(
    session: Session, turn: int, action: Action, text: str, commands: Sequence[Command], state: _State
) -> Iterator[Case]:
    if len(commands) != 1:  # several write and read in one turn, in an order that one screen does not tell
        return
    command, own = commands[0], "\n".join(texts_of(action))
    expected: list[str] = []
    kind = ""
    if command.read_file in state.files:
        kind, expected = "file", _lines(state.files[command.read_file][1])
    elif command.read_variable in state.variables:
        kind, expected = "variable", [state.variables[command.read_variable][1]]
    elif command.query:
        words = set(WORD.findall(command.query.lower()))
        values = [value for table, rows in state.rows.items() if table in words for value in rows]
        kind, expected = "rows", [value for value in values if _put(text, value, "") != text][-_VALUES:]
    expected = [value for value in expected if len(value) >= _SHORTEST and value not in own]
    if not expected:
        return
    parts = [{"regex": _whole(value)} for value in expected]
    known = _words(action) | set(WORD.findall("\n".join(expected)))
    earlier = (one.text for before in session.trajectory.turns[:turn] for one in commands_of(before.action))
    wrote = [said for said in earlier if any(value in said for value in expected)][-_BEFORE:]
    heads = [said.strip().partition("\n")[0][:_HEAD] for said in wrote]  # to repeat what wrote it shows nothing
    rules = {
        "all": [
            *parts,
            {"error": False},
            *form(text, known),
            *({"not": {"regex": re.escape(head)}} for head in heads if head and head not in text),
        ]
    }
    broken = [_put(text, value, changed(value)) for value in expected]
    copies = _unsimulated(session, turn, expected, wrote)  # to show what was written, and no more, is right
    wrong = (*broken, *(copy for copy in copies if copy.strip() != text.strip()))
    yield _case(session, turn, "consistency", kind, rules, (text,), wrong)


def _write(command: Command, turn: int, state: _State) -> None:
    """What the state is after a command. Whatever names a file may change it, but for what reads it."""
    for path in [path for path in state.files if path != command.read_file and path.rpartition("/")[2] in command.text]:
        if not (command.writes and command.writes[2] and command.writes[0] == path):
            del state.files[path]
    if command.writes:
        path, content, added = command.writes
        before = state.files.pop(path, None)
        if not added:
            state.files[path] = (turn, content)
        elif before:
            state.files[path] = (turn, f"{before[1]}\n{content}")
    if command.sets:
        state.variables[command.sets[0]] = (turn, command.sets[1])
    if command.changes:
        table, values = command.changes
        state.rows.setdefault(table, {}).update(dict.fromkeys(values, turn))
        _forget(state.rows[table])
    _forget(state.files)
    _forget(state.rows)


def _forget(written: dict[str, Any]) -> None:
    """The oldest, of more than are looked for."""
    while len(written) > _KEPT:
        del written[next(iter(written))]


# Texts


def changed(value: str) -> str:
    """Another value of the same length and form: each letter and digit is the next one."""
    digits, lower, upper = "0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    table = {a: b for signs in (digits, lower, upper) for a, b in zip(signs, signs[1:] + signs[0], strict=True)}
    return "".join(table.get(sign, sign) for sign in value) if any(sign in table for sign in value) else f"{value}?"


def _lines(content: str) -> list[str]:
    """Lines that tell a file's content from others: the first, the last, and the longest."""
    lines = [line.strip() for line in content.splitlines() if len(line.strip()) >= _SHORTEST]
    chosen = [*lines[:1], *lines[-1:], *sorted(lines, key=len)[-1:]]
    return list(dict.fromkeys(line for line in chosen if len(line) <= 400))[:_LINES]


def _whole(value: str) -> str:
    """A pattern of a value that no letter or digit continues."""
    before = r"(?:^|\W)" if value[:1].isalnum() else ""
    after = r"(?:$|\W)" if value[-1:].isalnum() else ""
    return f"{before}{re.escape(value)}{after}"


def _put(text: str, value: str, other: str) -> str:
    """A text with `other` in the place of each `value`, where it is a word of its own."""
    pieces, end, place = [], 0, text.find(value)
    while place >= 0:
        stop = place + len(value)
        joined = (text[place - 1 : place].isalnum() and value[0].isalnum()) or (
            text[stop : stop + 1].isalnum() and value[-1].isalnum()
        )
        if not joined:
            pieces += [text[end:place], other]
            end = stop
        place = text.find(value, stop)
    return "".join([*pieces, text[end:]])


def _hash(*parts: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode(errors="replace")).digest()[:8], "big")


def _case(
    session: Session,
    turn: int,
    axis: str,
    kind: str,
    verifier: Any,
    right: tuple[str, ...],
    wrong: tuple[str, ...],
    instruction: str = "",
) -> Case:
    real = session.trajectory.turns[turn].observations[0].text
    conversation = session.ask(turn, instruction)
    return Case(
        session.name, session.domain, axis, kind, turn, conversation, verifier, real, right, wrong, session.read
    )
