"""Builds the cases of rule-based verification, on its three axes. `rules` checks them, and scores a model by them.

Each asks for the form of the real observation besides what the case is about, and its rules must refuse whoever copies words of
the prompt, says the same of everything or echoes an earlier text (`rule_form`): that simulates nothing.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.data.draws import whole_number
from wm_plugin.data.schema import Action
from wm_plugin.lab.evaluation.rule_commands import Command, commands_of, texts_of
from wm_plugin.lab.evaluation.rule_form import WORD, first_line, fixed, form, top_keys, unsimulated
from wm_plugin.lab.evaluation.rules import Case, Session
from wm_plugin.rewards.json_match import NO_JSON
from wm_plugin.rewards.json_match import parse as parse_json
from wm_plugin.rewards.rule_errors import error_kind

_NO_ERRORS = ("search",)  # the domain without cases of error handling in the paper
# kinds of errors that do not follow from an action
_CHANCE = ("timeout", "rate_limit", "connection", "memory", "other")
_LONGEST = 20_000  # characters of an observation that a case is made of
_MASK = "[withheld]"
_KEPT = 64  # files, tables and values of a table that are remembered
_LINES, _VALUES = 3, 5  # lines of a file and values of a row that a prediction must have
_SHORTEST = 3  # characters of a value that is looked for
_HEAD = 200  # characters of a command's first line
_BEFORE = 2  # observations and writing actions before the turn that an echo repeats


@dataclass(frozen=True)
class _Seen:
    """A turn with one observation, which no filter marked."""

    turn: int
    action: Action
    text: str

    @property
    def words(self) -> set[str]:
        """The action's words."""
        return set(WORD.findall("\n".join(texts_of(self.action))))


def build(source: Iterable[Session], *, seed: int = 0) -> Iterator[Case]:
    """Yield the cases of sessions, in order. A session gives one of each kind of controllability, and all of the others."""
    for session in source:
        seen = list(_observed(session))
        yield from _controllability(session, seen, seed)
        yield from _errors(session, seen)
        yield from _consistency(session, seen)


def _observed(session: Session) -> Iterator[_Seen]:
    for number, turn in enumerate(session.trajectory.turns):
        if turn.actor == "agent" and len(turn.observations) == 1:
            (observation,) = turn.observations
            if observation.data.get("target") is not False and len(observation.text) <= _LONGEST:
                yield _Seen(number, turn.action, observation.text)


# Controllability


def _controllability(session: Session, seen: Sequence[_Seen], seed: int) -> Iterator[Case]:
    """Yield one case of each kind, of turns that a hash of the seed picks."""
    turns = [one for one in seen if one.turn in session.turns and one.text.strip() and error_kind(one.text) is None]
    turns.sort(key=lambda one: whole_number(repr((seed, session.name, one.turn))))
    if failure := next(filter(None, (_failure(session, one, seed) for one in turns)), None):
        yield failure
    always = set.intersection(*(set(WORD.findall(one.text)) for one in turns)) if len(turns) > 1 else set()
    for one in turns:
        if value := _telling(one.text, one.words | always):
            yield _replaced(session, one, value, _MASK, "withheld")
            yield _replaced(session, one, value, changed(value), "replaced")
            return


def _failure(session: Session, one: _Seen, seed: int) -> Case | None:
    """Let the action fail: the observation keeps its keys or its first line; None if it has no such form."""
    text = one.text
    code = f"E{1000 + whole_number(repr((seed, session.name, one.turn, 'code'))) % 9000}"
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
        second = rf"(?m)^\s*{re.escape(lines[1].strip())}\s*$"
        rules = [{"regex": first_line(text, one.words)}, {"not": {"regex": second}}]
    else:
        return None
    instruction = f"The next action fails, whatever it does. The observation {told}"
    rules += [{"error": True}, {"regex": rf"\b{code}\b"}]
    wrong = (text, f"{text}\nError: {message}", *_unsimulated(session, one.turn, (code, message, instruction)))
    return _case(session, one, "controllability", "failure", rules, right, wrong, instruction)


def _replaced(session: Session, one: _Seen, value: str, other: str, kind: str) -> Case:
    instruction = (
        "The next observation is as usual but for one thing: "
        f'wherever it would hold "{value}", it holds "{other}" instead.'
    )
    right = _put(one.text, value, other)
    rules = [{"not": {"regex": _whole(value)}}, {"regex": re.escape(other)}, *form(right, one.words)]
    wrong = (one.text, f"{one.text}\n{other}", *_unsimulated(session, one.turn, (other, instruction)))
    return _case(session, one, "controllability", kind, rules, right, wrong, instruction)


def _telling(text: str, known: set[str]) -> str:
    """Return an observation's word that is neither known nor of its form: the longest, preferring digits; "" without one."""
    known = known | fixed(text)
    words = dict.fromkeys(word for word in WORD.findall(text) if 4 <= len(word) <= 40 and word not in known)
    return max(words, key=lambda word: (any(sign.isdigit() for sign in word), len(word)), default="")


def _unsimulated(session: Session, turn: int, copied: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Return `rule_form.unsimulated` with the observations before a turn, and `more` texts that an echo repeats."""
    turns = session.trajectory.turns
    seen = [one.text for before in turns[:turn] for one in before.observations][-_BEFORE:]
    action = "\n".join(command.text for command in commands_of(turns[turn].action)) or turns[turn].action.text
    return list(unsimulated(copied, [*seen, *more], action))


# Error handling


def _errors(session: Session, seen: Sequence[_Seen]) -> Iterator[Case]:
    if session.domain in _NO_ERRORS:
        return
    successes = [one.text for one in seen if one.text.strip() and error_kind(one.text) is None]
    for one in seen:
        kind = error_kind(one.text)
        if one.turn in session.turns and kind is not None and kind not in _CHANCE:
            rules = [{"error": kind}, *form(one.text, one.words)]
            wrong = (*successes[:_VALUES], *_unsimulated(session, one.turn, ()))
            yield _case(session, one, "error handling", kind, rules, one.text, wrong)


# Consistency


@dataclass
class _State:
    """What earlier turns wrote: contents of files, values of variables, and values of rows by table."""

    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    rows: dict[str, dict[str, None]] = field(default_factory=dict)

    def write(self, command: Command) -> None:
        """Take a command. Whatever names a file may change it, unless it reads it."""
        for path in [p for p in self.files if p != command.read_file and p.rpartition("/")[2] in command.text]:
            if not (command.writes and command.writes[2] and command.writes[0] == path):
                del self.files[path]
        if command.writes:
            path, content, added = command.writes
            before = self.files.pop(path, None)
            if not added:
                self.files[path] = content
            elif before is not None:
                self.files[path] = f"{before}\n{content}"
        if command.sets:
            self.variables[command.sets[0]] = command.sets[1]
        if command.changes:
            table, values = command.changes
            self.rows.setdefault(table, {}).update(dict.fromkeys(values))
            _forget(self.rows[table])
        _forget(self.files)
        _forget(self.rows)

    def expected(self, command: Command, text: str) -> tuple[str, list[str]]:
        """Return the kind of what a command reads, and the values that its observation must have."""
        if command.read_file in self.files:
            return "file", _lines(self.files[command.read_file])
        if command.read_variable in self.variables:
            return "variable", [self.variables[command.read_variable]]
        words = set(WORD.findall(command.query.lower()))
        values = [value for table, rows in self.rows.items() if table in words for value in rows]
        return "rows", [value for value in values if _put(text, value, "") != text][-_VALUES:]


def _forget(written: dict[str, Any]) -> None:
    """Forget the oldest, beyond as many as are remembered."""
    while len(written) > _KEPT:
        del written[next(iter(written))]


def _consistency(session: Session, seen: Sequence[_Seen]) -> Iterator[Case]:
    state, by_turn = _State(), {one.turn: one for one in seen}
    for number, turn in enumerate(session.trajectory.turns):
        commands = list(commands_of(turn.action))
        # several commands write and read in one turn in an order that one screen does not tell
        if number in session.turns and number in by_turn and len(commands) == 1:
            yield from _reads(session, by_turn[number], commands[0], state)
        for command in commands:
            state.write(command)


def _reads(session: Session, one: _Seen, command: Command, state: _State) -> Iterator[Case]:
    text, own = one.text, "\n".join(texts_of(one.action))
    kind, expected = state.expected(command, text)
    expected = [value for value in expected if len(value) >= _SHORTEST and value not in own]
    if not expected:
        return
    known = one.words | set(WORD.findall("\n".join(expected)))
    earlier = (sent.text for before in session.trajectory.turns[: one.turn] for sent in commands_of(before.action))
    wrote = [said for said in earlier if any(value in said for value in expected)][-_BEFORE:]
    heads = [said.strip().partition("\n")[0][:_HEAD] for said in wrote]  # to repeat what wrote it shows nothing
    rules = [
        *({"regex": _whole(value)} for value in expected),
        {"error": False},
        *form(text, known),
        *({"not": {"regex": re.escape(head)}} for head in heads if head and head not in text),
    ]
    broken = [_put(text, value, changed(value)) for value in expected]
    copies = _unsimulated(session, one.turn, expected, wrote)  # to show what was written, and no more, is right
    wrong = [*broken, *(copy for copy in copies if copy.strip() != text.strip())]
    yield _case(session, one, "consistency", kind, rules, text, wrong)


def _case(
    session: Session,
    one: _Seen,
    axis: str,
    kind: str,
    rules: Sequence[Any],
    right: str,
    wrong: Iterable[str],
    told: str = "",
) -> Case:
    question = session.ask(one.turn, told)
    return Case(session, one.turn, axis, kind, question, rules, one.text, right, tuple(wrong))


# Texts


def changed(value: str) -> str:
    """Return another value with the same length and form: each letter and digit is the next one."""
    digits, lower, upper = "0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    table = {a: b for signs in (digits, lower, upper) for a, b in zip(signs, signs[1:] + signs[0], strict=True)}
    return "".join(table.get(sign, sign) for sign in value) if any(sign in table for sign in value) else f"{value}?"


def _lines(content: str) -> list[str]:
    """Return lines that tell a file's content from others: the first, the last, and the longest."""
    lines = [line.strip() for line in content.splitlines() if len(line.strip()) >= _SHORTEST]
    chosen = [*lines[:1], *lines[-1:], *sorted(lines, key=len)[-1:]]
    return list(dict.fromkeys(line for line in chosen if len(line) <= 400))[:_LINES]


def _whole(value: str) -> str:
    """Return a pattern for a value that no letter or digit continues."""
    before = r"(?:^|\W)" if value[:1].isalnum() else ""
    after = r"(?:$|\W)" if value[-1:].isalnum() else ""
    return f"{before}{re.escape(value)}{after}"


def _put(text: str, value: str, other: str) -> str:
    """Put `other` in the place of each `value` that is a word of its own."""
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
