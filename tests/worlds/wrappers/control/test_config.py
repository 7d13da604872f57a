"""What a config may say, and what is answered to what it may not."""

import pytest

from wm_plugin.errors import UserError
from wm_plugin.worlds.wrappers.control import PERTURBATIONS, ControlConfig

ERROR = {"name": "error", "rate": 0.1}


def entry(**fields):
    return {"perturbations": [fields]}


def curriculum(**fields):
    return {"perturbations": [ERROR], "curriculum": fields}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "control.perturbations is missing; write e.g. [{name: error, rate: 0.1}]"),
        ({"perturbations": []}, "control.perturbations is []; write e.g."),
        ({"perturbation": []}, "control has no field 'perturbation'; did you mean 'perturbations'?"),
        ({"perturbations": ["error"]}, "control.perturbations[0] is 'error'; write e.g. ["),
        ({"perturbations": [ERROR], "worlds": 3}, "control.worlds is 3; write names"),
        (entry(name="eror"), "control.perturbations[0].name is 'eror'; did you mean 'error'?"),
        (entry(rate=1), "control.perturbations[0].name is None; there is 'error', "),
        (entry(name="error", rat=1), "control.perturbations[0] has no field 'rat'; did you mean 'rate'?"),
        (entry(name="error"), "control.perturbations[0].rate is missing"),
        (entry(name="error", rate=1.5), "control.perturbations[0].rate is 1.5; write a share"),
        (entry(**ERROR, turns=[1]), "control.perturbations[0].turns are for perturbations of single calls"),
        (entry(name="style", turns=[1]), "control.perturbations[0].turns are for"),
        (entry(name="error", turns=[0]), "control.perturbations[0].turns[0] is 0; write whole numbers"),
        (entry(**ERROR, kinds=["timeut"]), "control.perturbations[0].kinds[0] is 'timeut'; did you mean 'timeout'?"),
        (entry(name="paginate"), "control.perturbations[0].tools is missing; write the lookups"),
        (entry(name="withhold"), "control.perturbations[0].texts is empty, and so is column"),
        (entry(name="latency", rate=1, seconds=[2, 1]), "control.perturbations[0].seconds is [2, 1];"),
        (curriculum(by="steps"), "control.curriculum.by is 'steps'; did you mean 'step'?"),
        (curriculum(every=3), "control.curriculum.every is not of by: step; leave it out"),
        (curriculum(by="success", above=0.1), "control.curriculum.below is 0.3, more than above, 0.1"),
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
