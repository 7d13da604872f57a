"""OpenEnv servers as worlds: real ones of its template and of its MCP environment, and one that misbehaves."""

import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest

from support import openenv_servers as servers
from support.openenv_broken import FAULTS, SCHEMAS
from wm_plugin.data import read
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.hosting.world import tool_methods
from wm_plugin.worlds.check import check
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.openenv import sessions, text_of, world_of
from wm_plugin.worlds.openenv.sessions import Server
from wm_plugin.worlds.openenv.tools import MOST_TOOLS, tool_of, tools_of
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.control import ControlConfig, controlled
from wm_plugin.worlds.wrappers.simulated import simulated

TOOL: dict[str, Any] = {"name": "look", "description": "Look.", "input_schema": {"properties": {}}}


def listed(**fields: Any) -> list[dict[str, Any]]:
    return [TOOL | fields]


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        (None, "from 1 to"),
        ([], "from 1 to"),
        ([TOOL] * (MOST_TOOLS + 1), "from 1 to"),
        ([TOOL, TOOL], "two tools 'look'"),
        ([None], "called None"),
        (listed(name="reset"), "called 'reset'"),
        (listed(name="__init__"), "called"),
        (listed(name="a b"), "called 'a b'"),
        (listed(name="x" * 65), "called"),
        (listed(name=["look"]), "called"),
        (listed(input_schema=[]), "schema"),
        (listed(input_schema={"properties": [1]}), "schema"),
        (listed(input_schema={"required": 1}), "schema"),
        (listed(input_schema={"properties": {"self": {}}}), "'self'"),
        (listed(input_schema={"properties": {"a-b": {}}}), "'a-b'"),
    ],
)
def test_tools_that_no_class_can_have_are_refused_in_one_line(tools, says):
    with pytest.raises(UserError, match="^here: ") as raised:
        tools_of(tools, lambda *_: "", "here")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_definitions_that_refer_to_each_other_many_times_are_read_once():
    many = {"anyOf": [{"$ref": "#/$defs/a"}] * 100}
    start = time.monotonic()
    tools_of(listed(input_schema={"properties": {"x": many, "y": many}, "$defs": {"a": many}}), lambda *_: "", "here")
    assert time.monotonic() - start < 5  # a minute without


@pytest.mark.host
def test_a_tool_has_the_types_and_texts_of_its_schema():
    properties = {
        "metadata": {"type": "object"},
        "count": {"type": "integer", "description": "How\n  many. Returns: x", "exclusiveMinimum": 0},
        "share": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "way": {"$ref": "#/$defs/Way"},
        "on": {"type": ["boolean", "null"]},
        "words": {"type": "array", "items": {"type": "string"}},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "point": {"$ref": "#/$defs/Point"},
        "kind": {"const": "k", "description": 'Which. (choices: ["a"])'},
        "any": {},
        "round": {"$ref": "#/$defs/Round"},
    }
    definitions = {
        "Way": {"enum": ["up", "down"], "description": "A way."},
        "Point": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "Round": {"$ref": "#/$defs/Round"},
    }
    schema = {"properties": properties, "required": ["count", "way"], "$defs": definitions}
    calls: list[Any] = []
    text = "Do it.\n\nArgs:\n    count: else\n\ud800" + "y" * 5000
    tool = tool_of("act", text, schema, lambda *call: calls.append(call) or "done", "here")
    from transformers.utils import get_json_schema

    made = get_json_schema(tool)["function"]
    assert made["name"] == "act"
    assert made["description"].startswith("Do it. Args count: else ?yyy")
    assert len(made["description"]) < 1100
    told = made["parameters"]["properties"]
    assert made["parameters"]["required"] == ["count", "way"]
    assert {name: {key: it[key] for key in it if key != "description"} for name, it in told.items()} == {
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "way": {"type": "string", "enum": ["up", "down"]},
        "on": {"type": "boolean"},
        "words": {"type": "array", "items": {"type": "string"}},
        "either": {"type": ["integer", "string"]},
        "point": {"type": "object"},
        "kind": {"type": "string", "enum": ["k"]},
        "any": {},
        "round": {},
    }
    assert told["count"]["description"] == "How many. Returns x"
    assert told["share"]["description"] == "The argument share."
    world = object()
    assert tool(world, count=1, way="up") == "done"
    assert calls == [(world, "act", {"count": 1, "way": "up"})]
    for arguments in ({"count": 1}, {"count": 1, "way": "up", "other": 2}):
        with pytest.raises(TypeError):
            tool(world, **arguments)


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"text": "It is dark.", "metadata": {"code": 7}, "reward": 1, "done": False}, "It is dark."),
        ({"echoed": "hi", "length": 2, "more": None, "list": [1, None]}, "echoed: hi\nlength: 2\nlist: [1, null]"),
        ({}, ""),
        ("It is dark.", "It is dark."),
        ([1, float("nan")], '[1, "NaN"]'),
        ({"tool_name": "a", "result": 3, "error": None}, "3"),
        ({"tool_name": "a", "result": None, "error": {"message": "no"}}, "Error: no"),
        ({"tool_name": "a", "result": {"content": [{"type": "text", "text": "x"}, {"type": "image"}]}}, "x\n[image]"),
        ({"tool_name": "a", "result": {"content": [{"text": "x"}], "is_error": True}}, "Error: x"),
        ({"text": "é\ud800"}, "é?"),
    ],
)
def test_an_observation_is_plain_text(observation, text):
    assert text_of(observation) == text


def test_a_long_observation_loses_its_middle():
    text = text_of({"text": "a" * 30_000 + "b" * 30_000})
    assert text == "a" * 10_000 + "\n[40000 characters are cut]\n" + "b" * 10_000


@pytest.mark.parametrize(
    "address", ["ftp://host", "http://", "http://host?time=3", "http://host?timeout=0", "http://h#x"]
)
def test_an_address_is_a_servers(address):
    with pytest.raises(UserError, match="openenv:"):
        Server.read(address, f"openenv:{address}")
    assert Server.read("http://host:1/a/?timeout=2.5", "") == Server("http://host:1/a", 2.5)


def test_a_token_is_named_by_its_variable(monkeypatch):
    monkeypatch.delenv("MY_TOKEN", raising=False)
    with pytest.raises(UserError, match="variable 'MY_TOKEN', which is not set"):
        Server.read("https://host?token=MY_TOKEN", "here")
    monkeypatch.setenv("MY_TOKEN", "secret-1")
    server = Server.read("https://host?token=MY_TOKEN", "here")
    assert (server.url, server.headers) == ("https://host", {"Authorization": "Bearer secret-1"})
    assert "secret" not in repr(server)
    assert Server.read("https://host", "here").headers == {}


@pytest.mark.parametrize(
    "address",
    [
        "http://me:hunter22@host",
        "http://me:hunt/er22@host",
        "http://host?api_key=hunter22",
        "http://host?token=hunter22",
        "http://host/#hunter22",
        "http://[hunter22@host",
        "me:hunter22@host",
    ],
)
def test_an_addresss_secrets_are_in_no_error(address):
    for name in (f"openenv:{address}", f"http://{address}"):
        with pytest.raises(UserError) as raised:
            load(name)
        assert "er22" not in str(raised.value)


def test_a_token_that_the_server_sends_back_is_nowhere(monkeypatch):
    token = "Ab3dEf/Gh+IjK9mN"
    monkeypatch.setenv("MY_TOKEN", f"{token}\n")
    assert Server.read("https://host?token=MY_TOKEN", "here").headers == {"Authorization": f"Bearer {token}"}
    step = sessions._step_of({"observation": {"text": f"You sent {token}.", token: [token]}})
    assert step.observation == {"text": "You sent [key].", "[key]": ["[key]"]}
    escaped = token.replace("/", "\\/")
    for code, kind in (("EXECUTION_ERROR", sessions.RefusedError), ("SESSION_ERROR", sessions.LostError)):

        async def ask(code=code):
            raise RuntimeError(f"Server error: {'x' * 290} {escaped} (code: {code})")

        with pytest.raises(kind) as raised:
            sessions.background.wait_for(sessions._answer(ask, 1.0))
        assert token[:6] not in str(raised.value)


def test_without_openenv_its_extra_is_named_when_a_world_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "openenv.core", None)
    with pytest.raises(MissingExtraError, match="openenv"):
        load("openenv:http://127.0.0.1:9")
    with pytest.raises(UserError, match="no package 'nothing_here'"):
        load("openenv:nothing_here")
    with pytest.raises(UserError, match=r"has no openenv\.yaml"):
        load("openenv:json")


# -- with servers -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder of a package that `openenv init` made."""
    return servers.template(tmp_path_factory.mktemp("openenv"))


@pytest.fixture(scope="module")
def echo(package):
    with servers.serving("echo1.server.app:app", package) as url:
        yield f"openenv:{url}"


@pytest.fixture(scope="module")
def safe():
    with servers.serving("support.openenv_safe:app") as url:
        yield f"openenv:{url}"


@pytest.fixture(scope="module")
def broken():
    with servers.serving("support.openenv_broken:app") as url:
        yield url


@pytest.mark.slow
@pytest.mark.host
def test_both_kinds_of_server_keep_the_protocol_of_worlds(echo, safe):
    for name, tools, observer in ((echo, ["step"], "environment"), (safe, ["compare", "open-safe"], "tool")):
        world = load(name)
        assert sorted(tool_methods(world.make())) == tools
        assert set(world.observers.values()) == {observer}
        report = check(world, seeds=2, quick=name == echo)
        assert report.ok, report.findings
    assert {finding.name: finding.state for finding in report.findings}["other process"] == "ok"
    assert report.bytes_an_instance is None
    (row,) = load(safe).rows(1, max_turns=4)
    assert row["max_turns"] == 4
    (message,) = row["prompt"]
    assert message["content"].startswith("Open the safe; its code has two digits.\n\nAct by calling")
    assert "at most 4 turns" in message["content"]
    assert load(safe).rows(2, held_out=True)[0]["seed"] % 10 == 0
    environment = load(safe).environment
    in_a_model = simulated(environment, {"url": "http://127.0.0.1:9/v1", "model": "none"})
    assert tool_schema(in_a_model.compare) == tool_schema(environment.compare)
    perturbed = controlled(environment, ControlConfig.read({"perturbations": [{"name": "error", "rate": 1.0}]}, ""))()
    assert perturbed.reset(seed=13) == "A safe with 3 dents."
    assert perturbed.compare(number=3).startswith("Error 500")
    assert perturbed.metrics["control/error"] == 1


@pytest.mark.slow
def test_an_episode_is_what_openenvs_own_client_sees(safe, tmp_path, capsys, monkeypatch):
    from openenv.core import GenericEnvClient

    from wm_plugin.cli.main import main

    environment = load(safe).make()
    assert environment.reset(seed=142, hint=" It is old.", prompt="not the server's", nothing=None) == (
        "A safe with 2 dents. It is old."
    )
    assert environment.compare(number=41) == "yes"
    assert environment.compare(number=41, how="below", note="!") == "no!"
    assert environment.compare(number=13).startswith("Error: Error calling tool 'compare': 13 brings")
    assert environment.compare(number="x").startswith("Error: 1 validation error")
    assert getattr(environment, "open-safe")(code=41) == '{"open":false}'
    assert (environment.over, environment.get_reward()) == (False, 0.0)
    assert getattr(environment, "open-safe")(code=42) == '{"open":true}\nThe episode is over.'
    assert (environment.over, environment.success, environment.get_reward()) == (True, True, 1.0)
    assert environment.metrics == {"actions": 6, "effective": 4, "invalid": 2, "lost": 0}
    with pytest.raises(ValueError, match="over"):
        environment.compare(number=1)
    code = main(["env", "rollout", safe, "--policy", "random", "--count", "3", "--out", str(tmp_path / "x.jsonl")])
    assert code == 0, capsys.readouterr().err
    trajectories = list(read(tmp_path / "x.jsonl"))
    assert len(trajectories) == 3
    for trajectory in trajectories:
        with GenericEnvClient(base_url=safe.removeprefix("openenv:")).sync() as client:
            seed = next(
                row["seed"]
                for row in load(safe).rows(3)
                if f"with {row['seed'] % 10} " in trajectory.context.initial_state
            )
            assert trajectory.context.initial_state.endswith(text_of(client.reset(seed=seed).observation))
            for turn in trajectory.turns[:5]:
                (call,), (seen,) = turn.action.calls, turn.observations
                arguments = {name: value for name, value in call.arguments.items() if value is not None}
                step = client.step({"type": "call_tool", "tool_name": call.name, "arguments": arguments})
                assert seen.text.removesuffix("\nThe episode is over.").removeprefix("Error: ").split() == (
                    text_of(step.observation).removeprefix("Error: ").split()
                )


@pytest.mark.slow
def test_a_server_that_misbehaves_loses_the_episode_and_no_more(broken, caplog):
    environment = load(f"openenv:{broken}?timeout=2").make()
    stays = {"long", "refused"}
    for fault in [*FAULTS, "closes", "hangs"]:
        assert environment.reset(fault=fault) == "It is dark.", fault
        begun = time.monotonic()
        if fault in stays:
            text = environment.step(word="open")
            assert (environment.over, environment.metrics["lost"]) == (False, 0), fault
            assert text == "Error: the door is locked." if fault == "refused" else len(text) < 20_100
            assert environment.get_reward() == (0.0 if fault == "refused" else 0.5)
        else:
            with pytest.raises(ValueError, match="The world was lost"):
                environment.step(word="open")
            assert (environment.over, environment.metrics["lost"]) == (True, 1), fault
            assert (environment.get_reward(), environment.success) == (0.0, False)
        assert time.monotonic() - begun < 4, fault
    assert caplog.text.count("an episode was lost") == len(FAULTS) + 2 - len(stays)
    for fault in ("reset@html", "reset@nan", "reset@refused"):  # a bad connection is tried again, and a refusal is not
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sessions, "PATIENCE", 0.2)
            assert environment.reset(fault=fault).startswith("The world was lost (")
        assert (environment.over, environment.metrics["lost"]) == (True, 1)
    environment.reset(fault="leaves")
    assert environment.step(word="go") == "You go."
    time.sleep(0.2)
    with pytest.raises(ValueError, match="The world was lost"):  # and no new session goes on without a reset
        environment.step(word="go")
    assert environment.reset(fault="") == "It is dark."
    assert environment.step(word="\ud800") == '{"word": "?"}'
    nested: Any = []
    for _ in range(2000):
        nested = [nested]
    assert environment.step(word=nested) == "Error: the arguments are no JSON."
    assert environment.step(word="x" * (1 << 20)).startswith("Error: the arguments have")


@pytest.mark.slow
def test_a_private_server_takes_the_token_of_a_variable(broken, monkeypatch, caplog):
    for token in ("secret-2", "secret-1"):
        monkeypatch.setenv("MY_TOKEN", token)
        world_of.cache_clear()
        if token == "secret-2":
            with pytest.raises(UserError, match="401") as raised:
                load(f"openenv:{broken}/private?token=MY_TOKEN")
            assert "secret" not in str(raised.value)
    environment = load(f"openenv:{broken}/private?token=MY_TOKEN").make()
    assert environment.reset() == "It is dark."
    assert environment.step(word="go") == '{"word": "go"}'
    monkeypatch.setenv("MY_TOKEN", "secret-2")  # it is read for each session
    monkeypatch.setattr(sessions, "PATIENCE", 0.2)
    assert environment.reset().startswith("The world was lost (")
    assert "secret" not in caplog.text


@pytest.mark.slow
@pytest.mark.host
def test_a_schema_that_makes_no_tool_is_one_line(broken):
    for kind in SCHEMAS.keys() - {""}:
        with pytest.raises(UserError, match=f"^openenv:{broken}/{kind}: ") as raised:
            load(f"openenv:{broken}/{kind}")
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 400
    with pytest.raises(UserError, match="no OpenEnv server answers there"):
        load("openenv:http://127.0.0.1:9")


@pytest.mark.slow
def test_a_server_that_comes_back_is_found_and_one_that_is_full_is_named(monkeypatch):
    url, process = servers.start("support.openenv_safe:app", SESSIONS="2")
    servers.wait(url, process)
    world = load(f"openenv:{url}")
    environment = world.make()
    environment.reset(seed=7)
    process.kill()
    process.wait()
    with pytest.raises(ValueError, match="The world was lost"):
        environment.compare(number=3)
    started: list[Any] = []
    port = int(url.rpartition(":")[2])
    again = partial(servers.start, "support.openenv_safe:app", port=port, SESSIONS="2")
    later = threading.Timer(0.5, lambda: started.append(again()))
    later.start()
    monkeypatch.setattr(sessions, "PATIENCE", 40.0)
    try:
        assert environment.reset(seed=7) == "A safe with 7 dents."
        assert environment.compare(number=3) == "yes"
        assert environment.metrics["lost"] == 0
        monkeypatch.setattr(sessions, "PATIENCE", 0.5)
        second, third = world.make(), world.make()
        assert second.reset(seed=1)
        with pytest.raises(UserError, match="max_concurrent_envs"):
            third.reset(seed=1)
        del second  # its session ends with it
        assert third.reset(seed=1) == "A safe with 1 dents."
        getattr(third, "open-safe")(code=1)  # and here with the episode
        fourth = world.make()
        assert fourth.reset(seed=2)
    finally:
        later.join()
        for _, one in started:
            one.kill()
            one.wait()


@pytest.mark.slow
def test_the_server_of_a_package_lives_as_long_as_its_host(package):
    program = (
        "import os, sys, json; from wm_plugin.worlds.worlds import load; world = load('openenv:echo1').make(); "
        "print(json.dumps([world.reset(seed=1), world.step(message='hi'), world.get_reward(), world._server.url]), flush=True); "
        "os.kill(os.getpid(), 9)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(package), str(servers.TESTS.parent)])}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    first, seen, reward, url = json.loads(done.stdout)
    assert first == "echoed_message: Echo1 environment ready!\nmessage_length: 0"
    assert (seen, reward) == ("echoed_message: hi\nmessage_length: 2", 0.2)
    deadline = time.monotonic() + 10
    while servers.answers(url) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not servers.answers(url)
