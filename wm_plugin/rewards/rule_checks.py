"""The kinds of rules, one class each. `rules` reads them from data.

A rule is an object with one key, its kind. The value is an object of the kind's fields, or the value of its main field alone:

    {"regex": "^Deleted 3 rows"}      {"json": {"path": "$.status", "equals": "ok"}}      {"not": {"error": true}}

The three axes of Qwen-AgentWorld's rule-based verification (appendix C): controllability is any rule that follows from the
simulation instruction; error handling is `error`; long-context consistency is `state`.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from wm_plugin.errors import nearest
from wm_plugin.rewards.json_match import NO_JSON, parse
from wm_plugin.rewards.rule_errors import KINDS as ERRORS
from wm_plugin.rewards.rule_errors import error_kind
from wm_plugin.rewards.rule_places import MAX_WORK, Case, NotApplicableError, Place, Strict, readable, regex, same
from wm_plugin.untrusted import number

_UNSET = object()
_NUMERAL = re.compile(r"\s*[+-]?(?:[0-9][0-9,]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
_LONGEST_NUMBER = 400  # characters
_RUN = re.compile(r"[^\W_]+")  # letters and digits
_LOOK = 100  # characters that could be compared while a search begins
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
    """A rule. `main` names the field that is meant where the rule's value is not an object."""

    main: ClassVar[str] = ""

    def holds(self, case: Case) -> bool:
        """Whether the prediction satisfies the rule.

        Raises:
            NotApplicableError: the rule needs something that the row does not have.
        """
        raise NotImplementedError


class Regex(Check):
    """A pattern (RE2 syntax) matches somewhere in the prediction; with `full`, all of it except white space at the ends."""

    main = "pattern"
    pattern: str
    ignore_case: bool = False
    full: bool = False

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        regex(self.pattern, self.ignore_case)
        return self

    def holds(self, case: Case) -> bool:
        compiled, text = regex(self.pattern, self.ignore_case), readable(case.prediction)
        return bool(compiled.fullmatch(text.strip()) if self.full else compiled.search(text))


class Equals(Check):
    """The prediction is this text, except for white space at the ends; or this JSON value, in any layout and order of keys."""

    main = "value"
    value: Any
    ignore_case: bool = False
    ignore_whitespace: bool = False

    def holds(self, case: Case) -> bool:
        if not isinstance(self.value, str):
            return same(case.value, self.value)
        return self._normal(case.prediction) == self._normal(self.value)

    def _normal(self, text: str) -> str:
        text = " ".join(text.split()) if self.ignore_whitespace else text.strip()
        return text.casefold() if self.ignore_case else text


class Json(Check):
    """The prediction is JSON, has a value at `path`, and all values there satisfy the other fields."""

    main = "path"
    path: str = "$"
    equals: Any = _UNSET
    one_of: list[Any] | None = None
    type: Literal["string", "number", "integer", "boolean", "null", "object", "array"] | None = None
    pattern: str | None = None  # matches in each value, which must be a text
    count: int | None = None  # the number of values

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        Place(path=self.path)
        if self.pattern is not None:
            regex(self.pattern)
        return self

    def holds(self, case: Case) -> bool:
        if case.value is NO_JSON:
            return False
        values = Place(path=self.path).find(case.prediction, case.value)
        if self.count is not None and len(values) != self.count:
            return False
        return (bool(values) or self.count == 0) and all(self._fits(value) for value in values)

    def _fits(self, value: Any) -> bool:
        return (
            (self.equals is _UNSET or same(value, self.equals))
            and (self.one_of is None or any(same(value, allowed) for allowed in self.one_of))
            and (self.type is None or _TYPES[self.type](value))
            and (self.pattern is None or (isinstance(value, str) and bool(regex(self.pattern).search(readable(value)))))
        )


class Error(Check):
    """The prediction reports an error (true), none (false), one of this kind, or the same as the observation ("target")."""

    main = "kind"
    kind: bool | str = True

    @model_validator(mode="after")
    def _known(self) -> Self:
        if isinstance(self.kind, str) and self.kind not in (*ERRORS, "target"):
            raise ValueError(f"kind is {self.kind!r}{nearest(self.kind, (*ERRORS, 'target'))}")
        return self

    def holds(self, case: Case) -> bool:
        kind = error_kind(case.prediction)
        if isinstance(self.kind, bool):
            return (kind is not None) == self.kind
        return kind == (error_kind(case.target) if self.kind == "target" else self.kind)


class Range(Place, Check):
    """There are numbers at a place, and all lie between `min` and `max`.

    Texts that are numbers count as numbers: the digits 0 to 9, with a point, an exponent, commas and white space at the ends.
    """

    min: float = -math.inf
    max: float = math.inf

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.min <= self.max or (self.min, self.max) == (-math.inf, math.inf):
            raise ValueError(f"min is {self.min:g} and max is {self.max:g}; write min <= max, or one of them")
        return self

    def holds(self, case: Case) -> bool:
        numbers = [_number(value) for value in self.find(case.prediction, case.value)]
        return bool(numbers) and all(value is not None and self.min <= value <= self.max for value in numbers)


class _Overlap(Place, Check):
    """The F1 or the recall of two collections, with repetitions, is at least `least`.

    The default, an F1 of 1, means the same items in any order. Recall alone rewards predictions that list more.
    """

    measure: Literal["f1", "recall"] = "f1"
    least: float = 1.0

    @model_validator(mode="after")
    def _share(self) -> Self:
        if not 0 < self.least <= 1:
            raise ValueError(f"least is {self.least:g}; write a share above 0, up to 1")
        if self.measure == "recall" and not self._expected():
            raise ValueError("the recall of nothing is always full; write what is expected, or measure f1")
        return self

    def holds(self, case: Case) -> bool:
        if self.path is not None and case.value is NO_JSON:
            return False
        return self._overlaps(self._predicted(case), self._expected())

    def _predicted(self, case: Case) -> list[str]:
        raise NotImplementedError

    def _expected(self) -> list[str]:
        raise NotImplementedError

    def _overlaps(self, predicted: Sequence[str], expected: Sequence[str]) -> bool:
        both = (Counter(predicted) & Counter(expected)).total()
        total = len(expected) if self.measure == "recall" else (len(predicted) + len(expected)) / 2
        return both >= self.least * total  # no division: two empty collections are equal


class Items(_Overlap):
    """The values at a place, or the lines that are not blank, compared with `values` as collections."""

    main = "values"
    values: list[Any]

    def _predicted(self, case: Case) -> list[str]:
        lines = [line.strip() for line in case.prediction.splitlines() if line.strip()]
        items = lines if self.path is None and self.pattern is None else self.find(case.prediction, case.value)
        return [_key(item) for item in items]

    def _expected(self) -> list[str]:
        return [_key(value) for value in self.values]


class Rows(_Overlap):
    """The objects at `path` (default: the items of a list), compared with `rows` as collections, by the keys of `rows`.

    With `by`, the keys that identify a row, single cells are compared, so that one wrong value does not lose the whole row.
    """

    main = "rows"
    path: str | None = "$[*]"
    rows: list[dict[str, Any]]
    by: list[str] | None = None

    def _predicted(self, case: Case) -> list[str]:
        return self._parts([value for value in self.find(case.prediction, case.value) if isinstance(value, dict)])

    def _expected(self) -> list[str]:
        return self._parts(self.rows)

    def _parts(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        keys = list(dict.fromkeys(key for row in self.rows for key in row))
        cut = [{key: row[key] for key in keys if key in row} for row in rows]
        if self.by is None:
            return [_key(row) for row in cut]
        return [_key([[row.get(name) for name in self.by], key, value]) for row in cut for key, value in row.items()]


class Same(Place, Check):
    """The prediction and the real observation have the same values at a place, in the same order, or are the same text.

    One such rule can serve all rows of a dataset.
    """

    def holds(self, case: Case) -> bool:
        real = parse(case.target)
        if self.path is None and self.pattern is None and real is not NO_JSON:
            return same(case.value, real)
        expected = self.find_real(case.target, real)
        if not expected:
            raise NotApplicableError(f"same: the observation has nothing at {self.path or self.pattern!r}")
        return same(self.find(case.prediction, case.value), expected)


class State(Place, Check):
    """A value of an earlier observation `appears` in the prediction, or is `unchanged` at the same place of the prediction.

    turn: the number of the observation in the column `history`, 0 the first, -1 the last; None: the last with such a value.
    """

    turn: int | None = None
    then: Literal["appears", "unchanged"] = "appears"

    @model_validator(mode="after")
    def _placed(self) -> Self:
        if self.path is None and self.pattern is None:
            raise ValueError("write a path or a pattern that finds the value")
        return self

    def holds(self, case: Case) -> bool:
        values = self._earlier(case.history)
        if self.then == "unchanged":
            return same(self.find(case.prediction, case.value), values)
        words = (value if isinstance(value, str) else json.dumps(value) for value in values)
        return _has_words(case.prediction, dict.fromkeys(words))

    def _earlier(self, history: Sequence[str]) -> list[Any]:
        if self.turn is not None:
            history = history[self.turn :][:1] if -len(history) <= self.turn < len(history) else []
        for text in reversed(history):
            if values := self.find_real(text, parse(text)):
                return values
        raise NotApplicableError(f"state: no earlier observation has anything at {self.path or self.pattern!r}")


class Code(Check):
    """A verifier in Python, see `rule_code`. It comes from the dataset and runs only with `allow_code`."""

    main = "code"
    code: str

    def holds(self, case: Case) -> bool:
        assert case.sandbox is not None
        verdict = case.sandbox.run(self.code, case.prediction, case.target, case.columns)
        if verdict.passed is None:
            case.failures.append(verdict.failure)
        return bool(verdict.passed)


def _key(value: Any) -> str:
    """A text that is equal for equal JSON values: 1 equals 1.0, but not true."""
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
    if isinstance(value, str):
        if len(value) > _LONGEST_NUMBER or not _NUMERAL.fullmatch(
            value
        ):  # `float` also takes 1_0, nan and foreign digits
            return None
        value = float(value.replace(",", ""))
    return number(value)


def _has_words(text: str, words: Iterable[str]) -> bool:
    """Whether a text contains each word as a whole: 12 is not in 123. False if that takes more than `MAX_WORK`."""
    runs, work = set(_RUN.findall(text)), 0
    for word in words:
        place, joined = -1, word not in runs
        while joined:
            start = place + 1
            place = text.find(word, start)
            end = place + len(word)
            work += (end if place >= 0 else len(text)) - start + _LOOK
            if place < 0 or work > MAX_WORK:
                return False
            before, after = text[place - 1 : place] if place else "", text[end : end + 1]
            joined = (before.isalnum() and word[:1].isalnum()) or (after.isalnum() and word[-1:].isalnum())
    return True


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
