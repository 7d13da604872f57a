"""`wm data convert`, `inspect`, `filter` and `expand` from flags to files."""

import json
from itertools import islice
from typing import Any

import pytest

from wm_plugin.cli.data import filter as filter_verb
from wm_plugin.data.filter import NAMES
from wm_plugin.data.host_dumps import warnings
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.data.transitions import read_transitions

CALL = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
ROW = {
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "42"},
        {"role": "assistant", "content": "It is 42."},
        {"role": "user", "content": "Thanks."},
    ],
    "id": 7,
}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(ROW) + "\nnot json\n" + json.dumps({**ROW, "id": 8}) + "\n")
    return path


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_convert_counts_what_was_read_and_what_was_not(wm, source, tmp_path):
    out, rejects = tmp_path / "out.jsonl", tmp_path / "out.rejects.jsonl"
    assert wm.json("data", "convert", source, "--out", out) == {
        "trajectories": 2,
        "turns": 4,
        "transitions": 4,
        "observations": {"tool": 2, "user": 2, "environment": 0},
        "rejected": 1,
        "rejected_by_reason": {"not JSON": 1},
        "without_schemas": 2,
        "files": 1,
        "out": str(out),
        "rejects": str(rejects),
        "notes": warnings(2, {}),
        "ok": True,
    }
    (reject,) = rows(rejects)
    assert (reject["file"], reject["row"], reject["raw"]) == ("rollouts.jsonl", 1, "not json")
    assert "not JSON" in reject["reason"]


def test_a_folder_and_the_summary_for_people(wm, source, tmp_path):
    why = tmp_path / "why.jsonl"
    text = wm.text("data", "convert", source.parent, "--out", tmp_path / "out.jsonl", "--rejects", why)
    for line in ("trajectories: 2", "  user: 2", "rejected: 1", "  not JSON: 1", f"rejects: {why}"):
        assert f"{line}\n" in text


@pytest.mark.parametrize(
    ("row", "code", "note"),
    [({"messages": 5}, 1, "--format names the format"), ({"messages": ROW["messages"][:2]}, 0, "nothing follows")],
)
def test_what_may_be_read_wrongly_is_said(wm, tmp_path, row, code, note):
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    arguments = ("data", "convert", tmp_path / "x.jsonl", "--out", tmp_path / "y.jsonl", "--format", "openai")
    assert note in wm.text(*arguments, code=code)


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ({"tools": []}, "context.tools: there is no such field; there is task, action_space, initial_state, "),
        ({"action_space": "x"}, "context.action_space: Input should be a valid tuple"),
    ],
)
def test_a_field_that_does_not_fit_is_named(wm, tmp_path, context, reason):
    (tmp_path / "x.jsonl").write_text(json.dumps({"turns": [], "context": context, "version": 1}) + "\n")
    wm("data", "convert", tmp_path / "x.jsonl", "--out", tmp_path / "y.jsonl")
    said = json.loads((tmp_path / "y.rejects.jsonl").read_text())["reason"]
    assert said.startswith(reason)
    assert "pydantic" not in said
    assert "\n" not in said


def test_strict_stops_and_writes_nothing(wm, source, tmp_path):
    line = wm.error("data", "convert", source, "--out", tmp_path / "out.jsonl", "--strict")
    assert line.startswith("wm: rollouts.jsonl, row 1: not JSON")
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.jsonl"]


def test_expand_with_a_split_by_task(wm, source, tmp_path):
    wm("data", "convert", source, "--out", tmp_path / "out.jsonl")
    arguments = ("data", "expand", tmp_path / "out.jsonl", "--out", tmp_path / "t.jsonl", "--validation-share", 0.5)
    result = wm.json(*arguments)
    assert result["transitions"] + result["validation"] == 4
    sides = [{row["task_id"] for row in rows(tmp_path / name)} for name in ("t.jsonl", "t.validation.jsonl")]
    assert sides[0] | sides[1] == {"7", "8"}
    assert not sides[0] & sides[1]


def test_the_filters_of_a_method(wm, tmp_path):
    step = {"kind": "environment", "text": "Nothing happens."}
    turns = [{"action": {"text": word}, "observations": [step]} for word in ("jump", "fly")]
    (tmp_path / "s.jsonl").write_text(json.dumps({"turns": turns, "context": {}, "version": 1}) + "\n")
    arguments = ("data", "filter", tmp_path / "s.jsonl", "--out", tmp_path / "f.jsonl")
    for flags, method, left in (((), "rwml", 0), (("--for", "word2world"), "word2world", 2)):
        result = wm.json(*arguments, *flags)
        assert (result["method"], result["transitions"]) == (method, left)
    assert "1 trajectories name no domain" in wm.text(*arguments)


def test_pools_are_all_of_what_is_left_each_task_in_one(wm, tmp_path):
    source, out = tmp_path / "rows.jsonl", tmp_path / "kept.jsonl"
    source.write_text("".join(json.dumps({**ROW, "task_id": f"task {number}"}) + "\n" for number in range(200)))
    pools = {tmp_path / "sft.jsonl": 0.75, tmp_path / "rl.jsonl": 0.25}
    flags = [word for pool, share in pools.items() for word in ("--pool", f"{pool}={share}")]
    result = wm.json("data", "filter", source, "--out", out, "--for", "word2world", *flags)
    found = [{row["task_id"] for row in rows(pool)} for pool in pools]
    assert result["pools"] == {str(pool): len(tasks) for pool, tasks in zip(pools, found, strict=True)}
    assert not found[0] & found[1]
    assert found[0] | found[1] == {row["task_id"] for row in rows(out)}
    assert len(found[0]) == pytest.approx(150, abs=25)


def test_filter_says_what_each_filter_took(wm, source, tmp_path):
    wm("data", "convert", source, "--out", tmp_path / "out.jsonl")
    arguments = ("data", "filter", tmp_path / "out.jsonl", "--out", tmp_path / "f.jsonl")
    result = wm.json(*arguments, "--filters", "too_short,duplicates")
    assert result["taken"] == {"too_short": 0, "duplicates": 1}  # two rows that differ in their ids alone
    assert (result["trajectories"], result["transitions"]) == (1, 2)
    assert all(f"`{name}`" in filter_verb.filter.__doc__ for name in NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("convert nowhere.jsonl --out x.jsonl", "nowhere.jsonl: No such file or directory"),
        ("convert {source} --out x.csv", "x.csv: write a name that ends in .jsonl or .parquet"),
        ("convert {source} --out x.jsonl --format tau", "'tau'; did you mean 'tau2'?"),
        ("convert {source} --out x.jsonl --workers 99999999999999999999", "--workers is 99999999999999999999"),
        ("expand {source} --out x.jsonl --turns some", '"some" for --turns'),
        ("expand {source} --out x.jsonl --history-tokens 5", "--tokenizer PATH go together"),
        ("expand {source} --out x.jsonl --tokenizer t", "--tokenizer PATH go together"),
        ("expand {source} --out x.jsonl --history 2 --history-tokens 5", "leave one of them"),
        ("filter {source} --out x.jsonl --for rwml --filters retries", "leave one of them"),
        ("filter {source} --out x.jsonl --for x", '"x" for --for'),
        ("filter {source} --out x.jsonl --pool sft.jsonl", "--pool 'sft.jsonl': write FILE=SHARE"),
        ("filter {source} --out x.jsonl --pool a.jsonl=0.6 --pool b.jsonl=0.5", "1.1 in all"),
        ("filter {source} --out x.jsonl --filters retry", "'retry'; did you mean 'retries'?"),
        ("filter {source} --out x.jsonl --failure (", "'(' is no regular expression"),
        ("inspect missing.jsonl", "missing.jsonl"),
        ("inspect {source} {source}", "named twice"),
        ("inspect {source} --samples -1", "--samples is -1"),
    ],
)
def test_mistakes_are_one_line(wm, source, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in wm.error("data", *arguments.format(source=source).split())
    assert not list(tmp_path.glob("x*"))


def test_the_table_and_the_page(wm, source, tmp_path):
    pytest.importorskip("jinja2")
    source.write_text(json.dumps(ROW))
    text = wm.text("data", "inspect", source, "--html", tmp_path / "p.html")
    assert "4 (2 to 7, 95% up to 7)" in text
    assert "turn information: " in text
    assert "It is 42." in (tmp_path / "p.html").read_text()


def test_datasets_side_by_side(wm, source, tmp_path):
    source.write_text(json.dumps(ROW))
    expanded = tmp_path / "t.jsonl"
    wm("data", "expand", source, "--out", expanded)
    scores = [
        {"trajectory": one.trajectory, "turn": one.turn, "call": one.observation.call, "easy": not number, "kept": True}
        for number, one in enumerate(read_transitions(expanded))
    ]
    (tmp_path / "t.easy.jsonl").write_text("".join(json.dumps(one) + "\n" for one in scores))
    figures = wm.json("data", "inspect", source, expanded)["datasets"]
    assert [figures[str(path)]["transitions"] for path in (source, expanded)] == [2, 2]
    assert [figures[str(path)]["trajectories"] for path in (source, expanded)] == [1, 0]
    assert figures[str(expanded)]["easy_share"] == 0.5
    assert "easy_share" not in figures[str(source)]
    (tmp_path / "t.easy.jsonl").write_text(json.dumps(scores[0]))
    assert "t.easy.jsonl has the scores of other transitions" in wm.text("data", "inspect", expanded)
    (tmp_path / "t.easy.jsonl").write_text("mine")
    assert "t.easy.jsonl: not what wm data easy writes" in wm.error("data", "inspect", expanded)


SIMULATION = {
    "id": "a",
    "task_id": "1",
    "messages": [
        {"role": "assistant", "content": "Hi, who are you?"},
        {"role": "user", "content": "Jo Doe."},
        {"role": "assistant", "tool_calls": [{"id": "x", "name": "find", "arguments": {"name": "Jo Doe"}}]},
        {"role": "tool", "id": "x", "requestor": "assistant", "content": '{"id": "abc123", "orders": [17]}'},
        {"role": "assistant", "content": "Found you."},
        {"role": "user", "content": "Good."},
    ],
}
TAU = {
    "info": {"environment_info": {"domain_name": "shop", "policy": "Be kind."}},
    "tasks": [{"id": "1", "user_scenario": {"instructions": {"known_info": "You are Jo Doe."}}}, {"id": "2"}],
    "simulations": [SIMULATION, {**SIMULATION, "id": "b", "task_id": "2"}],
}


@pytest.fixture
def tau(tmp_path):
    path = tmp_path / "tau2.json"
    path.write_text(json.dumps(TAU))
    return path


@pytest.fixture
def tokenizer(tmp_path):
    """A token a word."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    path = tmp_path / "tokenizer"
    transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(path)
    return path


def test_values_become_schemas_and_profiles_are_told(wm, tau, tmp_path):
    out = tmp_path / "f.jsonl"
    plain = wm.json("data", "filter", tau, "--out", out)
    assert not {"masked", "profiles"} & set(plain)
    assert "abc123" in out.read_text()
    flags = ("--filters", "too_short", "--mask-values", "--profile")
    result = wm.json("data", "filter", tau, "--out", out, *flags)
    assert (result["trajectories"], result["masked"], result["profiles"]) == (2, 2, 1)
    first, second = rows(out)
    assert "abc123" not in out.read_text()
    assert first["turns"][1]["observations"][0]["data"] == {"schema": True}
    assert "You are Jo Doe." in first["context"]["simulation_instruction"]
    assert second["context"]["simulation_instruction"] == ""


@pytest.mark.host
def test_history_in_tokens(wm, tau, tokenizer, tmp_path):
    out = tmp_path / "t.jsonl"
    for limit, lengths in ((5, [0, 0, 0]), (6, [0, 1, 0]), (8, [0, 1, 1]), (14, [0, 1, 2])):
        # the greeting and its reply have 4 + 2 words; the call and its result, `find {"name": "Jo Doe"}`, 4 + 4
        wm.text("data", "expand", tau, "--out", out, "--history-tokens", limit, "--tokenizer", tokenizer)
        assert [len(transition.history) for transition in islice(read_transitions(out), 3)] == lengths
    expand = ("data", "expand", tau, "--out", tmp_path / "none.jsonl", "--history-tokens")
    assert "history_tokens is -1" in wm.error(*expand, "-1", "--tokenizer", tokenizer)
    assert "--tokenizer ./nowhere: no tokenizer" in wm.error(*expand, 5, "--tokenizer", "./nowhere")


@pytest.mark.host
def test_lengths_in_tokens_also_of_half_a_surrogate_pair(wm, tokenizer, tmp_path):
    texts = (("user", "a"), ("assistant", "b"), ("user", "x\ud800 y z"), ("assistant", "b"), ("user", "c"))
    source = tmp_path / "half.jsonl"
    source.write_text(json.dumps({"messages": [{"role": role, "content": text} for role, text in texts]}))
    figures = wm.json("data", "inspect", source, "--tokenizer", tokenizer)["datasets"][str(source)]
    assert (figures["unit"], figures["observation_length"]["max"]) == ("tokens", 3)
    assert wm.error("data", "inspect", source, "--tokenizer", tmp_path).startswith("wm: --tokenizer")


def answer(call: int, *calls: str) -> Turn:
    action = Action(text="go", calls=tuple(Call(name=name) for name in calls))
    return Turn(action=action, observations=(Observation(kind="tool", text="x", tool="f", call=call),))


GOOD = answer(0, "f")
EMPTY = Turn(action=Action(), observations=(Observation(kind="environment", text="x"),))

# ordinary rows with something missing
ODD: list[dict[str, Any]] = [
    {"turns": (EMPTY, EMPTY)},
    {"turns": ()},
    {"turns": (answer(-1, "f"), GOOD)},
    {"turns": (answer(-1), GOOD)},
    {"turns": (answer(7, "f"), GOOD)},
    {"turns": (GOOD, GOOD), "context": Context(action_space=({"function": "f"},))},
    {"turns": (GOOD, GOOD), "context": Context(action_space=({"name": ["f"]}, {}))},
    {"turns": (GOOD, GOOD), "context": Context(action_space=({"name": "f", "description": "\ud800"},))},
    {"turns": (Turn(action=Action(text="hi"), actor="user"),)},
    {"turns": (GOOD, GOOD)},
]
BUILD = ("build", "--host", "trl", "--as")


@pytest.mark.parametrize(
    "verb",
    [
        ("filter",),
        ("filter", "--mask-values", "--profile"),
        ("expand",),
        ("inspect",),
        *((*BUILD, kind) for kind in ("imitation", "rft", "rwml", "rwml-sft", "word2world")),
        *((*BUILD, kind, "--prompts", "mcp") for kind in ("agentworld", "agentworld-sft", "cpt")),
    ],
    ids=" ".join,
)
def test_odd_rows_go_through_every_verb(wm, tmp_path, verb):
    source = tmp_path / "x.jsonl"
    source.write_bytes(b"".join(Trajectory(success=True, **row).to_bytes() + b"\n" for row in ODD))
    out = () if verb == ("inspect",) else ("--out", tmp_path / "out.jsonl")
    printed = wm.text("data", verb[0], source, *verb[1:], *out)
    assert str(len(ODD)) in printed if verb == ("inspect",) else (tmp_path / "out.jsonl").stat().st_size


@pytest.mark.parametrize("verb", ["convert", "inspect", "filter", "expand", "build --as imitation --host trl"])
def test_an_empty_name_is_not_the_current_folder(wm, source, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    name, *flags = verb.split()
    out = ("--html", "o.html") if name == "inspect" else ("--out", "o.jsonl")
    for sources in ([""], [source, ""] if name in ("convert", "inspect") else [""]):
        wm.error("data", name, *sources, *flags, *out)
    assert sorted(tmp_path.iterdir()) == [source]
