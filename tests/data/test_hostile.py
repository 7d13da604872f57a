"""Rows made to exhaust a machine: depth costs no memory, and twice the text takes about twice the time, in every reader."""

import io
import json
import tracemalloc
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from support.formats import DOCUMENTS
from support.timing import too_slow
from wm_plugin.data import Trajectory, files
from wm_plugin.data.chat import action_message
from wm_plugin.data.compact import compact
from wm_plugin.data.messages import Conversation
from wm_plugin.data.readers import FORMATS, chatml, read_rows, tau2, verl
from wm_plugin.data.readers.base import Reject
from wm_plugin.data.schema import Action, Call, Observation, Source, Turn
from wm_plugin.data.transitions import _starts, expand
from wm_plugin.data.turn_texts import categories
from wm_plugin.errors import UserError

DEEP = "[" * 20_000 + "]" * 20_000
LAYOUTS = {
    "a line": DEEP,
    "an array": f'[{{"a": {DEEP}}}]',
    "an object": f'{{\n"messages": {DEEP}}}',
    "open": '{\n"messages": ' + '{"a":' * 10_000,
    "beside a text": f'{{"a": "x\\n> go\\ny", "b": {DEEP}}}',
}


@pytest.mark.parametrize("name", ["openai", "tau2", "auto"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_deep_files_are_rejects(tmp_path, layout, name):
    path = tmp_path / "x.json"
    path.write_text(LAYOUTS[layout])
    try:
        rows = list(read_rows(path, name))
    except UserError as error:
        assert "x.json" in str(error)  # noqa: PT017 - `auto` knows no format
    else:
        assert sum(isinstance(row, Trajectory) for row in rows) <= (layout == "beside a text")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_depth_takes_no_memory(tmp_path, layout):
    """A prefix of each level would be a gigabyte."""
    (tmp_path / "x.json").write_text(LAYOUTS[layout])
    tracemalloc.start()
    try:
        list(read_rows(tmp_path / "x.json", "tau2"))
        list(read_rows(tmp_path / "x.json", "openai"))
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_a_long_key_is_not_written_for_each_of_the_keys_in_it():
    def make(count: int) -> bytes:
        return json.dumps([{"k" * count: dict.fromkeys(map(str, range(count // 8)))}]).encode()

    assert too_slow(lambda text: list(files.events(io.BytesIO(text))), make) is None


def test_texts_of_tasks_are_read_in_large_pieces(tmp_path, monkeypatch):
    """For each piece, a text that is not at its end is scanned from its start."""

    class File(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            sizes.add(size)
            return super().read(size)

        def readinto(self, buffer: Any) -> int:
            sizes.add(len(buffer))
            return super().readinto(buffer)

    sizes: set[int | None] = set()
    data = json.dumps({"tasks": [{"id": "7", "user_scenario": {"persona": "calm"}}], "simulations": []}).encode()
    monkeypatch.setattr(files, "open_file", lambda path: File(data))
    assert tau2._profiles(tmp_path) == {"7": {"persona": "calm"}}
    assert sizes - {0} == {files._BUFFER}


@pytest.mark.parametrize("name", [name for name in FORMATS if isinstance(DOCUMENTS[name], list)])
@pytest.mark.parametrize("array", [True, False])
def test_a_deep_row_is_one_reject(tmp_path, name, array):
    good = json.dumps(DOCUMENTS[name][0])
    rows = [good, good[:-1] + f', "deep": {DEEP}}}', good]
    path = tmp_path / "x.json"
    path.write_text(f"[{','.join(rows)}]" if array else "\n".join(rows))
    outcomes = list(read_rows(path, name))
    assert [outcome.row for outcome in outcomes if isinstance(outcome, Reject)] == [1]
    (reject,) = (outcome for outcome in outcomes if isinstance(outcome, Reject))
    assert (reject.reason, reject.kind) == ("nested more than 250 levels deep", "out of bounds")


def test_a_line_too_long_is_one_reject(tmp_path, monkeypatch):
    for name in ("wm_plugin.data.files.LARGEST", "wm_plugin.data.files._BUFFER"):
        monkeypatch.setattr(name, 1000)
    monkeypatch.setattr(files, "loads", lambda text: files_loads(text, largest=1000))
    good = json.dumps({"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]})
    for length in (1000, 1001, 1500, 2001, 5000):
        path = tmp_path / f"{length}.jsonl"
        path.write_text("\n".join([good, '"' + "x" * (length - 2) + '"', good, "x" * (length + 1)]))
        outcomes = list(read_rows(path, "openai"))
        assert [isinstance(outcome, Reject) for outcome in outcomes] == [False, True, False, True]
        assert outcomes[1].reason == "larger than 1,000 bytes"
        assert len(outcomes[3].raw) < 1100
        for size in (1, 1200, 10_000):
            places = list(files.ranges(path, size))
            assert places[0][0] == 0
            assert places[-1][1] == path.stat().st_size
            assert [a[1] for a in places[:-1]] == [b[0] for b in places[1:]]
            pieces = chain.from_iterable(files.lines(path, *place) for place in places)
            assert [record.error is None for record in pieces] == [True, False, True, False]


files_loads = files.loads


def conversation(**message: Any) -> Callable[[int], None]:
    """Calls and results, as many as the number."""

    def run(count: int) -> None:
        calls = [{"id": f"i{n}", "name": "f"} for n in range(count)]
        results = [{"role": "tool", "tool_call_id": f"i{n}"} | message for n in reversed(range(count))]
        Conversation([{"role": "assistant", "tool_calls": calls}, *results]).fields()
        Conversation([*({"role": "assistant", "tool_calls": [call]} for call in calls), *results]).fields()

    return run


def of_verl(before: str, repeated: str, after: str) -> Callable[[int], None]:
    def run(count: int) -> None:
        record = {"input": "go", "output": before + repeated * count + after, "step": 1}
        list(verl.convert(record, Source(format="verl", file="x", row=0)))

    return run


def of_chatml(before: str, repeated: str, after: str = "") -> Callable[[int], None]:
    def run(count: int) -> None:
        chatml.messages_of(before + repeated * count + after)

    return run


def calls_and_results(name: str) -> Callable[[int], None]:
    """The categories of results, which answer calls in reverse, or no call."""

    def run(count: int) -> None:
        calls = [{"function": {"name": f"f{n}", "arguments": {}}} for n in range(count)]
        categories({"tool_calls": calls}, [{"name": name.format(n=n), "content": "x"} for n in reversed(range(count))])

    return run


ASSISTANT, USER = "<|im_start|>assistant\n", "<|im_start|>user\n"
CALL = f"{ASSISTANT}<tool_call>\n<function=f>\n"


def in_many_observations(count: int) -> None:
    """A turn of so many results, each with a transition of its own, and one turn more: the history of its transition."""
    results = tuple(Observation(kind="tool", text=str(number)) for number in range(count))
    turns = tuple(Turn(action=Action(text="a"), observations=several) for several in (results, results[:1]))
    [line] = compact(expand([Trajectory(turns=turns, task_id="t")]))
    assert [one.observation for one in line.transitions[:count]] == list(range(count))


def in_long_histories(count: int) -> None:
    """The first turn of each history that tokens cut, where none is cut."""
    first = _starts((Turn(action=Action(text="a")),) * count, None, count, len)
    assert [first(number) for number in range(count)] == [0] * count


SHAPES: dict[str, Callable[[int], Any]] = {
    "parameters without a name": lambda count: chatml.assistant(
        "<tool_call>\n<function=x>\n" + "<parameter=>" * count + "</parameter></function></tool_call>"
    ),
    "transitions of a turn": in_many_observations,
    "histories in tokens": in_long_histories,
    "results in reverse": conversation(),
    "results of unknown calls": conversation(tool_call_id="none"),
    "results of the assistant's calls": conversation(requestor="assistant"),
    "ids of calls": lambda count: action_message(
        Action(calls=tuple(Call(name="f", id=f"{n}") for n in range(count))), 0
    ),
    "calls of tools in reverse": calls_and_results("f{n}"),
    "results of unknown tools": calls_and_results("none"),
    "results without a tool": calls_and_results(""),
    "verl, open results": of_verl("", "\nuser\n<tool_response>", ""),
    "verl, one end": of_verl("", "\nuser\n<tool_response>", "</tool_response> x"),
    "verl, results that end badly": of_verl("", "\nuser\n<tool_response></tool_response>", " x"),
    "verl, a run that ends badly": of_verl("", "\nuser\n<tool_response></tool_response>\n", "x"),
    "verl, users": of_verl("", "\nuser\n", ""),
    "verl, white space": of_verl("\nuser\n<tool_response></tool_response>", "\n", "x"),
    "verl, ChatML": of_verl("", "<|im_start|>", ""),
    "ChatML, turns": of_chatml("", ASSISTANT),
    "ChatML, calls": of_chatml(ASSISTANT, "<tool_call>"),
    "ChatML, results": of_chatml(USER, "<tool_response>"),
    "ChatML, thoughts": of_chatml(ASSISTANT, "<think>"),
    "ChatML, white space": of_chatml(ASSISTANT, " \n", "x"),
    "ChatML, parameters": of_chatml(CALL, "<parameter=a>", "</function></tool_call>"),
    "ChatML, names": of_chatml(CALL, "<parameter=", "\n></function></tool_call>"),
    "ChatML, ends": of_chatml(CALL, "</function>", "</function></tool_call>"),
    "ChatML, ends and white space": of_chatml(CALL, "</function> ", "x</tool_call>"),
    "ChatML, brackets": of_chatml(f"{ASSISTANT}<tool_call>", "[", "</tool_call>"),
    "tools": lambda count: chatml.tools_of("<tools>\n" * count),
    "tools, lines": lambda count: chatml.tools_of("<tools>\n" + "{}\n" * count + "</tools>"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_time_is_linear(shape):
    assert too_slow(SHAPES[shape], int, largest=16_000) is None
