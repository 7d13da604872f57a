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
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from wm_plugin.errors import nearest
from wm_plugin.rewards.json_match import NO_JSON
from wm_plugin.rewards.rule_errors import KINDS as ERRORS
from wm_plugin.rewards.rule_places import (
    SLOW,
    Case,
    NotApplicableError,
    Place,
    Seen,
    Strict,
    Work,
    exact,
    regex,
    searched,
)
from wm_plugin.untrusted import number

_UNSET = object()
_NUMERAL = re.compile(r"\s*[+-]?(?:[0-9][0-9,]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
_LONGEST_NUMBER = 400  # characters
_RUN = re.compile(r"[^\W_]+")  # letters and digits
_LOOK = 100  # cost of starting a search, in characters
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
    """A rule. `main` names the field that is meant if the rule's value is not an object."""

    main: ClassVar[str] = ""

    def holds(self, case: Case) -> bool:
        """Whether the prediction satisfies the rule.

        Raises:
            NotApplicableError: the rule needs something that the row does not have.
        """
        raise NotImplementedError


class Regex(Check):
    """A pattern (RE2 syntax) matches somewhere in the prediction; with `full`, all of it except surrounding white space."""

    main = "pattern"
    pattern: str
    ignore_case: bool = False
    full: bool = False

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        regex(self.pattern, self.ignore_case)
        return self

    def holds(self, case: Case) -> bool:
        compiled = regex(self.pattern, self.ignore_case)
        text = searched(compiled, case.prediction.text, case.prediction.work)
        return bool(compiled.fullmatch(text.strip()) if self.full else compiled.search(text))


class Equals(Check):
    """The prediction is this text, apart from surrounding white space; or this JSON value, in any layout and key order."""

    main = "value"
    value: Any
    ignore_case: bool = False
    ignore_whitespace: bool = False

    def holds(self, case: Case) -> bool:
        if not isinstance(self.value, str):
            return case.prediction.exact == exact(self.value)
        case.prediction.work.take(_LOOK + len(case.prediction.text))
        return self._normal(case.prediction.text) == self._normal(self.value)

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
        if case.prediction.value is NO_JSON:
            return False
        values = Place(path=self.path).find(case.prediction)
        if self.count is not None and len(values) != self.count:
            return False
        return (bool(values) or self.count == 0) and self._fit(values, case.prediction.work)

    def _fit(self, values: Sequence[Any], work: Work) -> bool:
        if self.type is not None and not all(map(_TYPES[self.type], values)):
            return False
        if self.pattern is not None:
            compiled = regex(self.pattern)
            texts = (isinstance(value, str) and searched(compiled, value, work) for value in values)
            if not all(text is not False and compiled.search(text) for text in texts):
                return False
        if self.equals is _UNSET and self.one_of is None:
            return True
        keys = set(map(work.exact, values))
        return (self.equals is _UNSET or keys <= {exact(self.equals)}) and (
            self.one_of is None or keys <= set(map(exact, self.one_of))
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
        if isinstance(self.kind, bool):
            return (case.prediction.error is not None) == self.kind
        return case.prediction.error == (case.target.error if self.kind == "target" else self.kind)


class Range(Place, Check):
    """There are numbers at a place, and all lie between `min` and `max`.

    Texts that are numbers count as numbers: the digits 0 to 9, with a point, an exponent, commas and surrounding white space.
    """

    min: float = -math.inf
    max: float = math.inf

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.min <= self.max or (self.min, self.max) == (-math.inf, math.inf):
            raise ValueError(f"min is {self.min:g} and max is {self.max:g}; write min <= max, or one of them")
        return self

    def holds(self, case: Case) -> bool:
        numbers = [_number(value) for value in self.find(case.prediction)]
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
        if self.path is not None and case.prediction.value is NO_JSON:
            return False
        return self._overlaps(self._predicted(case.prediction), self._expected())

    def _predicted(self, seen: Seen) -> list[Hashable]:
        raise NotImplementedError

    def _expected(self) -> list[Hashable]:
        raise NotImplementedError

    def _overlaps(self, predicted: Sequence[Hashable], expected: Sequence[Hashable]) -> bool:
        both = (Counter(predicted) & Counter(expected)).total()
        total = len(expected) if self.measure == "recall" else (len(predicted) + len(expected)) / 2
        return both >= self.least * total  # no division: two empty collections are equal


class Items(_Overlap):
    """The values at a place, or the lines that are not blank, compared with `values` as collections."""

    main = "values"
    values: list[Any]

    def _predicted(self, seen: Seen) -> list[Hashable]:
        if self.path is not None or self.pattern is not None:
            return [seen.work.exact(_stripped(value)) for value in self.find(seen)]
        seen.work.take(SLOW * len(seen.text))
        return [exact(line.strip()) for line in seen.text.splitlines() if line.strip()]

    def _expected(self) -> list[Hashable]:
        return [exact(_stripped(value)) for value in self.values]


class Rows(_Overlap):
    """The objects at `path` (default: a list's items), compared with `rows` as collections, by the keys of `rows`.

    With `by`, the keys that identify a row, single cells are compared, so that one wrong value does not lose the whole row.
    """

    main = "rows"
    path: str | None = "$[*]"
    rows: list[dict[str, Any]]
    by: list[str] | None = None

    def _predicted(self, seen: Seen) -> list[Hashable]:
        return self._parts([value for value in self.find(seen) if isinstance(value, dict)], seen.work.exact)

    def _expected(self) -> list[Hashable]:
        return self._parts(self.rows, exact)

    def _parts(self, rows: Sequence[Mapping[str, Any]], exact: Callable[[Any], str]) -> list[Hashable]:
        keys, by = {key for row in self.rows for key in row}, set(self.by or ())
        parts: list[Hashable] = []
        for row in rows:
            cut = {key: value for key, value in row.items() if key in keys}
            if self.by is None:
                parts.append(exact(cut))
                continue
            identity = exact({key: value for key, value in cut.items() if key in by and value is not None})
            parts += ((identity, key, exact(value)) for key, value in cut.items())
        return parts


class Same(Place, Check):
    """The prediction and the real observation have the same values at a place, in the same order, or are the same text.

    One such rule can serve all rows of a dataset.
    """

    def holds(self, case: Case) -> bool:
        if self.path is None and self.pattern is None and case.target.value is not NO_JSON:
            return case.prediction.exact == case.target.exact
        expected = self.find(case.target)
        if not expected:
            raise NotApplicableError(f"same: the observation has nothing at {self.path or self.pattern!r}")
        return self.is_same(case, expected)


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
        values = self._earlier(case)
        if self.then == "unchanged":
            return self.is_same(case, values)
        words = (value if isinstance(value, str) else case.observing.took(json.dumps(value)) for value in values)
        return _has_words(case.prediction, dict.fromkeys(words))

    def _earlier(self, case: Case) -> list[Any]:
        turns = case.history
        if self.turn is not None:
            turns = turns[self.turn :][:1] if -len(turns) <= self.turn < len(turns) else []
        for seen in reversed(turns):
            if values := self.find(seen):
                return values
        raise NotApplicableError(f"state: no earlier observation has anything at {self.path or self.pattern!r}")


class Code(Check):
    """A verifier in Python, see `rule_code`. It comes from the dataset and runs only with `allow_code`."""

    main = "code"
    code: str

    def holds(self, case: Case) -> bool:
        assert case.sandbox is not None
        verdict = case.sandbox.run(self.code, case.prediction.text, case.target.text, case.columns)
        if verdict.passed is None:
            case.failures.append(verdict.failure)
        return bool(verdict.passed)


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        # `float` alone would also take 1_0, nan and foreign digits
        if len(value) > _LONGEST_NUMBER or not _NUMERAL.fullmatch(value):
            return None
        value = float(value.replace(",", ""))
    return number(value)


def _has_words(seen: Seen, words: Iterable[str]) -> bool:
    """Whether a text contains each word as a whole: 12 is not in 123.

    Raises:
        CutError: that takes too much work.
    """
    text, work = seen.text, seen.work
    work.take(SLOW * len(text))
    runs = set(_RUN.findall(text))
    for word in words:
        place, joined = -1, word not in runs
        while joined:
            start = place + 1
            place = text.find(word, start)
            end = place + len(word)
            work.take((end if place >= 0 else len(text)) - start + _LOOK)
            if place < 0:
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
