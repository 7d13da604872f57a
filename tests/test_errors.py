"""Messages: one line, whatever the value that they show."""

import re
from pathlib import Path

import pytest
import yaml

import wm_plugin
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.objectives import EchoConfig
from wm_plugin.rewards.make import make as make_reward
from wm_plugin.worlds.wrappers.control import ControlConfig

PACKAGE = Path(wm_plugin.__file__).parent
# 4.8 million values in 400 bytes; with some more bytes a `repr` of it never ends
ALIASES = ", ".join(
    ["&x0 [a, a, a, a, a, a, a, a, a]", *(f"&x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 7))]
)
MANY = yaml.safe_load(f"[{ALIASES}]")
# what a message shows whole: texts, of a type that was checked before
TEXTS = {
    *(
        "args.keep",
        "self.unit",
        "self.kind",
        "seed[:40]",
        "str(out)",
        "name",
        "model.model_name_or_path",
        "path",
        "mode",
    ),
    "actor.strategy",
}


def test_a_value_is_shown_in_part():
    assert shown(MANY) == "[['a', 'a', 'a', 'a', 'a', 'a', 'a', 'a'..."
    assert shown({"b": 1, "a": [{}, ()], "c": {"d": {"e": {"f": {"g": 1}}}}}).startswith(
        "{'b': 1, 'a': [{}, ()], 'c': {'d':"
    )
    assert shown("x\n" * 100) == "'" + "x\\n" * 13 + "..."
    assert shown(10**5000) == "int"
    assert shown("a\ud800") == "'a\\ud800'"
    assert nearest(MANY, ["b"]) == "; there is 'b'"


def refusals():
    for name in EchoConfig.model_fields:
        yield f"EchoConfig {name}", lambda name=name: EchoConfig(**{"coeff": 0.1, name: MANY})
    yield "TurnBudget", lambda: TurnBudget.read(MANY, "turn_budget")
    yield "TurnBudget start", lambda: TurnBudget.read({"start": MANY, "every": 1})
    for name in ("perturbations", "curriculum", "seed"):
        yield f"ControlConfig {name}", lambda name=name: ControlConfig.read({name: MANY}, "control")
    for spec in (MANY, {"path": "rouge", "kwargs": MANY}, {"path": "rouge", "kwargs": {"variant": MANY}}):
        yield f"a reward {shown(spec)}", lambda spec=spec: make_reward(spec)


@pytest.mark.parametrize("refusal", [pytest.param(make, id=name) for name, make in refusals()])
def test_no_setting_is_written_whole(refusal):
    with pytest.raises(UserError) as error:
        refusal()
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


def test_messages_show_settings_by_shown():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert set(re.findall(r"\bis \{([^{}]+)!r", text)) <= TEXTS, path
        assert not re.search(r"![rs]:\.?[0-9]", text), f"{path}: it writes the value whole, and cuts then"
