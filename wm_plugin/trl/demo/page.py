"""The demo's page: its headline, its picture, and the details of its arms."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from wm_plugin.lab.evaluation.intervals import SHARE, Ratio, compare
from wm_plugin.lab.evaluation.one_step import Prediction
from wm_plugin.lab.report import Comparison, Report, Sample, Table
from wm_plugin.lab.report.chart import Change, Changes, Curve, Interval, Series
from wm_plugin.lab.tiny.held_out import HeldOut
from wm_plugin.lab.tiny.policy import HEADER, Played
from wm_plugin.lab.tiny.warm_start import OBSERVATION_TOKENS
from wm_plugin.tokens.view import Token
from wm_plugin.trl.demo.report import Arm
from wm_plugin.worlds.grid import MAX_TURNS, MOVES

START = "the start"
_TEXTS = yaml.safe_load(Path(__file__).with_name("page.yaml").read_text(encoding="utf-8"))
MEASURES = {
    "success": "task success",
    "exact": "next board predicted exactly",
    "env_nll": "environment NLL",
    "turns": "turns",
}
_CONTROLS = {
    "not": "plain",
    "a coin": "coin",
    "the real world": "oracle",
}  # what looking ahead is compared with: its key
_SHARES = ("exact", "success")
_COMPARED = {"higher": "better than", "lower": "less well than"}
_WORDS = dict(zip(MOVES, ("up", "down", "left", "right"), strict=True))
_CARDS, _ROLLOUTS = 6, 2  # the first ones that were drawn, whatever became of them


def make_report(result: dict[str, Any], arms: list[Arm], before: list[Prediction], held_out: HeldOut) -> Report:
    """Make the page of a demo.

    Args:
        result: the contents of `result.json`.
        arms: RL alone, and RL with the objective.
        before: the start's predictions; the arms have theirs of the same walks.
        held_out: the boards of all measurements.
    """
    ahead, warm_start = result["look_ahead"], result["warm_start"]
    reached, wanted = warm_start["exact_reached"], warm_start["exact_wanted"]
    facts = {
        "steps": result["steps"],
        "seed": result["seed"],
        "seconds": f"{result['cpu_seconds']:,.0f}",
        "share": f"{SHARE:.0%}",
        "turns": MAX_TURNS,
        "boards": result["boards"],
        "half": result["boards"] // 2,
        "walks": len(before),
        "episodes": ahead["episodes_a_move"],
        "ahead": ahead["boards"],
        "cards": _CARDS,
        "rollouts": _ROLLOUTS,
        "kernels": _TEXTS["kernels"][result["kernels"] == "plain"],
        "reached": reached,
        "wanted": wanted,
    }
    said = [_TEXTS["incomplete"]] if reached < wanted else []
    success, exact, nll, turns = (_curve(measure, arms, held_out) for measure in MEASURES)
    return Report(
        title=_TEXTS["title"],
        headline=headline(arms, result["claims"], ahead),
        subtitle=" ".join([*said, _TEXTS["subtitle"]]).format(**facts),
        picture=[exact, _changes(ahead, arms)],
        reading=[sentence.format(**facts) for sentence in _TEXTS["reading"]],
        glyphs=list(_TEXTS["glyphs"].items()),
        measured=_table(arms, result["claims"], ahead),
        summary=result["answers"],
        comparisons=_cards(before, arms),
        comparing=_TEXTS["comparing"].format(**facts),
        curves=[success, nll, turns, *_training(arms)],
        samples=_samples(arms, held_out),
        notes=[
            *(sentence.format(**facts) for sentence in _TEXTS["notes"]),
            *(_TEXTS["arm"].format(**{"name": arm.name, **arm.as_dict()}) for arm in arms),
        ],
        details={arm.name: f"coefficient {arm.coeff:g}" for arm in arms},
    )


def headline(arms: Sequence[Arm], claims: Sequence[Mapping[str, Any]], ahead: Mapping[str, Any]) -> str:
    """Write the result in one sentence that claims no more than the intervals allow."""
    alone, kept = arms
    of = {measure: [claim["verdict"] for claim in claims if claim["measure"] == measure] for measure in MEASURES}
    start, low, high = (f"{measured.ratios['exact'].mean:.0%}" for measured in (alone.start, alone.end, kept.end))
    unkept, with_objective = (f"{arm.end.ratios['success'].mean:.0%}" for arm in arms)
    verdict = of["success"][2]
    changes = f"is {verdict}" if verdict in _COMPARED else "does not measurably change"
    success = f"Task success {changes} with the world-model objective ({with_objective}, RL alone {unkept})"
    verdicts = of["exact"]
    if verdicts[0] == "lower" and verdicts[1] != "lower" and verdicts[2] == "higher":
        world = (
            f"RL alone forgets its world ({low} of next boards predicted exactly, {start} at the start), the objective keeps it "
            f"({high})"
        )
    else:
        compared = _COMPARED.get(verdicts[2], "neither measurably better nor worse than")
        world = (
            f"in this run the objective's policy knows its world {compared} that of RL alone ({high} and {low} of next boards "
            f"predicted exactly, {start} at the start)"
        )
    _, without, ahead_with = ahead["figures"].values()
    same = "" if ahead["claims"][0]["verdict"] in _COMPARED else " (no measurable difference)"
    return (
        f"{success}; {world}; when it looks ahead with itself it reaches the goal on {ahead_with['ahead']:.0%} of unseen boards "
        f"with the objective, on {without['ahead']:.0%} after RL alone{same}."
    )


def _changes(ahead: Mapping[str, Any], arms: Sequence[Arm]) -> Changes:
    """Show success of the start and of each arm, without and with looking ahead."""
    plain = [claim for claim in ahead["claims"] if claim["against"] == "not"]
    changes = [
        Change(name, row["plain"], row["ahead"], (row["plain"] + claim["low"], row["plain"] + claim["high"]))
        for name, row, claim in zip((START, *(arm.name for arm in arms)), ahead["figures"].values(), plain, strict=True)
    ]
    return Changes(
        "Success on unseen boards, plain → looking ahead", changes, "hollow: plain play; full: looking ahead"
    )


def _curve(measure: str, arms: Sequence[Arm], held_out: HeldOut) -> Curve:
    clusters = held_out.layouts(measure)
    series = [
        Series(
            arm.name,
            [step for step, _ in arm.evaluations],
            [measured.ratios[measure].mean for _, measured in arm.evaluations],
            [_band(measured.ratios[measure], clusters) for _, measured in arm.evaluations],
        )
        for arm in arms
    ]
    title = "Next board predicted exactly, on unseen boards" if measure == "exact" else f"Held-out {MEASURES[measure]}"
    unit = "nats a token" if measure == "env_nll" else ""
    return Curve(title, series, unit, "steps of RL", percent=measure in _SHARES)


def _band(ratio: Ratio, clusters: Sequence[Hashable]) -> Interval:
    """Return a mean's interval, that of its difference from 0."""
    nothing = Ratio(torch.zeros_like(ratio.total), torch.ones_like(ratio.count))
    interval = compare(ratio, nothing, clusters)
    return interval.low, interval.high


def _training(arms: Sequence[Arm]) -> Iterator[Curve]:
    for key, title, unit, percent in (
        ("reward", "Success while training", "a batch of 64 episodes", True),
        ("echo/nll", "Environment NLL while training", "nats a token", False),
    ):
        series = [
            Series(arm.name, [step["step"] for step in arm.training], [step[key] for step in arm.training])
            for arm in arms
        ]
        yield Curve(title, series, unit, "steps of RL", percent)


def _table(arms: Sequence[Arm], claims: Sequence[Mapping[str, Any]], ahead: Mapping[str, Any]) -> Table:
    """Make a row for each measure: the start, and each arm with its difference to the start and the interval."""
    columns = ("", START, *(arm.name for arm in arms), f"{arms[1].name} against {arms[0].name}")
    rows = []
    for measure, label in MEASURES.items():
        *against_start, between = (claim for claim in claims if claim["measure"] == measure)
        cells = [
            f"{_value(measure, arm.end.ratios[measure].mean)}\n{_verdict(measure, claim)}"
            for arm, claim in zip(arms, against_start, strict=True)
        ]
        rows.append((label, _value(measure, arms[0].start.ratios[measure].mean), *cells, _verdict(measure, between)))
    between, *effects = ahead["claims"]
    figures = ahead["figures"].values()
    rows.append(("success, looking ahead", *(f"{row['ahead']:.0%}" for row in figures), _verdict("success", between)))
    for against, way in _CONTROLS.items():
        claims_of_it = [claim for claim in effects if claim["against"] == against]
        cells = [
            f"{row[way]:.0%}\nlooking ahead: {_verdict('success', claim)}"
            for row, claim in zip(figures, claims_of_it, strict=True)
        ]
        rows.append((_TEXTS["ways"][against], *cells, ""))
    return Table(columns, rows)


def _verdict(measure: str, claim: Mapping[str, Any]) -> str:
    scale, digits, unit = (100, 0, " points") if measure in _SHARES else (1, 2, "")
    difference, low, high = (
        _signed(round(scale * claim[key], digits), digits) for key in ("difference", "low", "high")
    )
    return f"{claim['verdict']}\n{difference}{unit}\n{low} to {high}"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−") if value else "0"


def _value(measure: str, value: float) -> str:
    return f"{value:.0%}" if measure in _SHARES else f"{value:.2f}"


def _cards(before: Sequence[Prediction], arms: Sequence[Arm]) -> list[Comparison]:
    """Show the predictions of the first walks."""
    policies = {START: before} | {arm.name: arm.predictions for arm in arms}
    cards = []
    for index, one in enumerate(before[:_CARDS]):
        board, move = _last_board(one.context)
        cards.append(
            Comparison(
                context=board,
                real=one.real,
                predicted={name: predictions[index].predicted for name, predictions in policies.items()},
                title=f"Walk {index + 1} of {len(before)}",
                action=f"{move}, {_WORDS[move]}",
            )
        )
    return cards


def _last_board(context: str) -> tuple[str, str]:
    """Return the board before a prediction and the move, which end a walk's context."""
    return context[-OBSERVATION_TOKENS - len(HEADER) - 1 : -len(HEADER) - 1], context[-1]


def _samples(arms: Sequence[Arm], held_out: HeldOut) -> list[Sample]:
    """Show the first boards of different layouts, played by both arms."""
    layouts = held_out.layouts("success")
    samples = []
    for index in [layouts.index(layout) for layout in dict.fromkeys(layouts)][:_ROLLOUTS]:
        for arm in arms:
            played = arm.end.played[index]
            outcome = "reaches the goal" if played.success else "does not reach the goal"
            title = (
                f"Board {index + 1}, {arm.name}: {outcome} in {played.turns} {'turn' if played.turns == 1 else 'turns'}"
            )
            samples.append(Sample(title, _tokens(played, arm.coeff)))
    return samples


def _tokens(played: Played, coeff: float) -> list[Token]:
    tokens = [Token(character, "prompt") for character in played.parts[0] + HEADER]
    for index, part in enumerate(played.parts[1:], start=1):
        if index % 2:
            tokens.append(Token(part, "policy"))
        else:
            tokens += [Token(character, "content", "move", coeff) for character in part]
            tokens.append(Token(HEADER, "scaffold", "move"))
    return tokens
