import re

import pytest
import torch

pytest.importorskip("trl", minversion="1.10")
pytest.importorskip("jinja2")

from support.pages import Page
from wm_plugin.lab.evaluation.intervals import Ratio
from wm_plugin.lab.evaluation.one_step import Prediction
from wm_plugin.lab.report import render
from wm_plugin.lab.tiny.held_out import Ahead, HeldOut, Measured
from wm_plugin.lab.tiny.policy import Played, make_tokenizer
from wm_plugin.trl.demo import page as page_of_demo
from wm_plugin.trl.demo.page import headline, make_report
from wm_plugin.trl.demo.report import Arm, make_claims, tell, tell_look_ahead

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
    for coeff, end in ((0.0, 0.2), (0.05, 0.9)):
        ahead = [Ahead(*(ratio(one, BOARDS // 4) for one in (0.4, share, 0.95, 0.15))) for share in (0.4, end)]
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
    claims, look_ahead = make_claims(arms, held_out, 60), tell_look_ahead(arms, held_out, 60)
    result = {
        "claims": claims,
        "look_ahead": look_ahead,
        "answers": tell(arms, claims, look_ahead),
        "kernels": "plain",
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
        "Task success does not measurably change with the world-model objective (40%, RL alone 40%); RL alone forgets its world "
        "(20% of next boards predicted exactly, 70% at the start), the objective keeps it (90%); when it looks ahead with itself "
        "it reaches the goal on 90% of unseen boards with the objective, on 20% after RL alone.",
        "Next board predicted exactly, on unseen boards",
        "plain → looking ahead",
        "every x86 processor",
        "How to read this page",
        "What was measured",
        "task success",
        "success, looking ahead",
        "Does task success change? Not measurably",
        "Is the world kept?",
        "What is that good for?",
        "What each predicts",
        "Walk 1 of 40",
        "Walk 6 of 40",
        "Held-out task success",
        "Held-out environment NLL",
        "Rollouts",
        "Board 1, RL alone",
    ]
    place = 0
    for part in order:
        assert part in shown.text[place:], part
        place = shown.text.index(part, place) + len(part)

    assert "coeff 0" not in shown.text  # arms have words, and their coefficients are small
    assert "RL alone coefficient 0" in shown.text
    assert shown.tags.count("small") > 2
    labels = {value for _, name, value in shown.attributes if name == "data-label"}
    assert labels == {"the start", *NAMES, " against ".join(reversed(NAMES))}
    # differences have a sign, and none has not
    assert not [cell for cell in shown.cells if re.search(r"[+−]0(\.0+)?(?![.\d])", cell)]
    assert any("−50 points" in cell for cell in shown.cells)
    assert any("0 points" in cell and "0 to 0" in cell for cell in shown.cells)
    assert sum("95%" in cell and "looking ahead: lower" in cell for cell in shown.cells) == 2  # in the real world
    assert any("15%" in cell and "looking ahead: higher" in cell for cell in shown.cells)  # by a coin
    # every glyph of the boards is in the legend
    glyphs = page_of_demo._TEXTS["glyphs"]
    explained = {character for characters in glyphs for character in characters.split()}
    assert all(meaning in shown.text for meaning in glyphs.values())
    assert set("".join(held_out.boards + held_out.walked) + ">!:P") - {"\n"} <= explained
    # the noise of each of the held-out measures has a band
    assert sum(name == "class" and value == "band" for _, name, value in shown.attributes) == 2 * 4


def test_the_cards_are_the_first_walks_and_boards_whatever_became_of_them(held_out) -> None:
    shown = page(held_out).text
    assert [int(number) for number in re.findall(r"Walk (\d+) of 40", shown)] == [1, 2, 3, 4, 5, 6]
    layouts = held_out.layouts("success")
    second = next(index for index, layout in enumerate(layouts) if layout != layouts[0])
    assert re.findall(r"Board (\d+), ", shown) == ["1", "1", str(second + 1), str(second + 1)]


@pytest.mark.parametrize(
    ("exact", "ahead", "words"),
    [
        (("lower", SAME, "higher"), "higher", "RL alone forgets its world"),
        (("lower", "higher", "higher"), SAME, "RL alone forgets its world"),
        (("lower", "lower", "higher"), "higher", "knows its world better than that of RL alone"),
        (("higher", "higher", "higher"), "higher", "knows its world better than that of RL alone"),
        (("lower", "lower", SAME), SAME, "knows its world neither measurably better nor worse than that of RL alone"),
        ((SAME, "lower", "lower"), "lower", "knows its world less well than that of RL alone"),
    ],
)
@pytest.mark.parametrize("success", ["higher", "lower", SAME])
def test_the_sentence_says_no_more_than_the_intervals(held_out, exact, ahead: str, words: str, success: str) -> None:
    arms = [Arm(coeff, measured(0.7, held_out), evaluations=[(1, measured(0.5, held_out))]) for coeff in (0.0, 0.05)]
    claims = [{"measure": "exact", "verdict": verdict} for verdict in exact]
    claims += [{"measure": "success", "verdict": verdict} for verdict in (SAME, SAME, success)]
    figures = {name: {"plain": 0.4, "ahead": 0.5} for name in ("start", "coeff 0", "coeff 0.05")}
    sentence = headline(arms, claims, {"figures": figures, "claims": [{"verdict": ahead}]})
    said = "does not measurably change" if success == SAME else f"is {success}"
    assert sentence.startswith(f"Task success {said} with the world-model objective (")
    assert words in sentence
    assert ("(no measurable difference)." in sentence) == (ahead == SAME)
    assert ("forgets" in sentence) == (exact in [("lower", SAME, "higher"), ("lower", "higher", "higher")])
    assert len(re.findall(r"[.!?](?=\s|$)", sentence)) == 1
