"""Means over seeds with their intervals, and tables of them, for the benchmarks."""

import math
import statistics
from collections.abc import Sequence

T_975 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
)  # Student's t by its degrees of freedom, from 1


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95% interval by Student's t; the values are one a seed, at least two.

    Both are NaN where a value is.
    """
    if any(map(math.isnan, values)):
        return math.nan, math.nan
    quantile = T_975[min(len(values) - 1, len(T_975)) - 1]  # from 11 values on a little wide
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


def verdict(mean: float, half: float) -> str:
    if abs(mean) <= half:
        return "null (the interval contains 0)"
    return "higher" if mean > 0 else "lower"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]
