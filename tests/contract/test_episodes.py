"""How an episode goes is the same on both hosts: each test plays in TRL's trainer and in verl's agent loop."""

import importlib
import json

import pytest
import yaml

from support.openai_server import OpenAIServer
from support.perfect import perfect, settings
from support.tools import call
from support.wmact import says
from wm_plugin.worlds import grid
from wm_plugin.worlds.wrappers.control.perturbations import ERRORS
from wm_plugin.worlds.wrappers.verify_config import REFUSAL

pytestmark = pytest.mark.host

GRID, BOARD = {"environment": "grid"}, {"board": "A..G\n....\n....\n...."}
MAZE, LINE = {"environment": "maze"}, {"board": "#####\n#A.G#\n#####", "max_turns": 4}
END = "Done."


@pytest.fixture(params=[("trl", "1.8"), ("verl", None)], ids=["trl", "verl"])
def play(request):
    """The same episodes of a run, by a host."""
    host, version = request.param
    pytest.importorskip(host, minversion=version)
    return importlib.import_module(f"support.play_on_{host}").play


def moves(directions):
    return [call("move", direction=one) for one in directions]


# -- control ------------------------------------------------------------------------------------------------------------------

FAILS = {"perturbations": [{"name": "error", "turns": [2], "kinds": ["timeout"]}]}


@pytest.mark.parametrize(
    ("control", "training", "failing"),
    [(FAILS, True, True), (FAILS, False, False), ({**FAILS, "evaluation": True}, False, True), (None, True, False)],
)
def test_control_perturbs_trainings_by_their_turns(play, control, training, failing):
    for episode in play({**GRID, "control": control}, [[*moves("DUD"), END]] * 2, BOARD, training=training):
        assert (episode.read[1] == ERRORS["timeout"][0]) is failing
        assert len(episode.read) == 3
        assert (
            episode.figures["actions"] == 3 - failing + 1
        )  # what failed did not reach the world; the end is an answer
        assert episode.figures.get("control/error", 0) == failing


def test_control_knows_the_calls_of_one_turn(play):
    control = {"perturbations": [{"name": "partial", "of": "calls", "rate": 0.999}]}
    script = [["".join(moves("DD")), *moves("D"), END]] * 2
    for episode in play({**GRID, "control": control}, script, BOARD):
        assert episode.read[1] == ERRORS["unavailable"][0]
        assert (episode.figures["control/calls"], episode.figures["control/partial"]) == (3, 1)


# -- checks before irreversible actions ---------------------------------------------------------------------------------------


def checks(server, **fields):
    return {**GRID, "verify": {"tools": ["move"], "world_model": settings(server), **fields}}


def test_where_all_checks_pass_it_is_the_episode_without_them(play):
    script = [[*moves("DU"), "Hm. " + moves("R")[0], END]] * 2
    plain = play(GRID, script, BOARD)
    assert play({**GRID, "verify": {"budget": 0}}, script, BOARD) == plain
    with OpenAIServer(lambda body: "You are there. [SUCCESS]") as server:
        checked = play(checks(server), script, BOARD)
    for one, other in zip(plain, checked, strict=True):
        assert (other.read, other.reward) == (one.read, one.reward)
        assert other.figures.items() >= one.figures.items()
        assert (other.figures["verify/checks"], other.figures["verify/refused"]) == (3, 0)


@pytest.mark.parametrize(("budget", "spent", "out"), [(2, "execute", 1), (2, "refuse", 0), (5, "execute", 0)])
def test_the_agent_reads_refusals_and_the_world_model_does_not(play, budget, spent, out):
    with OpenAIServer(lambda body: "You are not there.>") as server:
        episodes = play(checks(server, budget=budget, spent=spent), [[*moves("DUR"), END]] * 2, BOARD)
    for episode in episodes:
        figures = {name: episode.figures[f"verify/{name}"] for name in ("checks", "refused", "spent", "unanswered")}
        assert figures == {
            "checks": min(3, budget),
            "refused": 3 - out,
            "spent": max(0, 3 - budget),
            "unanswered": 0,
        }
        assert episode.figures["actions"] == out + 1  # and the last answer
        assert episode.read.count(REFUSAL) == 3 - out
    assert REFUSAL not in json.dumps(server.bodies)


# -- a world model in the world's place ---------------------------------------------------------------------------------------


def test_a_perfect_world_model_is_the_real_world(play):
    row = grid.dataset_rows(1, seed=3)[0]
    odd = [call("fly"), call("move", way="U"), call("move", direction="X"), "Hm. " + moves("L")[0], *moves("DRDR"), END]
    script = [odd, [*moves("RRRDDD"), END]]
    columns = {"board": row["board"]}
    real = play(GRID, script, columns)
    with perfect("grid", [row]) as server:
        simulation = {**GRID, "simulation": settings(server)}
        simulated = play(simulation, script, columns)
        asked = len(server.bodies)
        evaluated = play(simulation, script, columns, training=False)
        assert len(server.bodies) == asked > 0
        again = play({**GRID, "simulation": settings(server, evaluation="simulated")}, script, columns, training=False)
    assert [(one.read, one.reward) for one in real] == [(one.read, one.reward) for one in simulated]
    for one, model, evaluation, other in zip(real, simulated, evaluated, again, strict=True):
        assert model.figures.items() >= one.figures.items()
        assert model.figures["simulation/requests"] + model.figures["simulation/cached"] > 0
        assert "simulation/requests" not in evaluation.figures  # evaluations are in the real world
        assert other.figures["simulation/requests"] + other.figures["simulation/cached"] > 0


def test_the_world_model_reads_what_the_host_answered(play):
    script = [[call("fly"), "".join(moves("UD")), END]] * 2
    with OpenAIServer(lambda body: "Environment:\n....A>\n\nEnvironment:\n...A.>") as server:
        episodes = play({**GRID, "simulation": settings(server)}, script, BOARD)
    for episode in episodes:
        assert "fly" in episode.read[0]
        assert any(episode.read[0] in message["content"] for message in server.bodies[-1]["messages"])


def test_a_world_model_that_is_gone_costs_the_episode(play):
    with OpenAIServer() as server:
        pass
    run = {**GRID, "simulation": settings(server, patience=0.3), "max_lost": 1.0}
    for episode in play(run, [[*moves("D"), END]] * 2, BOARD):
        assert (episode.figures["lost"], episode.reward) == (1, 0)
        assert episode.read[0].startswith("The world was lost")


def test_a_world_that_is_a_file_is_played(play, tmp_path):
    parameters = {
        "type": "object",
        "properties": {"to": {"type": "string", "description": "Where."}},
        "required": ["to"],
    }
    desk = {
        "tools": [{"name": "move", "description": "Move the box.", "parameters": parameters}],
        "initial_state": "The box is on the left.",
        "world_context": "The shelf is long.",
    }
    path = tmp_path / "shelf.yaml"
    path.write_text(yaml.safe_dump(desk))
    script = [[call("move", to="L"), call("move", to="U"), END], [call("move", to="L"), END]]
    with OpenAIServer(lambda body: "Moved. [SUCCESS]" if '"U"' in str(body["messages"][-1]) else "Hm.") as server:
        won, lost = play({"environment": str(path), "simulation": settings(server)}, script, {"initial_state": ""})
    assert [text.strip() for text in won.read] == ["Hm.", "Moved."]
    assert (won.reward, lost.reward) == (1, 0)
    system = server.bodies[0]["messages"][0]["content"]
    assert all(text in system for text in (desk["initial_state"], desk["world_context"], "Move the box."))


# -- WMAct's reward and its turns ---------------------------------------------------------------------------------------------

REWARDED = {**MAZE, "episode_reward": {"rescale": True, "format_penalty": 0.1}}
BAD, GOOD = call("move", wrong=1), call("move", direction="R; R")
FLY = call("fly", direction="R; R")


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        (
            "tags",
            [
                ([says("fly"), says("move right; move right"), END], 2 / 3 - 0.1),
                ([says(""), says("move right; move right"), END], 2 / 3 - 0.1),
                (["I give up"], -0.1),  # as dear as an invalid action
                ([says("fly"), "I give up"], -0.1),
                (["<think><action>move right</action>"], -0.1),  # it never stops to think
                ([says("move right; move right"), END], 1.0),  # after the end nothing is asked for
            ],
        ),
        (
            "tools",
            [
                (["no call"], -0.1),
                ([BAD, "x"], -0.1),
                ([BAD, GOOD, "x"], 2 / 3 - 0.1),
                ([GOOD, *moves("R"), "x"], 1.0),
                ([FLY, "x"], -0.1),
                (["<tool_call>{</tool_call>"], -0.1),  # does not parse
                ([BAD + BAD, GOOD, "x"], 2 / 3 - 0.1),  # one answer, however many calls fail
                ([BAD + GOOD, "x"], 1.0),  # one of its calls is an action
                ([GOOD, BAD, "x"], 1.0),  # after the end
                ([FLY, GOOD, FLY, "x"], 2 / 3 - 0.1),
            ],
        ),
    ],
)
def test_an_answer_without_an_action_costs_an_invalid_action(play, protocol, expected):
    episodes = play({**REWARDED, "protocol": protocol}, [turns for turns, _ in expected], LINE)
    assert [one.reward for one in episodes] == pytest.approx([reward for _, reward in expected])


def test_a_turn_of_the_reward_is_a_turn_of_what_is_logged(play):
    counts = {"rescale": False, "format_penalty": 0.0, "turn_penalty": 1.0, "action_penalty": 0.01}
    expected = [
        (["I give up"], 1, 1),
        ([says("fly"), "I give up"], 2, 2),
        ([says("move left"), says("move right"), "I give up"], 3, 3),
        ([says("move right; move right"), END], 1, 2),
    ]
    run = {**MAZE, "episode_reward": counts, "protocol": "tags"}
    for episode, (_, turns, actions) in zip(play(run, [turns for turns, *_ in expected], LINE), expected, strict=True):
        assert (episode.figures["turns"], episode.figures["actions"]) == (turns, actions)
        assert episode.reward == pytest.approx(episode.figures["success"] - turns - actions / 100)
