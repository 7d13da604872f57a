"""What of the state a simulated environment shows the world model, and hidden contexts by hand, by its config."""

import json

import pytest

pytest.importorskip("transformers")

from support.openai_server import OpenAIServer
from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.start import task_of
from wm_plugin.worlds.wordle import WordleEnvironment
from wm_plugin.worlds.wrappers.simulated import simulated
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

pytestmark = pytest.mark.host
ROW = {"word": "crane"}
HIDDEN = "The hidden word is crane."


def asked(**fields):
    """What the world model is asked about a guess, and what the agent sees."""
    with OpenAIServer(reply=lambda body: "Green.") as server:
        config = SimulationConfig.read({"url": server.base_url, "model": "m", "cache": False, **fields}, "simulation")
        environment = simulated(WordleEnvironment, config)()
        seen = f"{environment.reset(**ROW)} {environment.act('slate')}"
        (body,) = server.bodies
    return body["messages"][0]["content"], seen


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [("all", True), ("none", False), ("initial-state", False), (["summary"], True), (("permissions",), False)],
)
def test_the_parts_that_a_config_names_are_shown(hidden, shown):
    system, seen = asked(hidden=hidden)
    assert (HIDDEN in system) is shown
    assert "crane" not in seen


def test_a_file_by_hand_is_for_the_world_model_alone(tmp_path):
    file = tmp_path / "contexts.json"
    file.write_text(json.dumps({task_of(ROW): {"final_state": "The word was said."}, "*": {"summary": "Nothing."}}))
    system, seen = asked(context_file=str(file))
    assert "# Final state that success requires (the agent does not see it)\nThe word was said." in system
    assert HIDDEN in system
    assert "The word was said." not in seen


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden": "sumary"}, "simulation.hidden: there is no part 'sumary' of the state; did you mean 'summary'"),
        ({"hidden": 5}, "simulation.hidden is 5"),
        ({"context_file": 5}, "simulation.context_file is 5; write a text"),
    ],
)
def test_mistakes_are_named(fields, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        SimulationConfig.read({"url": "http://localhost:1/v1", "model": "m", **fields}, "simulation")
