"""The kinds of rules, one class each: what a predicted observation must be like. `rules` reads them from data.

A rule is an object with one key, its kind, and what belongs to it; or the value of the kind's main field alone:

    {"regex": "^Deleted 3 rows"}      {"json": {"path": "$.status", "equals": "ok"}}      {"not": {"error": true}}

The three axes of Qwen-AgentWorld's rule-based verification (appendix C): controllability is any of them, made from the simulation
instruction; error handling is `error`; long-context consistency is `state`.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from wm_plugin.errors import nearest
from wm_plugin.rewards.json_match import NO_JSON, parse
from wm_plugin.rewards.rule_errors import KINDS as ERRORS
from wm_plugin.rewards.rule_errors import error_kind
from wm_plugin.rewards.rule_places import NotApplicableError, Place, Seen, Strict, readable, regex, same

_NOT_GIVEN = object()
_TYPES = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}


class Check(Strict):
    """A rule. `main` is the field that stands for all where there is no object."""

    main: ClassVar[str] = ""

    def holds(self, seen: Seen) -> bool:
        raise NotImplementedError


class Regex(Check):
    """A pattern (RE2's syntax) that is found in the prediction; with `full` it is all of it, white space around it aside."""

    main = "pattern"
    pattern: str
    ignore_case: bool = False
    full: bool = False

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        regex(self.pattern, self.ignore_case)
        return self

    def holds(self, seen: Seen) -> bool:
        found, text = regex(self.pattern, self.ignore_case), readable(seen.prediction)
        return bool(found.fullmatch(text.strip()) if self.full else found.search(text))


class Equals(Check):
    """The prediction is this text, white space around it aside; or this JSON value, in any layout and order of keys."""

    main = "value"
    value: Any
    ignore_case: bool = False
    ignore_whitespace: bool = False

    def holds(self, seen: Seen) -> bool:
        if not isinstance(self.value, str):
            return same(seen.value, self.value)
        return self._normal(seen.prediction) == self._normal(self.value)

    def _normal(self, text: str) -> str:
        text = " ".join(text.split()) if self.ignore_whitespace else text.strip()
        return text.casefold() if self.ignore_case else text


class Json(Check):
    """The prediction is JSON, with something at `path`, and every value there is as the other fields say."""

    main = "path"
    path: str = "$"
    equals: Any = _NOT_GIVEN
    one_of: list[Any] | None = None
    type: Literal["string", "number", "integer", "boolean", "null", "object", "array"] | None = None
    pattern: str | None = None  # found in each, which must be a text
    count: int | None = None  # how many values there are

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        Place(path=self.path)
        if self.pattern is not None:
            regex(self.pattern)
        return self

    def holds(self, seen: Seen) -> bool:
        values = Place(path=self.path).find(seen.prediction, seen.value)
        if self.count is not None and len(values) != self.count:
            return False
        return (bool(values) or self.count == 0) and all(self._fits(value) for value in values)

    def _fits(self, value: Any) -> bool:
        return (
            (self.equals is _NOT_GIVEN or same(value, self.equals))
            and (self.one_of is None or any(same(value, allowed) for allowed in self.one_of))
            and (self.type is None or _TYPES[self.type](value))
            and (self.pattern is None or (isinstance(value, str) and bool(regex(self.pattern).search(readable(value)))))
        )


class Error(Check):
    """Whether the prediction reports an error (true, false), of this kind, or just as the observation does ("target")."""

    main = "kind"
    kind: bool | str = True

    @model_validator(mode="after")
    def _known(self) -> Self:
        if isinstance(self.kind, str) and self.kind not in (*ERRORS, "target"):
            raise ValueError(f"kind is {self.kind!r}{nearest(self.kind, (*ERRORS, 'target'))}")
        return self

    def holds(self, seen: Seen) -> bool:
        found = error_kind(seen.prediction)
        if isinstance(self.kind, bool):
            return (found is not None) == self.kind
        return found == (error_kind(seen.target) if self.kind == "target" else self.kind)


class Range(Place, Check):
    """All numbers at a place are from `min` to `max`, and there is one. Texts that are numbers count as numbers."""

    min: float = -math.inf
    max: float = math.inf

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.min <= self.max or (self.min, self.max) == (-math.inf, math.inf):
            raise ValueError(f"min is {self.min:g} and max is {self.max:g}; write min <= max, or one of them")
        return self

    def holds(self, seen: Seen) -> bool:
        numbers = [_number(value) for value in self.find(seen.prediction, seen.value)]
        return bool(numbers) and all(number is not None and self.min <= number <= self.max for number in numbers)


class _Overlap(Place, Check):
    """How much of what should be there is there, as often as it should be: at least `least` of the F1 or the recall.

    The default, an F1 of 1, is the same items in any order. A recall is raised by saying more.
    """

    measure: Literal["f1", "recall"] = "f1"
    least: float = 1.0

    @model_validator(mode="after")
    def _share(self) -> Self:
        if not 0 < self.least <= 1:
            raise ValueError(f"least is {self.least:g}; write a share above 0, up to 1")
        return self

    def enough(self, said: Sequence[str], wanted: Sequence[str]) -> bool:
        both = (Counter(said) & Counter(wanted)).total()
        total = len(wanted) if self.measure == "recall" else (len(said) + len(wanted)) / 2
        return both >= self.least * total  # not both / total: of nothing, nothing is enough


class Items(_Overlap):
    """The values at a place, or the lines that are not empty, compared with `values` as a collection."""

    main = "values"
    values: list[Any]

    def holds(self, seen: Seen) -> bool:
        lines = [line.strip() for line in seen.prediction.splitlines() if line.strip()]
        said = lines if self.path is None and self.pattern is None else self.find(seen.prediction, seen.value)
        return self.enough([_key(value) for value in said], [_key(value) for value in self.values])


class Rows(_Overlap):
    """The objects at `path` (default: the items of a list), compared with `rows` as a collection, by the keys that `rows` have.

    With `by`, the keys that tell rows apart, cells are compared instead: a row with one wrong value is not lost as a whole.
    """

    main = "rows"
    path: str | None = "$[*]"
    rows: list[dict[str, Any]]
    by: list[str] | None = None

    def holds(self, seen: Seen) -> bool:
        keys = list(dict.fromkeys(key for row in self.rows for key in row))
        found = [value for value in self.find(seen.prediction, seen.value) if isinstance(value, dict)]
        said, wanted = (self._parts(rows, keys) for rows in (found, self.rows))
        return self.enough(said, wanted)

    def _parts(self, rows: Sequence[Mapping[str, Any]], keys: list[str]) -> list[str]:
        cut = [{key: row[key] for key in keys if key in row} for row in rows]
        if self.by is None:
            return [_key(row) for row in cut]
        return [_key([[row.get(name) for name in self.by], key, value]) for row in cut for key, value in row.items()]


class Same(Place, Check):
    """What is at a place of the real observation, or all of it, is at that place of the prediction, in that order.

    With this, one rule does for all rows.
    """

    def holds(self, seen: Seen) -> bool:
        real = parse(seen.target)
        if self.path is None and self.pattern is None and real is not NO_JSON:
            return same(seen.value, real)
        wanted = self.find(seen.target, real)
        said = self.find(seen.prediction, seen.value)
        if not wanted:
            raise NotApplicableError(f"same: the observation has nothing at {self.path or self.pattern!r}")
        return same(said, wanted)


class State(Place, Check):
    """A value that an earlier observation gave: `appears` in the prediction, or is `unchanged` where the prediction has it.

    turn: the observation in the column `history`, 0 the first, -1 the last; None: the last that has something at this place.
    """

    turn: int | None = None
    then: Literal["appears", "unchanged"] = "appears"

    @model_validator(mode="after")
    def _placed(self) -> Self:
        if self.path is None and self.pattern is None:
            raise ValueError("write a path or a pattern that finds the value")
        return self

    def holds(self, seen: Seen) -> bool:
        known = self._known(seen.history)
        if self.then == "unchanged":
            return same(self.find(seen.prediction, seen.value), known)
        text = seen.prediction
        return all(_has_word(text, value if isinstance(value, str) else json.dumps(value)) for value in known)

    def _known(self, history: Sequence[str]) -> list[Any]:
        if self.turn is not None:
            history = history[self.turn :][:1] if -len(history) <= self.turn < len(history) else []
        for text in reversed(history):
            if values := self.find(text, parse(text)):
                return values
        raise NotApplicableError(f"state: no earlier observation has anything at {self.path or self.pattern!r}")


class Code(Check):
    """A verifier in Python, from a dataset: see `sandbox`. It runs only where that was asked for."""

    main = "code"
    code: str

    def holds(self, seen: Seen) -> bool:
        assert seen.sandbox is not None
        verdict = seen.sandbox.run(self.code, seen.prediction, seen.target, seen.columns)
        if verdict.passed is None:
            seen.failures.append(verdict.failure)
        return bool(verdict.passed)


def _key(value: Any) -> str:
    """Equal for the same JSON values: 1 is 1.0, and is not true."""
    if isinstance(value, str):
        return json.dumps(value.strip())
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value.replace(",", "") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _has_word(text: str, word: str) -> bool:
    """Whether a text has these words and not only a part of longer ones: 12 is not in 123."""
    place = text.find(word)
    while place >= 0:
        before, after = text[place - 1 : place], text[place + len(word) :][:1]
        joined = (before.isalnum() and word[:1].isalnum()) or (after.isalnum() and word[-1:].isalnum())
        if not joined:
            return True
        place = text.find(word, place + 1)
    return False


CHECKS: dict[str, type[Check]] = {
    "regex": Regex,
    "equals": Equals,
    "json": Json,
    "error": Error,
    "range": Range,
    "items": Items,
    "rows": Rows,
    "same": Same,
    "state": State,
    "python": Code,
}
