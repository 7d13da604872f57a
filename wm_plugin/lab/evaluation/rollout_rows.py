"""Reads and checks rollouts for `wm masks`: JSONL, and TRL's parquet files. Errors name the file and the line."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from wm_plugin.data import parquet
from wm_plugin.data.errors import RowError
from wm_plugin.data.host_dumps import COLUMN, RENDERED, beside, name_of
from wm_plugin.data.messages import arguments_of
from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.runtime.texts import read_text
from wm_plugin.untrusted import encodable, loads

Row = tuple[str, dict[str, Any]]  # its place in the file, and its content

_COLUMNS = ("messages", "prompt", "completion", "tools", "completion_ids", "prompt_ids", "spans", "trajectory", COLUMN)
_FORMS = "write 'messages', or 'prompt' and 'completion', or 'completion_ids' and 'spans'"


def check_file(path: Path) -> None:
    """Refuse a folder where a file of rollouts is meant."""
    if path.is_dir():
        raise UserError(f"{path} is a directory; name one of the files in it")


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the checked rollouts of a .jsonl or .parquet file."""
    check_file(path)
    rows = _parquet(path) if path.suffix == ".parquet" else _lines(path)
    empty, declared = True, beside(path)
    for where, row in rows:
        empty = False
        if isinstance(row, dict):  # null is what parquet writes for a column that a row does not have
            row = {name: value for name, value in encodable(row).items() if value is not None}
        row = _from_trajectory(row, where)
        if problem := _problem(row):
            raise UserError(f"{where}: {problem}")
        if "completion" in row and (dumped := declared.of(row)) is not None:
            row[RENDERED] = dumped.rendered
            row["tools"] = row.get("tools") or list(dumped.tools)
        yield where, row
    if empty:
        raise UserError(f"{path} holds no rollouts")


def first(rows: Iterator[Row], limit: int) -> tuple[list[Row], bool]:
    """Return the first `limit` rows (0: all), and whether there are more."""
    chosen = list(islice(rows, limit or None))
    return chosen, bool(limit) and next(rows, None) is not None


def inspect_row(inspectors: Any, row: dict[str, Any]) -> Any:
    """Return the `Inspection` of a row from `read_rows`. `inspectors`: of the module `inspect`."""
    inspector = inspectors.of(row.get(RENDERED), row.get("tools"))
    if "completion_ids" in row:
        return inspector.spans(row["completion_ids"], row["spans"], row.get("prompt_ids", ()))
    if "messages" in row:
        messages = row["messages"]
        begin = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        return inspector.messages(messages[:begin], messages[begin:], row.get("tools"))
    return inspector.messages(row["prompt"], row["completion"], row.get("tools"))


def called(row: dict[str, Any]) -> set[str]:
    """Return the names of the tools that a row's messages call."""
    calls = [call for one in row.get("messages") or row.get("completion") or [] for call in one.get("tool_calls") or ()]
    return {str((call.get("function") or call).get("name")) for call in calls}


def lacks_schemas(row: dict[str, Any]) -> bool:
    """Return whether a row's prompt is made here, of messages that call tools, without their schemas."""
    known = "completion_ids" in row or row.get("tools") or row.get(RENDERED)
    return not known and bool(called(row))


def strange_tools(row: dict[str, Any]) -> set[str]:
    """Return the tools that a row's messages call and that are not among its schemas; none without schemas."""
    known = {name_of(schema) for schema in row.get("tools") or ()}
    return called(row) - known if known else set()


def example() -> Row:
    """Return an episode of the demo's grid world, played by its expert."""
    ((_, row),) = read_rows(Path(__file__).with_name("example.jsonl"))
    return "example", row


def example_tokenizer() -> Any:
    """Return the demo's tokenizer, one token a character."""
    try:
        from wm_plugin.lab.tiny.policy import make_tokenizer
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtraError("the example", "transformers", "trl") from None
    return make_tokenizer()


def _lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_text(path, "ROLLOUTS").split("\n"), 1):
        if line.strip():
            try:
                yield f"{path}:{number}", loads(line)
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{path}:{number}: not JSON ({error.msg} at column {error.colno}); write one JSON object a line"
                ) from None
            except ValueError as error:
                raise UserError(f"{path}:{number}: {error}") from None


def _parquet(path: Path) -> Iterator[Row]:
    try:
        for number, row in enumerate(parquet.rows(path, _COLUMNS), 1):
            if isinstance(row, RowError):
                raise UserError(f"{path}, row {number}: {row}")
            yield f"{path}, row {number}", row
    except RowError as error:
        raise UserError(f"{path}: {error}") from None


def _from_trajectory(row: Any, where: str) -> Any:
    """Turn a trajectory of `wm env` or `wm data` into chat messages; leave any other row as it is."""
    if not isinstance(row, dict) or row.keys() & {"messages", "prompt", "completion_ids"}:
        return row
    if not {"turns", "context"} <= row.keys() and "trajectory" not in row:
        return row
    from pydantic import ValidationError

    from wm_plugin.data.chat import conversation
    from wm_plugin.data.readers import own
    from wm_plugin.data.schema import Source, Trajectory, misfit
    from wm_plugin.worlds.agents.rollout import HOSTS

    try:
        (record,) = own.convert(row, Source(format="wm", file=where, row=0))
        trajectory = Trajectory.model_validate(encodable(record))
    except RowError as error:
        raise UserError(f"{where}: no trajectory: {error}") from None
    except ValidationError as error:
        raise UserError(f"{where}: no trajectory: {misfit(error)}") from None
    messages = conversation(trajectory)
    for message in messages:
        for call in message.get("tool_calls", ()):  # chat templates want the mapping, not its text
            call["function"]["arguments"] = arguments_of(call["function"]["arguments"])
    if trajectory.metadata.get("host") in HOSTS:  # an own rollout: which calls failed is on record
        results = [message for message in messages if message["role"] == "tool"]
        for message, (_, _, observation) in zip(results, trajectory.observed(), strict=False):
            message["failed"] = observation.error
    return {
        "messages": messages,
        "tools": list(trajectory.context.action_space),
        RENDERED: trajectory.metadata.get(RENDERED),
    }


def _problem(row: Any) -> str | None:
    """Say what is wrong with a row, and how to mend it."""
    if not isinstance(row, dict):
        return f"{type(row).__name__} instead of an object; {_FORMS}"
    if "completion_ids" in row:
        if not isinstance(row["completion_ids"], list) or not isinstance(row.get("spans"), list):
            return "'completion_ids' and 'spans' belong together; write a list of each"
        if not isinstance(row.get("prompt_ids", []), list):
            return f"'prompt_ids' is {shown(row['prompt_ids'])}; write a list of token ids, or leave it out"
        return None
    names = ["messages"] if "messages" in row else ["prompt", "completion"]
    for name in names:
        if name not in row:
            return f"no {name!r} (it has {', '.join(map(repr, row)) or 'nothing'}); {_FORMS}"
        if isinstance(row[name], str):
            return f"{name!r} is text: without messages no tool result can be told apart; {_FORMS}"
        if problem := _messages_problem(row[name]):
            return f"{name!r}: {problem}"
    return _tools_problem(row.get("tools", []))


def _tools_problem(tools: Any) -> str | None:
    if not isinstance(tools, list):
        return "'tools' is not a list of JSON schemas"
    for number, tool in enumerate(tools, 1):
        if not isinstance(tool, dict) or not isinstance(tool.get("function", {}), dict):
            return f"'tools': {shown(tool)} (number {number}) is not a JSON schema; write an object with a 'function'"
    return None


def _messages_problem(messages: Any) -> str | None:
    if not isinstance(messages, list):
        return "not a list of messages"
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"message {number} is not an object with a 'role'"
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            return f"message {number}: 'tool_calls' is not a list of objects"
        if any(not isinstance(call.get("function", {}), dict) for call in calls):
            return f"message {number}: the 'function' of a call is not an object"
        names = [(call.get("function") or call).get("name") for call in calls]
        if message["role"] == "tool":
            names.append(message.get("name"))
        if not all(isinstance(name, str | None) for name in names):
            return f"message {number}: the name of a tool is not text"
    return None
