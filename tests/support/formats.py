"""A small valid file of each format, written by hand."""

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
# a valid file of each format
DOCUMENTS: dict[str, Any] = {
    "own": [OWN],
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
