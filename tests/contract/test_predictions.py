"""Predictions inside an episode are scored alike by TRL's trainer and in verl's agent loop."""

import pytest

from contract.test_episodes import BOARD, END, GRID, LINE, MAZE, play  # noqa: F401 - the fixture
from support.tools import call

pytestmark = pytest.mark.host

FIRST, SECOND = ".A.G\n....\n....\n....>", "..AG\n....\n....\n....>"
RIGHT = call("move", direction="R")
SETTINGS = {"reward": "exact", "coeff": 0.5, "level": "sum"}


def says(text, action=RIGHT):
    return f"<prediction>{text}</prediction>{action}"


def prediction(**fields):
    return {**GRID, "prediction_reward": {**SETTINGS, **fields}}


def figures(episode):
    return {name: episode.figures[f"prediction/{name}"] for name in ("turns", "written", "total", "score", "share")}


def test_a_turn_is_scored_by_what_follows(play):  # noqa: F811
    script = [[says(FIRST), says("nothing"), RIGHT, END], [RIGHT, says(SECOND), END]]
    one, other = play(prediction(), script, BOARD)
    assert figures(one) == {"turns": 3, "written": 2, "total": 1, "score": 1 / 3, "share": 2 / 3}
    assert figures(other) == {"turns": 2, "written": 1, "total": 1, "score": 0.5, "share": 0.5}
    assert (one.reward, other.reward) == (1.5, 0.5)


@pytest.mark.parametrize(("level", "reward"), [("sum", 1 + 0.5 * 2), ("mean", 1 + 0.5 * 2 / 3), ("turn", 1.0)])
def test_what_a_score_adds_to_the_reward(play, level, reward):  # noqa: F811
    won = "...P\n....\n....\n....!"
    script = [[says(FIRST), says("no"), says(won), END]] * 2
    for episode in play(prediction(level=level), script, BOARD):
        assert episode.reward == pytest.approx(reward)
        assert figures(episode)["total"] == 2
    for episode in play(prediction(level=level), script, BOARD, training=False):
        assert episode.reward == 1  # an evaluation's is the world's own
        assert figures(episode)["total"] == 2


def test_without_a_coefficient_it_is_the_run_without_predictions(play):  # noqa: F811
    script = [[says(FIRST), f"<prediction>{RIGHT}</prediction>", END], [RIGHT, END]]
    plain, none = play(GRID, script, BOARD), play(prediction(coeff=0), script, BOARD)
    for one, other in zip(plain, none, strict=True):
        assert (other.read, other.reward) == (one.read, one.reward)
        assert other.figures.items() > one.figures.items()
    assert figures(none[0])["total"] == 1


HOST_WROTE = [call("fly"), call("move", wrong=1)]


CASES = [  # what the policy says, and the figures: scored turns, those with a prediction, and the sum of the scores
    ([says(FIRST), END], (1, 1, 1)),
    ([f"<think>hm</think>{says(FIRST)}", END], (1, 1, 1)),
    ([f"<think>{says(FIRST, '')}</think>{RIGHT}", END], (1, 0, 0)),  # a thought is no prediction
    ([says("no", says(FIRST)), END], (1, 1, 1)),  # the last one counts
    ([f"{RIGHT}{says(FIRST, '')}", END], (1, 1, 1)),
    ([says(f"{FIRST}{RIGHT}"), END], (1, 1, 0)),
    ([says(f"{FIRST}\n{SECOND}", f"{RIGHT}\n{RIGHT}"), END], (1, 1, 1)),  # two calls of one turn
    ([RIGHT, says(SECOND, "")], (1, 0, 0)),  # after the last turn nothing is observed
    ([says(FIRST, "")], (0, 0, 0)),  # it does not act
    ([f"<prediction>{FIRST}{RIGHT}"], (0, 0, 0)),  # never closed: all of it is text
    ([f"<prediction>{RIGHT}</prediction>"], (0, 0, 0)),  # so is a call in one
    ([says("", one) for one in HOST_WROTE] + [END], (2, 2, 0)),
    ([says("no", f"{RIGHT}\n{HOST_WROTE[0]}"), END], (1, 1, 0)),
    ([RIGHT, RIGHT, RIGHT, says("...P\n....\n....\n....!"), END], (3, 0, 0)),  # after the end nothing can happen
]


def test_which_turns_are_scored(play):  # noqa: F811
    for episode, (script, expected) in zip(play(prediction(), [one for one, _ in CASES], BOARD), CASES, strict=True):
        found = figures(episode)
        assert (found["turns"], found["written"], found["total"]) == expected, script


def test_what_a_host_writes_is_foreseen_for_nothing(play):  # noqa: F811
    (first, _) = play(prediction(), [[call("fly"), END]] * 2, BOARD)
    for episode in play(prediction(), [[says(first.read[0], call("fly")), END]] * 2, BOARD):
        assert figures(episode) == {"turns": 1, "written": 1, "total": 0, "score": 0, "share": 1}


def test_predictions_in_the_protocol_of_tags(play):  # noqa: F811
    first = "#####\n#.AG#\n#####>"
    run = {**MAZE, "protocol": "tags", "prediction_reward": {**SETTINGS, "tag": "next"}}
    right = "<think>hm</think><next>{}</next><action>move right</action>".format
    script = [
        [right(first), END],
        [right("<action>move left</action>"), END],
        [f"<think>hm</think><action><next>move left;</next>move right</action><next>{first}</next>", END],
        [f"<think>hm</think><next>{first}<action>move right</action>", END],
    ]
    plain, hidden, inner, unclosed = play(run, script, LINE)
    assert plain.read == hidden.read == inner.read == [first]
    assert [figures(one)["total"] for one in (plain, hidden, inner, unclosed)] == [1, 0, 1, 0]
    assert unclosed.read == []
    assert figures(inner)["written"] == 1


def test_predictions_are_asked_for(play):  # noqa: F811
    """By a paragraph after the first observation; a judge reads it as the observation's."""
    from wm_plugin.hosting.predictions import predicted
    from wm_plugin.worlds.grid import GridEnvironment

    asked = predicted(GridEnvironment, tag="next")().reset(board=BOARD["board"])
    assert asked.startswith(f"{BOARD['board']}>\n\nBefore you act")
    assert "<next> and </next>" in asked
    for options in ({"ask": False}, {"coeff": 0}):
        assert predicted(GridEnvironment, **options)().reset(board=BOARD["board"]) == f"{BOARD['board']}>"
