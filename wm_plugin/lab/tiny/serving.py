"""A server on localhost that speaks as much of OpenAI's chat protocol as our clients use, for the tiny recipes."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from wm_plugin.errors import UserError
from wm_plugin.untrusted import loads

URL = "WM_TINY_SERVER"  # the environment variable that gives a command the server's address
_LARGEST, _MOST = 1 << 24, 64  # bytes in a request; answers to one request


class Said(NamedTuple):
    """An answer; `tokens`: the prompt's and the answer's, if counted."""

    text: str
    cut: bool = False
    tokens: tuple[int, int] = (0, 0)


# takes a request's body, whose `seed` becomes [the request's seed, the answer's number]
Reply = Callable[[dict[str, Any]], str | Said]


@contextmanager
def serving(reply: Reply, port: int = 0) -> Iterator[str]:
    """Serve with `reply`, in a thread for each connection, and yield the address. Port 0 takes a free one.

    If `reply` raises a ValueError, TypeError, KeyError, IndexError, AttributeError or OverflowError, the request gets status 400.

    Raises:
        UserError: the port is taken.
    """
    handler = type("Handler", (_Handler,), {"reply": staticmethod(reply)})
    try:
        server = _Server(("127.0.0.1", port), handler)
    except OSError as error:
        raise UserError(
            f"port {port}: {error.strerror}; choose another with --port, and name it in the recipe"
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def run_beside(reply: Reply, port: int, command: Sequence[str]) -> int:
    """Serve while a command runs, and return its exit code.

    The address is in the command's environment as `WM_TINY_SERVER`, and replaces $WM_TINY_SERVER in its arguments: with port 0,
    several can run at a time.

    Raises:
        UserError: there is no command, or the port is taken.
    """
    check_command(command)
    with serving(reply, port) as url:
        words = [word.replace(f"${URL}", url) for word in command]
        return subprocess.run(words, check=False, env=os.environ | {URL: url}).returncode


def check_command(command: Sequence[str]) -> None:
    if not command:
        raise UserError("name a command to run beside the server")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # the body would wait for an acknowledgement of the headers
    reply: Reply

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= _LARGEST:
                raise ValueError("too large")
            body = loads(self.rfile.read(length))
            said = [
                self.reply({**body, "seed": [body.get("seed"), number]})
                for number in range(max(1, min(int(body.get("n") or 1), _MOST)))
            ]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            self.close_connection = True  # the rest of the request may still arrive
            self._answer(400, {"error": {"message": f"invalid request: {error}"}})
            return
        answers = [Said(one) if isinstance(one, str) else one for one in said]
        choices = [
            {
                "index": number,
                "message": {"role": "assistant", "content": one.text},
                "finish_reason": "length" if one.cut else "stop",
            }
            for number, one in enumerate(answers)
        ]
        prompt, completion = answers[0].tokens[0], sum(one.tokens[1] for one in answers)
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        self._answer(200, {"object": "chat.completion", "model": body.get("model"), "choices": choices, "usage": usage})

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Suppress per-request logs."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 512  # a connection to a full queue waits for seconds
    daemon_threads = True
