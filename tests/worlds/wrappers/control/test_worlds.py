"""Real worlds under control: the same classes, and what their episodes show is perturbed by rule."""

import asyncio
import inspect
import json
from typing import ClassVar

import pytest

from support.environments import world
from wm_plugin.data import Trajectory
from wm_plugin.data.schema import Action
from wm_plugin.errors import UserError
from wm_plugin.hosting.episode import EpisodePort
from wm_plugin.hosting.tags import in_tags
from wm_plugin.hosting.world import Wrapper, dress, layer_of, report, resets
from wm_plugin.worlds import ENVIRONMENTS
from wm_plugin.worlds.agents import play
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.maze import MazeEnvironment
from wm_plugin.worlds.specs import SPECS
from wm_plugin.worlds.sql import SqlEnvironment
from wm_plugin.worlds.wrappers.control import control_of, controlled
from wm_plugin.worlds.wrappers.control.perturbations import ERRORS
from wm_plugin.worlds.wrappers.rewarded import rewarded

PRESERVING = {
    "perturbations": [
        {"name": "error", "rate": 0.3},
        {"name": "partial", "rate": 0.3},
        {"name": "latency", "rate": 0.3},
        {"name": "style", "rate": 0.5},
    ]
}
TEXTS = {text for text, _ in ERRORS.values()}
BOARD = "#A..\n....\n....\n...G"
# worlds that start no other process and need seconds for an episode
PLAYED = ("deepdive", "dialogue", "docs", "fictional", "grid", "maze", "shop", "sokoban", "sql", "taxi", "wordle")
QUICK = ("grid", "maze", "sql", "taxi", "wordle")  # the others have an index to make, or long plans
# worlds with a process of their own
SLOW = ("alfworld", "forth", "scienceworld", "swe", "textworld")
SYSTEM = ("forth", "scienceworld", "swe")  # need packages of the system


def test_each_world_is_listed():
    assert sorted([*PLAYED, *SLOW, "tau2"]) == sorted(ENVIRONMENTS)  # tau2: see `tests/worlds/test_tau2.py`


def marks(name):
    return [pytest.mark.slow] * (name not in QUICK) + [pytest.mark.system] * (name in SYSTEM)


@pytest.mark.host
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in (*PLAYED, *SLOW)])
def test_an_expert_wins_as_without(name):
    """With a third of its calls failing, and the rest perturbed in all ways that keep what the world shows."""
    of = world(name)
    lookups = [tool for tool in SPECS[name].tools if tool.startswith(("search", "scan", "find", "lookup"))]
    pages = [{"name": "paginate", "tools": lookups, "size": 2}] if lookups else []
    kind = controlled(of.environment, {"perturbations": [*PRESERVING["perturbations"], *pages]})
    perturbed = set()
    for number, row in enumerate(of.some_rows(1 if name == "scienceworld" else 4, seed=1)):
        plain = play(of.make(), row, scripted(of.expert()), max_turns=200)
        made = play(kind(), row, scripted(of.expert()), max_turns=600)
        assert made.success is plain.success, number
        assert made.reward == plain.reward
        figures = made.metadata["figures"]
        calls = sum(len(turn.action.calls) for turn in made.turns)
        assert figures["control/calls"] == calls
        applied = [
            one.data["control"]["names"] for turn in made.turns for one in turn.observations if "control" in one.data
        ]
        for each in ("error", "partial", "latency", "style"):
            assert figures[f"control/{each}"] == sum(each in names for names in applied)
        failed = [one for turn in made.turns for one in turn.observations if one.text in TEXTS]
        assert len(failed) == figures["control/error"]
        assert calls - len(failed) == len(
            plain.turns
        )  # what failed was tried again, and the world moved on by the rest alone
        assert figures["turns"] == plain.metadata["figures"]["turns"]
        perturbed.update(each for names in applied for each in names)
    assert {"error", "latency"} <= perturbed


@pytest.mark.host
def test_a_rollout_says_what_was_done_and_reads_back():
    of = world("sql")
    kind = controlled(SqlEnvironment, {**PRESERVING, "seed": 2})
    made = play(kind(), of.rows(1)[0], scripted(of.expert()), max_turns=60)
    assert made.context.simulation_instruction.startswith("Some calls fail, about 30% of them")
    assert made.metadata["control"] == {**PRESERVING, "seed": 2}
    assert Trajectory.model_validate_json(made.to_bytes()) == made
    again = play(kind(), of.rows(1)[0], scripted(of.expert()), max_turns=60)
    assert again.to_bytes() == made.to_bytes()
    plain = play(of.make(), of.rows(1)[0], scripted(of.expert()), max_turns=60)
    assert (plain.context.simulation_instruction, "control" in plain.metadata) == ("", False)


def failing(environment=GridEnvironment, **more):
    return controlled(environment, {"perturbations": [{"name": "error", "rate": 1, "kinds": ["timeout"]}], **more})


def test_a_call_that_fails_reaches_no_world():
    environment = failing()()
    first = environment.reset(board=BOARD)
    assert first == GridEnvironment().reset(board=BOARD)
    assert environment.move("R") == ERRORS["timeout"][0]
    assert (environment.turns, environment.over, environment._agent) == (0, False, 1)
    assert report(environment) == {
        "success": 0,
        "turns": 0,
        "actions": 0,
        "effective": 0,
        "invalid": 0,
        "control/calls": 1,
        "control/error": 1,
    }
    assert "control/calls" not in layer_of(environment, Wrapper).instance.metrics  # into which the world may write


def test_what_the_world_refuses_is_refused():
    environment = controlled(GridEnvironment, {"perturbations": [{"name": "style", "form": "fenced"}]})()
    environment.reset(board=BOARD, max_turns=1)
    assert environment.move("nowhere").startswith("```\nInvalid: 1 of 1")
    with pytest.raises(ValueError, match="The episode is over"):
        environment.move("R")
    assert report(environment)["control/calls"] == 1


def test_evaluations_are_left_alone_unless_asked():
    for more, perturbed in (({}, False), ({"evaluation": True}, True)):
        environment = failing(**more)()
        with resets(training=False):
            environment.reset(board=BOARD)
        assert (control_of(environment) is not None) is perturbed
        assert (environment.move("R") in TEXTS) is perturbed
        assert ("control/calls" in report(environment)) is perturbed
        environment.reset(board=BOARD)  # outside of a host
        assert environment.move("R") in TEXTS


def test_the_strength_of_a_curriculum():
    environment = failing()()
    with resets(strength=0.0):
        environment.reset(board=BOARD)
    assert environment.move("D") not in TEXTS


def test_with_a_reward_and_in_tags():
    config = {"perturbations": [{"name": "error", "turns": [1]}]}
    environment = in_tags(rewarded(controlled(MazeEnvironment, config), rescale=True))()
    assert "between <action> and </action>" in environment.reset(board="#####\n#A.G#\n#####")
    EpisodePort(environment).turn(Action())
    assert environment.act("R; R") in TEXTS
    EpisodePort(environment).turn(Action())
    assert environment.act("R; R") not in TEXTS
    assert environment.get_reward() == 1.0
    assert report(environment)["control/error"] == 1


def test_rollouts_of_one_row_are_perturbed_alike_and_those_of_others_not():
    config = {"perturbations": [{"name": "error", "rate": 0.5}]}

    def failures(board, **more):
        environment = controlled(GridEnvironment, config)()
        environment.reset(board=board, **more)
        return [environment.move("x") in TEXTS for _ in range(6)]

    assert failures(BOARD) == failures(BOARD, prompt="x", other=None)  # what one host passes and another does not
    assert (
        len({tuple(failures(BOARD.replace("A", ".").replace("G", "A", 1).replace("#", "G"))), tuple(failures(BOARD))})
        == 2
    )


class Lookup:
    """Tools that are awaited, one of which calls another."""

    irreversible = ("finish",)
    metrics: ClassVar = {"looked": 1}

    async def reset(self, answer: str, **_):
        self.asked = 0
        await asyncio.sleep(0)
        return "Find it."

    async def search(self, query: str) -> str:
        """Search.

        Args:
            query: For what.
        """
        self.asked += 1
        await asyncio.sleep(0)
        return f"- {query}: Paris\n- b\n- c\n- d\n- e" + await self.note("x")

    async def note(self, text: str) -> str:
        """Note.

        Args:
            text: What.
        """
        return f"\nnoted {text}"

    def finish(self) -> str:
        """End."""
        return "- a\n- b"


def run(environment, *calls):
    async def go():
        await environment.reset(answer="Paris")
        texts = []
        for name, *arguments in calls:
            text = getattr(environment, name)(*arguments)
            texts.append(await text if inspect.isawaitable(text) else text)
        return texts

    return asyncio.run(go())


def test_tools_that_are_awaited():
    config = {
        "perturbations": [
            {"name": "withhold", "column": "answer"},
            {"name": "paginate", "tools": ["search"], "size": 3},
        ]
    }
    environment = controlled(Lookup, config)()
    first, second, other = run(environment, ("search", "capital"), ("search", "capital"), ("note", "Paris"))
    assert first.startswith("- capital: …\n- b\n- c\npage: 1 of 2")
    assert second == "- d\n- e\nnoted x\npage: 2 of 2"
    assert other == "\nnoted …"
    assert environment.asked == 1  # the second page reached no world
    assert report(environment) == {"looked": 1, "control/calls": 3, "control/withhold": 2, "control/paginate": 2}


@pytest.mark.parametrize(
    ("entry", "row", "message"),
    [
        (
            {"name": "error", "rate": 0.1, "tools": ["serch"]},
            None,
            "control.perturbations[0].tools: Lookup has no tool 'serch'",
        ),
        (
            {"name": "withhold", "column": "anwser"},
            {"answer": "x"},
            "control.perturbations[0].column: a row of Lookup has no column",
        ),
        (
            {"name": "withhold", "column": "answer", "query": "question"},
            {"answer": "x"},
            "control.perturbations[0].query: a row of Lookup has no column 'question'",
        ),
    ],
)
def test_what_does_not_fit(entry, row, message):
    def begin():
        asyncio.run(controlled(Lookup, {"perturbations": [entry]})().reset(**row))

    with pytest.raises(UserError) as error:
        begin()
    assert str(error.value).startswith(message)


class Own:
    """Its metrics are an attribute of the instance."""

    def reset(self, **_):
        self.metrics = {"mine": 3}
        return ""

    def act(self, text: str) -> str:
        """Act."""
        self.metrics["mine"] += 1
        return text


class Raising(Own):
    def act(self, text: str) -> str:
        """Act."""
        raise KeyError(text)


def test_what_a_tool_raises_is_an_observation_too():
    entries = [{"name": "withhold", "texts": ["Paris"]}, {"name": "latency", "rate": 1}]
    environment = controlled(Raising, {"perturbations": entries})()
    environment.reset()
    with pytest.raises(ValueError, match="'not …'"):
        environment.act("not Paris")
    with pytest.raises(KeyError, match="Rome"):
        environment.act("Rome")
    assert report(environment) == {"mine": 3, "control/calls": 2, "control/withhold": 0, "control/latency": 0}


class Told(Wrapper):
    """As `Simulated` does: it asks for the instructions itself."""

    is_simulated = True

    def reset(self, columns, start):
        self.control = start.control
        return super().reset(columns, start)

    def call(self, tool, arguments):
        self.control.begin_turn()
        return self.control.guard(arguments["text"], self.control.plan(tool))


def test_a_simulated_world_is_told_and_its_tools_are_its_own():
    entries = [{"name": "error", "rate": 1}, {"name": "withhold", "texts": ["Paris"]}]
    environment = controlled(dress(Own, Told), {"perturbations": entries})()
    environment.reset()
    EpisodePort(environment).turn(Action())  # a host says so of every world
    assert control_of(environment).turn == 0
    assert environment.act("Error: not Paris") == "Error: not …"  # the call is told to fail, and shows nothing either
    assert report(environment)["control/withhold"] == 0
    environment = controlled(dress(Own, Told), {"perturbations": entries[1:]})()
    environment.reset()
    assert environment.act("It is Paris") == "It is …"
    assert report(environment)["control/withhold"] == 1


def test_a_call_that_does_not_fit_its_tool_is_the_host_s():
    """Nothing is drawn for it, as in a simulated world: else the draws of all others would differ."""
    environment = failing()()
    environment.reset(board=BOARD)
    with pytest.raises(TypeError, match="way"):
        environment.move(way="R")
    assert control_of(environment).figures["control/calls"] == 0


class Looking:
    """A world of one lookup."""

    def reset(self) -> None:
        self.asked = 0

    def search(self, query: str, limit: int = 9) -> str:
        """Search.

        Args:
            query: What for.
            limit: How many.
        """
        self.asked += 1
        return json.dumps(list(range(limit)))


def test_the_same_call_is_the_same_however_its_arguments_are_written():
    environment = controlled(Looking, {"perturbations": [{"name": "paginate", "tools": ["search"], "size": 3}]})()
    environment.reset()
    pages = [environment.search(query="x", limit=9), environment.search(limit=9, query="x"), environment.search("x", 9)]
    assert [json.loads(page)["items"] for page in pages] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert environment.asked == 1
