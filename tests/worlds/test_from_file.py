"""Simulated environments without a class: what hosts see of a file, what the world model is told, and what a file may not say."""

import copy
import json

import pytest
import yaml

import wm_plugin.worlds.agents.rollout as rollout
from support.openai_server import OpenAIServer
from wm_plugin.cli.main import main
from wm_plugin.data import read
from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.hosting.config import RunConfig
from wm_plugin.hosting.world import tool_names
from wm_plugin.worlds import ENVIRONMENTS
from wm_plugin.worlds.from_file import dataset_rows
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.simulated import simulated

pytestmark = pytest.mark.host  # schemas of tools are transformers'

KINDS = {
    "words": {"type": "string", "description": "Some words: of the title, or none."},
    "order": {"type": "integer", "description": "Its number."},
    "price": {"type": "number", "description": "In euros."},
    "gift": {"type": "boolean", "description": "Whether it is one."},
    "extra": {"type": "object", "description": "More fields."},
    "books": {"type": "array", "items": {"type": "string"}, "description": "Titles."},
    "lots": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}, "description": "Numbers."},
    "how": {"type": "string", "enum": ["card", "cash"], "description": "How it is paid."},
    "stars": {"type": "integer", "enum": [1, 2, 3], "description": "A grade."},
}
FIND = {
    "name": "find_order",
    "description": "Find an order.\n\nBy its number.",
    "parameters": {"type": "object", "properties": {"order": KINDS["order"]}, "required": ["order"]},
}
ALL = {
    "name": "sell-book",
    "description": "Sell a book.",
    "parameters": {"type": "object", "properties": KINDS, "required": ["stars", "words"]},
}
DESK = {
    "summary": "The order desk of a bookshop.",
    "instruction": "You work at the desk of a bookshop.",
    "tools": [FIND, {"type": "function", "function": ALL}, {"name": "close", "description": "Close the desk."}],
    "initial_state": "The desk is open.",
    "world_context": "Order 5 holds two books.",
    "tasks": [
        {"query": "Refund order 5.", "id": "a", "verifier": {"regex": "^refunded$"}},
        {"query": "Close the desk.", "id": "b", "initial_state": "It is late.", "world_context": "Nobody is there."},
    ],
}


def written(tmp_path, values, name="desk.yaml"):
    path = tmp_path / name
    path.write_text(json.dumps(values) if name.endswith("json") else yaml.safe_dump(values, sort_keys=False))
    return str(path)


@pytest.mark.parametrize("name", ["desk.yaml", "desk.json"])
def test_hosts_see_the_schemas_of_the_file(tmp_path, name):
    path = written(tmp_path, DESK, name)
    model = simulated(ENVIRONMENTS.get(path), {"url": "http://localhost:1/v1", "model": "w"})
    assert tool_names(model) == ["close", "find_order", "sell-book"]
    for made in (FIND, ALL):
        schema = tool_schema(getattr(model, made["name"]))["function"]
        assert schema["parameters"]["properties"] == made["parameters"]["properties"]
        assert list(schema["parameters"]["properties"]) == list(made["parameters"]["properties"])
        assert sorted(schema["parameters"]["required"]) == sorted(made["parameters"]["required"])
        assert (schema["name"], schema["description"]) == (made["name"], made["description"])
    assert load(path).summary == "The order desk of a bookshop"


def test_an_episode_begins_as_the_file_says_and_the_world_model_answers(tmp_path):
    path = written(tmp_path, DESK)
    rows = {row["task_id"]: row for row in dataset_rows(2, path=path)}
    rule = {"success": "rule", "rule": "wm_plugin.worlds.scenarios:verified"}
    with OpenAIServer(lambda body: "Two books, paid by card.") as server:
        world = simulated(ENVIRONMENTS.get(path), {"url": server.base_url, "model": "w", "evaluation": "real", **rule})
        actions = [
            Action(calls=(Call(name="find_order", arguments={"order": 5}),)),
            Action(calls=(Call(name="find_order", arguments={"number": 5}),)),
            Action(text="refunded"),
        ]
        played = rollout.replay(world(), rows["a"], actions)
        assert [seen.text for seen in played.turns[0].observations] == ["Two books, paid by card."]
        assert played.turns[1].observations[0].error  # the host's, as for a class of one's own
        assert (played.reward, played.success, played.metadata["environment"]) == (1.0, True, path)
        late = rollout.replay(world(), rows["b"], actions[:1])
    assert played.context.initial_state == (
        "You work at the desk of a bookshop.\n\nRefund order 5.\n\nThe desk is open."
    )
    assert late.context.initial_state.endswith("Close the desk.\n\nIt is late.")
    asked = [body["messages"][0]["content"] for body in server.bodies]
    assert "Order 5 holds two books." in asked[0]
    assert "Nobody is there." in asked[-1]
    assert "Find an order." in asked[0]


def test_a_file_of_tools_alone_is_one_task(tmp_path):
    path = written(tmp_path, {"tools": [FIND]})
    assert [row["prompt"] for row in dataset_rows(2, path=path)] == [[{"role": "user", "content": ""}]] * 2
    world = simulated(ENVIRONMENTS.get(path), {"url": "http://localhost:1/v1", "model": "w"})()
    assert world.reset(**dataset_rows(1, path=path)[0]) == ""
    with pytest.raises(UserError, match="has 0 held-out scenarios"):
        dataset_rows(1, held_out=True, path=path)


def test_a_rollout_from_the_command_line(tmp_path, capsys):
    path, out = written(tmp_path, DESK), tmp_path / "played.jsonl"
    simulation = tmp_path / "sim.yaml"
    common = ["env", "rollout", path, "--policy", "random", "--count", "3", "--max-turns", "2", "--out", str(out)]
    with OpenAIServer(lambda body: "It is done. [SUCCESS]") as server:
        simulation.write_text(yaml.safe_dump({"simulation": {"url": server.base_url, "model": "w"}}))
        assert main([*common, "--simulation", str(simulation)]) == 0
    played = list(read(out))
    assert len(played) == 3
    assert all(one.metadata["synthetic"] for one in played)
    assert {one.context.action_space[0]["function"]["name"] for one in played} == {"close"}
    assert any(one.success for one in played)
    capsys.readouterr()
    for arguments, message in (
        (common, "has tools and no world behind them; add simulation"),
        (
            [*common, "--simulation", str(simulation), "--verify", str(simulation)],
            "--verify checks actions before a real",
        ),
        ([*common, "--simulation", str(simulation), "--policy", "expert"], "has none to look into"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


def test_without_a_world_model_there_is_nothing_to_play(tmp_path):
    path = written(tmp_path, DESK)
    with pytest.raises(UserError, match="desk.yaml has tools and no world behind them; add simulation"):
        RunConfig.read({"environment": path}).classes()
    run = {"environment": {"desk": path}, "simulation": {"model": "w", "url": "http://localhost:1/v1", "worlds": []}}
    with pytest.raises(UserError, match="has tools and no world"):
        RunConfig.read(run).classes()
    with pytest.raises(UserError, match="has tools and no world"):
        load(path).make()


def changed(place, value):
    """The desk's file with another value at a place."""
    values = copy.deepcopy(DESK)
    *way, last = place
    part = values
    for step in way:
        part = part[step]
    part[last] = value
    return values


ORDER = ("tools", 0, "parameters", "properties", "order")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"is \[\]; write fields, e.g. tools"),
        (changed(["tool"], []), "has no field 'tool'; did you mean 'tools'"),
        (changed(["tools"], []), "write a list of JSON schemas"),
        (changed(["tools"], ["find"]), r"tools\[0\]: name is None"),
        (changed(["tools"], [{"function": 5}]), r"tools\[0\]: name is None"),
        (changed(["tools", 0, "name"], "reset"), r"tools\[0\]: name is 'reset'; write letters"),
        (changed(["tools", 0, "name"], "find order"), "name is 'find order'"),
        (changed(["tools", 0, "name"], "close"), r"tools\[2\]: there are two tools 'close'"),
        (changed(["tools", 0, "description"], ""), r"tools\[0\] \(find_order\): description of 'find_order' is ''"),
        (changed(["tools", 0, "parameters"], ["order"]), "parameters is"),
        (changed(["tools", 0, "parameters", "required"], ["number"]), "required is .*'number'.*, and hosts would tell"),
        (changed(ORDER, {"type": "integer"}), "description of 'order' is None"),
        (changed([*ORDER, "type"], "date"), "type of parameter order is 'date', and hosts would tell 'string'"),
        (changed([*ORDER, "type"], ["integer", "null"]), "type of parameter order is"),
        (changed([*ORDER, "minimum"], 1), "minimum of parameter order is 1, and hosts would tell None"),
        (changed([*ORDER, "description"], "One\nof two."), "write a type .* a description on one line"),
        (changed(ORDER[:-1], {"from": KINDS["order"]}), "a parameter is called 'from', which is no name in Python"),
        (changed(["tools", 0, "description"], "Find.\n\nReturns:\n    It."), "description is"),
        (changed(["observer"], "god"), "observer is 'god'"),
        (changed(["initial_state"], 5), "initial_state is 5; write a text"),
        (changed(["tasks"], "one"), "tasks is 'one'"),
    ],
)
def test_mistakes_are_named(tmp_path, values, message):
    path = written(tmp_path, values)
    with pytest.raises(UserError, match=message) as raised:
        ENVIRONMENTS.get(path)
    assert path in str(raised.value)
    assert "\n" not in str(raised.value)


def test_mistakes_in_tasks_and_files_that_are_none_are_named(tmp_path):
    with pytest.raises(UserError, match=r"tasks\[1\]: .* has no field 'queries'; did you mean 'query'"):
        dataset_rows(1, path=written(tmp_path, changed(["tasks", 1], {"queries": "x"})))
    with pytest.raises(UserError, match=r"none.yaml' cannot be read \(No such file"):
        ENVIRONMENTS.get(str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_text("tools: [")
    with pytest.raises(UserError, match="bad.yaml is not YAML"):
        ENVIRONMENTS.get(str(tmp_path / "bad.yaml"))
