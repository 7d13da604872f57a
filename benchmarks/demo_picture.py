"""Draws the README's picture of benchmarks/results/demo.json, a bar a mean and a dot a seed, and writes the table below it.

python benchmarks/demo_picture.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from demo import ALONE, KEPT, NAMES, POLICIES, RESULTS, SEEDS, START, compared, values
from tables import markdown

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "forgetting.svg"
README = ROOT / "README.md"
BEGIN, END = "<!-- demo: begin -->", "<!-- demo: end -->"  # around the table in the README

LABELS = {START: "before", ALONE: "RL alone", KEPT: "+ objective"}
PANELS = (
    ("success", "Task success", "on unseen boards"),
    ("exact", "What it knows of its world", "next observation predicted exactly"),
    ("ahead", "What that is good for", "success when it looks ahead with itself"),
)
ROWS = {
    "success": "task success",
    "exact": "next observation predicted exactly",
    "env_nll": "environment NLL, nats a token",
    "plain": "success on the look-ahead boards",
    "ahead": "the same boards, looking ahead with its own predictions",
    "coin": "looking ahead with a coin in place of its predictions",
    "oracle": "looking ahead with the real world in their place",
}
WIDTH, HEIGHT, TOP, FLOOR, PANEL, BAR = 900, 330, 84, 268, 300, 50
STYLES = ("start", "alone", "kept")
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
        parts.append(f'<text class="small" x="{left}" y="48">{subtitle}</text>')
        parts.append(f'<line x1="{left}" x2="{left + PANEL - 60}" y1="{FLOOR}" y2="{FLOOR}"/>')
        for place, (policy, name) in enumerate(LABELS.items()):
            parts += _bar(left + 18 + place * 84, values(records, policy, measure), STYLES[place], name)
    seeds = f"bars are means of {len(records)} seeds, dots are seeds" if len(records) > 1 else "one seed"
    parts.append(
        f'<text class="small" x="24" y="{HEIGHT - 10}">A policy of 0.11M parameters in a grid world, GRPO on TRL, '
        f"coefficient .05: {seeds}.</text>"
    )
    return "\n".join([*parts, "</svg>\n"])


def alternative(records: Sequence[dict[str, Any]]) -> str:
    """The same in words."""
    panels = []
    for measure, title, subtitle in PANELS:
        means = ", ".join(f"{name} {fmean(values(records, one, measure)):.0%}" for one, name in NAMES.items())
        panels.append(f"{title}, {subtitle}: {means}")
    return ". ".join(panels)


def table(records: Sequence[dict[str, Any]]) -> str:
    """What the picture shows, with the intervals and the controls."""
    first = records[0]
    rows = []
    for measure, label in ROWS.items():
        points = measure != "env_nll"
        means = [fmean(values(records, policy, measure)) for policy in POLICIES]
        found, called = compared(records, (KEPT, measure), (ALONE, measure), points=points)
        shown = [f"{mean:.0%}" if points else f"{mean:.2f}" for mean in means]
        rows.append([label, *shown, f"{found}: {called.partition(' (')[0]}"])
    heads = ["mean of the seeds", *NAMES.values(), "difference from RL alone"]
    seeds = (
        f"{len(records)} of the {len(SEEDS)} seeds that were" if len(records) < len(SEEDS) else f"{len(records)} seeds"
    )
    gain, called = compared(records, (ALONE, "success"), (START, "success"), points=True)
    return "\n".join(
        [
            *markdown(heads, rows),
            f"A policy of 0.11M parameters in a grid world, GRPO on TRL, coefficient .05, {seeds} declared before the runs;",
            f"{first['boards']} held-out boards for success, {first['boards'] // 2} walks for predictions, "
            f"{first['ahead_boards']} boards for look-ahead: each turn, the policy imagines",
            "episodes with its own predictions of what follows, and takes the move after which they do best. Differences "
            "have 95% intervals",
            f"over seeds ([every seed](benchmarks/results/demo.md)). RL's own gain in task success is {gain} "
            f"({called.partition(' (')[0]}).",
            "The coin ignores the policy, so its row is one draw. An earlier plan with other seeds was dropped after its "
            "first, whose warm",
            "start had failed; the same page has it.",
        ]
    )


def place(text: str, between: str) -> str:
    """`text` with `between` between its two marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{between}\n{END}{rest.partition(END)[2]}"


def _bar(x: float, found: Sequence[float], style: str, name: str) -> list[str]:
    mean = fmean(found)
    parts = [
        f'<rect class="{style}" x="{x}" y="{_y(mean):.1f}" width="{BAR}" height="{FLOOR - _y(mean):.1f}" rx="2"/>',
        f'<text x="{x + BAR / 2}" y="{FLOOR + 20}" text-anchor="middle" class="small">{name}</text>',
        f'<text x="{x + BAR / 2}" y="{_y(max(found)) - 10:.1f}" text-anchor="middle" font-weight="600">{mean:.0%}</text>',
    ]
    if len(found) > 1:
        step = (BAR - 16) / (len(found) - 1)
        parts += [
            f'<circle class="dot" cx="{x + 8 + number * step:.1f}" cy="{_y(value):.1f}" r="3.5"/>'
            for number, value in enumerate(found)
        ]
    return parts


def _y(share: float) -> float:
    return FLOOR - share * (FLOOR - TOP)


if __name__ == "__main__":
    everything = json.loads(RESULTS.read_text())
    PICTURE.write_text(draw(everything))
    README.write_text(place(README.read_text(), table(everything)))
