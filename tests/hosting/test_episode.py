"""The episode port: what of a host's reports reaches which wrapper."""

import asyncio

import pytest

from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.hosting.episode import EpisodePort, end_together
from wm_plugin.hosting.world import Start, Wrapper, dress


class World:
    max_turns = 5

    def __init__(self):
        self.over = None

    def reset(self, level: int) -> str:
        self.over = False
        return f"level {level}"

    def look(self) -> str: ...


class Noting(Wrapper):
    """Notes what is reported to it."""

    noted: list

    def __init__(self, world, options, environment):
        super().__init__(world, options, environment)
        self.noted = []

    def reset(self, columns, start):
        self.noted.append((columns, start))
        return self.world.reset(columns, start)

    def turn(self, action, results):
        self.noted.append((action, results))
        self.world.turn(action, results)

    async def ready(self):
        self.noted.append("ready")

    def notes(self, failed):
        return {"failed": failed}

    def about(self):
        return {"about": self.options}

    @classmethod
    def finalize(cls, episodes):
        finalized.append((cls, [one.options for one in episodes]))


class Aware(Noting):
    is_turn_aware = True

    def end(self, unanswered):
        self.noted.append(unanswered)


finalized: list = []


def port_of(*kinds):
    environment = World
    for kind in kinds:
        environment = dress(environment, kind, kind.__name__)
    return EpisodePort(environment())


def test_an_episode_begins_with_its_rows_columns_and_what_the_host_says_of_it():
    port = port_of(Aware)
    assert not port.is_waiting
    assert port.begin({"level": 2}, prompt=["p"], training=False, strength=0.5) == "level 2"
    assert port.is_waiting
    assert port._chain.noted == [({"level": 2}, Start(["p"], training=False, strength=0.5))]
    port.begin({"level": 2})
    assert port._chain.noted[1:] == [({"level": 2}, Start(None, training=True, strength=1.0))]
    plain = port_of()
    assert plain.begin({"level": 3}, prompt=["p"]) == "level 3"
    for one in (port, plain):
        with pytest.raises(UserError, match=r"a row does not fit World\.reset"):
            one.begin({"height": 2})
    assert len(port._chain.noted) == 2


CALLS = [{"id": "7", "function": {"name": name, "arguments": "{}"}} for name in ("look", "take")]


def test_turns_reach_the_wrappers_that_ask_for_them():
    for port, aware in ((port_of(Aware), True), (port_of(Noting), False), (port_of(Noting, Aware), True)):
        port.begin({"level": 2})
        port.turn({"role": "assistant", "content": "Hm.", "tool_calls": CALLS}, ["seen"], executed=1)
        port.turn(Action(text="So.", calls=(Call(name="look", arguments={}, id="8"),)))
        port.turn({"content": "<think>Hm.</think>Done.", "tool_calls": 3})  # calls that do not parse
        port.turn({"content": None, "tool_calls": 3})
        layers = [port._chain] if port._chain.world.__class__.__name__ == "_Plain" else [port._chain, port._chain.world]
        for layer in layers:
            assert [(one.text, [call.name for call in one.calls], results) for one, results in layer.noted[1:]] == (
                [("Hm.", ["look"], ["seen"]), ("So.", ["look"], ()), ("Done.", [], ()), ("", [], ())] if aware else []
            )
            assert all(call.id is None for one, _ in layer.noted[1:] for call in one.calls)  # of no use after a resume
        assert port.is_turn_aware is aware
    port_of().turn({"content": "Hm."})


def test_a_host_waits_for_and_reads_the_outermost_wrapper():
    port = port_of(Noting)
    asyncio.run(port.ready())
    assert port._chain.noted == ["ready"]
    assert (port.notes(), port.notes(failed=True)) == ({"failed": False}, {"failed": True})
    assert port.about == {"about": "Noting"}
    plain = port_of()
    asyncio.run(plain.ready())
    assert (plain.notes(failed=True), plain.about) == ({}, {})


def test_episodes_that_end_together_are_decided_together_the_outermost_wrapper_first():
    ports = [port_of(Noting, Aware), port_of(Aware), port_of(), port_of(Noting)]
    finalized.clear()
    end_together(ports, [1, 0, 2, 0])
    assert finalized == [(Aware, ["Aware", "Aware"]), (Noting, ["Noting", "Noting"])]
    assert [port.unanswered for port in ports] == [1, 0, 2, 0]
    assert (ports[0]._chain.noted, ports[1]._chain.noted) == ([1], [0])
    ports[1].end()
    assert finalized[2:] == [(Aware, ["Aware"])]
    with pytest.raises(ValueError, match="zip"):
        end_together(ports, [1])
    ports[0].begin({"level": 1})
    assert ports[0].unanswered == 0


def test_the_hosts_figures_are_of_the_worlds_tools():
    port = port_of(Noting)
    assert port.report() == {}
    figures = port.figures(["look", "fly", "look"], budget=7, truncated=False, policy_tokens=3, environment_tokens=4)
    assert figures == {
        "budget": 5.0,
        "calls/look": 2.0,
        "calls/unknown": 1.0,
        "truncated": 0.0,
        "policy_tokens": 3.0,
        "environment_tokens": 4.0,
    }
