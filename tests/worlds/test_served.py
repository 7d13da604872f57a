"""The episodes of a server's clients, before OpenEnv comes into it: the same as a host's."""

import gc
import threading
from pathlib import Path

import pytest

import wm_plugin.worlds.agents.rollout as rollout
from support.perfect import perfect, settings
from support.processes import ToyEnvironment
from support.served import CONTROL, Counter, hard_calls
from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.hosting.config import RunConfig
from wm_plugin.worlds.served import Session, Source, Told
from wm_plugin.worlds.worlds import load


def source(name, *, seed=0, **fields):
    return Source(load(name), RunConfig(environment=name, **fields).dressed(name), seed=seed)


def episode(session, seed, calls):
    """What a client observes of the calls, as TRL would show it, and what it is paid for each step."""
    context, told = session.reset({"seed": seed})
    seen, rewards, over = [], [told.reward], told.over
    for name, arguments in calls:
        if over:
            break
        told = session.call(name, arguments)
        seen.append(told.text if told.error is None else str({"error": told.error[1]}))
        rewards.append(told.reward)
        over = told.over
    return context.initial_state, seen, rewards, over


@pytest.mark.host  # schemas of tools
@pytest.mark.parametrize("dressed", ["plain", "control", "simulation"])
def test_an_episode_is_that_of_a_host(dressed):
    world = load("shop")
    row = world.rows(1, seed=4)[0]
    calls = hard_calls(world, row)
    with perfect("shop", [row]) as server:
        fields = {
            "plain": {},
            "control": {"control": CONTROL},
            "simulation": {"simulation": settings(server, cache=False)},
        }[dressed]
        served = source("shop", **fields)
        actions = [Action(calls=(Call(name=name, arguments=arguments),)) for name, arguments in calls]
        local = rollout.replay(served.environment(), row, actions)
        session = Session(served)
        for _ in range(2):  # a session plays one episode after another
            first, seen, rewards, over = episode(session, 4, calls)
            assert first == local.context.initial_state
            assert seen == [one.text for turn in local.turns for one in turn.observations]
            assert over
            assert (rewards[:-1], rewards[-1]) == ([0.0] * (len(rewards) - 1), local.reward)
            figures = {**session.about}
            assert figures.pop("reward") == local.reward
            assert (figures.pop("task_id"), figures.pop("seed")) == (local.task_id, 4)
            assert figures.keys() == local.metadata["figures"].keys()
            told = {key: one for key, one in local.metadata["figures"].items() if not key.endswith("seconds")}
            assert {key: figures[key] for key in told} == told
    assert local.reward == (dressed != "control")
    assert any("control" in one.data for turn in local.turns for one in turn.observations) is (dressed == "control")
    with pytest.raises(UserError, match="^the episode is over after"):
        session.call(*calls[0])


def test_a_reset_chooses_a_row():
    served = source("maze", seed=7)
    world, one, other = served.world, Session(served), Session(served)
    starts = [session.reset({})[1].text for session in (one, other, one)]  # those of no seed take turns
    assert starts == [world.make().reset(**world.rows(1, seed=seed)[0]) for seed in (7, 8, 9)]
    assert one.about["seed"] == 9
    hard = world.rows(1, seed=2, level="hard-1", held_out=True)[0]
    assert one.reset({"seed": 2, "level": "hard-1", "held_out": True})[1].text == world.make().reset(**hard)
    told = [{"role": role, "content": text} for role, text in (("system", "Be brief."), ("user", "Go. \ud800"))]
    context, _ = one.reset({"row": {**hard, "prompt": told}})
    assert (context.task, context.initial_state) == ("Be brief.", f"Go. ?{world.make().reset(**hard)}")
    for options, says in [
        ({"sed": 1}, "reset has no option 'sed'; did you mean 'seed'?"),
        ({"seed": -1}, "seed is -1; write a whole number >= 0"),
        ({"seed": True}, "seed is True; write a whole number >= 0"),
        ({"level": ["hard-1"]}, "reset: held_out is true or false, level and split are texts"),
        ({"held_out": "yes"}, "reset: held_out is true or false, level and split are texts"),
        ({"level": "x"}, "--level: maze has no level 'x'; there is 'hard-1', 'standard'"),
        ({"row": {"bored": 1}}, "a row does not fit MazeEnvironment.reset"),
        ({"row": [1]}, "row is [1]; write the columns of a row, and no other option beside it"),
        ({"row": hard, "seed": 1}, "row is {'prompt'"),
    ]:
        with pytest.raises(UserError) as error:
            one.reset(options)
        assert str(error.value).startswith(says)
        with pytest.raises(UserError, match="^there is no episode; reset begins one$"):
            one.call("move", {"direction": "U"})
    assert one.reset({"seed": 7})[1].text == starts[0]


def test_a_world_that_fails_costs_an_episode_and_one_without_an_end_is_gives_its_reward_so_far():
    served = Source(load("support.served:Counter"), Counter)
    session = Session(served)
    assert session.reset({"row": {"seed": 2}})[1] == Told("At 2.", None, False, 2.0)
    told = [session.call("add", {"number": number}) for number in (3, 13, 4)]
    assert [one.reward for one in told] == [5.0, 5.0, 9.0]  # so far
    assert (told[0].text, told[2].text) == ("5 ?", "9 ?")
    assert told[1].error == ("execution_error", ("unlucky ?" * 1000)[:2000])
    assert session.call("add", {"numbers": 1}).error[0] == "invalid_args"
    with pytest.raises(UserError, match=r"^the world failed \(RuntimeError: no such floor\)$"):
        session.reset({"row": {"seed": 13}})
    assert session.reset({"row": {"seed": 1}})[1] == Told("At 1.", None, False, 1.0)


def test_calls_at_once_are_run_one_after_another():
    session = Session(Source(load("support.served:Counter"), Counter))
    session.reset({"row": {"seed": 0}})
    threads = [threading.Thread(target=session.call, args=("count", {})) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = session.call("add", {"number": 0})
    assert (told.text, told.reward, session.steps) == ("16 ?", 16.0, 17)


class InACycle(ToyEnvironment):
    def __init__(self):
        super().__init__()
        self._me = self


@pytest.mark.parametrize("kind", [ToyEnvironment, InACycle])
def test_a_session_that_is_closed_leaves_no_process(kind):
    session = Session(Source(load("support.processes:ToyEnvironment"), kind))
    session.reset({"row": {}})
    engine = Path(f"/proc/{session._port.environment._process.pid}")
    assert engine.exists()
    gc.disable()  # the session does not leave it to chance
    try:
        session.close()
        assert not engine.exists()
        session.close()
    finally:
        gc.enable()
