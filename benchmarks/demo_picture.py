"""Draws the README's picture of benchmarks/results/demo.json, a bar a mean and a dot a seed, and writes the sentences below it.

python benchmarks/demo_picture.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "demo.json"
PICTURE = ROOT / "docs" / "images" / "forgetting.svg"
README = ROOT / "README.md"
BEGIN, END = "<!-- demo: begin -->", "<!-- demo: end -->"  # around the sentences in the README

POLICIES = {"start": "before RL", "coeff 0": "RL alone", "coeff 1": "RL + world model"}
PANELS = (
    ("exact", "It foresees its world", "next observation predicted exactly"),
    ("ahead", "It can plan with what it foresees", "success when it looks ahead with itself"),
)
WIDTH, HEIGHT, TOP, FLOOR, PANEL, BAR = 860, 330, 84, 268, 430, 64
STYLE = """text{font:14px system-ui,sans-serif;fill:#24292f}
.title{font-size:17px;font-weight:600}.small{font-size:12.5px;fill:#57606a}
.start{fill:#b6bec8}.alone{fill:#d1695b}.kept{fill:#2f7fc1}.dot{fill:#24292f;stroke:#fff}line{stroke:#8c959f}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9da7b3}
.dot{fill:#e6edf3;stroke:#0d1117}.start{fill:#59636e}}"""


def draw(records: Sequence[dict[str, Any]]) -> str:
    """The picture as SVG, with styles for light and dark pages."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{alternative(records)}">',
        f"<style>{STYLE}</style>",
    ]
    for column, (measure, title, subtitle) in enumerate(PANELS):
        left = column * PANEL + 24
        parts.append(f'<text class="title" x="{left}" y="28">{title}</text>')
        parts.append(f'<text class="small" x="{left}" y="48">{subtitle}, on unseen boards</text>')
        parts.append(f'<line x1="{left}" x2="{left + PANEL - 60}" y1="{FLOOR}" y2="{FLOOR}"/>')
        for place, (policy, name) in enumerate(POLICIES.items()):
            values = [record["figures"][policy][measure] for record in records]
            parts += _bar(left + 26 + place * 118, values, ("start", "alone", "kept")[place], name)
    seeds = f"{len(records)} seeds" if len(records) > 1 else "one seed"
    parts.append(
        f'<text class="small" x="24" y="{HEIGHT - 10}">A 0.16M-parameter policy in a grid world, GRPO on TRL, {seeds}: bars are '
        "means, dots are seeds. wm demo runs one on a CPU.</text>"
    )
    return "\n".join([*parts, "</svg>\n"])


def alternative(records: Sequence[dict[str, Any]]) -> str:
    """The same in words."""
    means = [
        f"{subtitle}: "
        + ", ".join(
            f"{name} {fmean(record['figures'][policy][measure] for record in records):.0%}"
            for policy, name in POLICIES.items()
        )
        for measure, _, subtitle in PANELS
    ]
    return ". ".join(means)


def sentences(records: Sequence[dict[str, Any]]) -> str:
    """What the picture shows, and what it does not, in ranges over the seeds."""

    def ranged(policy: str, measure: str) -> str:
        values = [record["figures"][policy][measure] for record in records]
        return f"{min(values):.0%} to {max(values):.0%}"

    alone, kept = "coeff 0", "coeff 1"
    behind = fmean(record["figures"][alone]["success"] - record["figures"][kept]["success"] for record in records)
    return (
        f"A tiny policy in a grid world, {len(records)} seeds: before RL it predicts {ranged('start', 'exact')} of unseen next "
        f"observations exactly, after RL alone {ranged(alone, 'exact')}, with the objective **{ranged(kept, 'exact')}**.\n"
        f"When it looks ahead with itself it reaches the goal on {ranged(alone, 'ahead')} of unseen boards after RL alone, "
        f"and on **{ranged(kept, 'ahead')}** with the objective.\n"
        f"Without looking ahead, success with the objective is {abs(behind):.2f} {'lower' if behind > 0 else 'higher'} on "
        "average. Other machines give other figures: [all seeds](benchmarks/results/demo.md)."
    )


def place(text: str, between: str) -> str:
    """`text` with `between` between its two marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{between}\n{END}{rest.partition(END)[2]}"


def _bar(x: float, values: Sequence[float], style: str, name: str) -> list[str]:
    mean = fmean(values)
    parts = [
        f'<rect class="{style}" x="{x}" y="{_y(mean):.1f}" width="{BAR}" height="{FLOOR - _y(mean):.1f}" rx="2"/>',
        f'<text x="{x + BAR / 2}" y="{FLOOR + 20}" text-anchor="middle">{name}</text>',
        f'<text x="{x + BAR / 2}" y="{_y(max(values)) - 10:.1f}" text-anchor="middle" font-weight="600">{mean:.0%}</text>',
    ]
    if len(values) > 1:
        step = (BAR - 16) / (len(values) - 1)
        parts += [
            f'<circle class="dot" cx="{x + 8 + number * step:.1f}" cy="{_y(value):.1f}" r="3.5"/>'
            for number, value in enumerate(values)
        ]
    return parts


def _y(share: float) -> float:
    return FLOOR - share * (FLOOR - TOP)


if __name__ == "__main__":
    everything = json.loads(RESULTS.read_text())
    PICTURE.write_text(draw(everything))
    README.write_text(place(README.read_text(), sentences(everything)))
