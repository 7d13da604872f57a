"""Traces of other tools (ATIF, Responses, OpenTelemetry, OpenHands, mini-swe-agent) become the turns that they mean."""

import copy
import json
import random
from importlib import import_module
from typing import Any

import pytest

from support.formats import (
    ANSWERED,
    ASKED,
    ATIF,
    CALLED,
    DOCUMENTS,
    EVENTS,
    ITEMS,
    MINI,
    OPENHANDS,
    RESPONSES,
    SPANS,
    SYSTEM,
    action,
    call,
    parts,
    says,
    span,
    text,
    tool,
    user,
)
from support.fuzz import mutated
from wm_plugin.data import Trajectory, files
from wm_plugin.data.readers import FORMATS, read_rows
from wm_plugin.data.readers.base import Reject
from wm_plugin.data.transitions import expand
from wm_plugin.errors import UserError

TRACES = ("atif", "openhands", "minisweagent", "responses", "otel")


@pytest.fixture
def read(tmp_path):
    def rows(*values: Any, format: str = "auto", name: str = "x.jsonl") -> list[Trajectory | Reject]:
        path = tmp_path / name
        path.write_text("".join(json.dumps(value) + "\n" for value in values))
        return list(read_rows(path, format))

    return rows


def shown(trajectory: Any) -> list[Any]:
    """Each turn as its thought, text, calls and observations."""
    assert isinstance(trajectory, Trajectory), trajectory
    return [
        (
            turn.action.thought,
            turn.action.text,
            [(call.name, call.arguments) for call in turn.action.calls],
            [(one.kind, one.text, one.call, one.error, one.data) for one in turn.observations],
        )
        for turn in trajectory.turns
    ]


LS = [("run", {"command": "ls"})]
THANKS = ("user", "thanks", None, False, {})
INVALID = {"actions": 1, "invalid": 1}
COMMAND = "I look\n```bash\nls\n```"
# the turns of each document, its tools, task, success and reward, and what of the file is in the metadata
EXPECTED: dict[str, tuple[list[Any], list[str], str, bool | None, float | None, str]] = {
    "atif": (
        [
            ("hm", "I look", LS, [("tool", "a.py", 0, True, {})]),
            (None, "done", [], [("environment", "over", None, False, {}), THANKS]),
        ],
        *(["run"], "t", None, 0.5),
        '{"message_data": {"3": {"metrics": {"prompt_tokens": 3}}}, "agent": {"name": "terminus-2", "version": "2.0"}, '
        '"session_id": "s1", "host": "h"}',
    ),
    "responses": (
        [("hm", "I look", LS, [("tool", "a.py", 0, False, {})]), (None, "done", [], [THANKS])],
        *(["run"], "t", None, 1.0),
        '{"request": {"instructions": "Be kind.", "model": "m"}, "response": {"id": "resp", "object": "response", '
        '"usage": {"total_tokens": 3}}}',
    ),
    "otel": (
        [("hm", "I look", LS, [("tool", "a.py", 0, True, {})]), (None, "done", [], [])],
        *(["run"], "", None, None),
        '{"attributes": {"gen_ai.operation.name": "chat"}}',
    ),
    "openhands": (
        [
            (
                None,
                "I look",
                [("bash", {"command": "ls"}), ("bash", {"command": "pwd"})],
                [
                    ("tool", "a.py", 0, False, {"exit_code": 0}),
                    ("tool", "/w", 1, True, {}),
                    ("environment", "Parameter 'command' is missing", None, True, {**INVALID, "target": False}),
                ],
            ),
            (None, "done", [], [THANKS]),
        ],
        *(["bash"], "t", True, None),
        '{"test_result": {"report": {"resolved": true}}}',
    ),
    "minisweagent": (
        [
            (None, COMMAND, [], [("environment", "a.py", None, False, {"returncode": 0})]),
            (None, "no command", [], [("environment", "Write one command.", None, True, INVALID)]),
            (None, "I am done", [], []),
        ],
        *([], "", None, None),
        '"exit_status": "Submitted"',
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_the_turns_of_each_format(name, read):
    document = DOCUMENTS[name]
    (trajectory,) = read(*(document if isinstance(document, list) else [document]))
    turns, tools, task, success, reward, metadata = EXPECTED[name]
    assert shown(trajectory) == turns
    assert [tool["function"]["name"] for tool in trajectory.context.action_space] == tools
    assert (trajectory.context.task, trajectory.context.initial_state) == ("Be kind.", "hi")
    assert (trajectory.task_id, trajectory.success, trajectory.reward) == (task, success, reward)
    assert trajectory.source.format == name
    assert metadata in json.dumps(trajectory.metadata)


@pytest.mark.parametrize("name", FORMATS)
def test_one_reader_alone_takes_a_file(name, tmp_path):
    path = tmp_path / "12_x.json"
    for indent in (None, 2):
        path.write_text(json.dumps(DOCUMENTS[name], indent=indent))
        head = files.head(path)
        taken = [one for one in FORMATS if import_module(f"wm_plugin.data.readers.{one}").matches(head)]
        if name in TRACES:
            assert taken == [name, *(["openai"] if name == "minisweagent" else [])]  # tried in this order
        else:
            assert not {*taken} & {*TRACES}


# --- ATIF ---


def test_versions_of_atif(read):
    known = [f"ATIF-v1.{minor}" for minor in range(9)]
    rows = read(*({**ATIF, "schema_version": version} for version in [*known, "ATIF-v1.9", "ATIF-v2.0", "ATIF-v1.x"]))
    assert [isinstance(row, Trajectory) for row in rows] == [True] * 9 + [False] * 3
    assert {row.kind for row in rows[9:]} == {"later version"}
    assert rows[9].reason == "`schema_version` is 'ATIF-v1.9', known are ATIF-v1.0 to ATIF-v1.8"


def test_steps_of_atif_that_are_no_targets_media_and_subagents(read):
    document = copy.deepcopy(ATIF)
    document["steps"][2]["is_copied_context"] = True
    image = {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}
    ref = [{"trajectory_id": "s"}]
    document["steps"][3]["observation"]["results"] = [
        {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"content": [{"type": "text", "text": "a"}, image]},
        {"subagent_trajectory_ref": ref},
    ]
    document["steps"].append(
        {"step_id": 6, "source": "system", "message": "", "observation": {"results": [{"content": "reset"}]}}
    )
    document["subagent_trajectories"] = [{**ATIF, "trajectory_id": "s", "extra": {"reward": "1"}}]
    first, second = read(document)
    (_, _, _, copied), (_, _, _, observed) = shown(first)
    assert copied == [("tool", "a.py", 0, True, {"target": False})]
    assert [turn.train for turn in first.turns] == [False, True]
    assert [text for _, text, *_ in observed] == [
        "ab",
        json.dumps([{"type": "text", "text": "a"}, image]),
        "",
        "thanks",
        "reset",
    ]
    assert observed[2][4] == {"subagent_trajectory_ref": ref, "target": False}
    assert observed[4][4] == {"target": False}
    assert [kind for kind, *_ in observed] == ["environment"] * 3 + ["user", "environment"]
    assert [one.observation.text for one in expand([first])] == [observed[0][1], observed[1][1], "thanks"]
    assert (second.source.id, second.reward) == ("s", 1.0)


# --- Responses ---


@pytest.mark.parametrize("layout", ["lines", "array", "items", "response", "logged", "list"])
def test_items_without_a_record(layout, tmp_path):
    path = tmp_path / "x.json"
    items = [{"type": "message", "role": "user", "content": "hi"}, *ITEMS]
    value: Any = {
        "array": items,
        "items": {"items": items},
        "response": {"object": "response", "input": "hi", "output": ITEMS},
        "logged": {"request": {"input": "hi"}, "response": {"output": ITEMS}},
        "list": [items],
    }.get(layout)
    path.write_text("\n".join(map(json.dumps, items)) if layout == "lines" else json.dumps(value))
    (trajectory,) = read_rows(path, "responses" if layout == "list" else "auto")
    assert shown(trajectory) == EXPECTED["responses"][0]
    assert trajectory.context.initial_state == "hi"


def test_histories_that_the_next_one_continues_are_read_once(read):
    asked = {"type": "message", "role": "user", "content": "hi"}
    histories = [[asked, *ITEMS[:count]] for count in (3, 4, len(ITEMS))] + [[asked, *ITEMS[1:3]]]
    expected = EXPECTED["responses"][0]
    rollout = {"responses_create_params": {"input": []}, "response": {"output": histories}, "reward": 1.0}
    for said in (rollout, {"object": "response", "output": histories}):
        whole, rewritten = read(said)
        assert shown(whole) == expected
        assert (whole.reward, rewritten.reward) == (said.get("reward"),) * 2
        assert [turn[2] for turn in shown(rewritten)] == [LS]


def test_a_broken_line_among_items_is_rejected_alone(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join([*map(json.dumps, ITEMS[:3]), "{", *map(json.dumps, ITEMS[3:])]))
    rejected, trajectory = read_rows(path)
    assert (rejected.row, rejected.kind) == (3, "not JSON")
    assert shown(trajectory) == EXPECTED["responses"][0]


def test_calls_of_other_kinds_and_results_without_a_call(read):
    items = [
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "sql", "input": "select 1"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "mcp_call", "id": "m", "name": "g", "arguments": "{}", "error": "no server"},
        {"type": "web_search_call", "id": "w", "action": {"query": "q"}, "status": "completed"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "function_call_output", "call_id": "z", "output": "parse error"},
        {"type": "item_reference", "id": "x"},
    ]
    first, rejected, alone = read(
        {**RESPONSES, "response": {"output": items}},
        {**RESPONSES, "response": {"output": [*items, {"type": "strange"}]}},
        {**RESPONSES, "response": {"output": []}},
    )
    assert shown(first) == [
        (None, "", [("f", {}), ("sql", "select 1")], [("tool", "1", 1, False, {})]),
        (None, "", [("g", {})], [("tool", "no server", 0, True, {"error": "no server"})]),
        (None, "", [("web_search", {"query": "q"})], []),
        (None, "No.", [], [("environment", "parse error", None, False, {})]),  # not the answer of f, which waits
    ]
    assert rejected.reason == "item 10 has the type 'strange'"
    assert alone.kind == "no response"


# --- OpenTelemetry ---

CHAT = {"gen_ai__operation__name": "chat"}
DONE = [parts("assistant", text("done"))]
FIRST = span(1, **CHAT, gen_ai__input__messages=ASKED, gen_ai__output__messages=[CALLED])


def of(trace: str, one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "traceId": trace}


def test_spans_of_several_traces_in_any_order(read):
    lines = [of(trace, one) for one in SPANS[::-1] for trace in ("t1", "t2")]
    http = {"traceId": "t3", "attributes": [], "name": "GET"}
    rows = read(*lines, http, {"traceId": 5, "attributes": []})
    assert [shown(row) for row in rows[:2]] == [EXPECTED["otel"][0]] * 2
    assert [row.source.id for row in rows[:2]] == ["t1", "t2"]
    assert [(row.row, row.kind) for row in rows[2:]] == [(6, "no messages"), (7, "no span")]


def test_a_span_a_line_of_the_consoles_exporter(read):
    lines = [
        {
            "context": {"trace_id": "0x1", "span_id": f"0x{number}"},
            "start_time": f"2026-01-01T00:00:0{number}Z",
            "attributes": {one["key"]: one["value"]["stringValue"] for one in made["attributes"]},
            "status": {"status_code": "ERROR" if made["status"] else "UNSET"},
        }
        for number, made in enumerate(SPANS)
    ]
    (trajectory,) = read(*lines)
    assert shown(trajectory) == EXPECTED["otel"][0]


def test_a_rewritten_history_starts_another_trajectory_without_targets_twice(read):
    rewritten = span(
        5,
        **CHAT,
        gen_ai__input__messages=[*ASKED, CALLED, ANSWERED, parts("user", text("sum up"))],
        gen_ai__output__messages=DONE,
    )
    first, second = read(*SPANS, rewritten)
    assert [shown(one)[0][3][0][4] for one in (first, second)] == [{}, {"target": False}]
    assert [len(list(expand([one]))) for one in (first, second)] == [1, 1]
    without_thoughts = {**CALLED, "parts": CALLED["parts"][1:]}
    later = span(3, **CHAT, gen_ai__input__messages=[*ASKED, without_thoughts, ANSWERED], gen_ai__output__messages=DONE)
    (trajectory,) = read(FIRST, later)
    assert trajectory.turns[0].action.thought == "hm"  # a history may lack what the output had


def test_a_conversation_in_several_traces_and_results_that_only_their_spans_have(read):
    named = {**CHAT, "gen_ai__conversation__id": "c"}
    start = span(1, **named, gen_ai__input__messages=ASKED, gen_ai__output__messages=DONE)
    more = [*ASKED, *DONE, parts("user", text("thanks"))]
    end = span(2, trace="t2", **named, gen_ai__input__messages=more, gen_ai__output__messages=[CALLED])
    ran = span(
        3,
        trace="t2",
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__call__id="a",
        gen_ai__tool__call__result="a.py",
    )
    around = span(
        0,
        trace="t2",
        gen_ai__operation__name="invoke_agent",
        gen_ai__input__messages=ASKED,
        gen_ai__output__messages=DONE,
    )
    (trajectory,) = read(start, ran, end, around)
    assert shown(trajectory) == [
        (None, "done", [], [THANKS]),
        ("hm", "I look", LS, [("tool", "a.py", 0, False, {})]),
    ]
    assert trajectory.source.id == "c"


MADE = [call("run", '{"command": "ls"}', "a")]
HISTORY = [SYSTEM, user("hi"), says("I look", *MADE), tool("a.py", "a")]
OLDER = {
    "events": (
        {},
        [
            ("gen_ai.system.message", {"content": "Be kind."}),
            ("gen_ai.user.message", {"content": "hi"}),
            ("gen_ai.assistant.message", {"content": "I look", "tool_calls": json.dumps(MADE)}),
            ("gen_ai.tool.message", {"content": "a.py", "id": "a"}),
            ("gen_ai.choice", {"index": 0, "message": json.dumps({"content": "done"})}),
        ],
    ),
    "texts": (
        {},
        [
            ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(HISTORY)}),
            ("gen_ai.content.completion", {"gen_ai.completion": json.dumps([says("done")])}),
        ],
    ),
    "indexed": (
        {
            "gen_ai.prompt.0.role": "system", "gen_ai.prompt.0.content": "Be kind.",
            "gen_ai.prompt.1.role": "user", "gen_ai.prompt.1.content": "hi",
            "gen_ai.prompt.2.role": "assistant", "gen_ai.prompt.2.content": "I look",
            "gen_ai.prompt.2.tool_calls.0.id": "a", "gen_ai.prompt.2.tool_calls.0.name": "run",
            "gen_ai.prompt.2.tool_calls.0.arguments": '{"command": "ls"}',
            "gen_ai.prompt.3.role": "tool", "gen_ai.prompt.3.content": "a.py", "gen_ai.prompt.3.tool_call_id": "a",
            "gen_ai.completion.0.content": "done", "gen_ai.completion.0.role": "assistant",
        },
        [],
    ),
    "details": (
        {},
        [("gen_ai.client.inference.operation.details", {
            "gen_ai.system_instructions": [text("Be kind.")],
            "gen_ai.input.messages": [*ASKED[1:], CALLED, ANSWERED],
            "gen_ai.output.messages": DONE,
        })],
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", OLDER)
def test_messages_in_older_places(place, read):
    held, events = OLDER[place]
    made = {"trace_id": "t", "attributes": held, "events": [{"name": name, "attributes": one} for name, one in events]}
    (trajectory,) = read(made)
    thought = "hm" if place == "details" else None
    assert shown(trajectory) == [(thought, "I look", LS, [("tool", "a.py", 0, False, {})]), (None, "done", [], [])]
    assert (trajectory.context.task, trajectory.context.initial_state) == ("Be kind.", "hi")


# --- OpenHands, mini-swe-agent ---


def test_events_as_a_list_as_lines_and_as_pairs(read, tmp_path):
    (tmp_path / "y.json").write_text(json.dumps(EVENTS, indent=1))
    pairs = {**OPENHANDS, "history": [EVENTS[:3], *([event] for event in EVENTS[3:])]}
    for rows in (list(read_rows(tmp_path / "y.json")), read(*EVENTS), read(pairs)):
        (trajectory,) = rows
        assert shown(trajectory) == EXPECTED["openhands"][0]


def test_actions_without_the_models_words_and_without_their_source(read):
    started = action("run", {"command": "ls", "thought": "hm", "blocking": False}, {"content": "a.py"})
    first, second = read(
        {**OPENHANDS, "history": started, "resolved": False},
        {**OPENHANDS, "history": [{"action": "run", "command": "ls"}]},
    )
    assert shown(first) == [("hm", "", LS, [("tool", "a.py", 0, False, {})])]
    assert first.success is False
    assert second.kind == "no action"


def test_bare_messages_need_the_formats_name(tmp_path):
    path = tmp_path / "task.traj.json"
    path.write_text(json.dumps(MINI["messages"][:4]))
    with pytest.raises(UserError, match=r"a bare list of messages; .* write --format minisweagent"):
        list(read_rows(path))
    (trajectory,) = read_rows(path, "minisweagent")
    assert shown(trajectory) == EXPECTED["minisweagent"][0][:1]
    assert trajectory.task_id == "task"


def test_mini_swe_agent_on_the_responses_api(read):
    said = {"object": "response", "output": ITEMS[:3], "extra": {"cost": 1}}
    result = {**ITEMS[3], "extra": {"returncode": 0}}
    (trajectory,) = read({**MINI, "messages": [*MINI["messages"][:2], said, result]})
    assert shown(trajectory) == [("hm", "I look", LS, [("tool", "a.py", 0, False, {})])]


# --- mutated rows ---

OWN_CALL = {"function_name": "f", "extra": {"wm_plugin": {"id": "a"}}}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("atif", {"steps": [{"source": "user", "message": "a", "tool_calls": [OWN_CALL]}]}),
        ("atif", {"steps": [{"source": "agent", "message": "a"}, {"source": "system", "tool_calls": [OWN_CALL]}]}),
        ("openhands", {"history": [{"action": 5, "observation": "run"}]}),
        ("openhands", {"history": [{"action": "message", "tool_call_metadata": {"tool_call_id": "a"}}]}),
    ],
)
def test_a_call_where_none_belongs_raises_nothing(name, row, tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"schema_version": "ATIF-v1.6", **row}))
    assert len(list(read_rows(tmp_path / "x.jsonl", name))) == 1


def own_trace(value: Any, row: int) -> Any:
    """A line of spans with traces of its own, so that no other line's spans belong to it."""
    if isinstance(value, list):
        return [own_trace(item, row) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: f"{item}#{row}" if key == "traceId" and isinstance(item, str) and item else own_trace(item, row)
        for key, item in value.items()
    }


@pytest.mark.parametrize("rows", [150, pytest.param(10_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", TRACES)
def test_every_mutated_row_is_read_or_rejected(name, rows, tmp_path):
    draw, path = random.Random(f"{name} {rows}"), tmp_path / "x.jsonl"
    document = DOCUMENTS[name][0] if isinstance(DOCUMENTS[name], list) else DOCUMENTS[name]
    with path.open("wb") as file:
        for row in range(rows):
            line = json.dumps(own_trace(mutated(draw, document), row) if row else document)
            file.write(line.encode(errors="backslashreplace") + b"\n")
    read: set[int] = set()
    rejected: set[int] = set()
    for outcome in read_rows(path, name):
        if isinstance(outcome, Reject):
            assert outcome.reason
            rejected.add(outcome.row)
        else:
            assert outcome.source
            read.add(outcome.source.row)
            assert outcome.to_bytes()
    assert read | rejected == set(range(rows))
    assert name == "otel" or not read & rejected  # a line may hold a trace with messages, and one without
    assert len(read) > rows / 10 < len(rejected)
