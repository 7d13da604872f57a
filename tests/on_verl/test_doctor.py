"""What `wm doctor` says where verl is installed."""

import json

import pytest

pytest.importorskip("verl")

from wm_plugin.cli.main import main
from wm_plugin.hosting.hooks import Hook
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.verl import doctor, support


def by_name(checks):
    return {check.name: check for check in checks}


def test_an_installation_that_works_and_one_without_an_engine(monkeypatch):
    names = ("verl", "verl hooks", "verl plug-in", "verl's needs", "rollout engine")
    monkeypatch.setattr(doctor, "ENGINES", ("torch",))
    assert {check.name: check.state for check in doctor.checks()} == dict.fromkeys(names, "ok")
    monkeypatch.setattr(doctor, "ENGINES", ("no-such-engine", "nor-this"))
    check = by_name(doctor.checks())["rollout engine"]
    detail = "neither no-such-engine nor nor-this is installed, and main_ppo samples with one of them"
    assert (check.state, check.detail) == ("info", detail)
    assert "on a CPU none is needed: VERL_PLATFORM=cpu" in check.mend


@pytest.mark.parametrize(
    ("policy", "state"), [("auto", "ok"), ("none", "fail"), ("wm_plugin", "ok"), ("other", "fail")]
)
def test_verl_can_be_told_to_leave_the_plug_in_out(policy, state, monkeypatch):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", policy)
    monkeypatch.delenv("VERL_USE_EXTERNAL_MODULES", raising=False)
    assert by_name(doctor.checks())["verl plug-in"].state == state
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "wm_plugin.verl")
    assert by_name(doctor.checks())["verl plug-in"].state == "ok"


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "UNDECLARED", ("torch", "no-such-package"))
    monkeypatch.setattr(support, "HOOKS", (Hook("verl.trainer.ppo.v1.trainer_base", "PPOTrainer.gone"),))
    monkeypatch.setattr(doctor.verl, "__version__", "0.8.0")
    checks = by_name(doctor.checks())
    assert checks["verl"].detail == "0.8.0 is outside the supported range >=0.9.1,<0.10"
    assert "PPOTrainer.gone is gone" in checks["verl hooks"].detail
    assert checks["verl's needs"].detail == "verl imports no-such-package, which are not installed"
    assert all(checks[name].mend for name in ("verl", "verl hooks", "verl's needs"))


def test_a_tokenizer():
    tokenizer = make_tokenizer()
    check = doctor.check_tokenizer(tokenizer, "qwen2")
    assert (check.state, "do not list the tools" in check.detail) == ("ok", True)
    tokenizer.chat_template = "{%- for m in messages -%}{{- m.role -}}{%- endfor -%}"
    check = doctor.check_tokenizer(tokenizer, "qwen2")
    assert check.state == "fail"
    assert "does not write a tool result's content" in check.detail
    assert "custom_chat_template" in check.mend


@pytest.mark.parametrize(
    ("template", "model_type", "reason"),
    [
        ("{{ raise_exception('no tools') }}", "qwen2", "TemplateError: no tools"),
        ("{% for m in messages %}{{ m.content ~ messages | length }}{% endfor %}", "qwen2", "suffix diff failed"),
        (None, "gemma4", "<|tool_response>"),  # verl joins turns of this family by a token that is not there
        (None, "qwen2_vl", "requires a processor"),
    ],
)
def test_what_verl_refuses_is_one_line(template, model_type, reason):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    check = doctor.check_tokenizer(tokenizer, model_type)
    assert check.state == "fail"
    assert check.detail.startswith("verl refuses the chat template for tool results: ")
    assert reason in check.detail
    assert "\n" not in check.detail


def test_a_template_for_one_call_a_turn_is_a_warning():
    tokenizer = make_tokenizer()
    once = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    tokenizer.chat_template = "{% for m in messages %}" + once + "[{{ m.content }}]{% endfor %}"
    check = doctor.check_tokenizer(tokenizer, "qwen2")
    assert check.state == "warn"
    assert check.detail.endswith("TemplateError: one call at once")
    assert check.mend.endswith("multi_turn.max_parallel_calls=1")


def test_the_command(capsys, tmp_path):
    make_tokenizer().save_pretrained(tmp_path)
    code = main(["doctor", "--json", "--tokenizer", str(tmp_path)])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0, result
    names = {check["name"] for check in result["checks"]}
    assert {"verl", "verl hooks", "tokenizer Qwen2Tokenizer on verl"} <= names
