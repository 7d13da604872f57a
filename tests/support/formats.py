"""A small valid file of each format, written by hand."""

import json
from typing import Any


def call(name: str, arguments: Any = "{}", identity: Any = None) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def says(text: str | None = None, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {}), **more}


def tool(text: Any, identity: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, **({"tool_call_id": identity} if identity is not None else {}), **more}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


SYSTEM = {"role": "system", "content": "Be kind."}
CHAT = [SYSTEM, user("hi"), says(None, call("find", '{"q": 1}', "a")), tool("found", "a"), says("done"), user("thanks")]
STEP = {"action": "go", "observation": "a hall", "score": "0.04", "isCompleted": "false", "inventory": "nothing"}
GOLD = {
    "taskName": "boil",
    "goldActionSequences": [{"variationIdx": 3, "fold": "dev", "taskDescription": "d", "path": [STEP]}],
}
SWE = {"trajectory": [{"action": "ls", "observation": "a.py", "response": "r", "thought": "look", "state": '{"d": 1}'}]}
NODE = {
    "node_type": "Action Input",
    "description": '{"x": 1}',
    "observation": "",
    "observation_code": 0,
    "finished": True,
}
TREE = {"node_type": "Action", "description": "find", "children": [NODE]}
STABLE = {
    "win": True,
    "tree": {"tree": {"node_type": "Action Input", "description": "", "children": [TREE]}},
    "answer_generation": {"query": "q"},
}
BENCH = {
    "task": "web",
    "id": 7,
    "prompt": ["see\n**Action:**\n```\nclick\n```"],
    "response": ["hm\n**Environment Observation:**\na page"],
    "system_str": "s",
    "turn_idx": 1,
    "total_turns": 2,
}
TAU2 = {
    "info": {"environment_info": {"domain_name": "shop", "policy": "Sell.", "tool_defs": None}},
    "tasks": [],
    "simulations": [{"id": "x", "task_id": 4, "reward_info": {"reward": 1.0}, "messages": CHAT[1:], "seed": 3}],
}
WORLD = {
    "messages": [SYSTEM, user("go"), says("a hall"), user("take it"), says("yours [SUCCESS]")],
    "item_id": "task_2",
}
SHARE = {
    "item_id": "alf_1",
    "conversations": [
        {"from": "human", "value": "rules", "loss": None},
        {"from": "gpt", "value": "OK", "loss": False},
        {"from": "human", "value": "a room", "loss": None},
        {"from": "gpt", "value": "Thought: hm\nAction: go", "loss": True},
        {"from": "human", "value": "", "loss": None},
    ],
}
OWN = {
    "turns": [{"action": {"text": "go"}, "observations": [{"kind": "environment", "text": "x"}]}],
    "context": {},
    "version": 1,
}
VERL = {
    "input": "system\nBe kind.\nuser\nhi\nassistant\n",
    "output": '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "find", "arguments": {"q": 1}}\n</tool_call>\nuser\n'
    "<tool_response>\nfound\n</tool_response>\nassistant\ndone",
    "gts": "x",
    "score": 0.5,
    "step": 3,
}
TRL = {"prompt": CHAT[:2], "completion": CHAT[2:], "step": 1, "accuracy_reward": 1.0, "advantage": 0.1}
ATIF = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s1",
    "agent": {
        "name": "terminus-2",
        "version": "2.0",
        "tool_definitions": [{"type": "function", "function": {"name": "run"}}],
    },
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be kind."},
        {"step_id": 2, "source": "user", "message": "hi"},
        {
            "step_id": 3,
            "source": "agent",
            "message": "I look",
            "reasoning_content": "hm",
            "tool_calls": [{"tool_call_id": "a", "function_name": "run", "arguments": {"command": "ls"}}],
            "observation": {"results": [{"source_call_id": "a", "content": "a.py", "extra": {"is_error": True}}]},
            "metrics": {"prompt_tokens": 3},
        },
        {"step_id": 4, "source": "agent", "message": "done", "observation": {"results": [{"content": "over"}]}},
        {"step_id": 5, "source": "user", "message": "thanks"},
    ],
    "extra": {"reward": 0.5, "task_id": "t", "host": "h"},
}
ITEMS = [
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look", "annotations": []}]},
    {"type": "function_call", "call_id": "a", "name": "run", "arguments": '{"command": "ls"}', "status": "completed"},
    {"type": "function_call_output", "call_id": "a", "output": "a.py"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    {"role": "user", "content": "thanks"},
]
RESPONSES = {
    "responses_create_params": {
        "input": [{"role": "user", "content": "hi"}],
        "instructions": "Be kind.",
        "tools": [{"type": "function", "name": "run", "parameters": {}, "strict": True}],
        "model": "m",
    },
    "response": {"id": "resp", "object": "response", "output": ITEMS, "usage": {"total_tokens": 3}},
    "reward": 1.0,
    "instance_id": "t",
}
MINI = {
    "info": {"exit_status": "Submitted", "mini_version": "2.0.0", "submission": "diff"},
    "messages": [
        SYSTEM,
        user("hi"),
        says("I look\n```bash\nls\n```", extra={"actions": [{"command": "ls"}]}),
        {**user("a.py"), "extra": {"returncode": 0, "raw_output": "a.py"}},
        says("no command"),
        {**user("Write one command."), "extra": {"interrupt_type": "FormatError"}},
        says("I am done"),
        {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted"}},
    ],
    "trajectory_format": "mini-swe-agent-1.1",
}


def action(
    name: str, arguments: dict[str, Any], *answers: Any, response: str = "", source: str = "agent"
) -> list[dict[str, Any]]:
    """OpenHands' events of an action: itself, and what it led to."""
    event = {"id": 5, "source": source, "action": name, "args": arguments}
    if response:
        model = says("I look", call("bash", '{"command": "ls"}', "a"), call("bash", '{"command": "pwd"}', "b"))
        answer = {"id": response, "choices": [{"message": model}]}
        event["tool_call_metadata"] = {
            "function_name": "bash",
            "tool_call_id": arguments["id"],
            "model_response": answer,
        }
    told = {key: event[key] for key in ("tool_call_metadata",) if key in event}
    return [event, *({"source": "agent", "cause": 5, "observation": name, **told, **answer} for answer in answers)]


EVENTS = [
    *action("system", {"content": "Be kind.", "tools": [{"type": "function", "function": {"name": "bash"}}]}),
    *action("message", {"content": "hi"}, source="user"),
    *action("recall", {"query": "hi"}, {"content": "Added workspace context"}, source="user"),
    *action(
        "run", {"id": "a"}, {"content": "a.py", "extras": {"metadata": {"exit_code": 0}}, "success": True}, response="x"
    ),
    *action("run", {"id": "b"}, {"content": "/w", "success": False}, response="x"),
    {
        "source": "agent",
        "observation": "error",
        "content": "Parameter 'command' is missing",
        "extras": {"error_id": ""},
    },
    *action("message", {"content": "done"}),
    *action("message", {"content": "thanks"}, source="user"),
]
OPENHANDS = {"instance_id": "t", "history": EVENTS, "test_result": {"report": {"resolved": True}}, "instruction": "hi"}


def attributes(**values: Any) -> list[dict[str, Any]]:
    """OTLP's attributes: `gen_ai__input__messages` is `gen_ai.input.messages`, and its value JSON text."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return [{"key": key.replace("__", "."), "value": {"stringValue": text}} for key, text in texts.items()]


def parts(role: str, *said: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(said)}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def span(start: int, trace: str = "t1", **values: Any) -> dict[str, Any]:
    given = attributes(**values)
    return {"traceId": trace, "spanId": f"s{start}", "startTimeUnixNano": str(start), "attributes": given, "status": {}}


ASKED = [parts("system", text("Be kind.")), parts("user", text("hi"))]
CALLED = parts(
    "assistant",
    {"type": "reasoning", "content": "hm"},
    text("I look"),
    {"type": "tool_call", "id": "a", "name": "run", "arguments": {"command": "ls"}},
)
ANSWERED = parts("tool", {"type": "tool_call_response", "id": "a", "response": "a.py"})
RUN = {"type": "function", "name": "run", "parameters": {}}
SPANS = [
    span(1, gen_ai__operation__name="chat", gen_ai__input__messages=ASKED, gen_ai__output__messages=[CALLED]),
    span(2, gen_ai__operation__name="execute_tool", gen_ai__tool__call__id="a") | {"status": {"code": 2}},
    span(
        3,
        gen_ai__operation__name="chat",
        gen_ai__input__messages=[*ASKED, CALLED, ANSWERED],
        gen_ai__output__messages=[parts("assistant", text("done"))],
        gen_ai__tool__definitions=[RUN],
    ),
]
OTEL = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": SPANS[::-1]}]}]}
# a valid file of each format
DOCUMENTS: dict[str, Any] = {
    "own": [OWN],
    "atif": ATIF,
    "openhands": [OPENHANDS],
    "minisweagent": MINI,
    "responses": [RESPONSES],
    "otel": OTEL,
    "tau2": TAU2,
    "taubench": [{"task_id": 1, "reward": 1.0, "info": {"a": 1}, "traj": CHAT, "trial": 0}],
    "stabletoolbench": STABLE,
    "sweagent": SWE,
    "scienceworld": {"0": GOLD},
    "agentworldbench": [BENCH],
    "word2world": [WORLD],
    "sharegpt": [SHARE],
    "verl": [VERL],
    "trl": [TRL],
    "openai": [{"messages": CHAT}],
    "react": {"react_put_0": "You are in a room.\n> think: I look\nOK.\n> go to desk 1\nOn it is a pen.\n"},
}
