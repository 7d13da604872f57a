"""One server that sends back its caller's key in every form, at every place where a server's text can land: no form is there."""

import html
import json
import logging
import os
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("aiohttp")

from support.keys import forms
from support.openai_server import completion
from support.serving import Handler, serving
from wm_plugin.cli import main
from wm_plugin.client.server import Server
from wm_plugin.errors import UserError
from wm_plugin.rewards.embedding import EmbeddingReward
from wm_plugin.rewards.judge import JudgeReward
from wm_plugin.runtime import secrets

KEY = "abCD/efgh+ij-kl9876=="
FORMS = forms(KEY)
ECHO = "\n".join(f"{name}: {form} ." for name, form in FORMS.items())


class Echo(Handler):
    """Answers well, or refuses; in the text, the headers and the names of fields."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == f"Bearer {KEY}"
        refused = body["model"].partition("refuses ")[2]
        reply = f"<think>\n{ECHO}\n</think>\n\n<next_state>\n{ECHO}\n</next_state>\n" + '{"score": 0.5}'
        message = {"role": "assistant", "content": reply}
        if "tools" in body:
            arguments = json.dumps({"direction": ECHO})
            message["tool_calls"] = [
                {"id": KEY, "type": "function", "function": {"name": "move", "arguments": arguments}}
            ]
        value = {**completion(message), KEY: 1, **FORMS}
        data = ECHO.encode() if refused else json.dumps(value).encode()
        self.send_response(int(refused or 200))
        self.send_header("Set-Cookie", f"is {KEY.rstrip('=')} it=1; Path=/")  # a name that no cookie may have
        self.send_header("Set-Cookie", f"a=1; Expires={KEY}; Domain={KEY}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def url(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(Echo) as address:
        yield address.replace("127.0.0.1", "localhost")  # cookies of numbers are not read


def assert_clean(text: str) -> None:
    for form in FORMS.values():
        for written in (form, json.dumps(form)[1:-1], html.escape(form), form[len(form) // 2 - 6 :][:12]):
            assert written not in text


def test_errors_logs_figures_and_caches(url, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    quick = {"base_url": url, "max_retries": 0, "backoff": 0.001}
    texts = []
    for status in ("", "refuses 400", "refuses 401", "refuses 500"):
        settings = {**quick, "model": status or "answers"}
        judge = JudgeReward(settings, cache=str(tmp_path / f"{status}.db"), max_failure_share=1)
        embedding = EmbeddingReward(settings["model"], base_url=url, server={"max_retries": 0})
        for call in (
            lambda settings=settings: Server(**settings).complete([[{"role": "user", "content": "a"}]]),
            lambda judge=judge: judge(["a"], ["b"], prompts=["c"]),
            lambda embedding=embedding: embedding(["a"], ["b"]),
        ):
            try:
                reply = call()
                texts.append(repr(reply))
                assert not status or not isinstance(reply[0], str)
            except (UserError, RuntimeError) as error:
                texts.append(str(error))
                logging.getLogger(__name__).warning("a call failed: %s", error)
        texts += [repr(judge.figures), repr(judge.server.figures), repr(embedding.figures)]
    assert any(isinstance(text, str) and "[key]" in text for text in texts)
    for text in (*texts, caplog.text):
        assert_clean(text)
    kept = [path for path in tmp_path.iterdir() if path.stat().st_size]
    assert kept
    for path in kept:
        assert_clean(path.read_bytes().decode(errors="replace"))


def outputs(folder: Path) -> str:
    return "\n".join(path.read_bytes().decode(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file())


def test_files_of_predictions_and_pages(url, tmp_path, capsys):
    pytest.importorskip("jinja2")
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}] * 3}
    Path("rows.jsonl").write_text(json.dumps(row))
    served = ["--server", url, "--server-model", "m", "--prompts", "rwml"]
    best = ["lab", "best", "rows.jsonl", *served, "--judge", "rouge", "--threshold", "-9", "--n", "2"]
    assert main.main([*best, "--out", "best.jsonl"]) == 0
    assert main.main(["data", "convert", "best.jsonl", "--out", "converted.jsonl"]) == 0
    assert main.main(["data", "inspect", "converted.jsonl", "--html", "page.html"]) == 0
    assert main.main([*best, "--server-model", "refuses 401", "--out", "x.jsonl"]) == 2
    assert "[key]" in outputs(tmp_path)
    printed = capsys.readouterr()
    for text in (outputs(tmp_path), printed.out, printed.err):
        assert_clean(text)


@pytest.mark.host  # the schemas of tools
def test_files_of_rollouts(url, tmp_path, capsys):
    pytest.importorskip("jinja2")
    for model in ("m", "refuses 400"):
        main.main(
            ["env", "rollout", "grid", "--policy", url, "--model", model, "--count", "1", "--out", f"{model}.jsonl"]
        )
    main.main(["data", "inspect", "m.jsonl", "--html", "page.html"])
    assert {"m.jsonl", "refuses 400.rejects.jsonl", "page.html"} <= set(os.listdir())
    for name in os.listdir():
        if Path(name).is_file():
            assert "[key]" in Path(name).read_text() or name == "refuses 400.jsonl"
    printed = capsys.readouterr()
    for text in (outputs(tmp_path), printed.out, printed.err):
        assert_clean(text)


@pytest.mark.parametrize(
    ("name", "value", "held"),
    [
        ("HF_TOKEN", "hf_AbcDefGhi", True),
        ("AWS_SECRET_ACCESS_KEY", "wJalr/UtnFEMI+K7MDENG", True),
        ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE", True),
        ("aws_session_token", "FwoGZXIvYXdzEBY=", True),
        ("GITHUB_PAT", "github_pat_11A", True),
        ("PGPASSWORD", "correct horse", True),
        ("OPENAI_API_KEY_2", "sk-abcdefgh1234", True),
        ("MAX_TOKENS", "1000000", False),
        ("TOKENIZERS_PARALLELISM", "false-or-true1", False),
        ("TOKEN_TYPE", "bearer", False),
        ("SIZE_KEY", "1234567", False),
        ("CERT_KEY", "/usr", False),
        ("COMPAT", "legacy-1234567", False),
    ],
)
def test_variables_of_the_environment(monkeypatch, name, value, held):
    monkeypatch.setattr(secrets, "_forms", set())
    monkeypatch.setattr(secrets, "_pattern", None)
    monkeypatch.setattr(os, "environ", {name: value})
    secrets.hold_environment()
    assert (secrets.redact(f"it is {value}.") == "it is [key].") is held


@pytest.mark.parametrize("form", FORMS)
def test_what_surrounds_a_key_stays(form):
    secrets.hold(KEY)
    kept = secrets.redact(f"before: {FORMS[form]} ; after")
    assert kept.startswith("before: ")
    assert kept.endswith(" ; after")
    assert secrets.redact(kept) == kept


SPECIAL = {letter for letter in KEY if not letter.isalnum()}
ESCAPES = {
    "PHP": KEY.replace("/", "\\/"),
    "PHP in a text": json.dumps(KEY.replace("/", "\\/")),
    ".NET": "".join(f"\\u{ord(letter):04X}" if letter in SPECIAL else letter for letter in KEY),
    "decimal HTML": "".join(f"&#{ord(letter)};" if letter in SPECIAL else letter for letter in KEY),
    "hexadecimal HTML": "".join(f"&#x{ord(letter):X};" if letter in SPECIAL else letter for letter in KEY),
    "URL twice": quote(quote(KEY, safe="")),
    "UTF-16": KEY.encode("utf-16").decode(errors="replace"),
    "hex": KEY.encode().hex(),
}


@pytest.mark.parametrize("form", ESCAPES)
def test_escapes_hide_no_key(form):
    secrets.hold(KEY)
    kept = secrets.redact_escaped(f"before: {ESCAPES[form]} ; \ud800 after")
    assert "[key]" in kept
    assert kept.startswith("before: ")
    assert kept.endswith(" after")
    assert KEY[5:9] not in kept
    assert secrets.redact_escaped("50% &lt; \\u0041") == "50% &lt; \\u0041"


def test_a_key_with_backslashes_is_found_in_escapes():
    secrets.hold(key := 'ab\\cd/"ef\\')
    assert secrets.redact_escaped(json.dumps(json.dumps({"a": key})).replace("/", "\\/")).count("[key]") == 1


def test_a_word_in_the_place_of_a_key_is_none(monkeypatch):
    for number, word in enumerate(("default", "Disabled", "placeholder")):
        monkeypatch.setenv(f"A{number}_TOKEN", word)
        secrets.hold(word)
    secrets.hold_environment()
    text = "the default of a placeholder is disabled"
    assert secrets.redact(text) == text


def test_ordinary_texts_stay():
    secrets.hold(KEY, "sk-1234567")
    for text in ("50% &lt; 3&4 \\u0041", "\ud800é", "ask 12 34 56", ""):
        assert secrets.redact(text) == text
    assert secrets.redact("a SK-1234567 b") == "a [key] b"
