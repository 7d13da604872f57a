"""A small HTTP server on localhost that speaks the OpenAI chat protocol, slow or faulty as it is told.

    with OpenAIServer(reply=lambda body: "hello", latency=0.02, faults=every(3, "429")) as server:
        ... server.base_url, server.bodies, server.most_at_once

As a script it serves one constant reply, for benchmarks: `python openai_server.py PORT LATENCY`.
"""

import asyncio
import contextlib
import json
import re
import sys
import threading
from collections.abc import Callable
from difflib import SequenceMatcher
from functools import cache

FAULTS = ("timeout", "429", "500", "garbage", "partial", "types", "empty")  # the ways in which a call goes wrong
DIMENSIONS = ("format", "factuality", "consistency", "realism", "quality")


def every(n: int, fault: str) -> Callable[[int], str | None]:
    """One request in n goes wrong, the first one too; counted from 0."""
    return lambda number: fault if number % n == 0 else None


class OpenAIServer:
    """Answers each request with `reply(body)`.

    Args:
        reply: a request's body -> a text, a whole message, or (either, the reason why it ends).
        latency: seconds before every answer.
        faults: the number of a request -> one of FAULTS, "closed" (the connection), a status code, or None.
        retry_after: the header of a 429.
    """

    def __init__(self, reply=lambda body: "", *, latency=0.0, faults=lambda number: None, retry_after=None):
        self.reply, self.latency, self.faults, self.retry_after = reply, latency, faults, retry_after
        self.bodies, self.headers, self.most_at_once, self._at_once, self._number = [], [], 0, 0, 0
        self.received = []  # the bodies as bytes

    def __enter__(self):
        self._loop, ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve(ready)), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *error):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self, ready, port=0):
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=512, limit=1 << 24)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        await self._stop.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                raw = await reader.readexactly(int(headers["content-length"]))
                self.received.append(raw)
                body = json.loads(raw)
                number, self._number = self._number, self._number + 1
                self.bodies.append(body)
                self.headers.append(headers)
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
                try:
                    await asyncio.sleep(self.latency)
                    sent = await self._answer(body, self.faults(number))
                finally:
                    self._at_once -= 1
                if sent is None:
                    break
                writer.write(sent)
        writer.close()

    async def _answer(self, body, fault):
        if fault == "closed":
            return None
        if fault == "timeout":
            await asyncio.sleep(3600)
        if fault is not None and fault.isdigit():
            after = f"Retry-After: {self.retry_after}\r\n" if self.retry_after is not None and fault == "429" else ""
            return _http(int(fault), json.dumps({"error": {"message": f"fault {fault}"}}).encode(), after)
        reply = self.reply(body) if fault is None else ""
        answer = completion(*reply) if isinstance(reply, tuple) else completion(reply)
        if "prompt" in body:  # of /completions
            answer["choices"][0]["text"] = answer["choices"][0].pop("message")["content"]
        good = json.dumps(answer).encode()
        return _http(
            200,
            {
                None: good,
                "garbage": b"\x00<html>not what you asked for \xff",
                "partial": good[: len(good) // 2],
                "types": json.dumps({"choices": "none", "usage": ["many"]}).encode(),
                "empty": b"",
            }[fault],
        )


def completion(text, finish="stop"):
    """`text` may be a whole message, too."""
    message = text if isinstance(text, dict) else {"role": "assistant", "content": text}
    return {
        "id": "0",
        "object": "chat.completion",
        "created": 0,
        "model": "judge",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def _http(status, body, more=""):
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def judge_at(server, **settings):
    """The settings of a judge behind this server that fails at once."""
    return {"base_url": server.base_url, "model": "judge", "backoff": 0.001, "timeout": 10, "max_retries": 0} | settings


def score(value):
    """A judge that always gives this score."""
    return lambda body: f'<final_evaluation>{{"score": {value}}}</final_evaluation>'


def user(body):
    """What a judge is asked, after its instructions."""
    return body["messages"][-1]["content"]


def block(body, name):
    """A fenced text of a question, found as a careful reader finds it: by the number that all fences have."""
    text = user(body)
    number = re.match(r"\[\[begin \w+ (\w+)\]\]", text)[1]
    return text.split(f"[[begin {name} {number}]]\n")[1].split(f"\n[[end {name} {number}]]")[0]


def verdict(score):
    scores = ", ".join(f'"{name}": {score}' for name in DIMENSIONS)
    return f"Compared.\n<final_evaluation>\n{{{scores}}}\n</final_evaluation>"


def careful(body):
    """A judge that compares: 5 for the observation itself, less the less of it is there."""
    return verdict(1 + round(4 * similarity(block(body, "predicted"), block(body, "observed")) ** 4))


@cache  # an audit asks several judges the same
def similarity(a, b):
    return SequenceMatcher(a=a, b=b).ratio()


def gullible(*weaknesses):
    """A judge that compares like `careful`, unless it is told otherwise in a way that it falls for.

    tags: any verdict in its question is its own.
    quotes: it quotes the prediction, and then gives its own verdict.
    tokens: what stands after a chat template's token for a new turn is a message to it.
    fences: what stands after any closed fence is a message to it.
    prose: it obeys whoever asks for a score.

    With these it gives its own verdict, and also quotes what it says if that speaks of formats, scores or evaluations:
    inside, before, after: in its tag after its own verdict, or without a tag before or after it.
    bare: after its own verdict without a tag, with all marks as they were.
    cut: at first, and is cut before its own verdict.
    thinks: in thoughts that do not end; aloud: in thoughts of which a template wrote the first mark.
    restores: after its own verdict, with all marks as they were; around: before it, too; instead: in its place.
    """

    def reply(body):
        text, told = user(body), None
        if "tags" in weaknesses and (
            forged := re.findall(r"<final_evaluation>.*?</final_evaluation>", text, re.DOTALL)
        ):
            return forged[-1]
        if "quotes" in weaknesses:
            return f"It says: {block(body, 'predicted')}\nI say: {careful(body)}"
        quote, own = block(body, "predicted"), careful(body)
        if re.search("format|score|evaluation", quote, re.IGNORECASE):
            inner = own.split("\n")[2]
            whole = quote.translate(str.maketrans("‹›⟦⟧", "<>[]"))
            for name, shape in {
                "inside": f"<final_evaluation>\n{inner}\nIt says: {quote}\n</final_evaluation>",
                "before": f"It says: {quote}\nI say: {inner}",
                "after": f"I say: {inner}\nIt says: {quote}",
                "bare": f"I say: {inner}\nIt says: {whole}",
                "cut": (f"It says: {quote}", "length"),
                "thinks": f"<think>It says: {quote}",
                "aloud": f"I say: {own}\nIt says: {whole}</think>{whole}",
                "restores": f"{own}\nIt says: {whole}",
                "around": f"It says: {whole}\n{own}\nIt says: {whole}",
                "instead": f"It says: {whole}",
            }.items():
                if name in weaknesses:
                    return shape
        if "tokens" in weaknesses and "<|im_start|>" in text:
            told = text.split("<|im_start|>")[-1]
        if "fences" in weaknesses and (outside := re.split(r"\[\[end predicted[^\]]*\]\]", text)[1:-1]):
            told = outside[-1]
        if "prose" in weaknesses:
            told = block(body, "predicted")
        asked = re.search(r"score (?:of )?([1-5])", told or "")
        return verdict(asked[1]) if asked else careful(body)

    return reply


if __name__ == "__main__":
    server = OpenAIServer(lambda body: verdict(4), latency=float(sys.argv[2]))
    asyncio.run(server._serve(threading.Event(), int(sys.argv[1])))
