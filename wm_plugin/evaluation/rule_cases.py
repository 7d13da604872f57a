"""The cases of rule-based verification, on its three axes. `rules` checks them, and scores a model by them."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wm_plugin.evaluation.rule_commands import Command, commands_of, texts_of
from wm_plugin.evaluation.rules import Case, Session
from wm_plugin.rewards.json_match import NO_JSON
from wm_plugin.rewards.json_match import parse as parse_json
from wm_plugin.rewards.rule_errors import error_kind
from wm_plugin.trajectories.schema import Action, Observation

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
_TOKEN = re.compile(r"\w++")


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
    for number, _, text in turns[:1]:
        yield _failure(session, number, text, seed)
    for number, action, text in turns:
        if value := _telling(text, action):
            yield _replaced(session, number, text, value, _MASK, "withheld")
            yield _replaced(session, number, text, value, changed(value), "replaced")
            return


def _failure(session: Session, turn: int, text: str, seed: int) -> Case:
    code = f"E{1000 + _hash(seed, session.name, turn, 'code') % 9000}"
    instruction = (
        f"The next action fails, whatever it does. The observation reports an error with the code {code}, and holds nothing "
        "of what the action would give otherwise."
    )
    message = f"the operation failed with the code {code}"
    is_json = parse_json(text) is not NO_JSON and text.strip()[:1] in ("{", "[")
    right = json.dumps({"error": message}) if is_json else f"Error: {message}"
    rules: list[Any] = [{"error": True}, {"regex": rf"\b{code}\b"}, *([{"json": {"path": "$"}}] if is_json else [])]
    return _case(
        session,
        turn,
        "controllability",
        "failure",
        {"all": rules},
        (right,),
        (text, "", f"{text}\n{code}"),
        instruction,
    )


def _replaced(session: Session, turn: int, text: str, value: str, other: str, kind: str) -> Case:
    instruction = (
        "The next observation is as usual but for one thing: "
        f'wherever it would hold "{value}", it holds "{other}" instead.'
    )
    rules = {"all": [{"not": {"regex": _whole(value)}}, {"regex": re.escape(other)}]}
    right = _put(text, value, other)
    return _case(session, turn, "controllability", kind, rules, (right,), (text, "", f"{text}\n{other}"), instruction)


def _telling(text: str, action: Action) -> str:
    """A word of an observation that its action does not have; the longest with digits before others, "" if there is none."""
    known = set(_TOKEN.findall("\n".join(texts_of(action))))
    words = dict.fromkeys(word for word in _TOKEN.findall(text) if 4 <= len(word) <= 40 and word not in known)
    return max(words, key=lambda word: (any(sign.isdigit() for sign in word), len(word)), default="")


# Error handling


def _errors(session: Session) -> Iterator[Case]:
    if session.domain in _NO_ERRORS:
        return
    observed = list(_observed(session))
    successes = [text for _, _, text in observed if text.strip() and error_kind(text) is None]
    for number, _, text in observed:
        kind = error_kind(text)
        if number in session.turns and kind is not None and kind not in _CHANCE:
            wrong = ("", "Done.", *successes[:_VALUES])
            yield _case(session, number, "error handling", kind, {"error": kind}, (text,), wrong)


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
        words = set(_TOKEN.findall(command.query.lower()))
        values = [value for table, rows in state.rows.items() if table in words for value in rows]
        kind, expected = "rows", [value for value in values if _put(text, value, "") != text][-_VALUES:]
    expected = [value for value in expected if len(value) >= _SHORTEST and value not in own]
    if not expected:
        return
    rules = {"all": [*({"regex": _whole(value)} for value in expected), {"error": False}]}
    broken = [_put(text, value, changed(value)) for value in expected]
    wrong = ("", "Error: not found", *broken)
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
