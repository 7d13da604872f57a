"""Calls a reward as a trainer does: which columns it gets, which scores it may return, how its figures are named in metrics.

TRL and verl pass different columns in different ways. The rules are here, once; the adapters `wm_plugin.trl.rewards` and
`wm_plugin.verl.rewards` only carry texts, columns and scores.
"""

import inspect
import math
import numbers
from collections.abc import Mapping
from typing import Any

from wm_plugin.errors import UserError, nearest
from wm_plugin.rewards.make import Reward, check_tagged

FIGURES = "wm/"  # prefix of a reward's figures in metrics


class RewardError(RuntimeError):
    """A reward raised, or returned something that is not a score. The message names the reward."""


class HostedReward:
    """A reward that can be called with all of a host's columns; those not in its signature are left out.

    Args:
        name: for messages.
        function: the reward: a function or an instance, sync or async.
        label: its name in metrics; None: the last part of `name`, `Mine` of package.module:Mine.
        optional: whether the host leaves a row out if its score is None or NaN.
        outputs: whether it is called with whole outputs, from which it extracts the predictions, or with predictions.

    Attributes:
        call_async: the reward's own method of this name, which does not block an event loop; None without one.

    Raises:
        UserError: the reward does not take predictions and targets first, or it has no tag although it can extract predictions.
    """

    def __init__(
        self,
        name: str,
        function: Reward,
        *,
        label: str | None = None,
        optional: bool = False,
        outputs: bool = True,
    ) -> None:
        if outputs:
            check_tagged(function, name)
        self.name, self.function, self.optional = name, function, optional
        self.label = short_name(name) if label is None else label
        self.call_async = getattr(function, "call_async", None)
        parameters = list(inspect.signature(function).parameters.values())
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(positional) < 2 and all(p.kind is not p.VAR_POSITIONAL for p in parameters):
            raise UserError(f"reward {name} takes {inspect.signature(function)}; predictions and targets come first")
        named = positional[2:] + [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self._texts = {p.name for p in positional[:2]}
        self._takes = {p.name for p in named}
        self._needs = {p.name for p in named if p.default is p.empty}
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def __call__(self, predictions: list[str], targets: list[str], /, **columns: Any) -> Any:
        """Call the reward with the columns that it takes."""
        return self.function(predictions, targets, **self.columns(columns))

    @property
    def is_async(self) -> bool:
        """Whether calling the reward returns an awaitable."""
        function: Any = self.call_async or self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    def columns(self, available: Mapping[str, Any]) -> dict[str, Any]:
        """Select the columns that the reward takes, never one with the name of its predictions or targets.

        Raises:
            UserError: the reward needs a column that is not available.
        """
        for column in sorted(self._needs):
            self.check_column(column, available)
        takes = available.keys() - self._texts if self._takes_all else self._takes
        return {name: values for name, values in available.items() if name in takes}

    def check_column(self, name: str, available: Mapping[str, Any]) -> None:
        """Raise a UserError unless a column that the reward needs is available."""
        if name not in available:
            raise UserError(f"reward {self.name} needs the column {name!r}{nearest(name, available)}")

    @property
    def figures(self) -> dict[str, float]:
        """Return the figures of the reward's last call, by their names in metrics."""
        figures = getattr(self.function, "figures", None) or {}
        return {f"{FIGURES}{self.label}/{name}": float(value) for name, value in figures.items()}

    def outcomes(self, result: Any, count: int) -> list[float | RewardError | None]:
        """Return one outcome per row of a call: its score, None to leave it out, or an error.

        Args:
            result: what the reward returned (a list, tuple, array or tensor of numbers), or the exception that it raised.
        """
        values = result.tolist() if hasattr(result, "tolist") else result
        if isinstance(values, BaseException):
            reason = f"raised {type(values).__name__}: {values}"
        elif not isinstance(values, list | tuple):
            reason = f"returned {type(values).__name__}; write list[float], a score for each prediction"
        elif len(values) != count:
            reason = f"returned {len(values)} scores for {count} predictions; write one for each"
        else:
            return [self._outcome(value) for value in values]
        return [self._error(reason, values) for _ in range(count)]  # one each: an error collects tracebacks

    def _outcome(self, value: Any) -> float | RewardError | None:
        number = _as_float(value)
        if number is not None and math.isfinite(number):
            return number
        if self.optional and (value is None or (number is not None and math.isnan(number))):
            return None if value is None else number
        shown = f"a {type(value).__name__}" if number is None and value is not None else number
        hint = (
            "write a finite number, or None to leave the row out"
            if self.optional
            else "this host needs a finite number for every row. Where the reward does not apply (None, NaN), return a number, "
            "or leave such rows out of the dataset"
        )
        return self._error(f"returned {shown} for a row; {hint}")

    def _error(self, reason: str, cause: Any = None) -> RewardError:
        error = RewardError(f"reward {self.name} {reason}")
        error.__cause__ = cause if isinstance(cause, BaseException) else None
        return error


def short_name(path: str) -> str:
    """Return `Mine` of package.module:Mine, `rouge` of rouge."""
    return path.replace(":", ".").rpartition(".")[2]


def _as_float(value: Any) -> float | None:
    if not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of a float
        return math.inf
