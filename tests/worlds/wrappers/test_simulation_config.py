"""What a config may say of simulated environments, and what is said where it does not fit."""

import pytest

from wm_plugin.errors import UserError
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

SERVER = {"url": "http://localhost:1/v1", "model": "world"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "simulation is []; write fields"),
        ({"url": "http://localhost:1/v1"}, "simulation.model is missing"),
        ({**SERVER, "temprature": 1}, "simulation has no field 'temprature'; did you mean 'temperature'"),
        ({**SERVER, "max_tokens": 0}, "simulation.max_tokens is 0; write a whole number >= 1"),
        ({**SERVER, "max_tokens": 1.5}, "simulation.max_tokens is 1.5; write a whole number >= 1"),
        ({**SERVER, "seed": True}, "simulation.seed is True; write a whole number >= 0"),
        ({**SERVER, "patience": float("nan")}, "simulation.patience is nan; write a number >= 0"),
        ({**SERVER, "success": "predict"}, "simulation.success is 'predict'; did you mean 'predicted'"),
        ({**SERVER, "success": "rule"}, "simulation.rule and success: rule go together"),
        ({**SERVER, "rule": "a:b"}, "simulation.rule and success: rule go together"),
        ({**SERVER, "success": "verifier"}, "simulation.verifier and success: verifier go together"),
        ({**SERVER, "evaluation": "both"}, "simulation.evaluation is 'both'"),
        ({**SERVER, "worlds": 3}, "simulation.worlds is 3; write a list"),
        ({**SERVER, "cache": 3}, "simulation.cache is 3; write true, false or a path"),
        ({"model": "folder", "max_total_tokens": 9}, "simulation.max_total_tokens and parameters are of a server"),
    ],
)
def test_a_mistake_is_one_line(values, message):
    with pytest.raises(UserError) as error:
        SimulationConfig.read(values, "simulation")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_lists_of_a_file_and_what_is_equal():
    values = {**SERVER, "worlds": ["grid"], "closings": [], "parameters": {"top_k": 3}}
    config = SimulationConfig.read(values, "simulation")
    assert (config.worlds, config.closings) == (("grid",), ())
    assert config == SimulationConfig.read(values, "simulation")
    assert hash(config) == hash(SimulationConfig.read(values, "simulation"))
