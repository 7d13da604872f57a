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
    "exact": "next board predicted exactly",
    "env_nll": "environment NLL",
    "success": "success",
    "turns": "turns",
}
_SHARES = ("exact", "success")
_COMPARED = {"higher": "better than", "lower": "less well than"}
_WORDS = dict(zip(MOVES, ("up", "down", "left", "right"), strict=True))
# The cards' places in the order from best to worst: typical ones first, the worst last.
_CARDS = {
    0.5: "Typical",
    0.35: "Typical",
    0.65: "Typical",
    0.1: "Among the best",
    0.9: "Among the worst",
    1.0: "The worst",
}
_ROLLOUTS = {0.5: "Typical", 0.75: "Harder than most"}


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
        "reached": reached,
        "wanted": wanted,
    }
    said = [_TEXTS["incomplete"]] if reached < wanted else []
    exact, nll, success, turns = (_curve(measure, arms, held_out) for measure in MEASURES)
    return Report(
        title=_TEXTS["title"],
        headline=headline(arms, result["claims"], ahead),
        subtitle=" ".join([*said, _TEXTS["subtitle"]]).format(**facts),
        picture=[_changes(ahead, arms), exact],
        reading=[sentence.format(**facts) for sentence in _TEXTS["reading"]],
        glyphs=list(_TEXTS["glyphs"].items()),
        measured=_table(arms, result["claims"], ahead),
        summary=[ahead["sentence"]],
        comparisons=_cards(before, arms),
        comparing=_TEXTS["comparing"].format(**facts),
        curves=[nll, success, turns, *_training(arms)],
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
    verdicts = [claim["verdict"] for claim in claims if claim["measure"] == "exact"]
    start, low, high = (f"{measured.ratios['exact'].mean:.0%}" for measured in (alone.start, alone.end, kept.end))
    if verdicts[0] == "lower" and verdicts[1] != "lower" and verdicts[2] == "higher":
        world = (
            f"RL alone forgets its world ({low} of next boards predicted exactly, {start} at the start), the world-model "
            f"objective keeps it ({high})."
        )
    else:
        compared = _COMPARED.get(verdicts[2], "neither measurably better nor worse than")
        world = (
            f"in this run RL with the world-model objective knows its world {compared} RL alone ({high} and {low} of "
            f"next boards predicted exactly, {start} at the start)."
        )
    _, without, with_objective = ahead["figures"].values()
    same = "" if ahead["claims"][0]["verdict"] in _COMPARED else " (no measurable difference)"
    return (
        f"A policy that looks ahead with itself reaches the goal on {with_objective['ahead']:.0%} of unseen boards after RL with "
        f"the world-model objective, on {without['ahead']:.0%} after RL alone{same}: {world}"
    )


def choose(scores: Sequence[float], boards: Sequence[Hashable], places: Sequence[float]) -> list[int]:
    """Choose an index for each place in the order from the highest score (0) to the lowest (1), each with another board.

    If a place's board is already taken, the nearest place with another board is used; with few boards, fewer indices are chosen.
    """
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    chosen: list[int] = []
    for place in places:
        wanted = place * (len(order) - 1)
        taken = {boards[index] for index in chosen}
        free = [position for position, index in enumerate(order) if boards[index] not in taken]
        if free:
            chosen.append(order[min(free, key=lambda position: abs(position - wanted))])
    return chosen


def _changes(ahead: Mapping[str, Any], arms: Sequence[Arm]) -> Changes:
    """Show success of the start and of each arm; `claims` compares the arms first, then each of these."""
    changes = [
        Change(name, row["plain"], row["ahead"], (row["plain"] + claim["low"], row["plain"] + claim["high"]))
        for name, row, claim in zip(
            (START, *(arm.name for arm in arms)), ahead["figures"].values(), ahead["claims"][1:], strict=True
        )
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
        ("reward", "Success while training", "a batch of 128 episodes", True),
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
    between, *effects = ahead["claims"]
    cells = [
        f"{row['ahead']:.0%}\nplain {row['plain']:.0%}: {_verdict('success', claim)}"
        for row, claim in zip(ahead["figures"].values(), effects, strict=True)
    ]
    rows = [("success, looking ahead", *cells, _verdict("success", between))]
    for measure, label in MEASURES.items():
        *against_start, between = (claim for claim in claims if claim["measure"] == measure)
        cells = [
            f"{_value(measure, arm.end.ratios[measure].mean)}\n{_verdict(measure, claim)}"
            for arm, claim in zip(arms, against_start, strict=True)
        ]
        rows.append((label, _value(measure, arms[0].start.ratios[measure].mean), *cells, _verdict(measure, between)))
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
    """Show predictions from typical to the worst, each on another board."""
    policies = {START: before} | {arm.name: arm.predictions for arm in arms}
    scores = [
        sum(_right(predictions[index].predicted, one.real) for predictions in policies.values())
        for index, one in enumerate(before)
    ]
    ranks = {index: rank for rank, index in enumerate(sorted(range(len(before)), key=lambda index: -scores[index]), 1)}
    cards = []
    chosen = choose(scores, [_layout(one.real) for one in before], list(_CARDS))
    for index, label in zip(chosen, _CARDS.values(), strict=False):
        one = before[index]
        board, move = _last_board(one.context)
        cards.append(
            Comparison(
                context=board,
                real=one.real,
                predicted={name: predictions[index].predicted for name, predictions in policies.items()},
                title=f"{label} ({ranks[index]} of {len(before)})",
                action=f"{move}, {_WORDS[move]}",
            )
        )
    return cards


def _right(predicted: str, real: str) -> int:
    return sum(a == b for a, b in zip(predicted, real, strict=False))


def _layout(board: str) -> str:
    return "".join(character if character in "#\n" else "." for character in board)


def _last_board(context: str) -> tuple[str, str]:
    """Return the board before a prediction and the move, which end a walk's context."""
    return context[-OBSERVATION_TOKENS - len(HEADER) - 1 : -len(HEADER) - 1], context[-1]


def _samples(arms: Sequence[Arm], held_out: HeldOut) -> list[Sample]:
    """Show two boards played by both arms: one of medium difficulty, and a harder one."""
    ease = [
        sum(arm.end.played[index].success for arm in arms) - sum(arm.end.played[index].turns for arm in arms) / 100
        for index in range(len(held_out.boards))
    ]
    samples = []
    for index, label in zip(
        choose(ease, held_out.layouts("success"), list(_ROLLOUTS)), _ROLLOUTS.values(), strict=False
    ):
        for arm in arms:
            played = arm.end.played[index]
            outcome = "reaches the goal" if played.success else "does not reach the goal"
            title = f"{label} board, {arm.name}: {outcome} in {played.turns} {'turn' if played.turns == 1 else 'turns'}"
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
