"""`wm env serve` as its clients see it: OpenEnv's own, hostile ones and killed ones, each against the real process."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import wm_plugin.worlds.agents.rollout as rollout
from support.perfect import perfect, settings
from support.served import CONTROL, Toys, as_host, as_step, hard_calls, serving
from support.shell import needs_shell
from wm_plugin.data.schema import Action, Call
from wm_plugin.hosting.config import RunConfig
from wm_plugin.worlds.check import check
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.openenv_server import LARGEST
from wm_plugin.worlds.worlds import load

pytest.importorskip("openenv")
pytestmark = [pytest.mark.slow, pytest.mark.host]

SEED = 4


def children(process):
    """The processes that the server has started and that have not ended."""
    listed = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return [pid for pid, state in map(str.split, listed.stdout.splitlines()) if not state.startswith("Z")]


def until(reached, seconds=30):
    start = time.monotonic()
    while not reached():
        assert time.monotonic() < start + seconds
        time.sleep(0.05)


def post(url, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urlopen(Request(url + path, data, {"Content-Type": "application/json"}), timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


@contextmanager
def generic(url):
    from openenv.core import GenericEnvClient

    with GenericEnvClient(base_url=url) as client:
        yield client


def by_generic(url, calls):
    """An episode by OpenEnv's client of any environment: the prompt with what is observed first, observations, rewards."""
    with generic(url) as client:
        found = client.reset(seed=SEED)
        first, seen, rewards = found.observation["text"], [], [found.reward]
        for call in calls:
            found = client.step(as_step(call))
            seen.append(as_host(found.observation))
            rewards.append(found.reward)
            if found.done:
                break
        state = client.state()
    return first, seen, sum(rewards), found.done, state["turns"], state["task_id"]


def by_mcp(url, calls):
    """The same by its client of environments with tools, whose session is another one: made over HTTP."""
    from openenv.core.env_server.mcp_types import CallToolAction
    from openenv.core.mcp_client import MCPToolClient

    with MCPToolClient(base_url=url) as client:
        sync = client.sync()
        assert {one.name for one in sync.list_tools()} == set(load("shop").spec.tools)
        first, seen, rewards = client.reset(seed=SEED).observation.text, [], []
        for tool, arguments in calls:
            found = client.step(CallToolAction(tool_name=tool, arguments=arguments))
            told = found.observation
            seen.append(str({"error": told.error.message}) if told.error else told.result)
            rewards.append(found.reward)
            if found.done:
                break
        with pytest.raises(RuntimeError, match="the episode is over after"):
            sync.call_tool(tool, **arguments)
    return first, seen, sum(rewards), found.done


@pytest.mark.parametrize("dressed", [False, True])
def test_the_same_episode_by_every_way(dressed, tmp_path):
    """Of a plain world, and of one in a world model under control."""
    world = load("shop")
    row = world.rows(1, seed=SEED)[0]
    calls = hard_calls(world, row)
    with perfect("shop", [row]) as model:
        (tmp_path / "control.json").write_text(json.dumps(CONTROL))
        flags = ["--control", str(tmp_path / "control.json")]
        flags += ["--simulation", model.base_url, "--simulation-model", "world"]
        blocks = {"control": CONTROL, "simulation": settings(model)} if dressed else {}
        actions = [Action(calls=(Call(name=name, arguments=arguments),)) for name, arguments in calls]
        environment = RunConfig(environment="shop", **blocks).dressed("shop")
        local = rollout.replay(environment(), row, actions)
        seen = [one.text for turn in local.turns for one in turn.observations]
        expected = (local.context.initial_state, seen, local.reward, True)
        assert local.reward == 1.0
        with serving("shop", *flags if dressed else ()) as (_, url):
            if not dressed:
                report = check(load(f"openenv:{url}"), seeds=2, quick=True)
                assert report.ok, report.findings
            *found, turns, task = by_generic(url, calls)
            assert tuple(found) == expected
            assert (turns, task) == (local.metadata["figures"]["turns"], local.task_id)
            assert by_mcp(url, calls) == expected
            # and as a world of ours: its client says of a call that failed and of the end what it says of any server
            right = [
                (action, turn)
                for action, turn in zip(actions, local.turns, strict=False)
                if not turn.observations[0].error
            ]
            served = rollout.replay(load(f"openenv:{url}").make(), {"seed": SEED}, [action for action, _ in right])
            texts = [one.observations[0].text for one in served.turns]
            assert texts == [turn.observations[0].text for _, turn in right]
            assert (served.context.initial_state, served.reward) == (local.context.initial_state, local.reward)


@pytest.mark.system
@needs_shell
def test_a_terminal_gives_the_same_episode_over_openenv():
    world = load("terminal")
    row = world.rows(1, seed=SEED)[0]
    calls = hard_calls(world, row)
    actions = [Action(calls=(Call(name=name, arguments=arguments),)) for name, arguments in calls]
    local = rollout.replay(world.make(), row, actions)
    seen = [one.text for turn in local.turns for one in turn.observations]
    with serving("terminal") as (process, url):
        first, told, reward, done, turns, task = by_generic(url, calls)
        assert (first, told, reward, done) == (local.context.initial_state, seen, 1.0, True)
        assert (turns, task) == (local.metadata["figures"]["turns"], local.task_id)
        right = [action for action, turn in zip(actions, local.turns, strict=False) if not turn.observations[0].error]
        served = rollout.replay(load(f"openenv:{url}").make(), {"seed": SEED}, right)
        texts = [one.text for turn in served.turns for one in turn.observations]
        assert texts == [one.text for turn in local.turns for one in turn.observations if not one.error]
        until(lambda: not children(process))


@pytest.fixture(scope="module")
def toys():
    """A server of a world whose engine is a process, for few sessions; one that nobody holds is closed after a second."""
    with serving("support.served:Toys", "--sessions", "20", "--idle", "1") as found:
        yield found


CLIENT = """
import json, sys, time
from contextlib import ExitStack
from urllib.request import Request, urlopen
from websockets.sync.client import connect
url, create = sys.argv[1], {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
with ExitStack() as stack:
    for number in range(6):
        query = ""
        if number % 2:  # as OpenEnv's client of tools does
            answer = json.load(urlopen(Request(url + "/mcp", json.dumps(create).encode())))
            query = "?session_id=" + answer["result"]["session_id"]
        held = stack.enter_context(connect(url.replace("http", "ws") + "/ws" + query))
        held.send('{"type": "reset", "data": {"row": {}}}')
        held.recv()
    print("ready", flush=True)
    time.sleep(100)
"""


def test_a_killed_client_leaves_neither_sessions_nor_processes(toys):
    process, url = toys
    assert children(process) == []
    with subprocess.Popen([sys.executable, "-c", CLIENT, url], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout.readline() == "ready\n"
        assert len(children(process)) == 6
        time.sleep(7)  # the server looks for idle sessions every five seconds; these are held by their WebSockets
        assert len(children(process)) == 6
        client.kill()
    until(lambda: not children(process))
    with ExitStack() as stack:  # all places are free
        clients = [stack.enter_context(generic(url)) for _ in range(20)]
        assert {client.reset(row={"count": 3}).done for client in clients[:2]} == {False}
        with pytest.raises(RuntimeError, match="Server at capacity: 20/20 sessions"), generic(url) as more:
            more.reset()


def test_many_sessions_at_once_have_worlds_of_their_own_and_leave_nothing(toys):
    process, url = toys

    def played(number):
        with generic(url) as client:
            first = client.reset(row={"count": number}).observation["text"]
            return [first, *(client.step(as_step(("act", {"command": "up"}))).observation["result"] for _ in range(2))]

    expected = {}
    for number in (10, 20, 30):
        toy = load("support.served:Toys").make()
        expected[number] = [toy.reset(number), toy.act("up"), toy.act("up")]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(played, [10, 20, 30] * 20))
    assert found == [expected[number] for number in [10, 20, 30] * 20]
    until(lambda: not children(process))


def frame(tool, arguments):
    return json.dumps({"type": "step", "data": as_step((tool, arguments))})


FRAMES = [
    "",
    "{",
    "[]",
    "null",
    '"reset"',
    "[" * 100_000,
    '{"type": 1}',
    '{"type": "step"}',
    '{"type": "step", "data": []}',
    '{"type": "step", "data": {"type": "call_tool"}}',
    '{"type": "step", "data": {"type": "call_tool", "tool_name": 3}}',
    frame("act", "{}"),
    frame("__init__", {}),
    frame("reset", {}),
    frame("act", {"self": 1, "command": 2}),
    frame("\ud800", {"\ud800": "\ud800"}),
    frame("act", {"command": "\ud800"}),
    frame("act", {"command": float("nan")}),
    frame("act", {"command": "x" * (LARGEST - 1000)}),
    '{"type": "reset", "data": {"seed": 1e400}}',
    '{"type": "reset", "data": {"seed": ' + "9" * 5000 + "}}",
    '{"type": "reset", "data": {"row": {"count": {"a": [1, null]}}}}',
    '{"type": "reset", "data": {"row": {"count": 1}, "self": 2, "episode_id": {}}}',
    '{"type": "mcp", "data": {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "act", "arguments": 3}}}',
    '{"type": "mcp", "data": {"jsonrpc": "2.0", "method": "x", "id": 1}}',
    '{"type": "state", "data": 1}',
    bytes([255, 254]),
    "x" * (LARGEST + 1),
]


def test_hostile_clients_cost_themselves_a_session_at_most(toys):
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    process, url = toys
    draw = random.Random(0)
    frames = [one for one in FRAMES for _ in range(2)]
    texts = [one for one in FRAMES if isinstance(one, str) and 0 < len(one) < 500]
    for _ in range(150):  # and these with characters lost, doubled or changed
        text = draw.choice(texts)
        place = draw.randrange(len(text))
        frames.append(text[:place] + draw.choice(["", text[place] * 2, '"', "}"]) + text[place + 1 :])
    with generic(url) as bystander:
        bystander.reset(row={"count": 5})
        kinds = []
        while frames:
            with suppress(ConnectionClosed), connect(f"{url.replace('http', 'ws')}/ws", max_size=None) as held:
                while frames:
                    held.send(frames.pop())
                    kinds.append(json.loads(held.recv(timeout=20))["type"])
        assert kinds.count("error") > 100
        assert {*kinds} <= {"error", "observation", "mcp", "state"}
        bodies = [b"x" * (LARGEST + 1), b"{", b"[]", {"seed": -1}, {"action": {}}, {"row": 1}, {"x": "y" * 10_000}]
        for path in ("/reset", "/step", "/mcp", "/ToyEnvironment/task"):
            assert {post(url, path, body)[0] for body in bodies} <= {200, 400, 404, 413, 422, 501}
        assert post(url, "/reset", bodies[0])[0] == 413
        with suppress(ConnectionClosed), connect(f"{url.replace('http', 'ws')}/ws") as held:
            held.send("x" * (LARGEST + 1))  # which may be refused before it is sent
            held.recv(timeout=20)
            pytest.fail("a message that is too large is answered")
        with socket.create_connection(url.removeprefix("http://").split(":")) as raw, suppress(OSError):
            raw.sendall(os.urandom(5000))
        assert bystander.step(as_step(("act", {"command": "up"}))).observation["error"] is None
    until(lambda: not children(process))


def test_steps_at_once_in_one_session(toys):
    """By JSON-RPC over HTTP, where nothing else keeps their order."""
    from websockets.sync.client import connect

    _, url = toys
    _, answer = post(url, "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"})
    session = answer["result"]["session_id"]
    with connect(f"{url.replace('http', 'ws')}/ws?session_id={session}") as held:
        held.send(json.dumps({"type": "reset", "data": {"row": {"count": 100, "max_turns": 100}}}))
        assert json.loads(held.recv())["type"] == "observation"
        params = {"session_id": session, "name": "act", "arguments": {"command": "up"}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: post(url, "/mcp", call)[1]["result"]["result"], range(24)))
        toy = load("support.served:Toys").make()
        toy.reset(100, max_turns=100)
        assert sorted(answers) == sorted(toy.act("up") for _ in range(24))


def test_a_world_that_raises_and_the_tools_schemas(toys):
    _, url = toys
    with generic(url) as client:
        function = tool_schema(Toys.act)["function"]
        described = {name: function[name] for name in ("name", "description")}
        tools = client.step({"type": "list_tools"}).observation["tools"]
        assert tools == [{**described, "input_schema": function["parameters"]}]
        with pytest.raises(RuntimeError, match=r"the world failed \(RuntimeError: no such floor\)"):
            client.reset(row={"count": 13})
        client.reset(row={"count": 1})
        told = client.step(as_step(("act", {"command": "raise"}))).observation["error"]
        assert told == {"error_type": "execution_error", "message": "unlucky"}
        assert client.step(as_step(("act", {"command": "up"}))).observation["error"] is None
    refused = {"detail": "the world failed (RuntimeError: no such floor)"}
    assert post(url, "/reset", {"row": {"count": 13}}) == (400, refused)
    assert post(url, "/step", {"action": {"tool_name": "act"}})[0] == 400


def test_the_end_of_the_server_is_the_end_of_its_sessions():
    with serving("support.served:Toys") as (process, url), generic(url) as client:
        client.reset(row={})
        (engine,) = children(process)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "wm: interrupted\n")
        assert process.returncode == 130
        assert not os.path.exists(f"/proc/{engine}")
