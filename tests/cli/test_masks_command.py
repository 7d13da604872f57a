import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.data.write import write as write_trajectories
from wm_plugin.errors import install
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.objectives.echo import PRESETS

pytestmark = pytest.mark.host

BOARD = "#...\n.A..\n...G\n....>"
CALL = {"type": "function", "function": {"name": "move", "arguments": {"direction": "R"}}}
COMPLETION = [
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "move", "content": "#...\n..A.\n...G\n....>"},
    {"role": "assistant", "content": "no"},
]
ROW = {"prompt": [{"role": "user", "content": BOARD}], "completion": COMPLETION}
IDS = {"completion_ids": [1, 2], "spans": [[0, 1, "tool", "move", True]]}
IDS_OF = ("completion_ids", "prompt_ids")


def named(name):
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": {}}}]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def write(tmp_path):
    def write(*rows, name="rollouts.jsonl"):
        path = tmp_path / name
        path.write_text(
            "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
        return str(path)

    return write


def spans(rollout):
    return [(s["kind"], s["tool"], s["text"], s["weight"]) for s in rollout["spans"]]


EXPECTED = [
    ("prompt", None, BOARD + ":", 0.0),
    ("policy", None, "R", 0.0),
    ("content", "move", COMPLETION[1]["content"], 1.0),
    ("scaffold", "move", ":", 0.0),
    ("policy", None, "no<|im_end|>", 0.0),
]


@pytest.mark.parametrize("row", [ROW, {"messages": ROW["prompt"] + COMPLETION}], ids=["completion", "messages"])
def test_messages(wm, write, tokenizer, row):
    path = write(row, "\n", row)
    result = wm.json("masks", path, "--tokenizer", tokenizer)
    assert [rollout["source"] for rollout in result["rollouts"]] == [f"{path}:1", f"{path}:3"]
    assert spans(result["rollouts"][0]) == EXPECTED
    assert result["rollouts"][0]["prompt_tokens"] == len(BOARD + ":")
    assert result["tools"] == {"move": {"tokens": 40, "weight": 1.0, "environment_tokens": 42}}
    assert result["notes"] == []


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_trajectories_of_wm_env_and_wm_data(wm, tmp_path, tokenizer, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    call, observed = Call(name="move", arguments={"direction": "R"}), COMPLETION[1]["content"]
    turns = (
        Turn(
            action=Action(calls=(call,)), observations=(Observation(kind="tool", text=observed, tool="move", call=0),)
        ),
        Turn(action=Action(text="no")),
    )
    path = tmp_path / f"t.{suffix}"
    write_trajectories([Trajectory(turns=turns, context=Context(initial_state=BOARD))], path)
    result = wm.json("masks", str(path), "--tokenizer", tokenizer)
    assert spans(result["rollouts"][0]) == EXPECTED


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_calls_that_failed_are_those_of_the_record(wm, tmp_path, tokenizer, host):
    """verl's words for a failure are not TRL's, and a tool may say the words of a failure itself."""
    texts = {"trl": "{'error': 'x'}", "verl": "Error executing tool 'move': x"}
    calls = [Call(name="move", arguments={"direction": "R"})] * 2
    observations = [
        Observation(kind="tool", text=texts[host], tool="move", call=index, error=failed)
        for index, failed in enumerate([True, False])
    ]
    turns = (Turn(action=Action(calls=tuple(calls)), observations=tuple(observations)),)
    path = tmp_path / "t.jsonl"
    write_trajectories([Trajectory(turns=turns, metadata={"host": host}, context=Context(initial_state=BOARD))], path)
    result = wm.json("masks", str(path), "--tokenizer", tokenizer)
    contents = [span for span in result["rollouts"][0]["spans"] if span["kind"] == "content"]
    assert [(span["failed"], span["weight"]) for span in contents] == [(True, 0.0), (False, 1.0)]
    assert result["notes"] == []


def test_only_a_line_end_ends_a_row(wm, write, tokenizer):
    row = {**ROW, "prompt": [{"role": "user", "content": "\u2028x\x0c\x85"}]}
    path = write(json.dumps(row, ensure_ascii=False), "\r\n", ROW)
    result = wm.json("masks", path, "--tokenizer", tokenizer)
    assert [rollout["source"] for rollout in result["rollouts"]] == [f"{path}:1", f"{path}:2"]


def test_token_ids_and_spans(wm, write, tokenizer):
    ids = make_tokenizer()("Rboard!").input_ids
    path = write({"completion_ids": ids, "spans": [[1, 7, "tool", "move", True]]})
    result = wm.json("masks", path, "--tokenizer", tokenizer)
    assert spans(result["rollouts"][0]) == [("policy", None, "R", 0.0), ("content", "move", "board!", 1.0)]


def test_parquet_as_trl_writes_it(wm, tmp_path, tokenizer):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    other = {"type": "function", "function": {"name": "look", "arguments": {"where": "up"}}}
    rows = [ROW, {**ROW, "completion": [{"role": "assistant", "content": "", "tool_calls": [other]}]}]
    path = tmp_path / "completions_00001.parquet"
    columns = {name: [row[name] for row in rows] for name in ("prompt", "completion")}
    pandas.DataFrame({"step": [1, 1], **columns, "advantage": [0.0, 0.0]}).to_parquet(path)
    result = wm.json("masks", str(path), "--tokenizer", tokenizer)
    assert spans(result["rollouts"][0]) == EXPECTED
    assert result["rollouts"][1]["source"].endswith("completions_00001.parquet, row 2")
    assert spans(result["rollouts"][1])[1] == ("policy", None, 'look{"where": "up"}', 0.0)

    pandas.DataFrame({"prompt": ["a"], "completion": ["b"]}).to_parquet(path)
    assert "row 1: 'prompt' is text" in wm.error("masks", str(path), "--tokenizer", tokenizer)
    path.write_text("no parquet")
    assert "cannot be read as parquet" in wm.error("masks", str(path), "--tokenizer", tokenizer)


def test_the_example_needs_nothing(wm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = wm.json("masks", "--example")
    assert result["tools"]["move"]["tokens"] > 20
    assert {span["kind"] for span in result["rollouts"][0]["spans"]} == {"prompt", "policy", "content", "scaffold"}
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_gets_one_line_a_span(wm, write, tokenizer):
    row = json.loads(json.dumps(ROW))
    row["completion"][1]["content"] = "[b]\x1b[31m " + "x" * 100
    lines = wm.text("masks", write(row), "--tokenizer", tokenizer).splitlines()
    assert lines[0].endswith(":1: 134 tokens, 109 of the environment, 108 count")
    assert lines[1].split()[:2] == ["0-21", "prompt"]
    assert lines[3].split()[:5] == ["22-130", "content", "move", "counts", "×1"]
    assert "[b][31m xxx" in lines[3]  # the tokenizer drops what it has no token for
    assert " … " in lines[3]
    assert len(lines[3]) < 120
    assert lines[-1].split() == ["move", "108", "1", "109"]


def test_a_terminal_gets_colours(wm, write, tokenizer, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    out = wm.text("masks", write(ROW), "--tokenizer", tokenizer)
    assert "\x1b[4;30;106m" in out  # underlined: it counts
    assert "legend:" in out


def test_html(wm, write, tokenizer, tmp_path):
    page = tmp_path / "out.html"
    result = wm.json("masks", write(ROW), "--tokenizer", tokenizer, "--html", str(page))
    assert result["html"] == str(page)
    assert page.read_text().count("wm-content wm-counts") >= 20
    assert wm.text("masks", write(ROW), "--tokenizer", tokenizer, "--html", page).splitlines()[-1] == str(page)


def weight(wm, tokenizer, path, *flags):
    return wm.json("masks", path, "--tokenizer", tokenizer, *flags)["tools"]["move"]["weight"]


def test_flags_and_configs_change_what_counts(wm, write, tokenizer, monkeypatch):
    path = write(ROW)
    assert weight(wm, tokenizer, path, "--only", "move,other") == 1.0
    assert weight(wm, tokenizer, path, "--only", '{"move": 0.3}') == 0.3
    assert weight(wm, tokenizer, path, "--only", "other") == 0.0
    block = write("alpha: 0.1\ntools: {move: 0.7}\n", name="echo.yaml")
    assert weight(wm, tokenizer, path, "--config", block) == 0.7
    assert weight(wm, tokenizer, path, "--config", block, "--only", "other") == 0.0
    trainer = write("learning_rate: 1.0e-6\necho_coeff: 0.1\necho_tools: other,more\n", name="trainer.yaml")
    assert weight(wm, tokenizer, path, "--config", trainer) == 0.0
    select = write("select: operator:lt\n", name="select.yaml")
    monkeypatch.setattr("operator.lt", lambda span, message: message["content"].startswith("?"))
    assert weight(wm, tokenizer, path, "--config", select) == 0.0
    notes = wm.json("masks", path, "--tokenizer", tokenizer, "--only", "mov,move")["notes"]
    assert notes == ["no result of 'mov' in these rollouts; did you mean 'move'?"]


def test_scaffold_and_errors(wm, write, tokenizer, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    row = json.loads(json.dumps(ROW))
    row["completion"][1]["content"] = "{'error': 'x'}"
    arguments = [write(row), "--tokenizer", tokenizer, "--chat-template", str(template)]
    nothing = wm.json("masks", *arguments)
    assert nothing["tools"]["move"]["tokens"] == 0
    assert any(span["failed"] for span in nothing["rollouts"][0]["spans"])
    assert [note.partition(" ")[0] for note in nothing["notes"] if not note.startswith("tokenizer")] == ["no", "1"]
    errors = wm.json("masks", *arguments, "--include-errors")
    assert errors["tools"]["move"]["tokens"] == len("{'error': 'x'}")
    everything = wm.json("masks", *arguments, "--include-errors", "--with-scaffold")
    assert everything["tools"]["move"]["tokens"] == len("[tool]{'error': 'x'}[assistant]")


def test_limit(wm, write, tokenizer):
    path = write(*[ROW] * 12)
    result = wm.json("masks", path, "--tokenizer", tokenizer)
    assert len(result["rollouts"]) == 10
    assert any("--limit 0" in note for note in result["notes"])
    result = wm.json("masks", path, "--tokenizer", tokenizer, "--limit", "0")
    assert len(result["rollouts"]) == 12
    assert result["notes"] == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{bad\n", "not JSON"),
        ("[1]\n", "list instead of an object"),
        ({"turns": 1, "context": {}, "version": 1}, "no trajectory: turns: "),
        ({"turns": [], "context": {}, "version": 99}, "no trajectory: written by a later release"),
        ({"trajectory": 3}, "no trajectory: "),
        ({"text": "x"}, "no 'prompt' (it has 'text'); write 'messages'"),
        ({"prompt": ROW["prompt"]}, "no 'completion'"),
        ({**ROW, "completion": "R"}, "'completion' is text"),
        ({**ROW, "completion": [{"content": "x"}]}, "message 1 is not an object with a 'role'"),
        ({**ROW, "completion": [{"role": "assistant", "tool_calls": "x"}]}, "'tool_calls' is not a list"),
        ({**ROW, "completion": [{"role": "assistant", "tool_calls": [{"function": 1}]}]}, "'function' of a call"),
        ({**ROW, "completion": [*COMPLETION, {"role": "user", "content": "x"}]}, "role 'user'"),
        ({"messages": ROW["prompt"]}, "does not begin with an assistant"),
        ({"completion_ids": [1]}, "belong together"),
        ({"completion_ids": [10**9], "spans": []}, "not a token id"),  # of this tokenizer
        ({"completion_ids": [1], "spans": [[0, 9, "tool", None, True]]}, "does not lie"),
        ({**ROW, "tools": [5]}, "'tools'"),
        ({**ROW, "tools": [{"function": None}]}, "(number 1) is not a JSON schema"),
        ({**IDS, "prompt_ids": "abc"}, "'prompt_ids' is"),
        *(({**IDS, name: [value]}, "not a token id") for name in IDS_OF for value in ("a", -1, 10**300, True)),
        ({**IDS, "completion_ids": "abc"}, "belong together"),
        ({**IDS, "completion_ids": None}, "no 'prompt'"),
        ({**IDS, "spans": None}, "belong together"),
        *(({**IDS, "spans": [value]}, "is not a span") for value in (5, "abcde", [0, 1, "tool", 5, True])),
        ({**IDS, "spans": [[0, 10**300, "tool", None, True]]}, "does not lie"),
        ('{"completion_ids": [1' + "0" * 400 + '], "spans": []}\n', "an integer of more than"),
        ({**ROW, "completion": [COMPLETION[0], {**COMPLETION[1], "name": ["a"]}]}, "message 2: the name of a tool"),
        ({**ROW, "completion": [named(["a"]), COMPLETION[1]]}, "message 1: the name of a tool is not text"),
        ({**ROW, "completion": [named(None), {"role": "tool", "content": "x"}]}, "tool message without a name"),
        ({**ROW, "completion": [*COMPLETION, {"role": "x" * 10**5, "content": "x"}]}, "role 'xxx"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(wm, write, tokenizer, row, said):
    path = write(ROW, row)
    err = wm.error("masks", path, "--tokenizer", tokenizer)
    assert f"{path}:2: " in err
    assert said in err
    assert len(err) < 600


def test_half_surrogates_are_replaced(wm, write, tokenizer):
    """JSON can write half of an emoji; no tokenizer takes it, and the hosts replace it, too."""
    half = "\ud83d"
    call = {"function": {"name": half, "arguments": json.dumps({"direction": half})}}
    messages = {
        "prompt": [{"role": "user", "content": half}],
        "completion": [
            {"role": "assistant", "content": half, "tool_calls": [call]},
            {"role": "tool", "name": half, "content": half, half: 1},
        ],
        "tools": [{"type": "function", "function": {"name": half, "description": half}}],
    }
    action = {"text": half, "calls": [{"name": "move", "arguments": {"direction": half}}]}
    observations = [{"kind": "tool", "text": half, "tool": "move", "call": 0}]
    turns = [{"action": action, "observations": observations}]
    trajectory = {"context": {"initial_state": half}, "turns": turns, "version": 1}
    of_ids = {**IDS, "spans": [[0, 1, half, half, True]]}
    path = write(messages, trajectory, {"trajectory": json.dumps(trajectory)}, of_ids)
    assert wm.text("masks", path, "--tokenizer", tokenizer).count("1 count") == 4


def test_null_is_a_column_that_a_row_does_not_have(wm, write, tokenizer):
    names = ("tools", "completion_ids", "prompt_ids", "messages", "trajectory")
    path = write({**ROW, **dict.fromkeys(names)}, {**IDS, "prompt_ids": None, "prompt": None})
    assert len(wm.json("masks", path, "--tokenizer", tokenizer)["rollouts"]) == 2


def test_missing_and_unreadable_inputs(wm, write, tokenizer, tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(b'{"\xe9"')
    named = ("--tokenizer", tokenizer)
    for words, said in (
        ((), "wm masks --example"),
        (("x.jsonl",), "--tokenizer PATH is missing"),
        (("x.jsonl", "--example"), "leave ROLLOUTS"),
        ((tmp_path / "x.jsonl", *named), "No such file"),
        ((tmp_path, *named), "is a directory"),
        ((write("\n", name="empty.jsonl"), *named), "holds no rollouts"),
        ((write(ROW), "--tokenizer", tmp_path / "none"), "no such folder"),
        ((write(ROW), "--tokenizer", tmp_path), "no tokenizer"),
        ((tmp_path / "latin.jsonl", *named), "not UTF-8"),
    ):
        assert said in wm.error("masks", *words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("coef: 1\n", "no field 'coef'; did you mean 'coeff'?"),
        ("echo_coeff: -1\n", "coeff is -1"),
        ("a: [\n", "is not YAML"),
        ("a: 2001-99-99", "is not YAML"),
        ("- 1\n", "holds no settings"),
        ("tools: '{a'\n", "write a list of names"),
        ("select: no_such_module:x\n", "no module 'no_such_module'"),
        ("5: 1\n", "no field 5"),
        ("null: 1\n", "no field None"),
        ("echo_coeff: 0.1\nchat_template_kwargs: 5\n", "chat_template_kwargs is 5; write a mapping"),
        ("echo_coeff: 0.1\nchat_template_kwargs: {5: 1}\n", "keywords must be strings"),
    ],
)
def test_bad_configs(wm, write, tokenizer, text, said):
    assert said in wm.error("masks", write(ROW), "--tokenizer", tokenizer, "--config", write(text, name="c.yaml"))


def test_a_template_that_trl_replaces_is_replaced_here_too(wm, write, tmp_path, monkeypatch):
    trl = pytest.importorskip("trl")
    from support.on_trl import make_tokenizer as make_byte_tokenizer

    template = Path(trl.__file__).parent / "chat_templates/qwen3.jinja"
    if not template.exists():
        pytest.skip(f"trl {trl.__version__} has no file of the template")
    tokenizer = make_byte_tokenizer()
    tokenizer.chat_template = template.read_text()
    tokenizer.save_pretrained(tmp_path)
    arguments = [write(ROW), "--tokenizer", str(tmp_path)]
    result = wm.json("masks", *arguments)
    assert result["tools"]["move"]["tokens"] == 20
    for name in [name for name in sys.modules if name == "wm_plugin.trl" or name.startswith("wm_plugin.trl.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "trl", None)
    err = wm.error("masks", *arguments)
    assert "not prefix-preserving" in err
    assert f"--chat-template FILE, or install TRL, which knows such templates: {install('trl')}" in err


def test_a_template_that_trl_refuses_is_noted_and_another_one_can_be_named(wm, write, tokenizer, tmp_path):
    pytest.importorskip("trl", minversion="1.5")
    from wm_plugin.trl.templates import MEND

    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    arguments = [write(ROW), "--tokenizer", tokenizer, "--chat-template"]
    (note,) = wm.json("masks", *arguments, str(template))["notes"]
    assert note.startswith(
        "tokenizer Qwen2Tokenizer on trl: TRL refuses the chat template for tool calls: it leaves out"
    )
    assert note.endswith(MEND)
    result = wm.json("masks", *arguments, "qwen3")  # TRL's variant of it for training
    assert "<tool_response>" in "".join(span["text"] for span in result["rollouts"][0]["spans"])
    assert not any("refuses" in note for note in result["notes"])
    assert "TRL ships no template of this name" in wm.error("masks", *arguments, "qwen99")


def test_coefficients_that_pull_equally_hard(wm, write, tokenizer):
    """A board with one token of scaffold after it, and a rollout without a result."""
    path = write(ROW, {**ROW, "completion": [{"role": "assistant", "content": "no"}]})
    assert "prime-rl" in wm.error("lab", "coefficient", path, "--tokenizer", tokenizer, "--from", "prime")
    result = wm.json("lab", "coefficient", path, "--tokenizer", tokenizer, "--from", "prime-rl", "--alpha", "0.2")
    board = len(COMPLETION[1]["content"])
    expected = {"blog": 0.2, "paper": 0.4, "prime-rl": 0.2, "verl-recipe": 0.4}
    expected |= {"rllm": 0.4 * (board + 1) / board, "openenv": 0.2 * (board + 1) / board}
    assert {row["preset"]: row["as strong"] for row in result["presets"]} == pytest.approx(expected)
    for name, fields in PRESETS.items():  # each pulls as hard as itself with its own coefficient
        result = wm.json("lab", "coefficient", path, "--tokenizer", tokenizer, "--from", name)
        own = next(row for row in result["presets"] if row["preset"] == name)
        assert own["as strong"] == pytest.approx(fields["coeff"])
        other = next(row for row in result["presets"] if row["preset"] == "blog")
        assert other["as strong"] == pytest.approx(fields["coeff"] * expected["blog"] / expected[name])
    assert "blog" in wm.text("lab", "coefficient", path, "--tokenizer", tokenizer, "--from", "paper")
    assert "--tokenizer PATH is missing" in wm.error("lab", "coefficient", path, "--from", "paper")
