"""The demo's arms, and the claims computed from them. `page.py` shows both."""

from dataclasses import dataclass, field
from typing import Any

from wm_plugin.lab.evaluation.intervals import SHARE, Ratio, compare
from wm_plugin.lab.evaluation.one_step import Prediction
from wm_plugin.lab.tiny.held_out import Ahead, HeldOut, Measured
from wm_plugin.lab.tiny.look_ahead import EPISODES


@dataclass
class Arm:
    coeff: float
    start: Measured
    ahead: list[Ahead] = field(default_factory=list)  # at the start, and at the end
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
    def key(self) -> str:
        """Its name in `result.json`."""
        return f"coeff {self.coeff:g}"

    def as_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {"coeff": self.coeff}
        for name, value in self.start.means().items():
            row |= {f"{name}_start": value, f"{name}_end": self.end.ratios[name].mean}
        row |= {"look_ahead_start": self.ahead[0].ahead.mean, "look_ahead_end": self.ahead[-1].ahead.mean}
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
    """Compare each arm with the start, and the arms with each other, measure by measure."""
    pairs = [(f"{arm.name}, step {steps}", arm.end, "the start", arm.start) for arm in arms]
    pairs.append((f"{arms[1].name}, step {steps}", arms[1].end, f"{arms[0].name}, step {steps}", arms[0].end))
    return [
        _claim(measure, label, name, other, of.ratios[measure], against.ratios[measure], held_out)
        for measure, label in _MEASURES.items()
        for name, of, other, against in pairs
    ]


def _look_ahead_claims(arms: list[Arm], held_out: HeldOut, steps: int) -> list[dict[str, Any]]:
    """Compare the arms when both look ahead; then the start and each arm, looking ahead against not."""
    first, second = (arm.ahead[-1] for arm in arms)
    names = [f"{arm.name}, step {steps}" for arm in arms]
    pairs = [(f"{names[1]}, looking ahead", second.ahead, f"{names[0]}, looking ahead", first.ahead)]
    for name, ahead in zip(["the start", *names], [arms[0].ahead[0], first, second], strict=True):
        pairs.append((f"{name}, looking ahead", ahead.ahead, "not", ahead.plain))
    return [_claim("look_ahead", "success", name, other, of, against, held_out) for name, of, other, against in pairs]


def _claim(
    measure: str, label: str, name: str, other: str, of: Ratio, against: Ratio, held_out: HeldOut
) -> dict[str, Any]:
    result = compare(of, against, held_out.layouts(measure))
    return {
        "measure": measure,
        "of": name,
        "against": other,
        "difference": result.difference,
        "low": result.low,
        "high": result.high,
        "verdict": result.verdict,
        "sentence": f"Held-out {label}, {name} against {other}: {result.verdict} "
        f"{_interval(result.difference, result.low, result.high)}.",
    }


def tell_look_ahead(arms: list[Arm], held_out: HeldOut, steps: int) -> dict[str, Any]:
    """Report what looking ahead gains: a sentence, figures of the start and of each arm, and claims."""
    claims = _look_ahead_claims(arms, held_out, steps)
    ends = {"start": arms[0].ahead[0]} | {arm.key: arm.ahead[-1] for arm in arms}
    figures = {name: {"plain": ahead.plain.mean, "ahead": ahead.ahead.mean} for name, ahead in ends.items()}
    without, kept = (figures[arm.key] for arm in arms)
    return {
        "sentence": "Looking ahead with itself (the same weights imagine what each move leads to), the policy of "
        f"{arms[1].name} reaches the goal on {kept['ahead']:.0%} of {len(held_out.ahead_boards)} held-out boards, "
        f"that of {arms[0].name} on {without['ahead']:.0%}: {claims[0]['verdict']} "
        f"{_interval(*(claims[0][key] for key in ('difference', 'low', 'high')))}. "
        f"Without looking ahead they reach it on {kept['plain']:.0%} and {without['plain']:.0%}.",
        "figures": figures,
        "claims": claims,
        "boards": len(held_out.ahead_boards),
        "episodes_a_move": EPISODES,
        "cpu_seconds": sum(ahead.cpu_seconds for ahead in ends.values()),
    }


def _interval(difference: float, low: float, high: float) -> str:
    return f"({difference:+.3f}, {SHARE:.0%} interval {low:+.3f} to {high:+.3f})"
