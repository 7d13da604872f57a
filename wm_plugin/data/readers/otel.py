"""OpenTelemetry's GenAI spans: OTLP as JSON (`{resourceSpans: [...]}`, of a file exporter one a line), or a span a line.

A model's call has its messages in `gen_ai.input.messages` and `gen_ai.output.messages`; `otel_messages` knows the older places.
The calls of a conversation (`gen_ai.conversation.id`), or of a trace, follow each other where the input of one begins with all
that an earlier one had: together they are one trajectory. A history that was rewritten starts another one, and what it shares
with one before is no target. `execute_tool` spans tell of errors, and of results that no call of the model has.

The spans of a trace may be anywhere in a file: it is read twice, and a trace's spans are held until its last one.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import Conversation, action_of, call_id_of, text_of
from wm_plugin.data.readers.base import Rows, tools_of
from wm_plugin.data.readers.otel_messages import LONG, asked_and_said, attributes
from wm_plugin.data.schema import Fields, Source

_CONVERSATION = "gen_ai.conversation.id"
_AROUND = ("invoke_agent", "create_agent", "invoke_workflow")  # spans around the model's calls


def matches(head: files.Head) -> bool:
    record = head.sample
    if not isinstance(record, dict):
        return False
    return "resourceSpans" in record or (_trace(record) != "" and "attributes" in record)


def read(path: Path, head: files.Head) -> Rows:
    return _traces(path, head), convert


def convert(record: Any, source: Source) -> Iterator[Fields]:
    """Read the spans of a conversation or a trace."""
    spans = sorted(record, key=_start)
    calls = [span for span in spans if _operation(span) not in (*_AROUND, "execute_tool")]
    chains = _chains(calls) or _chains([span for span in spans if _operation(span) in _AROUND])
    if not chains:
        raise RowError("no call of a model whose messages were recorded", "no messages")
    results = {
        text_of(span["attributes"].get("gen_ai.tool.call.id")): span
        for span in spans
        if _operation(span) == "execute_tool" and "gen_ai.tool.call.id" in span["attributes"]
    }
    seen: set[bytes] = set()
    for chain in chains:
        conversation = Conversation(exact=True)
        waiting: dict[str, str] = {}  # calls without a result: the tool
        for number, (message, digest) in enumerate(zip(chain.messages, chain.digests, strict=True), 1):
            observed: Fields = {"data": {"target": False}} if digest in seen else {}
            identity = call_id_of(message) or ""
            if message["role"] == "tool":
                waiting.pop(identity, None)
                observed |= _failed(results.get(identity))
            elif message["role"] == "assistant":
                waiting |= {call.id: call.name for call in action_of(message, number).calls if call.id}
            conversation.add(message, number, **observed)
        for identity in filter(results.__contains__, waiting):
            content = results[identity]["attributes"].get("gen_ai.tool.call.result")
            if content is not None:
                message = {"role": "tool", "tool_call_id": identity, "content": content}
                conversation.add(message, len(chain.messages), **_failed(results[identity]))
        seen.update(chain.digests)
        last = chain.span["attributes"]
        yield {
            "turns": conversation.fields(),
            "context": {
                "task": conversation.task,
                "action_space": tools_of(last.get("gen_ai.tool.definitions")),
                "initial_state": conversation.initial_state,
            },
            "source": {**vars(source), "id": text_of(last.get(_CONVERSATION)) or _trace(chain.span)},
            "metadata": {
                **conversation.rest,
                "attributes": {key: value for key, value in last.items() if not key.startswith(LONG)},
            },
        }


@dataclass
class _Chain:
    """The calls of a model that follow each other."""

    span: Fields  # the last call
    messages: list[Fields] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # each of all messages up to this one


def _chains(spans: list[Fields]) -> list[_Chain]:
    chains: list[_Chain] = []
    ends: dict[bytes, _Chain] = {}
    for span in spans:
        asked, said = asked_and_said(span)
        if not said:
            continue
        messages, digests = [*asked, *said], [b""]
        for message in messages:
            digests.append(_digest(digests[-1], message))
        known = next((number for number in range(len(asked), 0, -1) if digests[number] in ends), 0)
        chain = ends.pop(digests[known]) if known else _Chain(span)
        if not known:
            chains.append(chain)
        chain.span = span
        chain.messages += messages[known:]  # a history may lack thoughts that an earlier call's output has
        chain.digests += digests[known + 1 :]
        ends[digests[-1]] = chain
    return chains


def _digest(before: bytes, message: Fields) -> bytes:
    """Digest a message and all before it: its role, its text and its calls, not its thoughts."""
    calls = [(call.id, call.name, call.arguments) for call in action_of(message).calls]
    said = [message["role"], text_of(message.get("content")), call_id_of(message), calls]
    return hashlib.sha256(before + json.dumps(said, sort_keys=True).encode()).digest()


def _failed(span: Fields | None) -> Fields:
    """Return the mark of a result whose tool failed."""
    status = span.get("status") if span else None
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else None
    failed = code in (2, "STATUS_CODE_ERROR", "ERROR") or (span and span["attributes"].get("error.type"))
    return {"error": True} if failed else {}


def _operation(span: Fields) -> str:
    return text_of(span["attributes"].get("gen_ai.operation.name"))


def _start(span: Fields) -> tuple[int, str]:
    """Order spans by their starts: nanoseconds, or times as text of one form."""
    start = text_of(next((span[key] for key in ("startTimeUnixNano", "start_time", "startTime") if key in span), ""))
    return len(start) if start.isdecimal() else 0, start


def _trace(span: Fields) -> str:
    context = span.get("context")
    for holder in (span, context if isinstance(context, dict) else {}):
        for key in ("traceId", "trace_id"):
            if isinstance(trace := holder.get(key), str):
                return trace
    return ""


def _spans(record: Any) -> list[Fields]:
    """Return the spans of a record, with their attributes as objects."""
    spans = [record]
    if isinstance(record, dict) and "resourceSpans" in record:
        spans = [record]
        for key in ("resourceSpans", "scopeSpans", "spans"):
            inner = [holder.get(key) for holder in spans if isinstance(holder, dict)]
            spans = [span for listed in inner if isinstance(listed, list) for span in listed]
    if not spans:
        raise RowError("no span in it", "empty")
    if not all(isinstance(span, dict) and _trace(span) for span in spans):
        raise RowError("a span without the id of a trace", "no span")
    return [{**span, "attributes": attributes(span.get("attributes"))} for span in spans]


def _read(record: files.Record) -> tuple[list[Fields], files.Record]:
    """Return a record's spans; none, and why, if it cannot be read."""
    if record.error is not None:
        return [], record
    try:
        return _spans(record.value), record
    except RowError as error:
        return [], files.Record(record.row, record.value, error, record.raw)


def _traces(path: Path, head: files.Head) -> Iterator[files.Record]:
    """Yield a record for each conversation, or trace without one, and those that cannot be read."""
    named: dict[str, str] = {}  # conversations, by trace
    rows: dict[str, int] = {}  # the last ones, by trace
    for record in files.records(path, head):
        for span in _read(record)[0]:
            rows[_trace(span)] = record.row
            if conversation := text_of(span["attributes"].get(_CONVERSATION)):
                named.setdefault(_trace(span), conversation)
    last: dict[str, int] = {}  # the last ones, by conversation, or trace without one
    for trace, row in rows.items():
        name = named.get(trace, trace)
        last[name] = max(row, last.get(name, 0))
    held: dict[str, list[Fields]] = {}
    for record in files.records(path, head):
        spans, record = _read(record)
        if record.error is not None:
            yield record
        names = [named.get(_trace(span), _trace(span)) for span in spans]
        for name, span in zip(names, spans, strict=True):
            held.setdefault(name, []).append(span)
        for name in dict.fromkeys(names):
            if last[name] == record.row:
                yield files.Record(record.row, held.pop(name))
