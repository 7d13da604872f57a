"""Rule-based verification of a world model (Qwen-AgentWorld, appendix C): checks that no judge decides.

Cases are built from trajectories, on the paper's three axes:

- controllability: an instruction changes what the next observation holds (it fails with a code, withholds a value, or has another
  one in its place), and the prediction must follow it;
- error handling: a real operation failed in a way that follows from its action, and the prediction must report that failure;
- consistency: what an earlier action wrote (a file, a variable, the row of a table) must be in what a later one reads.

The right and the wrong of each case are known, so that a case is kept only where its rule says the same as the truth: of the real
observation, of texts that were broken on purpose, and of other models' predictions. The paper has its cases written by a model
and does not publish them; which cases there are is ours, and figures are not the paper's.
"""

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from wm_plugin.evaluation.bench import Judge, Table, macro, rubric_scores
from wm_plugin.evaluation.bench_rows import Row, domain_of
from wm_plugin.evaluation.measures import Measure
from wm_plugin.rewards.extract import extract
from wm_plugin.rewards.json_match import NO_JSON
from wm_plugin.rewards.json_match import parse as parse_json
from wm_plugin.rewards.rule_errors import error_kind
from wm_plugin.rewards.rules import RuleReward
from wm_plugin.rewards.verdict import is_forged
from wm_plugin.samples.answers import Answer
from wm_plugin.samples.prompts import Prompts, render
from wm_plugin.tokens.message import Message
from wm_plugin.trajectories.expand import identity, transition
from wm_plugin.trajectories.readers import agentworldbench
from wm_plugin.trajectories.schema import Action, Observation, Source, Trajectory

AXES = ("controllability", "error handling", "consistency")
_NO_ERRORS = ("search",)  # the domain without cases of error handling in the paper
_CHANCE = (
    "timeout",
    "rate_limit",
    "connection",
    "memory",
    "other",
)  # kinds of errors that do not follow from an action
_MASK = "[withheld]"
_LONGEST = 20_000  # characters of an observation that a case is made of
_LONGEST_COMMAND, _COMMANDS = 4_000, 50  # characters of a command that are read, and how many of an action
_KEPT = 64  # files, tables and values of a table that are looked for
_RIGHT, _WRONG = 4.0, 2.0  # mean scores of a judge from which a prediction is right, and up to which it is wrong
_LINES, _VALUES = 3, 5  # lines of a file and values of a row that a prediction must have
_TIMES, _SLACK = 4, 2_000  # a prediction has at most so many times the characters of the right one, and so many more
_SHORTEST = 3  # characters of a value that is looked for
_TOKEN = re.compile(r"\w++")
_LITERAL = re.compile(r"'([^'\n]{1,200})'|(?<![\w.])(\d{3,12})(?![\w.])")
_TABLE = re.compile(
    r"\s*+(?:insert\s++(?:or\s++\w++\s++)?into|replace\s++into|update)\s++[\"`\[]?(\w++)", re.IGNORECASE
)
_SELECT = re.compile(r"\s*+(?:select|with)\b", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w{0,80}")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w{0,80})\}|([A-Za-z_]\w{0,80}))")
_TEXTS = ("keystrokes", "command", "cmd", "query", "sql", "code", "input")  # arguments that are commands
_PATHS, _CONTENTS = ("path", "file_path", "filename", "file"), ("content", "contents", "text", "file_text", "data")


@dataclass(frozen=True)
class Session:
    """A trajectory whose turns may become cases.

    Attributes:
        turns: Which ones; all of its observations are known anyway.
        ask: The conversation that asks for the observation of a turn, under an instruction or "".
        read: The prediction in an output, None if there is none.
    """

    name: str
    domain: str
    trajectory: Trajectory
    turns: frozenset[int]
    ask: Callable[[int, str], list[Message]]
    read: Callable[[str], str | None]


@dataclass(frozen=True)
class Case:
    """A check of one prediction.

    Attributes:
        session: Its name; cases of one session are not independent.
        kind: What the case is, such as "file".
        turn: From 0.
        conversation: What the model is asked.
        verifier: Rules, as in `rewards.rules`.
        real: The real observation.
        right, wrong: Texts for which the verifier must hold, and must not.
        read: As in `Session`.
    """

    session: str
    domain: str
    axis: str
    kind: str
    turn: int
    conversation: list[Message]
    verifier: Any
    real: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    read: Callable[[str], str | None]

    @property
    def name(self) -> str:
        return f"{self.session}/{self.turn}/{self.kind}"

    def holds(self, texts: Sequence[str | None]) -> list[bool]:
        """Whether the verifier holds for each text. For one that is many times as long as the right ones it does not: whoever
        writes down all that was said before has also written what was to be found."""
        reward = RuleReward(malformed="count")
        count, longest = len(texts), _TIMES * max(map(len, self.right), default=0) + _SLACK
        texts = [None if text is None or len(text) > longest else text for text in texts]
        return [bool(one) for one in reward.verdicts(texts, [self.real] * count, verifier=[self.verifier] * count)]


# Whether predictions of cases are right; None where that is open.
Label = Callable[[Sequence[Case], Sequence[str]], Sequence[bool | None]]


def sessions(trajectories: Iterable[Trajectory], prompts: Prompts, *, seed: int = 0) -> Iterator[Session]:
    """Trajectories as sessions; a world model is asked by `prompts`."""
    for trajectory in trajectories:
        name = identity(trajectory)

        def ask(turn: int, instruction: str, trajectory: Trajectory = trajectory, name: str = name) -> list[Message]:
            context = trajectory.context
            told = "\n".join(filter(None, (context.simulation_instruction, instruction)))
            context = context.model_copy(update={"simulation_instruction": told})
            asked = trajectory.model_copy(update={"context": context})
            found = transition(asked, turn, asked.turns[turn].observations[0], name=name)
            return render(found, prompts, seed=seed, world_context=True).messages

        def read(output: str) -> str | None:
            return extract(output, prompts.tag).prediction

        yield Session(name, _domain(trajectory), trajectory, frozenset(range(len(trajectory.turns))), ask, read)


def bench_sessions(rows: Iterable[Row]) -> Iterator[Session]:
    """Rows of AgentWorldBench as sessions, of which only the turn to predict becomes cases."""
    for row in rows:

        def ask(_: int, instruction: str, row: Row = row) -> list[Message]:
            return row.conversation(instruction)

        yield Session(row.trajectory, row.domain, _trajectory(row), frozenset([row.turn - 1]), ask, row.prediction)


def _trajectory(row: Row) -> Trajectory:
    """A row as the reader of the benchmark's files has it, up to the turn."""
    record = {
        "task": row.task,
        "id": row.id,
        "prompt": list(row.prompts[: row.turn]),
        "response": list(row.responses[: row.turn]),
        "system_str": row.system,
        "turn_idx": row.turn,
    }
    return next(agentworldbench.convert(record, Source(format="agentworldbench", file="", row=0)))


def _domain(trajectory: Trajectory) -> str:
    domain = trajectory.metadata.get("domain")
    if not isinstance(domain, str) or not domain:
        # of an environment of ours, such as wm_plugin.environments.sql:SqlEnvironment
        path = trajectory.metadata.get("environment")
        domain = path.partition(":")[0].rpartition(".")[2] if isinstance(path, str) else ""
    return domain_of(domain) or "general"


def build(source: Iterable[Session], *, seed: int = 0) -> Iterator[Case]:
    """The cases of sessions, in order. A session gives one of each kind of controllability, and all of the others."""
    for session in source:
        yield from _controllability(session, seed)
        yield from _errors(session)
        yield from _consistency(session)


def validated(
    cases: Iterable[Case],
    answers: Sequence[Sequence[Answer]] = (),
    label: Label | None = None,
) -> tuple[list[Case], Counter[str]]:
    """The cases whose verdicts agree with the truth, and how many others there are, by what they do not agree with.

    Args:
        answers: of each checking model, its answers to the cases.
        label: judges of predictions: whether each is right, None where that is open. A prediction that is the right text, or one
            that was broken on purpose, needs none.
    """
    kept, left = [], Counter[str]()
    listed = list(cases)
    disagreed = set()
    for of_model in answers:
        predictions = [None if a.trouble else c.read(a.text) for c, a in zip(listed, of_model, strict=True)]
        there = [number for number, text in enumerate(predictions) if text is not None]
        texts = [predictions[number] or "" for number in there]
        truths = _truths([listed[number] for number in there], texts, label)
        for number, text, truth in zip(there, texts, truths, strict=True):
            if truth is not None and listed[number].holds([text]) != [truth]:
                disagreed.add(number)
    for number, case in enumerate(listed):
        reason = _disagrees(case) or ("a model's prediction" if number in disagreed else "")
        if reason:
            left[reason] += 1
        else:
            kept.append(case)
    return kept, left


def labels_of(judge: Judge) -> Label:
    """Labels by the rubric: right from a mean of 4 on, wrong up to 2, open in between."""

    def label(cases: Sequence[Case], texts: Sequence[str]) -> list[bool | None]:
        scores, _ = rubric_scores(
            judge,
            texts,
            [case.right[0] for case in cases],
            action=[case.conversation[-1]["content"] for case in cases],
            context=[case.conversation[:-1] for case in cases],
            domain=[case.domain for case in cases],
        )
        means = [fmean(scores[number].values()) if number in scores else None for number in range(len(cases))]
        return [None if m is None or _WRONG < m < _RIGHT else m >= _RIGHT for m in means]

    return label


def _disagrees(case: Case) -> str:
    if not case.right or not case.wrong or not all(case.holds(case.right)):
        return "the real observation"
    return "a broken observation" if any(case.holds(case.wrong)) else ""


def _truths(
    cases: Sequence[Case],
    texts: Sequence[str],
    label: Label | None,
) -> list[bool | None]:
    truths: list[bool | None] = []
    for case, text in zip(cases, texts, strict=True):
        right = text.strip() in {one.strip() for one in case.right}
        wrong = text.strip() in {one.strip() for one in case.wrong}
        truths.append(True if right else False if wrong else None)
    openly = [number for number, truth in enumerate(truths) if truth is None]
    if label and openly:
        labels = label([cases[number] for number in openly], [texts[number] for number in openly])
        for number, truth in zip(openly, labels, strict=True):
            truths[number] = truth
    return truths


def score(
    cases: Sequence[Case],
    answers: Sequence[Answer],
    *,
    label: Label | None = None,
    seed: int = 0,
) -> Table:
    """The share of cases that a model passes, in points: a domain is the mean of its axes, and all of it that of the domains.

    Args:
        label: judges of predictions, as in `validated`. Then there is a second share, "rules, judged", of which a case also fails
            that passes its rule with a prediction that is wrong.
    """
    table = Table()
    predictions = [None if a.trouble else case.read(a.text) for case, a in zip(cases, answers, strict=True)]
    passed = [case.holds([text])[0] for case, text in zip(cases, predictions, strict=True)]
    deceived = _deceived(cases, predictions, passed, label) if label else set()
    names = {"rules": passed}
    if label:
        names["rules, judged"] = [one and number not in deceived for number, one in enumerate(passed)]
    for number, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        prediction = predictions[number]
        failure = answer.trouble or ("no prediction" if prediction is None else "")
        if failure:
            table.failures[f"rules: {failure}"] += 1
        scores = {} if failure else {name: float(values[number]) for name, values in names.items()}
        table.rows.append(
            {
                "name": case.name,
                "domain": case.domain,
                "axis": case.axis,
                "context": "",
                "action": case.conversation[-1]["content"][-_LONGEST:],
                "real": case.right[0],
                "predicted": None if prediction is None else prediction[:_LONGEST],
                "scores": scores,
                "failure": failure,
            }
        )
    for name in names:
        cells: dict[str, dict[str, list[tuple[float | None, str]]]] = {}
        for case, row in zip(cases, table.rows, strict=True):
            value = 100.0 * row["scores"][name] if row["scores"] else None
            cells.setdefault(case.domain, {}).setdefault(case.axis, []).append((value, case.session))
        table.measures += _shares(name, cells, seed)
    return table


def _deceived(
    cases: Sequence[Case], predictions: Sequence[str | None], passed: Sequence[bool], label: Label
) -> set[int]:
    """The numbers of predictions that pass their rule and are wrong."""
    there = [(number, text) for number, text in enumerate(predictions) if passed[number] and text is not None]
    truths = _truths([cases[number] for number, _ in there], [text for _, text in there], label)
    return {
        number
        for (number, text), truth in zip(there, truths, strict=True)
        if truth is False or is_forged(text, cases[number].real)  # a judge says nothing of a forged verdict
    }


def _shares(
    name: str, cells: Mapping[str, Mapping[str, list[tuple[float | None, str]]]], seed: int
) -> Iterator[Measure]:
    if cells:
        yield macro(name, [list(axes.values()) for axes in cells.values()], seed=seed)
    for domain in sorted(cells):
        yield macro(name, [list(cells[domain].values())], "domain", domain, seed)
    for domain in sorted(cells):
        for axis in AXES:
            if axis in cells[domain]:
                yield macro(name, [[cells[domain][axis]]], "axis", f"{domain}/{axis}", seed)


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
    known = set(_TOKEN.findall("\n".join(_texts(action))))
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
        commands = list(_commands(turn.action))
        if number in session.turns and number in observed:
            yield from _reads(session, number, *observed[number], commands, state)
        for command in commands:
            _write(command, number, state)


def _reads(
    session: Session, turn: int, action: Action, text: str, commands: Sequence["_Command"], state: _State
) -> Iterator[Case]:
    if len(commands) != 1:  # several write and read in one turn, in an order that one screen does not tell
        return
    command, own = commands[0], "\n".join(_texts(action))
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


@dataclass(frozen=True)
class _Command:
    """What a command of an action reads or writes, as far as it is known.

    Attributes:
        text: All of it.
        writes: (path, content, whether it is added to what is there), where all three are known.
        sets: (name, value).
        query: The text, if it is a query of a database.
        changes: (table, values) of a statement.
    """

    text: str
    read_file: str = ""
    read_variable: str = ""
    query: str = ""
    writes: tuple[str, str, bool] | None = None
    sets: tuple[str, str] | None = None
    changes: tuple[str, tuple[str, ...]] | None = None


def _write(command: _Command, turn: int, state: _State) -> None:
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


def _commands(action: Action) -> Iterator[_Command]:
    """The commands of an action: of its calls' arguments, of JSON with keystrokes, or its text."""
    for name, arguments in _calls(action):
        path = next((arguments[key] for key in _PATHS if isinstance(arguments.get(key), str)), "")
        content = next((arguments[key] for key in _CONTENTS if isinstance(arguments.get(key), str)), None)
        if path and ("write" in name or "create" in name):
            writes = (path, content, False) if content is not None else None
            yield _Command(f"{path}\n{content or ''}", writes=writes)
        elif path and ("read" in name or "view" in name or "cat" in name):
            yield _Command(path, read_file=path)
        else:
            texts = [arguments[key] for key in _TEXTS if isinstance(arguments.get(key), str)]
            rest = json.dumps(arguments, default=str)[:_LONGEST_COMMAND] if not texts else ""
            yield from (_command(text) for text in texts or [rest])


def _calls(action: Action) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, arguments) of an action's calls, also of those that its text holds as JSON; a plain text is one command."""
    calls: list[tuple[str, Mapping[str, Any]]] = []
    for call in action.calls[:_COMMANDS]:
        values = call.arguments
        calls.append((call.name.lower(), values if isinstance(values, dict) else {"command": str(values)}))
    if calls:
        return calls
    value = parse_json(action.text) if action.text.lstrip()[:1] in ("{", "[") else NO_JSON
    items = value if isinstance(value, list) else [value]
    for item in items[:_COMMANDS]:
        if isinstance(item, dict):
            inner = item.get("arguments", item.get("parameters"))
            calls.append((str(item.get("name", "")).lower(), inner if isinstance(inner, dict) else item))
    return calls or [("", {"command": action.text})]


def _command(text: str) -> _Command:
    text = text.strip()[:_LONGEST_COMMAND]
    if table := _TABLE.match(text):
        values = tuple(a or b for a, b in _LITERAL.findall(text))
        return _Command(text, changes=(table[1].lower(), values))
    if _SELECT.match(text):
        return _Command(text, query=text)
    first, _, rest = text.partition("\n")
    words = _words(first)
    if words[:1] == ["cat"] and ">" in words and "<<" in words and rest:
        end = words[words.index("<<") + 1 :][:1]
        path = words[words.index(">") + 1 :][:1]
        content, closed, _ = f"{rest}\n".partition(f"\n{end[0]}\n") if end else ("", "", "")
        return _Command(text, writes=(path[0], content, False) if path and closed else None)
    if rest or any(word in ("|", "&&", "||", ";", "&", "<", "<<", "(", ")") for word in words):
        return _Command(text)
    if words[:1] in (["echo"], ["printf"]) and len(words) >= 4 and words[-2] in (">", ">>"):
        content = " ".join(word for word in words[1:-2] if word not in ("-e", "-n"))
        plain = not any(sign in content for sign in "$`\\")
        return _Command(text, writes=(words[-1], content, words[-2] == ">>") if plain else None)
    if words[:1] == ["export"] and len(words) == 2:
        name, equal, value = words[1].partition("=")
        known = equal and _NAME.fullmatch(name) and not any(sign in value for sign in "$`\\")
        return _Command(text, sets=(name, value) if known else None)
    if words[:1] == ["cat"] and len(words) == 2:
        return _Command(text, read_file=words[1])
    if words[:1] == ["printenv"] and len(words) == 2:
        return _Command(text, read_variable=words[1])
    variable = _VARIABLE.fullmatch(words[1]) if words[:1] == ["echo"] and len(words) == 2 else None
    return _Command(text, read_variable=(variable[1] or variable[2]) if variable else "")


def _words(line: str) -> list[str]:
    """The words and operators of a line of a shell; none of one that is not closed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:
        return []


def _texts(action: Action) -> list[str]:
    """All that an action says, as text."""
    calls = [json.dumps(call.arguments, ensure_ascii=False, default=str) for call in action.calls[:_COMMANDS]]
    return [action.text, *calls]


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
