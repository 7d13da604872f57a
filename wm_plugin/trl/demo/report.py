"""What the demo found: claims that are computed from its arms, and its report."""

from dataclasses import dataclass, field
from typing import Any

from wm_plugin.evaluation.compare import SHARE, Ratio, compare
from wm_plugin.evaluation.one_step import Prediction
from wm_plugin.evaluation.report import Comparison, Curve, Report, Sample, Series
from wm_plugin.tiny.held_out import Ahead, HeldOut, Measured
from wm_plugin.tiny.look_ahead import EPISODES
from wm_plugin.tiny.policy import HEADER, Played
from wm_plugin.tiny.warm_start import TURN_TOKENS
from wm_plugin.tokens.view import Token


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
    """Each arm against the start, and the arms against each other, measure by measure."""
    pairs = [(f"{arm.name}, step {steps}", arm.end, "the start", arm.start) for arm in arms]
    pairs.append((f"{arms[1].name}, step {steps}", arms[1].end, f"{arms[0].name}, step {steps}", arms[0].end))
    return [
        _claim(measure, label, name, other, of.ratios[measure], against.ratios[measure], held_out)
        for measure, label in _MEASURES.items()
        for name, of, other, against in pairs
    ]


def _look_ahead_claims(arms: list[Arm], held_out: HeldOut, steps: int) -> list[dict[str, Any]]:
    """The arms against each other when both look ahead; then the start and each arm, looking ahead against not."""
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
        f"({result.difference:+.3f}, {SHARE:.0%} interval {result.low:+.3f} to {result.high:+.3f}).",
    }


def tell_look_ahead(arms: list[Arm], held_out: HeldOut, steps: int) -> dict[str, Any]:
    """What the policies make of their world models: a sentence, figures of the start and of each arm, and claims."""
    claims = _look_ahead_claims(arms, held_out, steps)
    ends = {"start": arms[0].ahead[0]} | {arm.name: arm.ahead[-1] for arm in arms}
    figures = {name: {"plain": ahead.plain.mean, "ahead": ahead.ahead.mean} for name, ahead in ends.items()}
    without, kept = (figures[arm.name] for arm in arms)
    return {
        "sentence": "Looking ahead with itself (the same weights imagine what each move leads to), the policy of "
        f"{arms[1].name} reaches the goal on {kept['ahead']:.0%} of {len(held_out.ahead_boards)} held-out boards, "
        f"that of {arms[0].name} on {without['ahead']:.0%}: {claims[0]['verdict']}, {_interval(claims[0])}. "
        f"Without looking ahead they reach it on {kept['plain']:.0%} and {without['plain']:.0%}.",
        "figures": figures,
        "claims": claims,
        "boards": len(held_out.ahead_boards),
        "episodes_a_move": EPISODES,
        "cpu_seconds": sum(ahead.cpu_seconds for ahead in ends.values()),
    }


def make_report(result: dict[str, Any], arms: list[Arm], before: list[Prediction]) -> Report:
    look_ahead = result["look_ahead"]
    summary = [look_ahead["sentence"], *(_sentence(measure, arms, result["claims"]) for measure in _MEASURES)]
    warm_start = result["warm_start"]
    if warm_start["exact_reached"] < warm_start["exact_wanted"]:
        summary.insert(
            0,
            f"The warm start is incomplete: its world model reached an exact match of {warm_start['exact_reached']:.2f} "
            f"of the {warm_start['exact_wanted']} that the demo is meant to start from.",
        )
    rows = []
    for row in result["arms"]:
        shown: dict[str, str | float] = {"arm": f"coeff {row['coeff']:g}"}
        for measure, label in _MEASURES.items():
            shown[label] = f"{row[f'{measure}_start']:.3f} → {row[f'{measure}_end']:.3f}"
        shown["success, looking ahead"] = f"{row['look_ahead_start']:.3f} → {row['look_ahead_end']:.3f}"
        shown |= {"policy tokens": row["policy_tokens"], "environment tokens": row["environment_tokens"]}
        rows.append(shown | {"training, CPU seconds": row["cpu_seconds"]})
    curves = [
        Curve(
            f"Held-out {label}",
            [
                Series(
                    arm.name, [step for step, _ in arm.evaluations], [m.ratios[key].mean for _, m in arm.evaluations]
                )
                for arm in arms
            ],
            unit="nats a token" if key == "env_nll" else "",
            limits=(0, 1) if key in ("exact", "success") else None,
        )
        for key, label in _MEASURES.items()
    ]
    for key, label, unit in (
        ("reward", "Training reward", ""),
        ("echo/nll", "Training environment NLL", "nats a token"),
    ):
        measured = {arm.name: [step for step in arm.training if key in step] for arm in arms}
        series = [
            Series(name, [step["step"] for step in steps], [step[key] for step in steps])
            for name, steps in measured.items()
        ]
        curves.append(Curve(label, series, unit=unit))
    comparisons = [
        Comparison(
            context=before[index].context[-TURN_TOKENS:],
            real=before[index].real,
            predicted={"start": before[index].predicted} | {arm.name: arm.predictions[index].predicted for arm in arms},
        )
        for index in range(len(before))
    ]
    samples = [
        Sample(f"{arm.name}, held-out board {index + 1}", _tokens(arm.end.played[index], arm.coeff))
        for index in range(2)
        for arm in arms
    ]
    return Report(
        title="What reinforcement learning does to a world model",
        subtitle=f"A grid world, GRPO on TRL, {result['steps']} steps, seed {result['seed']}; "
        f"{result['cpu_seconds']:.0f} CPU seconds in all",
        summary=summary,
        arms=rows,
        curves=curves,
        comparisons=comparisons,
        samples=samples,
        notes=[
            f"Intervals are {SHARE:.0%} paired bootstraps over held-out wall layouts, for this pair of runs. They do not cover "
            "how much another training seed would differ.",
            "Success and turns: episodes sampled at temperature 1, restricted to the four moves. Exact match and NLL: "
            "teacher-forced next observations of random walks of at most 4 moves.",
            f"Looking ahead: before each move the policy imagines {look_ahead['episodes_a_move']} episodes a move with its own "
            f"predictions and takes the move whose episodes reach the goal; played on {look_ahead['boards']} of the boards, "
            "with the same random numbers as without.",
            f"{result['boards']} boards and {result['boards'] // 2} walks; predictions and rollouts shown are the first of "
            "them, not selected.",
        ],
    )


def _sentence(measure: str, arms: list[Arm], claims: list[dict[str, Any]]) -> str:
    verdicts = [f"{claim['verdict']}, {_interval(claim)}" for claim in claims if claim["measure"] == measure]
    ends = "; ".join(
        f"{arm.name} ends at {arm.end.ratios[measure].mean:.3f} ({verdict})"
        for arm, verdict in zip(arms, verdicts, strict=False)
    )
    start = arms[0].start.ratios[measure].mean
    between = f"{arms[1].name} against {arms[0].name}: {verdicts[-1]}"
    return f"Held-out {_MEASURES[measure]}: {start:.3f} at the start; {ends}. {between}."


def _interval(claim: dict[str, Any]) -> str:
    return f"{claim['difference']:+.3f} [{claim['low']:+.3f}, {claim['high']:+.3f}]"


def _tokens(played: Played, coeff: float) -> list[Token]:
    tokens = [Token(character, "prompt") for character in played.parts[0] + HEADER]
    for index, part in enumerate(played.parts[1:], start=1):
        if index % 2:
            tokens.append(Token(part, "policy"))
        else:
            tokens += [Token(character, "content", "move", coeff) for character in part]
            tokens.append(Token(HEADER, "scaffold", "move"))
    return tokens
