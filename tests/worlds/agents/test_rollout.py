"""Episodes of our own environments as trajectories, without a host."""

import asyncio
import json
import random
from types import SimpleNamespace

import pytest

from wm_plugin.data import Trajectory
from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.worlds import ENVIRONMENTS, grid, maze, sql
from wm_plugin.worlds.agents import play, replay
from wm_plugin.worlds.agents.rollout import path_of
from wm_plugin.worlds.agents.scripted import call, directions, scripted
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.sql import SqlEnvironment

pytest.importorskip("transformers")

pytestmark = pytest.mark.host

BOARD = "A..G\n....\n....\n...."
LEVEL = "#######\n#A...G#\n#######"


def texts(trajectory):
    return [observation.text for _, _, observation in trajectory.observed()]


def test_an_expert_in_the_grid():
    row = grid.dataset_rows(1, seed=3)[0]
    played = play(GridEnvironment(), row, scripted(grid.expert(random.Random(0))), max_turns=6)
    assert played.success
    assert played.reward == 1.0
    assert played.context.initial_state == row["board"] + ">"
    assert texts(played)[-1].endswith("!")
    assert [tool["function"]["name"] for tool in played.context.action_space] == ["move"]
    assert played.context.action_space[0]["function"]["parameters"]["required"] == ["direction"]
    assert played.metadata == {
        "environment": "wm_plugin.worlds.grid:GridEnvironment",
        "reset": row,
        "host": "trl",
        "figures": {
            "success": 1.0,
            "invalid": 0,
            **dict.fromkeys(("turns", "actions", "effective"), len(played.turns)),
        },
    }
    assert ENVIRONMENTS.get(played.metadata["environment"]) is GridEnvironment


def test_the_same_seed_plays_the_same_and_other_rows_are_other_tasks():
    rows = grid.dataset_rows(6)
    first, second = (
        [play(GridEnvironment(), row, scripted(grid.wanderer(random.Random(7))), max_turns=6) for row in rows]
        for _ in range(2)
    )
    assert first == second
    assert len({trajectory.task_id for trajectory in first}) == 6
    assert Trajectory.model_validate_json(first[0].to_bytes()) == first[0]
    assert play(GridEnvironment(), {**rows[0], "task_id": 5}, lambda *_: None, max_turns=6).task_id == "5"


def test_what_the_agent_reads_first_is_what_hosts_show():
    prompt = [{"role": "system", "content": "Walk."}, {"role": "user", "content": "The map:\n"}]
    played = play(maze.MazeEnvironment(), {"prompt": prompt, "board": LEVEL}, lambda *_: None, max_turns=1)
    assert played.context.task == "Walk."
    assert played.context.initial_state == f"The map:\n{LEVEL}>"
    assert play(GridEnvironment(), {"board": BOARD}, lambda *_: None, max_turns=1).context.initial_state == BOARD + ">"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "a row does not fit GridEnvironment.reset: missing a required argument: 'board' (its columns: none)"),
        ({"size": 4, "prompt": ""}, "missing a required argument: 'board' (its columns: 'size')"),
        ({"x" * 99: 1}, "missing a required argument: 'board' (its columns: 'xxx"),
        ({"board": BOARD, 7: 1}, "keywords must be strings"),
        ({"board": BOARD, "prompt": 7}, "the prompt has 7; write a text, or messages with a role and a content"),
        ({"board": BOARD, "prompt": [{"content": "a\nb"}]}, "the prompt has {'content': 'a\\nb'}; write a text"),
        ({"board": BOARD, "prompt": [{"role": "user", "content": ["a"]}]}, "write a text, or messages"),
        ({"board": BOARD, "prompt": [{"role": ["user"], "content": "a"}]}, "write a text, or messages"),
        (
            {"board": BOARD, "prompt": [{"role": "tool", "content": "a"}]},
            "of the role 'tool'; play takes system and user",
        ),
    ],
)
def test_a_row_that_cannot_be_played_is_one_line(row, message):
    """Without its world's columns, for example; Python's TypeError would not say which row of which world it is."""
    with pytest.raises(UserError) as error:
        play(GridEnvironment(), row, lambda *_: None, max_turns=1)
    text = str(error.value)
    assert message in text
    assert "\n" not in text
    assert len(text) < 400


class Strict(GridEnvironment):
    """Takes no other columns."""

    def reset(self, board: str) -> str:
        return super().reset(board)


def test_a_row_with_a_column_that_is_not_taken_is_one_line():
    assert play(Strict(), {"board": BOARD}, lambda *_: None, max_turns=1).turns == ()
    with pytest.raises(
        UserError, match=r"a row does not fit Strict.reset: got an unexpected keyword argument 'level' \(its"
    ):
        play(Strict(), {"board": BOARD, "level": "hard"}, lambda *_: None, max_turns=1)


def test_episodes_end():
    still = lambda trajectory, environment: call("move", direction="U")  # noqa: E731
    assert len(play(GridEnvironment(), {"board": BOARD}, still, max_turns=4).turns) == 4
    lost = play(GridEnvironment(), {"board": BOARD}, still, max_turns=99)
    assert (len(lost.turns), lost.success, lost.reward) == (grid.MAX_TURNS, False, 0.0)
    spoken = play(GridEnvironment(), {"board": BOARD}, lambda *_: Action(text="I give up."), max_turns=4)
    assert [turn.observations for turn in spoken.turns] == [()]
    assert play(GridEnvironment(), {"board": BOARD}, lambda *_: None, max_turns=4).turns == ()


@pytest.mark.parametrize(
    ("made", "trl", "verl"),
    [
        (
            Call(name="fly", arguments={}),
            "{'error': 'Tool fly not found.'}",
            "Unknown function 'fly'. Available tools: ['move']",
        ),
        (
            Call(name="move", arguments={"way": "U"}),
            "{'error': \"GridEnvironment.move() got an unexpected keyword argument 'way'\"}",
            "Error executing tool 'move': GridEnvironment.move() got an unexpected keyword argument 'way'",
        ),
        (
            Call(name="move", arguments='{"direction'),
            "argument after ** must be a mapping, not str",
            "Invalid JSON in arguments for 'move': Unterminated string",
        ),
        (
            Call(name="move", arguments=None),
            "missing 1 required positional argument",
            "missing 1 required positional argument",
        ),
        (Call(name="reset", arguments={"board": BOARD}), "Tool reset not found.", "Unknown function 'reset'."),
    ],
)
def test_calls_that_fail_are_observations_in_the_words_of_the_host(made, trl, verl):
    for host, words in (("trl", trl), ("verl", verl)):
        played = replay(GridEnvironment(), {"board": BOARD}, [Action(calls=(made,))], host=host)
        (observation,) = played.turns[0].observations
        assert observation.error
        assert words in observation.text
        assert played.metadata["host"] == host


@pytest.mark.parametrize(
    "made", [call("fly"), call("move", direction="X"), call("move", direction="R"), call("move", way=1)]
)
def test_the_words_are_those_of_verl_itself(made):
    pytest.importorskip("verl")
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import FunctionCall
    from verl.tools.function_tool import FunctionTool

    world = GridEnvironment()
    world.reset(BOARD)
    loop = SimpleNamespace(
        tools={"move": FunctionTool("move", world.move, None, False)}, max_tool_response_length=10**6
    )
    (asked,) = made.calls
    wanted = FunctionCall(name=asked.name, arguments=json.dumps(asked.arguments))
    response, _, _ = asyncio.run(ToolAgentLoop._call_tool(loop, wanted, {}, None))
    played = replay(GridEnvironment(), {"board": BOARD}, [made], host="verl")
    assert texts(played) == [response.text]


@pytest.mark.parametrize(
    "arguments", ['["' * 5000, "[" * 5000, "9" * 5000, '{"a":' * 900, "[1]", "NaN", '{"direction": "U"']
)
@pytest.mark.parametrize("host", ["trl", "verl"])
def test_arguments_that_nobody_can_parse_are_a_failed_call(arguments, host):
    played = replay(
        GridEnvironment(), {"board": BOARD}, [Action(calls=(Call(name="move", arguments=arguments),))], host=host
    )
    (observation,) = played.turns[0].observations
    assert observation.error


def test_an_invalid_action_is_the_environments_to_answer():
    played = replay(GridEnvironment(), {"board": BOARD}, [call("move", direction="X")])
    (observation,) = played.turns[0].observations
    assert (observation.text, observation.error) == (f"Invalid: 1 of 1\n{BOARD}>", False)
    assert played.metadata["figures"]["invalid"] == 1


def test_an_expert_that_gives_up_ends_the_episode():
    shut = "A#.G\n##..\n....\n...."
    assert play(GridEnvironment(), {"board": shut}, scripted(grid.expert()), max_turns=6).turns == ()


def test_the_calls_of_an_action_run_in_their_order_on_one_world():
    actions = [Action(calls=tuple(Call(name="move", arguments={"direction": d}) for d in "RRRR"))]
    played = replay(GridEnvironment(), {"board": BOARD}, actions)
    (turn,) = played.turns
    assert [observation.call for observation in turn.observations] == [0, 1, 2, 3]
    assert [observation.error for observation in turn.observations] == [False, False, False, True]
    assert turn.observations[3].text == "{'error': 'The episode is over.'}"
    assert played.success


def test_a_replay_is_the_episode():
    row = sql.dataset_rows(1, seed=2)[0]
    played = play(SqlEnvironment(), row, scripted(sql.expert()), max_turns=12)
    assert replay(SqlEnvironment(), row, [turn.action for turn in played.turns]) == played
    assert replay(SqlEnvironment(), row, [turn.action for turn in played.turns][:2]).turns == played.turns[:2]


def test_proposals_are_different_moves():
    proposed = directions(random.Random(0))(None, None, 3)
    assert len({action.calls[0].arguments["direction"] for action in proposed}) == 3
    assert len(directions(random.Random(0))(None, None, 9)) == 4


class Waiting:
    def reset(self, **_):
        return None

    async def look(self) -> str:
        """Look."""
        return ""


class Silent:
    """Knows no success, no reward and no end."""

    def reset(self, **_):
        return None

    def look(self) -> int:
        """Look around."""
        return 7


def test_environments_that_say_little():
    played = play(Silent(), {}, lambda *_: call("look"), max_turns=2)
    assert texts(played) == ["7", "7"]
    assert (played.success, played.reward, played.context.initial_state) == (None, None, "")
    assert played.metadata["figures"] == {}
    assert path_of(Silent()).endswith(":Silent")
    json.loads(played.to_bytes())


def test_mistakes():
    with pytest.raises(UserError, match="the tool 'look' is asynchronous"):
        play(Waiting(), {}, lambda *_: None, max_turns=1)
    with pytest.raises(UserError, match="host is 'ray'; write 'trl' or 'verl'"):
        play(Silent(), {}, lambda *_: None, max_turns=1, host="ray")
    with pytest.raises(UserError, match="a message of the role 'assistant'"):
        play(Silent(), {"prompt": [{"role": "assistant", "content": ""}]}, lambda *_: None, max_turns=1)


def test_who_is_observed_is_what_the_world_declares_and_the_agent_still_sees_a_tools_result():
    from wm_plugin.data.chat import chat
    from wm_plugin.worlds import dialogue

    (row,) = dialogue.dataset_rows(1)
    made = [call("message_user", text="Your email?"), call("get_order", order_id="1"), call("fly")]
    played = replay(dialogue.DialogueEnvironment(), row, made)
    assert [observation.kind for _, _, observation in played.observed()] == ["user", "tool", "tool"]
    messages = chat(played.context, played.turns)
    assert [message["role"] for message in messages[-6:]] == ["assistant", "tool"] * 3
    assert messages[-5]["name"] == "message_user"


def test_a_rollout_says_what_its_world_counted_as_invalid():
    made = [
        call("move", direction="R; X; R"),
        call("move", direction="nowhere"),
        call("fly"),
        call("move", direction="R"),
    ]
    played = replay(maze.MazeEnvironment(), {"prompt": "", "board": LEVEL}, made)
    counts = [(one.data["invalid"], one.data["actions"]) for _, _, one in played.observed()]
    assert counts == [(1, 3), (1, 1), (1, 1), (0, 1)]
    from wm_plugin.data.filter import Filter

    (left,) = Filter(["invalid_actions"])([played])
    assert [turn.action for turn in left.turns] == [made[0], made[3]]
    assert [one.data.get("target", True) for _, _, one in left.observed()] == [False, True]


def test_a_task_is_the_same_whoever_plays_its_customer():
    from wm_plugin.worlds.agents.rollout import task_of

    row = {"prompt": "", "seed": 3}
    assert task_of(row) == task_of(row | {"user_url": "http://a/v1", "user_model": "a"}) != task_of({**row, "seed": 4})
    assert task_of({"domain": "retail", "task_id": "7", "user_model": "a"}) == "retail/7"
    assert task_of({"task_id": 0}) == "0"
    assert task_of(row | {"task_id": None}) == task_of({**row, "task_id": None})


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("docs", "swe") else ())  # reads a package's documentation
        for name in ENVIRONMENTS
        if name not in ("scienceworld", "forth", "tau2")
    ],
)
def test_what_a_world_declares_as_refusals_is_what_it_counts_as_invalid(name):
    """So that hosts' dumps, which have texts alone, lose the same turns as our own rollouts."""
    from wm_plugin.data.filter import Filter
    from wm_plugin.data.observers import Observed
    from wm_plugin.worlds.worlds import load

    world = load(name)
    if world.missing():
        pytest.skip(" and ".join(world.missing()))
    rng = random.Random(4)
    wanderer = world.wanderer(rng)

    def policy(trajectory, environment):
        chosen = wanderer(environment)
        if chosen is None:
            return None
        tool, arguments = chosen
        if rng.random() < 0.5:
            bad = rng.choice(["", "xyzzy 7", "open the", "take", "'", "<3", "; ;", "go to lamp 99", "x" * 300])
            arguments = dict.fromkeys(arguments, bad)
        return call(tool, **arguments)

    environment, judged = world.make(), 0
    declared = Observed(world.observers, dict.fromkeys(world.observers, world.refusals))
    for row in world.some_rows(3, seed=2):
        played = play(environment, row, policy, max_turns=12)
        fields = json.loads(played.to_bytes())
        for turn in fields["turns"]:
            for observation in turn["observations"]:
                observation["kind"] = "tool"
                observation["data"] = {}
        dumped = declared(Trajectory.model_validate(fields))
        assert [one.kind for _, _, one in dumped.observed()] == [one.kind for _, _, one in played.observed()]
        left = [
            [turn.observations[0].text for turn in one.turns]
            for one in (Filter(["invalid_actions"])._without_invalid(both) for both in (played, dumped))
        ]
        assert left[0] == left[1]
        judged += sum(one.data.get("invalid", 0) > 0 for _, _, one in played.observed())
    assert judged or name in ("dialogue", "wordle")
