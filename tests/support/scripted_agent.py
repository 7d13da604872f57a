"""An agent as a process of its own: it asks the policy over HTTP, runs its tools and keeps its history as its plan says.

Standard input: the row's messages; the last one's text is `task NUMBER PLAN`. Every observation is a text of its own, so that a
test can tell where it was seen first. It needs Python alone.
"""

import json
import os
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOOLS = json.loads(os.environ["AGENT_TOOLS"])
SEEN = iter(range(10**6))


def ask(messages, *, tools=True):
    body = {"model": "any", "messages": messages, "temperature": 0.3} | ({"tools": TOOLS} if tools else {})
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        message = json.load(reply)["choices"][0]["message"]
    return {name: value for name, value in message.items() if name in ("role", "content", "tool_calls") and value}


def act(answer):
    """The results of an answer's calls, in OpenAI's form: without the tools' names."""
    results = []
    for call in answer.get("tool_calls") or []:
        begins = "OUT" if call["function"]["name"] == "run_code" else "DOC"
        text = f"{begins}[{NUMBER}.{next(SEEN)}] größer 漢字 <b>\n"
        results.append({"role": "tool", "tool_call_id": call["id"], "content": text.strip()})
    return results


def turns(messages, count, rewrite=lambda answer: answer):
    """Play some turns of a conversation; the last answer calls nothing."""
    for _ in range(count):
        answer = ask(messages)
        messages += [rewrite(answer), *act(answer)]
    return messages


def plain(task):
    return turns([task], 3)


def compacted(task):
    """After two turns it goes on with a summary of them and with the newest result, which it has not shown."""
    messages = turns([task], 1)
    answer = ask(messages)
    summary = {"role": "user", "content": f"{task['content']}. Summary of 1 turn."}
    return turns([summary, answer, *act(answer)], 2)


def rewritten(task):
    """It leaves out what the policy says beside its calls."""
    return turns([task], 3, lambda answer: {**answer, "content": ""} if answer.get("tool_calls") else answer)


def parallel(task):
    """Two sub-conversations at once, between turns of the main one."""
    messages = turns([task], 1)
    with ThreadPoolExecutor() as pool:
        subtasks = [{"role": "user", "content": f"subtask {name} of {task['content']}"} for name in "AB"]
        list(pool.map(lambda subtask: turns([subtask], 2), subtasks))
    return turns(messages, 1)


def retried(task):
    """It asks twice for the same, and goes on with neither answer."""
    messages = turns([task], 1)
    ask(messages)
    return ask(messages)


def in_text(task):
    """Observations are the user's messages, and there are no tools."""
    messages = [task]
    for _ in range(2):
        messages.append(ask(messages, tools=False))
        messages.append({"role": "user", "content": f"OBS[{NUMBER}.{next(SEEN)}] é"})
    return [*messages, ask(messages, tools=False)]


def strange(task):
    """It puts words into the policy's mouth."""
    messages = turns([task], 1)
    messages += [{"role": "assistant", "content": "I see."}, {"role": "user", "content": f"OBS[{NUMBER}.{next(SEEN)}]"}]
    return turns(messages, 1)


def silent(task):
    sys.exit("no policy for me")


def endless(task):
    return turns([task], 10**6)


if __name__ == "__main__":
    *_, TASK = json.load(sys.stdin)
    NUMBER, PLAN = TASK["content"].split()[1:3]
    Path("answer.txt").write_text(PLAN)
    globals()[PLAN](TASK)
