"""Groups runs that differ only in their seeds into arms, with what the seeds say about noise."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wm_plugin.errors import UserError
from wm_plugin.lab.report.chart import Interval, Series
from wm_plugin.lab.report.logs import Run
from wm_plugin.lab.report.sources import matches

# a seed in a name: echo_seed0, echo-s1, seed=2/echo. A bare number may be a setting, such as a size
_SEED = re.compile(r"(?:^|[-_. ])(?:seed|s)[-_=]?(\d{1,9})(?=$|[-_. ])", re.IGNORECASE)
_LONGEST = 300  # characters of a part of a name
# the quantiles 0.975 of Student's t for 1 to 10 degrees of freedom
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass
class Arm:
    """Runs with the same settings."""

    name: str
    runs: list[Run] = field(default_factory=list)

    @property
    def seeds(self) -> int:
        return len(self.runs)

    @property
    def last_step(self) -> int:
        return max(run.last_step for run in self.runs)

    @property
    def short(self) -> list[Run]:
        """The runs that ended before the arm's last step, as a run that broke off."""
        return [run for run in self.runs if run.values and run.last_step < self.last_step]

    def last(self, metric: str) -> tuple[float, Interval | None, int] | None:
        """Return the mean of the runs' last values of a metric, its interval, and how many runs have it."""
        ends = [steps[max(steps)] for run in self.runs if (steps := run.curve(metric))]
        return (*spread(ends), len(ends)) if ends else None

    def series(self, metric: str) -> Series | None:
        """Return the metric as a line: the mean at the steps that all runs have, with each run's own line."""
        curves = [steps for run in self.runs if (steps := run.curve(metric))]
        if not curves:
            return None
        common = sorted(set.intersection(*(set(curve) for curve in curves)))
        if len(curves) == 1:
            return Series(self.name, common, [curves[0][step] for step in common])
        points = [spread([curve[step] for curve in curves]) for step in common]
        own = [(sorted(curve), [curve[step] for step in sorted(curve)]) for curve in curves]
        band = [interval or (mean, mean) for mean, interval in points]
        return Series(self.name, common, [mean for mean, _ in points], band, own)

    @property
    def detail(self) -> str:
        """What its line and its band are."""
        if self.seeds == 1:
            return "one run"
        what = "95% interval of their mean" if self.seeds > 2 else "both runs"
        return f"mean of {self.seeds} runs (faint), band: {what}"


def spread(values: Sequence[float]) -> tuple[float, Interval | None]:
    """Return the mean of several runs with its 95% interval by Student's t, or the range of two, for which that is useless."""
    count, size = len(values), max(map(abs, values)) or 1.0
    parts = [value / size for value in values]  # squares of logged values may be larger than any float
    mean = math.fsum(parts) / count
    if count < 2:
        return values[0], None
    if count == 2:
        return mean * size, (min(values), max(values))
    half = student(count - 1) * math.sqrt(math.fsum((part - mean) ** 2 for part in parts) / (count - 1) / count)
    limits = ((mean - half) * size, (mean + half) * size)
    return mean * size, limits if all(map(math.isfinite, limits)) else None


def student(freedom: int) -> float:
    """Return Student's t at 0.975: from a table, and from its expansion around the normal quantile, within 0.001."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def parse(settings: Iterable[str]) -> dict[str, str]:
    """Read `NAME=PATTERN` of each arm.

    Raises:
        UserError: one has no name or no pattern, or a name comes twice.
    """
    patterns: dict[str, str] = {}
    for setting in settings:
        name, equals, pattern = setting.partition("=")
        if not (name.strip() and equals and pattern):
            raise UserError(f"--arm {setting!r}: write NAME=PATTERN, e.g. --arm 'echo=runs/echo_*'")
        if name in patterns:
            raise UserError(f"--arm {name} is there twice; one pattern may match several runs")
        patterns[name] = pattern
    return patterns


def arms(runs: Sequence[Run], patterns: Mapping[str, str]) -> list[Arm]:
    """Return the arms: those of the patterns first, then runs grouped by their names without the seed."""
    table = {name: Arm(name) for name in patterns}
    for run in sorted(runs, key=lambda run: arm_of(run.name, run.place, patterns) is None):
        name = arm_of(run.name, run.place, patterns) or without_seed(run.name) or run.name
        table.setdefault(name, Arm(name)).runs.append(run)
    return [arm for arm in table.values() if arm.runs]


def arm_of(name: str, place: str, patterns: Mapping[str, str]) -> str | None:
    """Return the first arm whose pattern matches a name or path."""
    return next((arm for arm, pattern in patterns.items() if matches(pattern, name, place)), None)


def without_seed(name: str) -> str:
    """Remove the seed's number from a name: `echo` from `echo_seed0` and from `seed0/echo`."""
    parts = [_SEED.sub("", part[:_LONGEST]).strip("-_. ") for part in name.split("/")]
    return "/".join(part for part in parts if part)


def seed_of(path: str) -> int | None:
    """Return the last seed in a path, such as 1 in `seed0/echo_s1/seen.jsonl`; None without one."""
    for part in reversed(path.split("/")):
        if seeds := _SEED.findall(part[:_LONGEST]):
            return int(seeds[-1])
    return None
