"""Where a rule looks in a text: at a JSON path, or at what a regular expression captures.

Rules come with datasets, so paths and patterns may be anybody's, and the texts are a model's. Both are looked up in bounded time.
Patterns run in RE2, which is linear in the text and has no look-around and no back-references. Paths are RFC 9535's (JSONPath)
without what multiplies work: one selector in a bracket, one `..`, comparisons in filters, no functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from wm_plugin.errors import MissingExtraError
from wm_plugin.rewards.json_match import NO_JSON, compare, parse
from wm_plugin.rewards.rule_code import Sandbox

_LONGEST = 1000  # characters of a path or a pattern
_MOST = 10_000  # values that are found in a text
_MEMORY = 8 << 20  # bytes of a pattern's automaton, RE2's own default


class NotApplicableError(ValueError):
    """A rule asks for something that its row does not have."""


@dataclass
class Seen:
    """What a rule is held against: a row."""

    prediction: str
    target: str
    columns: Mapping[str, Any]
    sandbox: Sandbox | None = None
    failures: list[str] = field(default_factory=list)  # of code

    @cached_property
    def value(self) -> Any:
        """The prediction's JSON value, or NO_JSON."""
        return parse(self.prediction)

    @cached_property
    def history(self) -> list[str]:
        """The column `history`: earlier observations, the oldest first."""
        given = self.columns.get("history")
        if isinstance(given, str):
            given = parse(given)
        if not isinstance(given, Sequence) or not all(isinstance(text, str) for text in given):
            raise NotApplicableError(
                "state needs the column 'history': the texts of earlier observations, oldest first"
            )
        return list(given)


class Strict(BaseModel):
    """A part of a rule: its fields and no others, and no text where a number belongs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Place(Strict):
    """Fields of rules that look at a part of a text; without both it is the whole text, or its lines.

    path: where in the text's JSON value, `$.items[*].id` or `$.rows[?@.id == 3].name`. The text has to be JSON as a whole.
    pattern: a regular expression; what its first group captures counts or, without a group, what it matches.
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

    def find(self, text: str, value: Any) -> list[Any]:
        """The values at this place of a text, whose JSON value is `value`; none if it is not there."""
        if self.path is not None:
            return at_path(self.path, value)
        if self.pattern is not None:
            return captures(self.pattern, text)
        return [text.strip()]


def at_path(path: str, value: Any) -> list[Any]:
    """The values at a path, in order."""
    from jsonpath import JSONPathError

    if value is NO_JSON:
        return []
    if path == "$":  # which the library takes texts for JSON at
        return [value]
    if not isinstance(value, dict | list):
        return []
    try:
        return [match.obj for match in islice(json_path(path).finditer(value), _MOST)]
    except (JSONPathError, RecursionError):  # nested deeper than anything that is meant to be read
        return []


def captures(pattern: str, text: str, *, ignore_case: bool = False) -> list[str]:
    """The first group's text in each match, or the whole match's; groups that took no part are left out."""
    found = regex(pattern, ignore_case)
    group = 1 if found.groups else 0
    matches = islice(found.finditer(readable(text)), _MOST)
    return [match.group(group) for match in matches if match.group(group) is not None]


def readable(text: str) -> str:
    """Without halves of surrogate pairs, which RE2 does not take."""
    return text.encode(errors="replace").decode()


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are the same: 1 is 1.0, and is not true."""
    return NO_JSON not in (a, b) and compare(a, b).is_same


@lru_cache(4096)
def regex(pattern: str, ignore_case: bool = False) -> Any:
    """A compiled pattern.

    Raises:
        ValueError: it is none, or one that RE2 does not take.
        MissingExtraError: RE2 is not installed.
    """
    try:
        import re2
    except ModuleNotFoundError:
        raise MissingExtraError("a rule with a regular expression", "google-re2", "rules") from None
    if len(pattern) > _LONGEST:
        raise ValueError(f"a pattern of {len(pattern)} characters; {_LONGEST} are the most")
    options = re2.Options()
    options.log_errors, options.case_sensitive, options.max_mem = False, not ignore_case, _MEMORY
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else str(error)
        raise ValueError(
            f"{pattern!r} is no regular expression of RE2's, which has no look-around and no back-references: {reason}"
        ) from None


@lru_cache(4096)
def json_path(path: str) -> Any:
    """A compiled path.

    Raises:
        ValueError: it is none, or one that is not taken here.
        MissingExtraError: the library is not installed.
    """
    try:
        from jsonpath import JSONPathEnvironment, JSONPathError
    except ModuleNotFoundError:
        raise MissingExtraError("a rule with a JSON path", "python-jsonpath", "rules") from None
    if len(path) > _LONGEST:
        raise ValueError(f"a path of {len(path)} characters; {_LONGEST} are the most")
    try:
        found = JSONPathEnvironment(strict=True).compile(path)
    except (JSONPathError, RecursionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path!r} is no JSON path: {reason}") from None
    if problem := _too_much(found):
        raise ValueError(f"the path {path!r} has {problem}")
    return found


def _too_much(path: Any) -> str:
    """What could take more than linear time, if anything: each step may lead to a value once."""
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
