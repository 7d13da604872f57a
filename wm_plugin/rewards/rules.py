"""Rules that a predicted observation must satisfy: Qwen-AgentWorld's rule-based verifier (section 3.4.1), as data.

    {"all": [{"json": {"path": "$.status", "equals": "error"}}, {"error": "not_found"}]}

A verifier is one rule, or a list of rules that must all hold. A column has one per row, as JSON text or as objects. The kinds of
rules are in `rule_checks`; `all`, `any` and `not` combine them. A rule holds or it does not: no text persuades it.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import ValidationError

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.rewards.base import TaggedReward, check_choice, check_column, mean
from wm_plugin.rewards.rule_checks import CHECKS, Check, Code
from wm_plugin.rewards.rule_code import Sandbox
from wm_plugin.rewards.rule_code import check as check_sandbox
from wm_plugin.rewards.rule_places import Case, CutError, NotApplicableError, TooMuchError
from wm_plugin.untrusted import loads

_MAX_DEPTH = 20  # nested combinations
_MAX_RULES = 200  # of one verifier
_CACHED, _MAX_CACHED = 1024, 10_000  # verifiers cached for later rows, and characters of each
_PARALLEL = 8  # code verifiers that run at the same time
_MAX_RATIO, _SLACK = 4, 2_000  # a prediction may have this many times the observation's characters, plus this many
KINDS = (*CHECKS, "all", "any", "not")


class MalformedRuleError(ValueError):
    """An invalid verifier. The message is one line."""


@dataclass(frozen=True)
class Combined:
    """A combination of rules: all of them hold, any of them holds, or the only one does not."""

    how: Literal["all", "any", "not"]
    rules: tuple["Rule", ...]

    def holds(self, case: Case) -> bool:
        if self.how == "not":
            return not self.rules[0].holds(case)
        return (all if self.how == "all" else any)(rule.holds(case) for rule in self.rules)


Rule = Check | Combined


class RuleReward(TaggedReward):
    """`scale` if a row's verifier holds, else 0. A verifier does not hold for a row without a prediction.

    Nor does it hold for a prediction many times as long as the observation, since one that lists everything also contains what a
    rule looks for. The bound (4 times the characters, and 2,000 more) is not the paper's.

    Columns: `verifier`, one per row: JSON text, an object or a list; None, an empty text or an empty list stand for no verifier.
    In objects (not in JSON text) keys with null are ignored, because parquet adds them. `history`, for the rule `state`: the
    earlier observations. Verifiers in Python see all columns.

    Args:
        verifier: the verifier of rows without one of their own, such as {"same": {"path": "$.status"}}.
        scale: the reward of a verifier that holds; 25 fits the rubric's 5 to 25.
        unverified: the reward of a row without a verifier; NaN leaves it out of TRL's mean.
        malformed: `raise` stops at an invalid verifier, or at one that needs something that the row does not have; `count`
            treats such a row as one without a verifier, and counts it. A row whose observation has more than a rule looks at
            is always counted.
        allow_code: run verifiers in Python, in a sandbox (system package bubblewrap). Without it they are refused, because they
            come from the dataset.
        sandbox: settings of `wm_plugin.rewards.rule_code.Sandbox`: {"timeout": 5, "memory": 512}.
        tag: see `TaggedReward`.

    Attributes:
        figures: shares of rows: `no_prediction`, `too_long`, `verified`, `no_verifier`, `malformed`, `code_failed` (a verifier
            in Python gave no verdict, which counts as not holding). `passed` is the share of verified rows.

    Raises:
        UserError: a setting is invalid; from a call: a malformed verifier, code without `allow_code`, or no sandbox.
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
        super().__init__(tag=tag)
        check_choice("malformed", malformed, ("raise", "count"))
        if not scale > 0:
            raise UserError(f"scale is {scale}; write a number > 0")
        self.scale, self.unverified, self.malformed = scale, unverified, malformed
        self.allow_code = allow_code
        self.sandbox = Sandbox.read(sandbox or {}, "sandbox")
        self._default = None
        try:
            self._default = self._read(verifier)
        except MalformedRuleError as error:
            raise UserError(f"verifier: {error}") from None

    def __call__(
        self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Sequence[Any]
    ) -> list[float]:
        verdicts = self.verdicts(predictions, targets, **columns)
        return [self.unverified if verdict is None else self.scale * verdict for verdict in verdicts]

    def verdicts(
        self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Sequence[Any]
    ) -> list[bool | None]:
        """Whether each row's verifier holds; None for a row without a verifier. No verifier holds without a prediction."""
        return self.verify(self.extracted(predictions, targets), targets, **columns)

    def verify(
        self, texts: Sequence[str | None], targets: Sequence[str], **columns: Sequence[Any]
    ) -> list[bool | None]:
        """Do what `verdicts` does for predictions, whatever the tag."""
        for name in ("verifier", "history"):
            if columns.get(name) is not None:
                check_column(name, columns[name], targets)
        counts = dict.fromkeys(("no_prediction", "too_long", "no_verifier", "malformed", "code_failed"), 0)
        verdicts: list[bool | None] = [None] * len(targets)
        work: list[tuple[int, Rule, Case]] = []
        for row, (text, target) in enumerate(zip(texts, targets, strict=True)):
            rule = self._rule(row, columns.get("verifier"), counts)
            counts["no_prediction"] += text is None
            too_long = text is not None and len(text) > _MAX_RATIO * len(target) + _SLACK
            counts["too_long"] += too_long
            if rule is not None and (text is None or too_long):
                verdicts[row] = False
            elif rule is not None and text is not None:
                own = {name: values[row] for name, values in columns.items() if _one_per_row(values, len(targets))}
                work.append((row, rule, Case(text, target, own, self.sandbox)))
        for (row, _, case), verdict in zip(work, self._hold(work), strict=True):
            counts["code_failed"] += bool(case.failures)
            if isinstance(verdict, TooMuchError):  # the world's fault: must not stop the run
                counts["malformed"] += 1
            elif isinstance(verdict, NotApplicableError):
                self._refuse(row, verdict, counts)
            else:
                verdicts[row] = verdict
        verified = [float(verdict) for verdict in verdicts if verdict is not None]
        rows = max(len(targets), 1)
        shares = {name: count / rows for name, count in counts.items()}
        self.figures = {**shares, "verified": len(verified) / rows, "passed": mean(verified)}
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

    def _hold(self, work: Sequence[tuple[int, Rule, Case]]) -> list[bool | NotApplicableError]:
        if sum(has_code(rule) for _, rule, _ in work) < 2:
            return [_verdict(rule, case) for _, rule, case in work]
        with ThreadPoolExecutor(_PARALLEL) as pool:  # each thread waits for a process
            return list(pool.map(lambda item: _verdict(item[1], item[2]), work))


def _verdict(rule: Rule, case: Case) -> bool | NotApplicableError:
    try:
        # If its code gives no verdict, no combination holds, `not` included.
        return rule.holds(case) and not case.failures
    except (CutError, RecursionError):  # nor if the prediction is cut
        return False
    except NotApplicableError as error:
        return error


def _one_per_row(values: Any, rows: int) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and len(values) == rows


def has_code(rule: Rule) -> bool:
    """Whether a rule, or one inside it, runs Python code."""
    return isinstance(rule, Code) or (isinstance(rule, Combined) and any(map(has_code, rule.rules)))


def read(verifier: Any) -> Rule | None:
    """Return the rule that a verifier describes, None for an empty verifier.

    Raises:
        MalformedRuleError: the verifier is invalid; the message says what is wrong and where.
    """
    if hasattr(verifier, "tolist"):  # a numpy array of a table
        verifier = verifier.tolist()
    if verifier is None or verifier in ([], {}) or (isinstance(verifier, str) and not verifier.strip()):
        return None
    if isinstance(verifier, float) and math.isnan(verifier):  # some tables' missing value
        return None
    if not isinstance(verifier, str):
        try:
            verifier = json.dumps(_without_nulls(verifier))
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedRuleError(f"not a JSON value: {error}") from None
        return _rule_of(verifier, strict=False)  # a mapping has no key twice, and its bounds may be infinite
    return _rule_of(verifier, strict=True)


def _rule_of(text: str, *, strict: bool) -> Rule | None:
    """Parse a rule's text, cached: all rollouts of a group have the same. A text that has a key twice is malformed."""
    if len(text) > _MAX_CACHED:
        return _read.__wrapped__(text, strict=strict)
    return _read(text, strict=strict)


@lru_cache(_CACHED)
def _read(text: str, *, strict: bool) -> Rule | None:
    try:
        value = loads(text, strict=strict)
    except ValueError as error:
        raise MalformedRuleError(f"not JSON: {error or type(error).__name__}, in {text[:60]!r}") from None
    if value is None or value in ([], {}):
        return None
    budget = iter(range(_MAX_RULES))
    if isinstance(value, list):
        return _combine("all", value, budget, 0)
    return _one(value, budget, 0)


def _one(value: Any, budget: Iterator[int], depth: int) -> Rule:
    """Read one rule of a verifier; each takes one from `budget`."""
    if next(budget, None) is None:
        raise MalformedRuleError(f"more than {_MAX_RULES} rules")
    if not isinstance(value, dict) or len(value) != 1:
        keys = f"with the keys {', '.join(map(repr, value)) or 'none'}" if isinstance(value, dict) else shown(value)
        raise MalformedRuleError(f"a rule is an object with one key, its kind ({', '.join(KINDS)}), not {keys}")
    ((kind, content),) = value.items()
    if kind in ("all", "any", "not"):
        return _combine(kind, content, budget, depth + 1)
    if kind not in CHECKS:
        raise MalformedRuleError(f"there is no rule {kind!r}{nearest(kind, KINDS)}")
    check = CHECKS[kind]
    if not isinstance(content, dict):
        if content is True and not check.main:
            content = {}
        elif check.main:
            content = {check.main: content}
        else:
            raise MalformedRuleError(
                f"{kind}: {shown(content)} is not an object with the fields {', '.join(check.model_fields)}"
            )
    try:
        return check.model_validate(content)
    except ValidationError as error:
        cause = error.errors()[0].get("ctx", {}).get("error")
        if isinstance(cause, UserError):  # an extra that is not installed
            raise cause from None
        raise MalformedRuleError(f"{kind}: {_reason(error, check)}") from None


def _combine(how: Any, content: Any, budget: Iterator[int], depth: int) -> Combined:
    if depth > _MAX_DEPTH:
        raise MalformedRuleError(f"rules are nested more than {_MAX_DEPTH} levels deep")
    if how == "not":
        return Combined("not", (_one(content, budget, depth),))
    if not isinstance(content, list) or not content:
        raise MalformedRuleError(f"{how}: write a list of rules")
    return Combined(how, tuple(_one(rule, budget, depth) for rule in content))


def _reason(error: ValidationError, check: type[Check]) -> str:
    """Describe the first error in one line. A misspelt field comes before the missing one that it causes."""
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    where = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"there is no {where!r}{nearest(where, check.model_fields)}"
    if first["type"] == "missing":
        return f"{where} is missing"
    message = first["msg"].removeprefix("Value error, ")
    return " ".join((f"{where}: {message}" if where else message).split())


def _without_nulls(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value
