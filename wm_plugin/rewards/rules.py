"""Rules that a predicted observation must keep: Qwen-AgentWorld's rule-based verifier (section 3.4.1), as data.

    {"all": [{"json": {"path": "$.status", "equals": "error"}}, {"error": "not_found"}]}

A verifier is a rule, or a list of rules that must all hold, in a column, one a row: JSON text, or the objects themselves. The
kinds are in `rule_checks`; `all`, `any` and `not` combine them. A rule is binary: a judge can be talked to, it cannot.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import ValidationError

from wm_plugin.errors import UserError, nearest
from wm_plugin.rewards.base import check_texts, mean
from wm_plugin.rewards.extract import check_tag, extract
from wm_plugin.rewards.rule_checks import CHECKS, Check, Code
from wm_plugin.rewards.rule_code import Sandbox
from wm_plugin.rewards.rule_code import check as check_sandbox
from wm_plugin.rewards.rule_places import NotApplicableError, Seen

_DEEPEST = 20  # combinations inside one another
_MOST = 200  # rules of one verifier
_AT_ONCE = 8  # code verifiers that run at the same time
KINDS = (*CHECKS, "all", "any", "not")


class MalformedRuleError(ValueError):
    """A verifier that is none. The message is one line."""


@dataclass(frozen=True)
class Combined:
    """Rules of which all or any must hold, or the one must not."""

    how: Literal["all", "any", "not"]
    rules: tuple["Rule", ...]

    def holds(self, seen: Seen) -> bool:
        if self.how == "not":
            return not self.rules[0].holds(seen)
        return (all if self.how == "all" else any)(rule.holds(seen) for rule in self.rules)


Rule = Check | Combined


class RuleReward:
    """`scale` if a row's verifier holds, else 0.

    Columns: `verifier`, one a row: JSON text, or an object or a list; None, an empty text or an empty list: there is none. In an
    object that is not JSON text a key with null is as good as not there, which is how parquet fills objects up. `history`, for
    `state`: earlier observations. Verifiers in Python see all columns.

    Args:
        verifier: of rows that have none of their own, such as {"same": {"path": "$.status"}}.
        scale: of a verifier that holds: 25 beside the rubric's 5 to 25.
        unverified: the reward of a row without a verifier; NaN leaves it out of TRL's mean.
        malformed: `raise` stops at a verifier that is none, or that asks for what the row does not have; `count` takes the row
            for one without a verifier, and counts it.
        allow_code: run verifiers in Python, in a sandbox (system package bubblewrap). They are the dataset's: without this
            they are refused.
        sandbox: settings of `wm_plugin.rewards.rule_code.Sandbox`: {"timeout": 5, "memory": 512}.
        tag: takes predictions out of whole outputs, see `TextReward`.

    Attributes:
        figures: of the last call. Shares of rows: `no_prediction`, `verified`, `no_verifier`, `malformed`, `code_failed` (a
            verifier in Python gave no verdict, which counts as not held). `passed` is the mean over verified rows.

    Raises:
        UserError: a setting that cannot be; from a call, a malformed verifier, code without `allow_code`, or no sandbox.
        MissingExtraError: a rule needs a library that is not installed.
    """

    def __init__(
        self,
        *,
        verifier: Any = None,
        scale: float = 1.0,
        unverified: float = 0.0,
        malformed: Literal["raise", "count"] = "raise",
        allow_code: bool = False,
        sandbox: Mapping[str, Any] | None = None,
        tag: str | None = None,
    ) -> None:
        check_tag(tag)
        if malformed not in ("raise", "count"):
            raise UserError(f"malformed is {malformed!r}{nearest(str(malformed), ('raise', 'count'))}")
        if not scale > 0:
            raise UserError(f"scale is {scale}; write a number > 0")
        self.tag, self.scale, self.unverified, self.malformed = tag, scale, unverified, malformed
        self.allow_code = allow_code
        try:
            self.sandbox = Sandbox(**(sandbox or {}))
        except TypeError as error:
            raise UserError(f"sandbox: {error}; it takes timeout and memory") from None
        self._default = None
        try:
            self._default = self._read(verifier)
        except MalformedRuleError as error:
            raise UserError(f"verifier: {error}") from None
        self.figures: dict[str, float] = {}

    def __call__(
        self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Sequence[Any]
    ) -> list[float]:
        """A score for each prediction, in order."""
        verdicts = self.verdicts(predictions, targets, **columns)
        return [self.unverified if verdict is None else self.scale * verdict for verdict in verdicts]

    def verdicts(
        self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Sequence[Any]
    ) -> list[bool | None]:
        """Whether each row's verifier holds; None: there is none. No prediction keeps no rule."""
        check_texts(predictions, targets)
        for name, values in columns.items():
            if name in ("verifier", "history") and values is not None and len(values) != len(targets):
                raise UserError(f"there are {len(targets)} targets and {len(values)} of {name}; write one for each")
        counts = dict.fromkeys(("no_prediction", "no_verifier", "malformed", "code_failed"), 0)
        verdicts: list[bool | None] = [None] * len(targets)
        work: list[tuple[int, Rule, Seen]] = []
        for row, (output, target) in enumerate(zip(predictions, targets, strict=True)):
            rule = self._rule(row, columns.get("verifier"), counts)
            said = output if output is None or self.tag is None else extract(output, self.tag).prediction
            counts["no_prediction"] += said is None
            if rule is not None and said is None:
                verdicts[row] = False
            elif rule is not None and said is not None:
                own = {name: values[row] for name, values in columns.items() if _one_a_row(values, len(targets))}
                work.append((row, rule, Seen(said, target, own, self.sandbox)))
        for (row, _, seen), verdict in zip(work, self._hold(work), strict=True):
            counts["code_failed"] += bool(seen.failures)
            if isinstance(verdict, NotApplicableError):
                self._refuse(row, verdict, counts)
            else:
                verdicts[row] = verdict
        known = [verdict for verdict in verdicts if verdict is not None]
        rows = max(len(targets), 1)
        shares = {name: count / rows for name, count in counts.items()}
        self.figures = {**shares, "verified": len(known) / rows, "passed": mean([float(v) for v in known])}
        return verdicts

    def _rule(self, row: int, verifiers: Sequence[Any] | None, counts: dict[str, int]) -> Rule | None:
        try:
            rule = self._read(None if verifiers is None else verifiers[row]) or self._default
        except MalformedRuleError as error:
            self._refuse(row, error, counts)
            return None
        counts["no_verifier"] += rule is None
        return rule

    def _read(self, verifier: Any) -> Rule | None:
        rule = read(verifier)
        if rule is not None and has_code(rule):
            if not self.allow_code:
                raise UserError(
                    "a verifier has Python code from the dataset, which is not run; allow_code=True runs it in a sandbox"
                )
            check_sandbox()
        return rule

    def _refuse(self, row: int, error: ValueError, counts: dict[str, int]) -> None:
        if self.malformed == "raise":
            raise UserError(f"the verifier of row {row}: {error}; malformed='count' goes on without it") from None
        counts["malformed"] += 1

    def _hold(self, work: Sequence[tuple[int, Rule, Seen]]) -> list[bool | NotApplicableError]:
        if sum(has_code(rule) for _, rule, _ in work) < 2:
            return [_verdict(rule, seen) for _, rule, seen in work]
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # which wait for processes of their own
            return list(pool.map(lambda item: _verdict(item[1], item[2]), work))


def _verdict(rule: Rule, seen: Seen) -> bool | NotApplicableError:
    try:
        return rule.holds(seen) and not seen.failures  # code without a verdict holds in no combination
    except NotApplicableError as error:
        return error


def _one_a_row(values: Any, rows: int) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and len(values) == rows


def has_code(rule: Rule) -> bool:
    return isinstance(rule, Code) or (isinstance(rule, Combined) and any(map(has_code, rule.rules)))


def read(verifier: Any) -> Rule | None:
    """A verifier as rules; None: there is none.

    Raises:
        MalformedRuleError: it is none; the message says what and where.
    """
    if verifier is None or (isinstance(verifier, str) and not verifier.strip()) or verifier in ([], {}):
        return None
    if not isinstance(verifier, str):
        try:
            verifier = json.dumps(_without_nulls(verifier))
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedRuleError(f"no JSON value: {error}") from None
    return _read(verifier)


@lru_cache(4096)
def _read(text: str) -> Rule | None:
    """Of a group of rollouts all have the same verifier."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRuleError(f"no JSON: {error or type(error).__name__}, in {text[:60]!r}") from None
    if value is None or value in ([], {}):
        return None
    left = iter(range(_MOST))
    return (
        _combine("all", value, lambda: next(left, None), 0)
        if isinstance(value, list)
        else _one(value, lambda: next(left, None), 0)
    )


def _one(value: Any, count: Callable[[], int | None], depth: int) -> Rule:
    if count() is None:
        raise MalformedRuleError(f"more than {_MOST} rules")
    if not isinstance(value, dict) or len(value) != 1:
        keys = f"with the keys {', '.join(map(repr, value)) or 'none'}" if isinstance(value, dict) else repr(value)[:60]
        raise MalformedRuleError(f"a rule is an object with one key, its kind ({', '.join(KINDS)}), not {keys}")
    ((kind, content),) = value.items()
    if kind in ("all", "any", "not"):
        return _combine(kind, content, count, depth + 1)
    if kind not in CHECKS:
        raise MalformedRuleError(f"there is no rule {kind!r}{nearest(kind, KINDS)}")
    made = CHECKS[kind]
    if not isinstance(content, dict):
        if content is True and not made.main:
            content = {}
        elif made.main:
            content = {made.main: content}
        else:
            raise MalformedRuleError(f"{kind}: {content!r:.60} is no object; it has {', '.join(made.model_fields)}")
    try:
        return made.model_validate(content)
    except ValidationError as error:
        cause = error.errors()[0].get("ctx", {}).get("error")
        if isinstance(cause, UserError):  # an extra that is not installed
            raise cause from None
        raise MalformedRuleError(f"{kind}: {_reason(error, made)}") from None


def _combine(how: Any, content: Any, count: Callable[[], int | None], depth: int) -> Combined:
    if depth > _DEEPEST:
        raise MalformedRuleError(f"rules are nested more than {_DEEPEST} levels deep")
    if how == "not":
        return Combined("not", (_one(content, count, depth),))
    if not isinstance(content, list) or not content:
        raise MalformedRuleError(f"{how}: write a list of rules")
    return Combined(how, tuple(_one(rule, count, depth) for rule in content))


def _reason(error: ValidationError, made: type[Check]) -> str:
    """The first thing that is wrong, in one line."""
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")  # a misspelt field is also missing
    where = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"there is no {where!r}{nearest(where, made.model_fields)}"
    if first["type"] == "missing":
        return f"{where} is missing"
    message = first["msg"].removeprefix("Value error, ")
    return " ".join((f"{where}: {message}" if where else message).split())


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value
