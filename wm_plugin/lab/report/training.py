"""Curves of training runs: the order of metrics, and their units."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from wm_plugin.lab.report.arms import Arm
from wm_plugin.lab.report.chart import Curve

# What people look at first, on both hosts and in fine-tuning; a pattern may match several metrics.
OUTCOMES = (
    "reward",
    "critic/score/mean",
    "critic/rewards/mean",
    "eval/reward",
    "eval/*/reward",
    "val-core/*",
    "wm/env/success*",
)
WORLD = ("echo/nll", "echo_tempered/nll", "eval/*nll*", "wm/*/nll", "wm/guard*", "wm/rwml/*", "echo*/coeff")
OTHERS = (
    "loss",
    "eval/loss",
    "eval/*/loss",
    "entropy",
    "actor/entropy",
    "actor/entropy_loss",
    "actor/pg_loss",
    "kl",
    "actor/ppo_kl",
    "actor/kl_loss",
    "grad_norm",
    "actor/grad_norm",
    "mean_token_accuracy",
    "eval/mean_token_accuracy",
)
TOOLS = ("tools/*", "echo*/tool/*/nll", "wm/env/*call*", "wm/env/invalid_share*", "wm/env/effective_share*")
BUDGETS = (
    "wm/turn_budget",
    "wm/env/turns",
    "wm/env/truncated*",
    "wm/env/budget*",
    "num_turns/mean",
    "completions/mean_length",
    "completions/clipped_ratio",
    "response_length/mean",
    "response_length/clip_ratio",
    "prompt_length/mean",
    "echo*/tokens",
    "num_tokens",
    "perf/total_num_tokens",
    "wm/env/policy_tokens*",
    "wm/env/environment_tokens*",
    "step_time",
    "perf/time_per_step",
)
REST = "All other metrics"
_MOST = 12  # figures of a group
_MOST_OF_REST = 60

# A metric's unit, by the first of these words that is in its name.
_UNITS = (
    (("perplexity", "_ppl", "/ppl"), "perplexity"),
    (("nll", "entropy", "log_ppl", "kl"), "nats a token"),
    (("memory_", "_gb"), "GB"),
    (("timing_per_token_ms",), "ms a token"),
    (("timing_s", "seconds", "step_time", "time_per_step", "runtime"), "seconds"),
    (("throughput", "per_second"), "a second"),
    (("clip_ratio", "clipped_ratio", "aborted_ratio", "frequency", "share", "frac_", "clipfrac", "success", "accuracy",
      "/acc", "truncated", "no_prediction", "policy_silent", "call_failed"), "share"),
    (("reward", "score", "returns", "advantages"), "reward"),
    (("grad_norm",), "L2 norm"),
    (("learning_rate", "/lr"), "learning rate"),
    (("coeff",), "factor"),
    (("tokens", "length", "seqlen"), "tokens"),
    (("turn_budget", "num_turns", "turns"), "turns"),
    (("loss",), "loss"),
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Curves under a heading. `left_out` has the metrics without room."""

    title: str
    curves: Sequence[Curve]
    left_out: Sequence[str] = ()


def groups(arms: Sequence[Arm], chosen: Sequence[str] = ()) -> list[Group]:
    """Return the curves of all the arms' metrics: what matters first, then tools and budgets, the rest last.

    Args:
        chosen: patterns of the only metrics to show.
    """
    metrics = _metrics(arms)
    if chosen:
        return [_group("Training", _matching(metrics, chosen), arms, _MOST_OF_REST)]
    made, used = [], set()
    for title, patterns in (
        ("Training", (*OUTCOMES, *WORLD, *OTHERS)),
        ("Tools", TOOLS),
        ("Budgets: turns, tokens, time", BUDGETS),
    ):
        matching = [metric for metric in _matching(metrics, patterns) if metric not in used and _moves(metric, arms)]
        used.update(matching)
        made.append(_group(title, matching, arms, _MOST))
    rest = [*(name for group in made for name in group.left_out), *(metric for metric in metrics if metric not in used)]
    rest = [metric for metric in rest if _moves(metric, arms)]
    made.append(_group(REST, rest, arms, _MOST_OF_REST))
    return [group for group in made if group.curves]


def outcome(arms: Sequence[Arm]) -> str | None:
    """Return the metric that the runs are about: the first one of `OUTCOMES` that any of them has, else their loss."""
    return next(iter(_matching(_metrics(arms), (*OUTCOMES, "eval/loss", "loss"))), None)


def columns(arms: Sequence[Arm], most: int = 5) -> list[str]:
    """Return the metrics of a table at a glance."""
    metrics = _metrics(arms)
    first = [*_matching(metrics, OUTCOMES)[:2], *_matching(metrics, WORLD)[:1], *_matching(metrics, OTHERS)]
    return list(dict.fromkeys(first))[:most]


def unit_of(metric: str) -> str:
    """Return a metric's unit, such as "nats a token"; "as logged" for an unknown metric."""
    name = metric.lower()
    return next((unit for words, unit in _UNITS if any(word in name for word in words)), "as logged")


def _group(title: str, metrics: Sequence[str], arms: Sequence[Arm], most: int) -> Group:
    curves = [_curve(metric, arms) for metric in metrics[:most]]
    return Group(title, curves, metrics[most:])


def _curve(metric: str, arms: Sequence[Arm]) -> Curve:
    series = [one for arm in arms if (one := arm.series(metric))]
    unit = unit_of(metric)
    share = unit == "share" and all(0 <= value <= 1 for one in series for value in one.y)
    if share:  # Student's t knows no bounds
        series = [replace(one, band=[(max(low, 0.0), min(high, 1.0)) for low, high in one.band]) for one in series]
    return Curve(metric, series, "as logged" if unit == "share" and not share else unit, "training step", share)


def _metrics(arms: Sequence[Arm]) -> list[str]:
    return sorted({metric for arm in arms for run in arm.runs for metric in run.values})


def _matching(metrics: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the metrics that match, in the order of the patterns."""
    known = list(metrics)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        chosen.update(dict.fromkeys(metric for metric in known if fnmatchcase(metric, pattern)))
    return list(chosen)


def _moves(metric: str, arms: Sequence[Arm]) -> bool:
    """Return whether a metric has more than one point in any run: the others are in the tables."""
    return any(len(run.values.get(metric, ())) > 1 for arm in arms for run in arm.runs)
