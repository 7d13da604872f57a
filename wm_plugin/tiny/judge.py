"""A server on localhost for the tiny recipes of Qwen-AgentWorld: a judge that compares words, and a reasoner that guesses.

    python -m wm_plugin.tiny.judge COMMAND...        serves on port 8399 while the command runs, and ends with its exit code

It speaks the chat protocol of OpenAI as far as our clients use it. As a judge it answers the questions of `RubricReward`,
`JudgeReward` and `ReferenceReward`, by the share of words that are right. As a reasoner it writes a thought, and as a prediction
a text that the session has shown. No language model is in it: it shows that a recipe runs, and a reward that can be learnt.
"""

import argparse
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.rewards.rubric import DIMENSIONS
from wm_plugin.rewards.words import WordF1Reward
from wm_plugin.runtime.command import exit_code
from wm_plugin.untrusted import loads

PORT = 8399
_LARGEST, _MOST = 1 << 24, 64  # bytes of a request, and answers to it
_score = WordF1Reward()


def reply(body: dict[str, Any]) -> str:
    """The answer to a request: a judge's if the last message is made of blocks, else a reasoner's."""
    texts = [str(message.get("content") or "") for message in body["messages"]]
    if not texts[-1].startswith("[[begin "):
        return _guess(body["messages"], random.Random(json.dumps([texts, body.get("seed")])))
    observed = _block(texts[-1], "observed")
    if "[[begin first " in texts[-1]:
        first, second = _score([_block(texts[-1], "first"), _block(texts[-1], "second")], [observed] * 2)
        verdict: dict[str, Any] = {"closer": "tie" if first == second else "first" if first > second else "second"}
    else:
        (share,) = _score([_block(texts[-1], "predicted")], [observed])
        verdict = dict.fromkeys(DIMENSIONS, 1 + round(4 * share)) | {"score": share}
    return f"Words were compared.\n<final_evaluation>\n{json.dumps(verdict)}\n</final_evaluation>"


def _block(question: str, name: str) -> str:
    """A text of a question, by the number that all its markers have."""
    number = question.partition("]]")[0].rpartition(" ")[2]
    return question.partition(f"[[begin {name} {number}]]\n")[2].partition(f"\n[[end {name} {number}]]")[0]


def _guess(messages: list[dict[str, Any]], rng: random.Random) -> str:
    """A thought, and what the environment said before, or a paragraph of what is known, as the prediction."""
    said = [str(message["content"]) for message in messages if message.get("role") == "assistant"]
    known = said or str(messages[0].get("content")).split("\n\n")
    tag = "predicted_observation"
    thought = f"The session has shown {len(said)} observations. I expect one like them."
    return f"<think>\n{thought}\n</think>\n\n<{tag}>\n{rng.choice(known[-3:])}\n</{tag}>"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # the body would wait for an acknowledgement of the headers

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= _LARGEST:
                raise ValueError("too large")
            body = loads(self.rfile.read(length))
            texts = [
                reply({**body, "seed": [body.get("seed"), number]})
                for number in range(min(int(body.get("n") or 1), _MOST))
            ]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            self.close_connection = True  # the rest of the request may still come
            self._answer(400, {"error": {"message": f"no question: {error}"}})
            return
        choices = [
            {"index": number, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for number, text in enumerate(texts)
        ]
        self._answer(200, {"object": "chat.completion", "model": body.get("model"), "choices": choices})

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing: a line a request says nothing."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 512  # a connection that finds the queue full waits for seconds
    daemon_threads = True


@contextmanager
def serving(port: int = PORT) -> Iterator[str]:
    """The server's address, while it serves on localhost; port 0 takes a free one.

    Raises:
        UserError: the port is taken.
    """
    try:
        server = _Server(("127.0.0.1", port), _Handler)
    except OSError as error:
        raise UserError(f"port {port}: {error.strerror}; --port takes another, which the recipe has to name") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m wm_plugin.tiny.judge", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run beside it, with its arguments")
    options = parser.parse_args(arguments)
    if not options.command:
        raise UserError("name a command to run beside the server")
    with serving(options.port):
        return subprocess.run(options.command, check=False).returncode


if __name__ == "__main__":
    sys.exit(exit_code(main, "wm_plugin.tiny.judge"))
