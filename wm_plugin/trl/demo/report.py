"""What the demo found: its arms, and claims that are computed from them. `page.py` shows them."""

from dataclasses import dataclass, field
from typing import Any

from wm_plugin.evaluation.compare import SHARE, compare
from wm_plugin.evaluation.one_step import Prediction
from wm_plugin.tiny.held_out import HeldOut, Measured


@dataclass
class Arm:
    coeff: float
    start: Measured
    predictions: list[Prediction] = field(default_factory=list)
    evaluations: list[tuple[int, Measured]] = field(default_factory=list)
    training: list[dict[str, float]] = field(default_factory=list)
    cpu_seconds: float = 0.0

    @property
    def end(self) -> Measured:
        return self.evaluations[-1][1]

    @property
    def name(self) -> str:
        return "RL + world-model objective" if self.coeff else "RL alone"

    @property
    def detail(self) -> str:
        return f"coefficient {self.coeff:g}"

    def as_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {"coeff": self.coeff}
        for name, value in self.start.means().items():
            row |= {f"{name}_start": value, f"{name}_end": self.end.ratios[name].mean}
        row["cpu_seconds"] = self.cpu_seconds
        row["policy_tokens"] = sum(step["policy_tokens"] for step in self.training)
        row["environment_tokens"] = round(sum(step["echo/tokens"] for step in self.training))
        row["evaluations"] = [{"step": step, **measured.means()} for step, measured in self.evaluations]
        row["training"] = self.training
        return row


_MEASURES = {
    "exact": "next-observation exact match",
    "env_nll": "environment NLL",
    "success": "success",
    "turns": "turns",
}


def make_claims(arms: list[Arm], held_out: HeldOut, steps: int) -> list[dict[str, Any]]:
    """Each arm against the start, and the arms against each other, measure by measure."""
    pairs = [(f"{arm.name}, step {steps}", arm.end, "the start", arm.start) for arm in arms]
    pairs.append((f"{arms[1].name}, step {steps}", arms[1].end, f"{arms[0].name}, step {steps}", arms[0].end))
    found = []
    for measure, label in _MEASURES.items():
        for name, of, other, against in pairs:
            result = compare(of.ratios[measure], against.ratios[measure], held_out.layouts(measure))
            found.append(
                {
                    "measure": measure,
                    "of": name,
                    "against": other,
                    "difference": result.difference,
                    "low": result.low,
                    "high": result.high,
                    "verdict": result.verdict,
                    "sentence": f"Held-out {label}, {name} against {other}: {result.verdict} "
                    f"({result.difference:+.3f}, {SHARE:.0%} interval {result.low:+.3f} to {result.high:+.3f}).",
                }
            )
    return found
