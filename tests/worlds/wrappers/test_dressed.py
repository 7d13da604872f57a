"""What hosts read of a class in a wrapper is what they read of the class itself."""

import inspect

import pytest

from wm_plugin.hosting.world import missing_columns, tool_methods, tool_names
from wm_plugin.worlds.kit.protocol import observers, tool_schema
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.control import config_of, controlled
from wm_plugin.worlds.wrappers.rewarded import rewarded
from wm_plugin.worlds.wrappers.simulated import is_simulated, simulated
from wm_plugin.worlds.wrappers.verified import VerifiedWorld, verified
from wm_plugin.worlds.wrappers.verify_config import VerifyConfig

pytestmark = pytest.mark.host  # schemas of tools are transformers'

MODEL = {"url": "http://localhost:1/v1", "model": "w"}
VERIFY = {"world_model": MODEL}
WRAPPERS = {
    "simulated": lambda kind: simulated(kind, dict(MODEL)),
    "controlled": lambda kind: controlled(kind, {"perturbations": [{"name": "error", "rate": 0.3}]}),
    "rewarded": lambda kind: rewarded(kind, rescale=True),
    "verified": lambda kind: verified(kind, VERIFY | {"tools": tool_names(kind)}),
}


@pytest.mark.parametrize("name", ["grid", "maze", "sql", "docs", "shop", "dialogue", "wordle"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_hosts_see_the_same_class(wrapper, name):
    real = load(name).environment
    if not hasattr(real, "get_reward"):
        pytest.skip("it has no reward")
    made = WRAPPERS[wrapper](real)
    assert made is WRAPPERS[wrapper](real)
    assert made is not real
    assert issubclass(made, real)
    for attribute in ("__name__", "__module__", "__qualname__", "__doc__"):
        assert getattr(made, attribute) == getattr(real, attribute)
    assert tool_names(made) == tool_names(real)
    assert tool_methods(made()).keys() == tool_methods(real()).keys()
    for tool in tool_names(real):
        assert tool_schema(getattr(made, tool)) == tool_schema(getattr(real, tool))
        assert inspect.signature(getattr(made, tool)) == inspect.signature(getattr(real, tool))
    assert inspect.signature(made.reset) == inspect.signature(real.reset)
    assert observers(made) == observers(real)
    assert missing_columns(made, []) == missing_columns(real, [])
    assert getattr(made, "irreversible", ()) == getattr(real, "irreversible", ())
    assert hasattr(made, "world_context") == hasattr(real, "world_context")
    assert is_simulated(made) is (wrapper == "simulated")
    assert (config_of(made) is not None) is (wrapper == "controlled")


def test_the_class_of_a_verified_world():
    shop = load("shop")
    config = VerifyConfig.read(VERIFY, "verify")
    assert VerifiedWorld(shop.spec, config=config).environment is verified(shop.environment, VERIFY)
