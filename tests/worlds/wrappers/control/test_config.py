"""What a config may say, and what is answered to what it may not."""

import pytest

from wm_plugin.errors import UserError
from wm_plugin.worlds.wrappers.control import PERTURBATIONS, ControlConfig

ERROR = {"name": "error", "rate": 0.1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (3, "control is 3; write fields"),
        ({}, "control.perturbations is missing; write e.g. [{name: error, rate: 0.1}]"),
        ({"perturbations": []}, "control.perturbations is []; write e.g."),
        ({"perturbation": []}, "control has no field 'perturbation'; did you mean 'perturbations'?"),
        ({"perturbations": 3}, "control.perturbations is 3; write e.g. ["),
        ({"perturbations": [ERROR], "seed": "x"}, "control.seed is 'x'; write a whole number"),
        ({"perturbations": [ERROR], "guarded": 3}, "control.guarded is 3; write true or false"),
        ({"perturbations": [ERROR], "worlds": 3}, "control.worlds is 3; write names"),
        ({"perturbations": ["error"]}, "control.perturbations[0] is 'error'; write e.g. ["),
        ({"perturbations": [{"name": "eror"}]}, "control.perturbations[0].name is 'eror'; did you mean 'error'?"),
        ({"perturbations": [{"rate": 1}]}, "control.perturbations[0].name is None; there is 'error', "),
        (
            {"perturbations": [ERROR, {"name": "error", "rat": 1}]},
            "control.perturbations[1] has no field 'rat'; did you mean 'rate'?",
        ),
        ({"perturbations": [{"name": "error"}]}, "control.perturbations[0].rate is missing"),
        ({"perturbations": [{**ERROR, "rate": 1.5}]}, "control.perturbations[0].rate is 1.5; write a share"),
        (
            {"perturbations": [{**ERROR, "turns": [1]}]},
            "control.perturbations[0].turns are for perturbations of single calls",
        ),
        ({"perturbations": [{"name": "style", "turns": [1]}]}, "control.perturbations[0].turns are for"),
        (
            {"perturbations": [{"name": "error", "turns": [0]}]},
            "control.perturbations[0].turns[0] is 0; write whole numbers",
        ),
        (
            {"perturbations": [{**ERROR, "kinds": ["timeut"]}]},
            "control.perturbations[0].kinds[0] is 'timeut'; did you mean 'timeout'?",
        ),
        ({"perturbations": [{**ERROR, "tools": [3]}]}, "control.perturbations[0].tools[0] is 3; write a list of texts"),
        ({"perturbations": [{"name": "paginate"}]}, "control.perturbations[0].tools is missing; write the lookups"),
        ({"perturbations": [{"name": "paginate", "tools": "f", "size": 0}]}, "control.perturbations[0].size is 0;"),
        ({"perturbations": [{"name": "withhold"}]}, "control.perturbations[0].texts is empty, and so is column"),
        ({"perturbations": [{"name": "tease", "words": 0}]}, "control.perturbations[0].words is 0;"),
        (
            {"perturbations": [{"name": "latency", "rate": 1, "seconds": [2, 1]}]},
            "control.perturbations[0].seconds is [2, 1];",
        ),
        (
            {"perturbations": [{"name": "style", "form": "jsn"}]},
            "control.perturbations[0].form is 'jsn'; did you mean 'json'?",
        ),
        ({"perturbations": [ERROR], "curriculum": 3}, "control.curriculum is 3; write fields"),
        (
            {"perturbations": [ERROR], "curriculum": {"by": "steps"}},
            "control.curriculum.by is 'steps'; did you mean 'step'?",
        ),
        (
            {"perturbations": [ERROR], "curriculum": {"stps": 3}},
            "control.curriculum has no field 'stps'; did you mean 'steps'?",
        ),
        (
            {"perturbations": [ERROR], "curriculum": {"every": 3}},
            "control.curriculum.every is not of by: step; leave it out",
        ),
        (
            {"perturbations": [ERROR], "curriculum": {"steps": 0}},
            "control.curriculum.steps is 0; write a whole number >= 1",
        ),
        (
            {"perturbations": [ERROR], "curriculum": {"by": "success", "above": 0.1}},
            "control.curriculum.below is 0.3, more than above, 0.1",
        ),
    ],
)
def test_what_does_not_fit(values, message):
    with pytest.raises(UserError) as error:
        ControlConfig.read(values, "control")
    assert str(error.value).startswith(message), error.value
    assert "\n" not in str(error.value)


WHOLE = {
    "seed": 5,
    "guarded": False,
    "evaluation": True,
    "worlds": ["grid"],
    "curriculum": {"by": "success", "start": 0.5},
    "perturbations": [
        ERROR,
        {"name": "latency", "turns": [2], "seconds": [1, 2]},
        {"name": "withhold", "texts": ["x"]},
    ],
}


def test_a_config_as_a_mapping_is_the_same_config():
    config = ControlConfig.read(WHOLE, "control")
    assert config.as_mapping() == WHOLE
    assert ControlConfig.read(config.as_mapping(), "control") == config
    assert hash(config) == hash(ControlConfig.read(WHOLE, "control"))
    assert (config.of("grid"), config.of("sql")) == (True, False)


def test_what_leaves_an_expert_its_way():
    def preserves(*entries):
        return ControlConfig.read({"perturbations": list(entries)}, "control").preserves_oracle

    assert preserves(ERROR, {"name": "paginate", "tools": "f"}, {"name": "style"}, {"name": "latency", "rate": 0.5})
    assert not preserves({"name": "error", "rate": 1})
    assert not preserves(ERROR, {"name": "tease"})
    assert {name for name, one in PERTURBATIONS.items() if not one.preserves} == {"withhold", "tease"}
