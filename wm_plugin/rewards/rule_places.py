"""The part of a text that a rule looks at: a JSON path, or the capture of a regular expression.

Rules come from datasets and texts from models; neither is trusted, so every look-up takes bounded time. Patterns run in RE2,
which is linear in the text and has no look-around and no back-references. Paths are RFC 9535's JSONPath without the parts that
multiply the work: one selector per bracket, one `..`, only comparisons in filters, no functions. All rules of a row share one
`Work` budget for its prediction, and one for its observations.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from wm_plugin.errors import MissingExtraError
from wm_plugin.rewards.json_match import NO_JSON, parse
from wm_plugin.rewards.rule_code import Sandbox
from wm_plugin.rewards.rule_errors import error_kind

_MAX_LENGTH = 1000  # characters of a path or a pattern
_MAX_VALUES = 10_000  # values or matches of a text
# Characters that patterns scan, half a second in all, or two in the worst case; each match may scan all that follows it.
MAX_WORK = 200_000_000
SLOW = 50  # cost of a character of JSON in Python, in scanned characters
_MEMORY = 2 << 20  # bytes of a pattern's automaton


class NotApplicableError(ValueError):
    """A rule needs something that its row does not have."""


class TooMuchError(NotApplicableError):
    """An observation has more at a place than a rule looks at: not the fault of whoever wrote the rule."""


class CutError(ValueError):
    """A text has more at a place than a rule looks at, or is nested too deeply. What is cut off may be anything."""


@dataclass
class Work:
    """The work that a row's rules may still do with its prediction, or with its observations; past it, `error` is raised.

    The two budgets are separate, so that nothing a policy writes makes an observation too much.
    """

    error: type[CutError | TooMuchError]
    left: int = field(default_factory=lambda: MAX_WORK)

    def take(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise self.error

    def exact(self, value: Any) -> str:
        """Return `exact` of a part of the text."""
        return self.took(exact(value))

    def took(self, text: str) -> str:
        """Charge a text that was written in Python afterwards: it is no longer than the text that it is from."""
        self.take(SLOW * len(text))
        return text


class Seen:
    """A text as rules see it, and the budget for looking into it. What is read of it is read once."""

    def __init__(self, text: str, work: Work) -> None:
        self.text, self.work = text, work

    @cached_property
    def value(self) -> Any:
        """The text's JSON value, or NO_JSON."""
        return parse(self.text)

    @cached_property
    def exact(self) -> str | None:
        """A text that is equal for texts of equal values; None without a value."""
        return None if self.value is NO_JSON else self.work.exact(self.value)

    @cached_property
    def error(self) -> str | None:
        """The kind of error that the text reports."""
        return error_kind(self.text)


class Case:
    """One row, as rules see it: the prediction, the real observation (`target`), and the row's `columns`."""

    def __init__(
        self, prediction: str, target: str, columns: Mapping[str, Any], sandbox: Sandbox | None = None
    ) -> None:
        self.observing = Work(TooMuchError)  # for the real observation and earlier ones
        self.prediction, self.target = Seen(prediction, Work(CutError)), Seen(target, self.observing)
        self.columns, self.sandbox = columns, sandbox
        self.failures: list[str] = []  # of verifiers in Python

    @cached_property
    def history(self) -> list[Seen]:
        """The column `history`: earlier observations, oldest first."""
        texts = self.columns.get("history")
        if isinstance(texts, str):
            texts = parse(texts)
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise NotApplicableError(
                "state needs the column 'history': the texts of earlier observations, oldest first"
            )
        return [Seen(text, self.observing) for text in texts]


class Strict(BaseModel):
    """A part of a rule. Unknown fields and texts in the place of numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Place(Strict):
    """The fields of a rule that looks at a part of a text; without either field it looks at the whole text, or at its lines.

    path: a JSON path, such as `$.items[*].id` or `$.rows[?@.id == 3].name`. The whole text must be JSON.
    pattern: a regular expression. The part is what its first group captures or, without a group, what it matches.
    """

    path: str | None = None
    pattern: str | None = None

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        if self.path is not None and self.pattern is not None:
            raise ValueError("path and pattern exclude each other; leave one out")
        if self.path is not None:
            json_path(self.path)
        if self.pattern is not None:
            regex(self.pattern)
        return self

    def find(self, seen: Seen) -> list[Any]:
        """Return the values at this place of a text.

        Raises:
            CutError, TooMuchError: they are too many, or nested too deeply.
        """
        if self.path is not None:
            return at_path(self.path, seen.value, len(seen.text), seen.work)
        if self.pattern is not None:
            return captures(self.pattern, seen.text, seen.work)
        return [seen.text.strip()]

    def is_same(self, case: Case, expected: Sequence[Any]) -> bool:
        """Whether the values at this place of the prediction equal an observation's."""
        found = map(case.prediction.work.exact, self.find(case.prediction))
        return list(found) == list(map(case.observing.exact, expected))


def at_path(path: str, value: Any, size: int, work: Work) -> list[Any]:
    """Return the values at a path, in order, of a value that is written in `size` characters."""
    from jsonpath import JSONPathError

    if value is NO_JSON:
        return []
    if path == "$":  # the library would parse a text value as JSON
        return [value]
    if not isinstance(value, dict | list):
        return []
    compiled = json_path(path)
    if not compiled.singular_query():  # a singular query visits one value a level, others any part
        work.take(SLOW * size * (1 + path.count("@")))
    try:
        values = [match.obj for match in islice(compiled.finditer(value), _MAX_VALUES + 1)]
    except (JSONPathError, ArithmeticError, RecursionError):  # nested too deeply for the library
        raise work.error from None
    if len(values) > _MAX_VALUES:
        raise work.error
    return values


def captures(pattern: str, text: str, work: Work) -> list[str]:
    """Return the first group of each match that has it, or the whole match if the pattern has no group."""
    compiled = regex(pattern)
    group = 1 if compiled.groups else 0
    text = searched(compiled, text, work)
    values: list[str] = []
    for number, match in enumerate(compiled.finditer(text)):
        if number == _MAX_VALUES:
            raise work.error
        if match.group(group) is not None:
            values.append(match.group(group))
        work.take(len(text) - match.start())
    return values


def searched(compiled: Any, text: str, work: Work) -> str:
    """Charge a search, and return the text with lone surrogates replaced, which RE2 does not accept.

    A character costs as much as the pattern's program has states: all may be active at once, where its automaton is too large.
    """
    work.take(len(text) * (1 + compiled.programsize))
    return text.encode(errors="replace").decode()


def exact(value: Any) -> str:
    """Return a text that is equal for equal JSON values: 1 equals 1.0, but not true."""
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


@lru_cache(128)  # of up to `_MEMORY` each
def regex(pattern: str, ignore_case: bool = False) -> Any:
    """Compile a pattern.

    Raises:
        ValueError: it is invalid, or RE2 does not support it.
        MissingExtraError: RE2 is not installed.
    """
    try:
        import re2
    except ModuleNotFoundError:
        raise MissingExtraError("a rule with a regular expression", "google-re2", "rules") from None
    if len(pattern) > _MAX_LENGTH:
        raise ValueError(f"a pattern of {len(pattern)} characters; the limit is {_MAX_LENGTH}")
    options = re2.Options()
    options.log_errors, options.case_sensitive, options.max_mem = False, not ignore_case, _MEMORY
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else str(error)
        raise ValueError(
            f"{pattern!r} is not an RE2 regular expression, which has no look-around and no back-references: {reason}"
        ) from None


@lru_cache(256)
def json_path(path: str) -> Any:
    """Compile a path.

    Raises:
        ValueError: it is invalid, or not supported here.
        MissingExtraError: the library is not installed.
    """
    try:
        from jsonpath import JSONPathEnvironment, JSONPathError
    except ModuleNotFoundError:
        raise MissingExtraError("a rule with a JSON path", "python-jsonpath", "rules") from None
    if len(path) > _MAX_LENGTH:
        raise ValueError(f"a path of {len(path)} characters; the limit is {_MAX_LENGTH}")
    try:
        compiled = JSONPathEnvironment(strict=True).compile(path)
    except (JSONPathError, ArithmeticError, RecursionError) as error:  # ArithmeticError: a number such as 1e400
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path!r} is not a JSON path: {reason}") from None
    if problem := _too_costly(compiled):
        raise ValueError(f"the path {path!r} has {problem}")
    return compiled


def _too_costly(path: Any) -> str:
    """Return the part of a path that could take more than linear time, or an empty text."""
    from jsonpath.segments import JSONPathRecursiveDescentSegment
    from jsonpath.selectors import Filter

    if sum(isinstance(segment, JSONPathRecursiveDescentSegment) for segment in path.segments) > 1:
        return "more than one '..'; write one at most"
    for segment in path.segments:
        if len(segment.selectors) != 1:
            return "several selectors in one bracket; write one"
        selector = segment.selectors[0]
        if isinstance(selector, Filter) and not _compares(selector.expression):
            return "a filter that does more than compare; write @.name == value, joined by &&, || and !"
    return ""


def _compares(expression: Any) -> bool:
    from jsonpath import filter as kinds

    if isinstance(expression, kinds.RelativeFilterQuery):
        return bool(expression.path.singular_query())
    plain = kinds.FilterExpression | kinds.InfixExpression | kinds.PrefixExpression
    if isinstance(
        expression, (kinds.BooleanLiteral, kinds.StringLiteral, kinds.IntegerLiteral, kinds.FloatLiteral, kinds.Nil)
    ):
        return True
    return isinstance(expression, plain) and all(_compares(child) for child in expression.children())
