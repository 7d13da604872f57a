import dataclasses
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from wm_plugin.errors import install
from wm_plugin.hosting import installation
from wm_plugin.hosting.checks import Check
from wm_plugin.hosting.hooks import Hook
from wm_plugin.runtime import patches

NOTHING = {"python": "3.11.0"} | dict.fromkeys(installation._PACKAGES)


def check(result, name):
    (found,) = (one for one in result["checks"] if one["name"] == name)
    return found


@pytest.fixture
def hosts(monkeypatch):
    def install(**versions):
        monkeypatch.setattr(installation, "versions", lambda: {**NOTHING, **versions})

    return install


def test_versions_of_what_is_absent_are_null(monkeypatch):
    real = installation.metadata.version

    def version(name):
        if name == "ray":
            raise installation.metadata.PackageNotFoundError(name)
        return real(name) if name == "torch" else "9"

    monkeypatch.setattr(installation.metadata, "version", version)
    found = installation.versions()
    assert found["ray"] is None
    assert found["torch"].startswith(tuple("123456789"))
    assert found["python"].startswith("3.")


def test_no_host_at_all_fails_and_says_how_to_install_one(wm, hosts):
    hosts()
    result = wm.json("doctor", code=1)
    assert result["ok"] is False
    assert result["checks"][0]["mend"] == f"{install('trl')}; or {install('verl')}"


@pytest.mark.parametrize(
    ("trl", "verl", "expected"),
    [("ok", None, 0), ("ok", "ok", 0), (None, "ok", 0), ("fail", "ok", 1), ("ok", "fail", 1)],
)
def test_hosts(wm, hosts, monkeypatch, trl, verl, expected):
    versions = {"trl": trl and "1.16", "verl": verl and "0.9"}
    hosts(**versions)
    for name, host_state in (("trl", trl), ("verl", verl)):
        module = types.ModuleType(f"wm_plugin.{name}.doctor")
        module.checks = lambda name=name, host_state=host_state: [Check(name, host_state, "detail", "mend")]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    result = wm.json("doctor", code=expected)
    assert result["ok"] is (expected == 0)
    for name, host_state in (("trl", trl), ("verl", verl)):
        assert check(result, name)["state"] == (host_state or "info")
        assert host_state or not check(result, name)["mend"]  # to install the other host would break this one


def test_a_host_that_cannot_be_imported_fails_with_the_reason(wm, hosts, monkeypatch):
    hosts(trl="9.9")
    monkeypatch.setitem(sys.modules, "wm_plugin.trl.doctor", None)
    detail = check(wm.json("doctor", code=1), "trl")["detail"]
    reason = "import of wm_plugin.trl.doctor halted; None in sys.modules"
    assert detail == f"9.9 is installed, but cannot be used (ModuleNotFoundError: {reason})"


def test_a_trl_that_is_too_old_is_said_before_it_is_imported(tmp_path):
    """TRL 0.24 fails for want of another package while it is imported."""
    for folder, name, text in (
        ("trl", "__init__.py", "raise ModuleNotFoundError(\"No module named 'mergekit'\")"),
        ("trl-0.24.0.dist-info", "METADATA", "Metadata-Version: 2.1\nName: trl\nVersion: 0.24.0\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    (tmp_path / "c.yaml").write_text("echo_coeff: 0.05\n")
    path = os.pathsep.join([str(tmp_path), str(Path(installation.__file__).parents[2])])
    variables = {**os.environ, "PYTHONPATH": path}
    for words, code in ((["train", "--config", str(tmp_path / "c.yaml")], 2), (["doctor"], 1)):
        command = [sys.executable, "-m", "wm_plugin", *words]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert f"trl 0.24.0 is outside the supported range >=1.0.0,<2; {install('trl')}" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_people_see_every_check_and_its_mend(wm, hosts, monkeypatch):
    hosts(trl="1.16")
    checks = [Check("trl", "ok", "fine"), Check("[b]x", "fail", "broken", "mend it")]
    monkeypatch.setattr(installation, "check_hosts", lambda _: checks)
    monkeypatch.setattr(installation, "check_recipes", lambda: Check("recipes", "ok", "a.yaml, b.yaml, c.yaml"))
    out = wm.text("doctor", code=1)
    assert "verl          not installed" in out
    assert "ok    trl: fine" in out
    assert "fail  [b]x: broken\n      → mend it" in out
    assert "recipes: 3 files in wm_plugin.recipes (wm doctor --json lists them)\n" in out
    assert out.endswith("Not ready: see the lines marked fail.\n")
    assert check(wm.json("doctor", code=1), "recipes")["detail"] == "a.yaml, b.yaml, c.yaml"


def test_recipes_are_listed_from_the_package(monkeypatch, tmp_path):
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl/echo.yaml").touch()
    (tmp_path / "trl/run.sh").touch()
    monkeypatch.setattr(installation.resources, "files", lambda _: tmp_path)
    assert installation.check_recipes() == Check("recipes", "ok", "trl/echo.yaml")
    (tmp_path / "trl/echo.yaml").unlink()
    assert installation.check_recipes().state == "warn"

    def absent(_):
        raise ModuleNotFoundError

    monkeypatch.setattr(installation.resources, "files", absent)
    assert "checkout" in installation.check_recipes().detail


# -- trl ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trl_doctor(monkeypatch, tmp_path):
    pytest.importorskip("trl")
    from wm_plugin.trl import doctor as trl_doctor

    # whoever runs the tests may have settings of accelerate's own
    monkeypatch.setattr(trl_doctor, "default_config", lambda: tmp_path / "default_config.yaml")
    return trl_doctor


@pytest.mark.host
def test_the_installed_trl_works(trl_doctor):
    found = {check.name: check for check in trl_doctor.checks()}
    assert found["trl"].state == found["trl hooks"].state == "ok"
    assert found["trl hooks"].detail == f"all {len(trl_doctor.support.HOOKS)} found"


OLD = ("Liger loss", "dapo normalisation", "environment_factory")


@pytest.mark.host
@pytest.mark.parametrize(
    ("trl", "transformers", "warned", "failed"),
    [
        ("1.16.0", "5.23.0", (), ()),
        ("1.9.1", "5.23.0", OLD[:1], ()),
        ("1.9.0", "5.23.0", OLD[:2], ()),
        ("1.0.0", "5.23.0", OLD, ()),
        ("1.16.0", "5.1.0", ("environment_factory", "tool calls"), ()),
        ("2.0.0", "5.23.0", (), ("trl",)),
        ("0.29.0", "5.23.0", OLD, ("trl",)),
    ],
)
def test_claims_follow_the_versions(trl_doctor, monkeypatch, trl, transformers, warned, failed):
    monkeypatch.setattr(trl_doctor.support, "versions", lambda: {"trl": trl, "transformers": transformers})
    monkeypatch.setattr(trl_doctor, "installed", lambda package: package != "jmespath")
    found = {one.name: one.state for one in trl_doctor.checks() if one.state != "ok"}
    assert found == dict.fromkeys(warned, "warn") | dict.fromkeys(failed, "fail")
    assert all(one.mend for one in trl_doctor.checks() if one.state != "ok")


@pytest.mark.host
def test_fsdp_that_a_cpu_will_not_have_is_a_line(wm, trl_doctor, monkeypatch, tmp_path):
    (tmp_path / "default_config.yaml").write_text("distributed_type: FSDP\n")
    monkeypatch.setattr(trl_doctor, "_has_gpu", lambda: False)
    out = wm.text("doctor")
    assert "warn  sharding: FSDP was asked for (in " in out
    assert "DDP runs: accelerate leaves FSDP out on a CPU\n      → run on GPUs" in out


@pytest.mark.host
def test_a_hook_that_is_gone_fails(trl_doctor, monkeypatch):
    monkeypatch.setattr(trl_doctor.support, "HOOKS", (Hook("trl", "GRPOTrainer.x"),))
    (gone,) = (one for one in trl_doctor.checks() if one.name == "trl hooks")
    assert (gone.state, "trl.GRPOTrainer.x is gone" in gone.detail) == ("fail", True)


@pytest.mark.host
def test_tokenizers(trl_doctor):
    import trl

    from support.on_trl import make_tokenizer
    from wm_plugin.lab.tiny.policy import make_tokenizer as make_policy_tokenizer

    templates = Path(trl.__file__).parent / "chat_templates"
    if not (templates / "qwen3_training.jinja").exists():
        pytest.skip(f"trl {trl.__version__} has no file of the template")
    tokenizer = make_tokenizer()
    assert trl_doctor.check_tokenizer(tokenizer).state == "ok"
    assert "its own" in trl_doctor.check_tokenizer(tokenizer).detail
    tokenizer.chat_template = (templates / "qwen3.jinja").read_text()  # TRL trains with a variant of it
    assert trl_doctor.rollout_template(tokenizer) == (templates / "qwen3_training.jinja").read_text()
    trained = trl_doctor.check_tokenizer(tokenizer)
    assert (trained.state, "training template" in trained.detail) == ("ok", True)
    assert "do not list the tools" not in trained.detail
    own = trl_doctor.check_tokenizer(make_policy_tokenizer())  # its template and its way of parsing calls are its own
    assert (own.state, "do not list the tools" in own.detail) == ("ok", True)
    assert trl_doctor.check_tokenizer(types.SimpleNamespace(is_fast=False)).state == "fail"


LEFT_OUT = "it leaves out the names of tools, names of arguments, values of arguments"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WRITES_CALLS = CHATML.replace("{{ m.content }}", "{{ m.content }}{{ (m.tool_calls or []) | tojson }}")
ROLES = "{% for m in messages %}{{ m.role }}{% endfor %}"


@pytest.mark.host
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (CHATML, LEFT_OUT),  # what it renders can be followed to the token, and no call is in it
        (ROLES, f"{LEFT_OUT}, results of tools"),
        ("{{ raise_exception('no tools') }}", "(TemplateError: no tools)"),
        (WRITES_CALLS, "Unrecognized chat template, failed to add response schema"),
        (None, "the tokenizer has none"),
    ],
    ids=["no calls", "roles alone", "fails", "unknown calls", "none"],
)
def test_a_template_that_trl_refuses_is_not_ok(wm, trl_doctor, tmp_path, template, reason):
    pytest.importorskip("trl", minversion="1.5")  # before it, it asked less
    from support.on_trl import make_tokenizer
    from wm_plugin.trl.templates import MEND

    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    refused = trl_doctor.check_tokenizer(tokenizer)
    assert (refused.state, refused.mend) == ("fail", MEND)
    assert refused.detail.startswith("TRL refuses the chat template for tool calls: ")
    assert reason in refused.detail
    assert "\n" not in refused.detail
    assert getattr(tokenizer, "response_template", None) is None  # the question changes nothing
    tokenizer.save_pretrained(tmp_path)
    result = wm.json("doctor", "--tokenizer", tmp_path, code=1)
    assert result["ok"] is False
    assert [one["state"] for one in result["checks"] if one["name"].endswith(" on trl")] == ["fail"]
    wm.json("doctor", "--tokenizer", tmp_path, "--chat-template", "qwen2_5")  # as it says


@pytest.mark.host
def test_a_tokenizer_and_a_template_by_file_or_a_name_of_trls(wm, trl_doctor, tmp_path):
    from support.on_trl import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path)
    result = wm.json("doctor", "--tokenizer", tmp_path)
    assert any(one["name"].startswith("tokenizer ") and one["state"] == "ok" for one in result["checks"])
    assert set(result["checks"][0]) == {field.name for field in dataclasses.fields(Check)}
    mine = tmp_path / "mine.jinja"
    mine.write_text(ROLES)
    wm.json("doctor", "--tokenizer", tmp_path, "--chat-template", mine, code=1)
    said = wm.error("doctor", "--tokenizer", tmp_path, "--chat-template", "qwen2_6")
    assert "--chat-template is 'qwen2_6', which cannot be read (No such file or directory), and TRL ships no" in said
    assert "did you mean 'qwen" in said
    mine.write_bytes(b"\xff")
    assert "is not UTF-8" in wm.error("doctor", "--tokenizer", tmp_path, "--chat-template", mine)
    assert "name one with --tokenizer" in wm.error("doctor", "--chat-template", "qwen2_5")


@pytest.mark.host
def test_calls_are_parsed_as_the_new_template_writes_them(trl_doctor):
    pytest.importorskip("trl", minversion="1.5")
    from wm_plugin.lab.tiny.policy import make_tokenizer as make_policy_tokenizer
    from wm_plugin.trl.templates import put_template, read_template

    tokenizer = make_policy_tokenizer()
    put_template(tokenizer, ROLES)  # TRL does not know it: the tokenizer's own way stays
    assert tokenizer.response_template is not None
    put_template(tokenizer, read_template("qwen2_5", "x"))
    assert tokenizer.response_template is None  # the trainer puts TRL's in


@pytest.fixture
def patched(monkeypatch, tmp_path, hosts):
    """A patch of either host, and a folder that holds both hosts' file."""

    def set_up(text, header="", **versions):
        header += "Releases: ==1.0\nProblem: it breaks.\nHits: all.\n\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"
        for host in ("trl", "verl"):
            (tmp_path / f"{host}-x.patch").write_text(f"Package: {host}\n{header}")
        (tmp_path / "x.py").write_text(text)
        made = patches.load(tmp_path)
        monkeypatch.setattr(patches, "load", lambda: made)
        monkeypatch.setattr(patches, "site_of", lambda package: tmp_path)
        hosts(**versions)
        return tmp_path

    return set_up


def patch_of(wm):
    """The one line about patches."""
    (found,) = (one for one in wm.json("doctor", code=None)["checks"] if one["name"].startswith("patch"))
    return found


@pytest.mark.parametrize(("text", "words"), [("a\n", "not applied: it breaks."), ("b\n", "applied: it breaks.")])
def test_patches_that_are_applied_or_worth_it_are_listed(wm, patched, text, words):
    folder = patched(text, trl="1.0")
    found = patch_of(wm)
    assert (found["name"], found["state"], found["detail"]) == ("patch trl-x", "info", words)
    command = f"worth it for all: patch -p1 -d {folder} < {folder}/trl-x.patch"
    assert found["mend"] == (command if text == "a\n" else "")
    assert (folder / "x.py").read_text() == text  # nothing is applied


def test_patches_that_mend_nothing_here_are_one_line(wm, patched):
    patched("c\n", trl="2.0", verl="2.0")
    assert patch_of(wm)["detail"] == "nothing to mend here: trl-x (for trl ==1.0), verl-x (for verl ==1.0)"


@pytest.mark.parametrize(("beside", "hit"), [(None, False), ("1.12.0", False), ("1.13.0", True), ("1.14.0.dev0", True)])
def test_a_patch_may_be_worth_it_only_beside_another_package(wm, patched, beside, hit):
    patched("a\n", header="Beside: peft>=1.13\n", verl="1.0", peft=beside)
    found = patch_of(wm)
    assert bool(found["mend"]) is hit
    assert hit or found["detail"] == "nothing to mend here: verl-x (for verl ==1.0 beside peft>=1.13)"
