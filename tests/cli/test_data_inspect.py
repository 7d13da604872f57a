import json

import pytest

from wm_plugin.cli import main

ROW = {
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "a red box"},
    ],
    "task_id": "t",
}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    return path


def run(capsys, *arguments):
    code = main.main(["data", *map(str, arguments)])
    return code, capsys.readouterr()


def test_the_table_and_the_page(capsys, source, tmp_path):
    pytest.importorskip("jinja2")
    code, printed = run(capsys, "inspect", source, "--html", tmp_path / "p.html")
    assert code == 0
    assert "look" in printed.out
    assert "9 (9 to 9, 95% up to 9)" in printed.out
    assert "a red box" in (tmp_path / "p.html").read_text()


def test_datasets_side_by_side(capsys, source, tmp_path):
    expanded = tmp_path / "t.jsonl"
    assert run(capsys, "expand", source, "--out", expanded)[0] == 0
    (tmp_path / "t.easy.jsonl").write_text('{"easy": true}\n{"easy": false}\n{"easy": false}\n{"easy": false}\n')
    code, printed = run(capsys, "inspect", source, expanded, "--json")
    assert code == 0
    figures = json.loads(printed.out.splitlines()[-1])["datasets"]
    assert [figures[str(path)]["transitions"] for path in (source, expanded)] == [1, 1]
    assert [figures[str(path)]["trajectories"] for path in (source, expanded)] == [1, 0]
    assert figures[str(expanded)]["easy_share"] == 0.25
    assert "easy_share" not in figures[str(source)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl"], "missing.jsonl"),
        (["{source}", "{source}"], "named twice"),
        (["{source}", "--samples", "-1"], "--samples is -1"),
        (["{source}", "--html", "/dev/null/p.html"], "/dev/null is no folder"),
    ],
)
def test_bad_input_is_one_line(capsys, source, tmp_path, monkeypatch, arguments, message):
    pytest.importorskip("jinja2")
    monkeypatch.chdir(tmp_path)
    code, printed = run(capsys, "inspect", *(argument.format(source=source) for argument in arguments))
    assert code == 2
    assert message in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.host
def test_lengths_in_tokens(capsys, source, tmp_path):
    pytest.importorskip("transformers")
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path / "policy")
    make_model(tokenizer, 0).save_pretrained(tmp_path / "policy")
    code, printed = run(capsys, "inspect", source, "--tokenizer", tmp_path / "policy", "--json")
    assert code == 0
    figures = json.loads(printed.out.splitlines()[-1])["datasets"][str(source)]
    assert figures["unit"] == "tokens"
    assert figures["observation_length"]["max"] == len("a red box")  # a token a character
    code, printed = run(capsys, "inspect", source, "--tokenizer", tmp_path)
    assert code == 2
    assert printed.err.startswith("wm: --tokenizer")
