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
    "success": "task success",
    "exact": "next-observation exact match",
    "env_nll": "environment NLL",
    "turns": "turns",
}
WAYS = ("plain", "coin", "ahead", "oracle")  # of choosing a move


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
    """Compare the arms when both look ahead; then, for the start and each arm, looking ahead with not, a coin and the oracle."""
    names = ["the start", *(f"{arm.name}, step {steps}" for arm in arms)]
    of = dict(zip(names, [arms[0].ahead[0], *(arm.ahead[-1] for arm in arms)], strict=True))
    alone, kept = names[1:]
    pairs = [(f"{kept}, looking ahead", of[kept].ahead, f"{alone}, looking ahead", of[alone].ahead)]
    for name, ahead in of.items():
        controls = {"not": ahead.plain, "a coin": ahead.coin, "the real world": ahead.oracle}
        pairs += [(f"{name}, looking ahead", ahead.ahead, other, control) for other, control in controls.items()]
    return [_claim("look_ahead", "success", name, other, one, against, held_out) for name, one, other, against in pairs]


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
    """Report what looking ahead gains: figures of the start and of each arm, and claims, of which the first compares the arms."""
    ends = {"start": arms[0].ahead[0]} | {arm.key: arm.ahead[-1] for arm in arms}
    return {
        "figures": {name: {way: getattr(ahead, way).mean for way in WAYS} for name, ahead in ends.items()},
        "claims": _look_ahead_claims(arms, held_out, steps),
        "boards": len(held_out.ahead_boards),
        "episodes_a_move": EPISODES,
        "cpu_seconds": sum(ahead.cpu_seconds for ahead in ends.values()),
    }


def tell(arms: list[Arm], claims: list[dict[str, Any]], ahead: dict[str, Any]) -> list[str]:
    """Say in three sentences whether task success changes, what is kept of the world, and what that is good for."""
    alone, kept = arms
    between = {claim["measure"]: claim for claim in claims[2::3]}  # the objective against RL alone

    def means(measure: str, form: str) -> str:
        return _side_by_side([one.ratios[measure].mean for one in (alone.start, alone.end, kept.end)], form)

    def ways(way: str) -> str:
        return _side_by_side([row[way] for row in ahead["figures"].values()], ".0%")

    success = between["success"]
    answer = f"Yes, it is {success['verdict']}" if success["verdict"] in ("higher", "lower") else "Not measurably"
    return [
        f"Does task success change? {answer} {_interval_of(success)}: {means('success', '.0%')}.",
        f"Is the world kept? Next observations predicted exactly: {means('exact', '.0%')}; {_told(between['exact'])}. "
        f"Environment NLL: {means('env_nll', '.2f')}; {_told(between['env_nll'])}.",
        f"What is that good for? Success when the policy looks ahead with itself: {ways('ahead')}; {_told(ahead['claims'][0])}. "
        f"By a coin's word in place of its predictions: {ways('coin')}. In the real world: {ways('oracle')}.",
    ]


def _side_by_side(values: list[float], form: str) -> str:
    start, alone, kept = (format(value, form) for value in values)
    return f"{kept} with the objective, {alone} by RL alone, {start} before"


def _told(claim: dict[str, Any]) -> str:
    return f"{claim['verdict']} {_interval_of(claim)}"


def _interval_of(claim: dict[str, Any]) -> str:
    return _interval(claim["difference"], claim["low"], claim["high"])


def _interval(difference: float, low: float, high: float) -> str:
    return f"({difference:+.3f}, {SHARE:.0%} interval {low:+.3f} to {high:+.3f})"
