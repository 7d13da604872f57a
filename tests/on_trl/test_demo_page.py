import re

import pytest
import torch

pytest.importorskip("trl", minversion="1.10")
pytest.importorskip("jinja2")

from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from support.pages import Page
from wm_plugin.lab.evaluation.intervals import Ratio
from wm_plugin.lab.evaluation.one_step import Prediction
from wm_plugin.lab.report import render
from wm_plugin.lab.tiny.held_out import Ahead, HeldOut, Measured
from wm_plugin.lab.tiny.policy import Played, make_tokenizer
from wm_plugin.trl.demo import page as page_of_demo
from wm_plugin.trl.demo.page import choose, headline, make_report
from wm_plugin.trl.demo.report import Arm, make_claims, tell_look_ahead

BOARDS = 80
NAMES = ("RL alone", "RL + world-model objective")
SAME = "no difference at this sample size"


def ratio(mean: float, count: int) -> Ratio:
    """`count` outcomes with this mean, spread alike over the boards."""
    outcomes = torch.tensor([float(int((index + 1) * mean) > int(index * mean)) for index in range(count)])
    return Ratio(outcomes, torch.ones(count))


def measured(exact: float, held_out: HeldOut) -> Measured:
    played = [Played([board, "U", board[:-1] + "!"], bool(index % 3), 1) for index, board in enumerate(held_out.boards)]
    ratios = {
        "exact": ratio(exact, BOARDS // 2),
        "env_nll": Ratio(torch.full((BOARDS // 2,), 1 - exact), torch.ones(BOARDS // 2)),
        "success": ratio(0.4, BOARDS),
        "turns": Ratio(torch.full((BOARDS,), 4.5), torch.ones(BOARDS)),
    }
    return Measured(ratios, played)


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    return HeldOut(make_tokenizer(), BOARDS)


def page(held_out: HeldOut) -> Page:
    """The page of runs that start at an exact match of .7: RL alone ends at .2, the other arm at .9."""
    start = measured(0.7, held_out)
    walks = [f"{board}>:U" for board in held_out.walked]
    real = [f"{board}>" for board in held_out.walked]
    before = [Prediction(context, text, text) for context, text in zip(walks, real, strict=True)]
    arms = []
    for coeff, end in ((0.0, 0.2), (1.0, 0.9)):
        ahead = [Ahead(ratio(0.4, BOARDS // 4), ratio(share, BOARDS // 4)) for share in (0.4, end)]
        wrong = [text if coeff else "?" * (index % 20) + text[index % 20 :] for index, text in enumerate(real)]
        arms.append(
            Arm(
                coeff,
                start,
                ahead,
                [Prediction(context, text, one) for context, text, one in zip(walks, real, wrong, strict=True)],
                [(0, start), (60, measured(end, held_out))],
                [{"step": 1, "reward": 0.5, "echo/nll": 0.1, "policy_tokens": 7, "echo/tokens": 140.0}],
                12.0,
            )
        )
    result = {
        "claims": make_claims(arms, held_out, 60),
        "look_ahead": tell_look_ahead(arms, held_out, 60),
        "warm_start": {"exact_reached": 0.9, "exact_wanted": 0.85},
        "steps": 60,
        "seed": 0,
        "boards": BOARDS,
        "cpu_seconds": 100.0,
    }
    return Page(render(make_report(result, arms, before, held_out)), "What reinforcement learning does")


def test_the_page_from_the_sentence_to_the_rollouts(held_out) -> None:
    shown = page(held_out)
    order = [
        "reaches the goal on 90% of unseen boards after RL with the world-model objective, on 20% after RL alone: "
        "RL alone forgets its world (20% of next boards predicted exactly, 70% at the start), the world-model objective keeps it "
        "(90%).",
        "plain → looking ahead",
        "Next board predicted exactly, on unseen boards",
        "How to read this page",
        "What was measured",
        "success, looking ahead",
        "What each predicts",
        "Typical (",
        "The worst (",
        "Held-out environment NLL",
        "Rollouts",
    ]
    places = [shown.text.index(part) for part in order]
    assert places == sorted(places)

    assert "coeff 0" not in shown.text  # arms have words, and their coefficients are small
    assert "RL alone coefficient 0" in shown.text
    assert shown.tags.count("small") > 2
    labels = {value for _, name, value in shown.attributes if name == "data-label"}
    assert labels == {"the start", *NAMES, " against ".join(reversed(NAMES))}
    # differences have a sign, and none has not
    assert not [cell for cell in shown.cells if re.search(r"[+−]0(\.0+)?(?![.\d])", cell)]
    assert any("−50 points" in cell for cell in shown.cells)
    assert any("0 points" in cell and "0 to 0" in cell for cell in shown.cells)
    # every glyph of the boards is in the legend
    glyphs = page_of_demo._TEXTS["glyphs"]
    explained = {character for characters in glyphs for character in characters.split()}
    assert all(meaning in shown.text for meaning in glyphs.values())
    assert set("".join(held_out.boards + held_out.walked) + ">!:P") - {"\n"} <= explained
    # the noise of each of the held-out measures has a band
    assert sum(name == "class" and value == "band" for _, name, value in shown.attributes) == 2 * 4


@pytest.mark.parametrize(
    ("verdicts", "ahead", "words"),
    [
        (("lower", SAME, "higher"), "higher", "after RL alone: RL alone forgets its world"),
        (("lower", "higher", "higher"), SAME, "RL alone (no measurable difference): RL alone forgets its world"),
        (
            ("lower", "lower", "higher"),
            "higher",
            "in this run RL with the world-model objective knows its world better than",
        ),
        (("higher", "higher", "higher"), "higher", "knows its world better than RL alone"),
        (("lower", "lower", SAME), SAME, "knows its world neither measurably better nor worse than RL alone"),
        ((SAME, "lower", "lower"), "lower", "knows its world less well than RL alone"),
    ],
)
def test_the_sentence_says_no_more_than_the_intervals(held_out, verdicts, ahead: str, words: str) -> None:
    arms = [Arm(coeff, measured(0.7, held_out), evaluations=[(1, measured(0.5, held_out))]) for coeff in (0.0, 1.0)]
    claims = [{"measure": "exact", "verdict": verdict} for verdict in verdicts]
    figures = {name: {"plain": 0.4, "ahead": 0.5} for name in ("start", "coeff 0", "coeff 1")}
    sentence = headline(arms, claims, {"figures": figures, "claims": [{"verdict": ahead}]})
    assert words in sentence
    assert ("forgets" in sentence) == (verdicts in [("lower", SAME, "higher"), ("lower", "higher", "higher")])
    assert len(re.findall(r"[.!?](?=\s|$)", sentence)) == 1


def test_cards_are_taken_from_the_middle_first_and_the_end_last() -> None:
    assert choose([5, 1, 4, 2, 3], "abcde", [0.5, 0.0, 1.0]) == [4, 0, 1]
    assert choose([1] * 4, "abcd", [0.0, 0.5, 1.0]) == [0, 1, 3]


def test_one_board_has_one_card() -> None:
    # four times one board, on which everything fails
    scores, boards = [0, 0, 0, 0, 9, 8, 7], ["empty"] * 4 + ["x", "y", "z"]
    chosen = choose(scores, boards, [0.5, 0.35, 0.65, 1.0, 0.9])
    assert sorted(boards[index] for index in chosen) == ["empty", "x", "y", "z"]
    assert choose([], [], [0.5]) == []


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abcdef")), max_size=12))
def test_cards_are_always_of_different_boards(walks: list[tuple[int, str]]) -> None:
    scores, boards = ([walk[place] for walk in walks] for place in (0, 1))
    chosen = choose(scores, boards, [0.5, 0.35, 0.65, 0.1, 0.9, 1.0])
    assert len({boards[index] for index in chosen}) == len(chosen) == min(6, len(set(boards)))
