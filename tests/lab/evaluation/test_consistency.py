"""Consistency by hand: a perfect world model, wrong ones, anchors, failures, and what is written."""

import dataclasses

import pytest

from support.openai_server import OpenAIServer
from support.world_models import Player, RealWorld, expert, walker
from wm_plugin.client.answers import Answer, Answers
from wm_plugin.client.server import Server
from wm_plugin.data.prompts import load as load_prompts
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Observation, Trajectory, Turn
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.consistency import (
    Anchor,
    consistency,
    parting_turn,
)
from wm_plugin.lab.evaluation.consistency_measures import evaluate, ratios, w2r_rows
from wm_plugin.lab.evaluation.measures import write_lines
from wm_plugin.runtime.workers import Lost
from wm_plugin.worlds.agents.acting import ModelAgent, ScriptedAgent, ServerActor
from wm_plugin.worlds.agents.scripted import call
from wm_plugin.worlds.worlds import World, load

pytest.importorskip("transformers")  # makes the schemas of tools

pytestmark = pytest.mark.host

GRID, PROMPTS = load("grid"), load_prompts("word2world")
# the goal is 1, 2 and 3 moves away, and cannot be reached
BOARDS = ("AG..\n....\n....\n....", "A.G.\n....\n....\n....", "A..G\n....\n....\n....", "A#.G\n##..\n....\n....")
ROWS = [{"prompt": "", "board": board} for board in BOARDS]
TASKS = {"seen": ROWS[:2], "unseen": ROWS[2:]}


def episodes(agent=None, model=None, tasks=TASKS, **options):
    agent = agent or expert(GRID)
    answers = Answers(model or RealWorld(GRID, ROWS), options.pop("path", None))
    return list(consistency(GRID, tasks, agent, answers, PROMPTS, **options))


def evaluation(played, **options):
    return evaluate(played, subject="m", data="grid", settings={}, **options)


def values(result, by="", group=""):
    names = ("real", "wm", "w2r", "cr", "together")
    return tuple(result.measure(name, by, group).value for name in names)


def marked(text, *_):
    """A world model that takes everything for a success."""
    return text.removesuffix(" [SUCCESS]") + " [SUCCESS]"


def unmarked(text, *_):
    """One that never notices a success."""
    return text.removesuffix(" [SUCCESS]")


# Arithmetic


def test_the_papers_table_has_both_averages():
    """WebShop of Word2World's table 2: its average of .67 is the ratio of means; the mean of CRs is .59."""
    real = (5.99, 29.36, 17.73, 21.14, 51.0, 25.0, 61.0)
    replayed = (0.97, 16.51, 11.70, 12.22, 31.19, 18.35, 50.0)
    result = ratios(list(zip(real, replayed, strict=True)))
    assert (round(result.of_means, 3), round(result.mean, 2)) == (0.667, 0.59)
    assert [round(replayed / real, 2) for real, replayed in zip(real, replayed, strict=True)][:2] == [0.16, 0.56]


def test_a_ratio_without_real_successes_is_undefined():
    assert dataclasses.astuple(ratios([(0, 3)])) == (None, None, 1)
    assert dataclasses.astuple(ratios([(0, 1), (4, 2)])) == (0.75, 0.5, 1)
    assert dataclasses.astuple(ratios([])) == (None, None, 0)


def world(*texts, success=False):
    turns = [
        Turn(action=call("go"), observations=(Observation(kind="tool", text=text, tool="go", call=0),))
        for text in texts
    ]
    return Trajectory(turns=turns, success=success)


@pytest.mark.parametrize(
    ("simulated", "replayed", "turn"),
    [
        (world("a", "b"), world("a", "b"), None),
        (world("a", " b\n"), world("a", "b"), None),
        (world("a", "b"), world("a", "c"), 2),
        (world("b", "b"), world("a", "c"), 1),
        (world("a", "b", success=True), world("a", "b"), 2),
        (world("a", "b"), world("a", "b", success=True), 2),
        (world("a", "b", "c"), world("a", "b"), 3),
        (world("a", "b", "c"), world("a", "b", success=True), 2),
        (world(), world(), None),
    ],
)
def test_where_two_worlds_part(simulated, replayed, turn):
    assert parting_turn(simulated, replayed) == turn


# World models


def test_a_perfect_world_model_is_consistent():
    walking, _ = walker(GRID)
    rows = GRID.rows(12, seed=5)
    for agent in (expert(GRID), walking):
        result = evaluation(episodes(agent, RealWorld(GRID, rows), {"seen": rows}))
        assert values(result) == (1.0, 1.0, 1.0, 1.0, 1.0)
        assert result.measure("cr_mean_of_ratios").value == 1.0
        assert (result.measure("parting_turn").value, result.measure("parting_turn").note) == (None, "no episode parts")
        assert not result.failures


def test_a_world_model_that_takes_everything_for_a_success():
    """Only the board with the goal beside the agent is really won after the one move."""
    played = episodes(model=RealWorld(GRID, ROWS, marked))
    assert [(one.won("real"), one.won("wm"), one.won("w2r"), one.parted) for one in played] == [
        (True, True, True, None),
        (True, True, False, 1),
        (True, True, False, 1),
        (False, False, False, None),  # the expert gives up before the first turn
    ]
    result = evaluation(played)
    assert values(result) == (3 / 4, 3 / 4, 1 / 4, 1 / 3, 1 / 2)
    assert values(result, "split", "seen") == (1.0, 1.0, 1 / 2, 1 / 2, 1 / 2)
    assert values(result, "split", "unseen") == (1 / 2, 1 / 2, 0.0, 0.0, 1 / 2)
    assert values(result, "agent", "expert") == values(result)
    assert result.measure("parting_turn").value == 1
    assert result.measure("parting_turn").count == 2


def test_a_world_model_that_never_notices_a_success():
    """Every episode is replayed, won or not: W2R may exceed WM."""
    played = episodes(model=RealWorld(GRID, ROWS, unmarked))
    assert values(evaluation(played)) == (3 / 4, 0.0, 3 / 4, 1.0, 1 / 4)
    assert [one.parted for one in played] == [1, 2, 3, None]


def test_an_agent_hears_what_the_world_model_says():
    """Told for ever that it did not move, it walks into the wall behind the goal; the real world has ended there."""
    walking, _ = walker(GRID)
    still = RealWorld(GRID, ROWS, lambda text, turn, row: row["board"] + ">" if turn > 1 else unmarked(text))
    played = episodes(walking, still, {"seen": [ROWS[1]]})
    (one,) = played
    assert len(one.simulated.turns) == 6  # the grid's own limit holds in the world model, too
    assert len(one.replayed.turns) == 2
    assert (one.won("wm"), one.won("w2r"), one.parted) == (False, True, 2)


def test_success_and_parting_within_a_horizon():
    long = {"prompt": "", "board": "A...\n###.\nG...\n...."}  # 8 moves: more than the six that the grid allows
    five = {"prompt": "", "board": "A...\n###.\n...G\n...."}
    rows = [ROWS[0], ROWS[3], long, five]
    played = episodes(model=RealWorld(GRID, rows), tasks={"seen": rows})
    assert [len(one.real.turns) for one in played] == [1, 0, 6, 5]
    result = evaluation(played)
    assert values(result, "horizon", "5") == (2 / 4, 2 / 4, 2 / 4, 1.0, 1.0)
    with pytest.raises(KeyError):
        result.measure("real", "horizon", "10")
    lied = evaluation(episodes(model=RealWorld(GRID, rows, unmarked), tasks={"seen": rows}))
    assert lied.measure("together", "horizon", "5").value == 2 / 4  # the first parts at turn 1, the last at turn 5


def test_several_agents():
    still = ScriptedAgent("still", Player(GRID, lambda: lambda _: None))
    played = episodes(expert(GRID)) + episodes(still)
    result = evaluation(played)
    assert values(result)[:4] == (3 / 8, 3 / 8, 3 / 8, 1.0)
    assert result.measure("cr", "agent", "still").value is None
    assert result.measure("cr", "agent", "still").note == "undefined: Real is 0"
    assert result.measure("cr_mean_of_ratios").value == 1.0
    assert result.measure("cr_mean_of_ratios").note == "undefined: Real is 0 for 1 of 2 agents, which are left out"
    assert result.measure("real", "agent, split", "expert, unseen").value == 1 / 2
    assert result.notes == ["CR of still is undefined: Real is 0."]


def test_intervals_are_over_tasks_and_the_same_with_the_same_seed():
    rows = GRID.rows(24, seed=2)
    early = RealWorld(GRID, rows, lambda text, turn, row: marked(text) if turn == 2 else text)
    played = episodes(model=early, tasks={"seen": rows})
    first, same = evaluation(played), evaluation(played)
    other = evaluation(played, seed=1)
    assert first == same
    cr = first.measure("cr")
    assert 0 < cr.low < cr.value < cr.high < 1
    assert (cr.low, cr.high) != (other.measure("cr").low, other.measure("cr").high)
    share = first.measure("w2r")  # Real is 1 in every draw, so that both have one distribution
    assert abs(cr.low - share.low) < 0.05
    assert abs(cr.high - share.high) < 0.05
    alone = evaluation(episodes(tasks={"seen": ROWS[:1]}))
    assert (alone.measure("cr").low, alone.measure("cr").value) == (None, 1.0)


def test_a_task_won_in_w2r_alone_widens_the_interval():
    """Its Real is 0, and it counts: otherwise every draw would give the same ratio."""
    won, lost = world("a", success=True), world("a")
    (one,) = episodes(tasks={"seen": ROWS[:1]})
    played = [
        dataclasses.replace(one, number=n, real=real, replayed=won)
        for n, real in enumerate([won, won, won, lost, lost, lost])
    ]
    cr = evaluation(played).measure("cr")
    assert cr.value == 2.0
    assert cr.low < 1.6
    assert cr.high > 2.5


# Anchors


def test_with_all_turns_anchored_nothing_is_asked():
    liar = RealWorld(GRID, ROWS, marked)
    for anchor in (Anchor(turns=6), Anchor(tools=("move",))):
        played = episodes(model=liar, anchor=anchor)
        assert values(evaluation(played)) == (3 / 4, 3 / 4, 3 / 4, 1.0, 1.0)
    assert liar.questions == []


def test_the_first_turns_are_anchored():
    liar = RealWorld(GRID, ROWS, marked)
    played = episodes(model=liar, anchor=Anchor(turns=1))
    assert [one.parted for one in played] == [None, None, 2, None]
    assert [one.won("w2r") for one in played] == [True, True, False, False]
    # what it is asked next has the real observation
    assert liar.questions[0][2]["content"] == ".AG.\n....\n....\n....>"


def test_named_tools_are_anchored():
    """A world of two tools: the one that is anchored sees what the others have really done."""
    sql = load("sql")
    (row,) = sql.rows(1, seed=1)
    (real,) = expert(sql).play([(0, row)])
    tools = [turn.action.calls[0].name for turn in real.turns]
    assert len(set(tools)) > 1
    wrong = RealWorld(sql, [row], lambda text, turn, _: f"wrong {turn}")
    (one,) = consistency(
        sql, {"seen": [row]}, expert(sql), Answers(wrong), PROMPTS, anchor=Anchor(tools=(tools[1], tools[1]))
    )
    seen = [turn.observations[0].text for turn in one.simulated.turns]
    really = [turn.observations[0].text for turn in real.turns]
    assert seen == [
        text if tool == tools[1] else f"wrong {number}"
        for number, (tool, text) in enumerate(zip(tools, really, strict=True), 1)
    ]


# Failures


def test_failures_are_counted_and_in_both_readings():
    answers = {BOARDS[0]: Answer("", failure="timeout"), BOARDS[1]: Answer("A.G", cut=True), BOARDS[2]: Answer("")}
    broken = RealWorld(GRID, ROWS, lambda text, turn, row: answers.get(row["board"], text) if turn == 1 else text)
    result = evaluation(episodes(model=broken))
    assert result.failures == {"wm: timeout": 1, "wm: cut": 1, "wm: empty": 1}
    for arm, value in (("real", 3 / 4), ("wm", 0.0), ("w2r", 0.0)):
        measure = result.measure(arm)
        assert (measure.value, measure.count, measure.failed, measure.with_failed) == (0.0, 1, 3, value)
    assert (result.measure("cr").value, result.measure("cr").with_failed) == (None, 0.0)
    assert result.measure("together").with_failed == 1 / 4


def test_a_cut_answer_taken_as_it_is():
    """Word2World's own reading: of four tasks one is cut and won, one is cut and then not answered."""

    def answer(text, turn, row):
        if row["board"] == BOARDS[0] or (row["board"] == BOARDS[2] and turn == 1):
            return Answer(text, cut=True)
        return Answer("", failure="timeout") if row["board"] == BOARDS[2] and turn == 2 else text

    played = episodes(model=RealWorld(GRID, ROWS, answer))
    result = evaluation(played)
    assert result.failures == {"wm: cut": 1, "wm: timeout": 1}

    def reading(suffix="", *group):
        of = [result.measure(name + suffix, *group) for name in ("real", "wm", "w2r", "cr", "together")]
        return [(one.value, one.count, one.failed, one.with_failed) for one in of]

    assert reading() == [
        (1 / 2, 2, 2, 3 / 4), (1 / 2, 2, 2, 1 / 4), (1 / 2, 2, 2, 1 / 4), (1.0, 2, 2, 1 / 3), (1.0, 2, 2, 1 / 2),
    ]  # fmt: skip
    assert reading(", cut taken") == [
        (2 / 3, 3, 1, 3 / 4), (2 / 3, 3, 1, 1 / 2), (2 / 3, 3, 1, 1 / 2), (1.0, 3, 1, 2 / 3), (1.0, 3, 1, 3 / 4),
    ]  # fmt: skip
    assert reading(", cut taken", "split", "seen")[0] == (1.0, 2, 0, 1.0)
    assert reading(", cut taken", "agent", "expert") == reading(", cut taken")
    with pytest.raises(KeyError):  # the same as without, and not there
        evaluation(episodes()).measure("cr, cut taken")


def test_lost_real_episodes_are_counted():
    engine = Trajectory(turns=(), success=False, metadata={"figures": {"lost": 1.0}})
    scripted = expert(GRID, lost={0: Lost("died", "its process ended"), 1: engine})
    result = evaluation(episodes(scripted))
    assert result.failures == {"real: died": 1, "real: lost": 1}
    real = result.measure("real")
    assert (real.value, real.count, real.failed, real.with_failed) == (1 / 2, 2, 2, 1 / 4)
    assert evaluation(episodes(scripted)).measures == result.measures


def test_an_agent_without_an_answer_fails_where_it_has_none():
    """In the world model it sees another board than in the real world, for which its server has no answer."""
    moved = "....\nA...\n....\n...G>"
    agent, _ = walker(GRID, fails=(moved,))
    odd = RealWorld(GRID, ROWS, lambda text, turn, row: moved)
    (one,) = episodes(agent, odd, {"seen": [ROWS[1]]})
    assert one.failures == {"wm": "agent, timeout"}
    assert (one.won("real"), len(one.simulated.turns)) == (True, 1)


def of_class(environment):
    """The world of a class."""
    return type("Own", (World,), {"environment": environment})(GRID.spec)


def test_an_environment_that_raises_is_a_failure():
    class Broken(type(GRID.make())):
        resets = 0

        def reset(self, **columns):
            Broken.resets += 1
            if Broken.resets == 5:
                raise RuntimeError("gone")
            return super().reset(**columns)

    broken = of_class(Broken)
    played = list(consistency(broken, TASKS, expert(GRID), Answers(RealWorld(GRID, ROWS)), PROMPTS, at_once=4))
    assert [one.failure for one in played] == ["w2r: error", "", "", ""]


# Mistakes


class Silent:
    """Knows no success."""

    def reset(self, **_):
        return "A hall."


def test_mistakes():
    with pytest.raises(UserError, match=r"consistency is at temperature 0, not 1\.0"):
        episodes(model=RealWorld(GRID, ROWS, settings={"temperature": 1.0}))
    with pytest.raises(UserError, match="--anchor-tools: grid has no tool 'mve'; did you mean 'move'"):
        episodes(anchor=Anchor(tools=("mve",)))
    silent = of_class(Silent)
    agent = ScriptedAgent("still", Player(silent, lambda: lambda _: None))
    with pytest.raises(UserError, match="its class knows no success"):
        list(consistency(silent, TASKS, agent, Answers(RealWorld(GRID, ROWS)), PROMPTS))


# Killed runs


def told(trajectory):
    return [(turn.action, [one.text for one in turn.observations]) for turn in trajectory.turns]


def test_an_agent_acts_the_same_where_it_sees_the_same(tmp_path):
    """So that a perfect world model has a ratio of exactly 1, however much the agent draws: each of its turns is asked once."""
    agent, acting = walker(GRID, tmp_path / "actions.jsonl")
    played = episodes(agent)
    assert [told(one.real) for one in played] == [told(one.simulated) for one in played]
    assert len(acting.questions) == sum(len(one.real.turns) for one in played) == len(set(acting.questions))


def test_a_server_acts(tmp_path):
    def reply(body):
        board = [message["content"] for message in body["messages"] if message["role"] in ("user", "tool")][-1]
        assert body["tools"][0]["function"]["name"] == "move"
        if board.startswith("A#"):
            return "I give up."
        return '<tool_call>{"name": "move", "arguments": {"direction": "R"}}</tool_call>'

    with OpenAIServer(reply) as served:
        server = Server(served.base_url, "right", temperature=1.0, max_retries=0)
        agent = ModelAgent("right", ServerActor(server), GRID, tmp_path / "actions.jsonl")
        first = episodes(agent)
        seeds = {body["seed"] for body in served.bodies}
        asked = len(served.bodies)
        assert episodes(ModelAgent("right", ServerActor(server), GRID, tmp_path / "actions.jsonl")) == first
        assert (len(served.bodies), len(seeds)) == (asked, asked)
    assert asked == 1 + 2 + 3 + 1  # the world model says what the real world says: both arms are asked once
    assert values(evaluation(first)) == (3 / 4, 3 / 4, 3 / 4, 1.0, 1.0)
    assert len(first[3].simulated.turns) == len(first[3].replayed.turns) == 1  # words that call no tool


# Files


def test_the_reader_of_word2world_reads_the_episodes(tmp_path):
    played = episodes(model=RealWorld(GRID, ROWS, unmarked))
    path = tmp_path / "w2r.jsonl"
    write_lines(w2r_rows(played), path)
    back = list(read(path))  # its format is told from it
    assert {one.source.format for one in back} == {"word2world"}
    assert [one.task_id for one in back] == [one.task for one in played[:3]]  # the last one has no action
    for one, episode in zip(back, played, strict=False):
        assert (one.success, one.reward) == (episode.replayed.success, episode.replayed.reward)
        assert [turn.action.text for turn in one.turns] == ['move({"direction": "R"})'] * len(one.turns)
        assert [o.text for _, _, o in one.observed()] == [o.text for _, _, o in episode.replayed.observed()]
        told = [o.data["world_model"] for _, _, o in one.observed()]
        assert told == [o.text for _, _, o in episode.simulated.observed()]
        assert one.metadata["parted"] == episode.parted
    assert [o.data.get("success") for _, _, o in back[1].observed()] == [None, True]


def test_what_the_world_model_says_after_the_real_end_is_kept_apart():
    walking, _ = walker(GRID)
    still = RealWorld(GRID, ROWS, lambda text, turn, row: row["board"] + ">")
    (row,) = w2r_rows(episodes(walking, still, {"seen": [ROWS[0]]}))
    assert len(row["conversation"]) == 1
    assert row["conversation"][0]["env_observation"].endswith(" [SUCCESS]")
    assert len(row["after_the_end"]) == 5
    assert row["after_the_end"][0].keys() == {"react", "world_model_observation"}


# Engines


@pytest.mark.slow
def test_an_engine(tmp_path, monkeypatch):
    """The engine as its own world model, and a liar, on a world with hidden state in a process of its own."""
    monkeypatch.setenv("WM_PLUGIN_CACHE", str(tmp_path))
    world = load("textworld")
    if missing := world.missing():
        pytest.skip(f"needs {' and '.join(missing)}")
    rows = world.rows(2, seed=1)
    scripted = expert(world)
    perfect = RealWorld(world, rows)

    def played(model):
        return list(consistency(world, {"seen": rows}, scripted, Answers(model, tmp_path / "a.jsonl"), PROMPTS))

    result = evaluation(played(perfect))
    assert values(result) == (1.0, 1.0, 1.0, 1.0, 1.0)
    assert all(len(messages) > 2 for messages in perfect.questions[len(rows) :])
    early = evaluation(played(RealWorld(world, rows, marked, settings={"model": "early"})))
    assert (early.measure("wm").value, early.measure("w2r").value, early.measure("cr").value) == (1.0, 0.0, 0.0)
    assert early.measure("parting_turn").value == 1
