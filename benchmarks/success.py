"""Writes into docs/echo.md what the term at .05 does to task success in every comparison of which results are committed.

python benchmarks/success.py
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables import interval, markdown, verdict

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "echo.md"
BEGIN, END = "<!-- success: begin -->", "<!-- success: end -->"
REPRODUCED = {  # questions of reproduce.yaml, the arm with the term, the one without it, and what the setting is
    "echo: forgetting": ("a005", "rl", "the grid (a)"),
    "echo: then_rl": ("then_rl", "rl", "the term for the first half (a)"),
    "echo: before_rl": ("warm_rl_echo", "warm_rl", "after a warm-up of the world model (a)"),
    "echo: longer": ("a005", "rl", "three times as many steps (a)"),
    "echo: advised (verl)": ("a005", "rl", "the grid on verl, five of these seeds (a)"),
    "echo: silent_groups": ("a005", "rl", "from a start that has learnt nothing"),
    "echo: hidden_rules": ("a005", "rl", "a hidden rule"),
}
BASES = {
    "cloned": "SmolLM2-135M, the agent's tokens learnt",
    "with the term": "SmolLM2-135M, observations learnt, too",
}


@dataclass(frozen=True)
class Comparison:
    """Success by seed: before RL, after RL alone, and after RL with the term at .05."""

    setting: str
    link: str
    start: Sequence[float]
    alone: Sequence[float]
    ours: Sequence[float]

    @property
    def gained(self) -> tuple[float, float]:
        """RL's own gain, and half of its interval."""
        return interval([after - before for before, after in zip(self.start, self.alone, strict=True)])

    @property
    def added(self) -> tuple[float, float]:
        """What the term adds, and half of its interval."""
        return interval([mine - other for other, mine in zip(self.alone, self.ours, strict=True)])


def comparisons() -> Iterator[Comparison]:
    """Every one with the coefficient that we advise."""
    found = _read("reproduce")
    for name, (arm, other, setting) in REPRODUCED.items():
        claims = [claim for claim in found[name]["claims"] if claim["measure"] == "success"]
        values = {claim["arm"]: claim["values"] for claim in claims} | {"rl": claims[0]["values_against"]}
        before = "base" if other == "rl" else "warm"
        anchor = name.translate(str.maketrans({":": None, "(": None, ")": None, "_": "-", " ": "-"}))
        link = f"../benchmarks/results/reproduce.md#{anchor}"
        yield Comparison(setting, link, values[before], values[other], values[arm])
    policies = ("start", "coeff 0", "coeff 0.05")
    demo = _read("demo")
    by_policy = [[one["figures"][policy]["success"] for one in demo] for policy in policies]
    yield Comparison("the demo", "../benchmarks/results/demo.md", *by_policy)
    ahead = _read("look_ahead")
    for world in dict.fromkeys(one["world"] for one in ahead):
        own = [one["figures"] for one in ahead if one["world"] == world]
        by_policy = [[one[policy]["arms"]["plain"]["success"] for one in own] for policy in policies]
        yield Comparison(f"look-ahead's {world}", "evaluation.md#what-look-ahead-gains", *by_policy)
    measured = _read("grid_135m")
    for base, setting in BASES.items():
        rows = sorted((one for one in measured if one["base"] == base), key=lambda one: one["seed"])
        last = max(one["step"] for one in rows)
        by_policy = [
            [one["success"] for one in rows if (one["coeff"], one["step"]) == (coeff, step)]
            for coeff, step in ((0.0, 0), (0.0, last), (0.05, last))
        ]
        yield Comparison(setting, "#what-it-changes", *by_policy)
    wmact = _read("wmact")
    for level in ("standard", "hard"):
        by_policy = [
            [one["held_out"][policy][level]["success"] for one in wmact]
            for policy in ("start", "+ anneal", "+ ECHO, 0.05")
        ]
        yield Comparison(f"WMAct, {level} mazes (b)", "wmact.md#what-a-tiny-model-shows", *by_policy)


def counted() -> dict[str, int]:
    """How many comparisons there are, are null, and have an RL alone that raises success."""
    every = list(comparisons())
    return {
        "all": len(every),
        "null": sum(verdict(*one.added).startswith("null") for one in every),
        "rl_learns": sum(verdict(*one.gained) == "higher" for one in every),
    }


def table() -> str:
    """The comparisons, and what they are together."""
    rows = [
        [
            f"[{one.setting}]({one.link})",
            str(len(one.alone)),
            _mean(one.start),
            _mean(one.alone),
            _signed(*one.gained),
            f"{_signed(*one.added)}: {verdict(*one.added).partition(' ')[0]}",
        ]
        for one in comparisons()
    ]
    head = ["setting", "seeds", "before RL", "RL alone", "RL alone less before", "with the term less RL alone"]
    return "\n".join(markdown(head, rows))


def written(page: str) -> str:
    """The page with the table between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{table()}{end}{after}"


def _mean(values: Sequence[float]) -> str:
    return f"{math.fsum(values) / len(values):.3f}".removeprefix("0")


def _signed(mean: float, half: float) -> str:
    return f"{mean:+.3f} ± {half:.3f}".replace("+0.", "+.").replace("-0.", "−.").replace(" 0.", " .")


def _read(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
