"""Watches a run for batches without a token that counts, and finds the likely causes.

Both hosts call `EmptyBatchMonitor` after every optimizer batch, with counts over all ranks.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wm_plugin.errors import UserError
from wm_plugin.tokens.spans import Origin

if TYPE_CHECKING:
    from wm_plugin.objectives.base import Objective

MAX_NAMES = 3  # roles or tools in a message
MAX_WIDTH = 40  # characters of a name in a message: a policy may have invented it

# Field -> the message about the tokens that it leaves out, with the field's {value} and the tokens' roles or tools, {names}.
CAUSES = {
    "roles": "roles {value} leaves out {count}, which are of {names}",
    "tools": "tools {value} leaves out {count}, which are of {names}",
    "include_errors": "include_errors false leaves out {count}: failures that the host made of calls of {names} (no such tool, "
    "unreadable arguments, an exception)",
    "include_truncated": "include_truncated false leaves out {count}, of completions cut at the length limit",
    "zero_variance_groups": "zero_variance_groups {value} leaves out {count}, of groups whose rewards are all equal",
    "select_rollout": "select_rollout leaves out {count}, of completions for which it is false",
    "select": "select leaves out {count}, which are of {names}",
    "env_spans": "env_spans leaves out {count}, which are in none of its spans",
    # last, since scaffold surrounds every result
    "content_only": "content_only true leaves out {count} of chat-template scaffold",
}


@dataclass
class Tally:
    """What became of some rollouts' environment tokens."""

    environment: int = 0  # all of them, before any selection
    selected: int = 0
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)  # by the field, and by the tokens' role or tool
    masked: int = 0  # completions that the host's truncation masking removed
    unanswered: int = 0  # tool calls of rollouts without environment tokens

    def add(self, origin: Origin, cause: str | None) -> None:
        """Count a span's tokens as selected, or as left out by the field `cause`."""
        span = origin.span
        length = span.end - span.start
        if cause is None:
            self.selected += length
        elif length:
            name = span.role if cause == "roles" or span.tool is None else span.tool
            self.left_out[cause, name[:MAX_WIDTH]] += length

    @classmethod
    def sum(cls, tallies: Iterable["Tally"]) -> "Tally":
        total = cls()
        for tally in tallies:
            total.environment += tally.environment
            total.selected += tally.selected
            total.left_out.update(tally.left_out)
            total.masked += tally.masked
            total.unanswered += tally.unanswered
        return total


class EmptyBatchMonitor:
    """Watches a run for optimizer batches in which no token counts although the coefficient is above 0.

    A batch whose rollouts have environment tokens, none of which counts, is reported at once. Rollouts may have none for a
    while: that is reported after `silent_batches` of them in a row. A run gets one report. With `on_silence: stop`,
    `silent_batches` in a row of either kind stop the run. A run that ends before them without any token that counted is reported
    at its end.

    Args:
        limit: the host's name of the limit on a rollout's length.

    Attributes:
        batches: empty batches in a row.
        warning: what to warn of before the first batch; None if some tokens may count.

    Raises:
        UserError: `on_silence` is `stop`, and by the config alone no token can count.
    """

    def __init__(self, config: "Objective", *, limit: str = "the length limit") -> None:
        self._config, self._limit = config, limit
        self.batches = 0
        self._counted = False  # whether a token of any batch counted
        self.warning = config_warning(config)
        self._warned = self.warning is not None

    def record(self, *, coeff: float, environment: int, counted: int) -> bool:
        """Record a batch; return whether to `report`.

        Args:
            coeff: the batch's coefficient; at 0 no token needs to count.
            environment: its environment tokens, before any selection. counted: those that have a part in the loss.
        """
        if coeff == 0:
            return False
        self.batches = 0 if counted else self.batches + 1
        self._counted |= counted > 0
        if not self.batches:
            return False
        enough = self.batches >= self._config.silent_batches
        if self._config.on_silence == "stop" and enough:
            return True
        return not self._warned and (enough or environment > 0)

    def at_end(self) -> bool:
        """Return whether to `report` as the run ends: no token of it counted, and nothing was reported."""
        return self.batches > 0 and not self._counted and not self._warned

    def report(self, tally: Tally, *, environment: int, selected: int, policy_silent: bool = False) -> str:
        """Return the warning after the last batch.

        Args:
            tally: of the last rollouts, over all ranks.
            environment: the batch's environment tokens. selected: those that the loss could have had.
            policy_silent: whether all its advantages were 0.

        Raises:
            UserError: the run is to stop.
        """
        self._warned = True
        batches = "an optimizer batch" if self.batches == 1 else f"{self.batches} optimizer batches in a row"
        causes = likely_causes(tally, self._config, environment=environment, selected=selected, limit=self._limit)
        text = f"the world-model objective had no token to train on in {batches}: {'; '.join(causes)}"
        if policy_silent:
            last = "its" if self.batches == 1 else "the last one's"
            text += f"; {last} advantages were all 0 too, so that it trained nothing"
        if self._config.on_silence == "stop" and self.batches >= self._config.silent_batches:
            raise UserError(f"{text} (on_silence is stop)")
        return text


def config_warning(config: "Objective") -> str | None:
    """Return the warning before the first batch; None if some tokens may count.

    Raises:
        UserError: the run is to stop.
    """
    if not config.active or config.why_nothing_counts is None:
        return None
    text = f"the world-model objective has no token to train on: {config.why_nothing_counts}"
    if config.on_silence == "stop":
        raise UserError(f"{text} (on_silence is stop)")
    return text


def likely_causes(tally: Tally, config: "Objective", *, environment: int, selected: int, limit: str) -> list[str]:
    """Return why no token of a batch counts, the likeliest cause first."""
    causes = []
    if selected:
        bounds = [name for name in ("min_token_nll", "max_token_nll") if getattr(config, name) is not None]
        fields = " and ".join(f"{name} {getattr(config, name)}" for name in bounds)
        causes.append(f"{fields} leaves out all {selected} tokens that were selected")
    elif not environment and tally.unanswered:
        causes.append(
            "tools were called, but no result is in the rollouts: the host drops a result that does not fit the length limit; "
            f"raise {limit}"
        )
    elif not environment:
        causes.append(
            "the rollouts have no environment tokens, as if no tool had been called (does the prompt show the tools, and is the "
            "format of calls the model's?)"
        )
    else:
        left_out = Counter(tally.left_out)
        if (nowhere := tally.environment - tally.selected - left_out.total()) > 0:
            left_out["env_spans", ""] += nowhere
        by_field: Counter[str] = Counter()
        for (cause, _), count in left_out.items():
            by_field[cause] += count
        total = by_field.total() + tally.selected
        for cause, count in sorted(by_field.items(), key=lambda item: (item[0] == "content_only", -item[1])):
            names = Counter({name: number for (field_, name), number in left_out.items() if field_ == cause})
            value = _short(getattr(config, cause, None))
            causes.append(CAUSES[cause].format(value=value, count=f"{count} of {total} tokens", names=_listed(names)))
    if tally.masked:
        causes.append(f"the host's truncation masking takes away {tally.masked} completions whole")
    return causes or ["the cause is not known"]


def _listed(names: Counter[str]) -> str:
    most = [repr(name) for name, _ in names.most_common(MAX_NAMES)]
    return ", ".join(most) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def _short(value: object) -> str:
    text = str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 2 * MAX_WIDTH else f"{text[: 2 * MAX_WIDTH]}…"
