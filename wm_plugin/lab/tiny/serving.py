"""The chat protocol of OpenAI on localhost, as far as our clients use it, for what answers in the tiny recipes."""

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

URL = "WM_TINY_SERVER"  # the variable in which a command that runs beside a server finds its address
_LARGEST, _MOST = 1 << 24, 64  # bytes of a request, and answers to it


class Said(NamedTuple):
    """An answer. `tokens`: of the prompt and of the answer, where somebody counts them."""

    text: str
    cut: bool = False
    tokens: tuple[int, int] = (0, 0)


Reply = Callable[
    [dict[str, Any]], str | Said
]  # to a request's body; its `seed` is [what was sent, the number of the answer]


@contextmanager
def serving(reply: Reply, port: int = 0) -> Iterator[str]:
    """The address of a server that answers by `reply`, in a thread of its own for each connection; port 0 takes a free one.

    A request by which `reply` raises ValueError, TypeError, KeyError, IndexError, AttributeError or OverflowError gets the status
    400.

    Raises:
        UserError: the port is taken.
    """
    handler = type("Handler", (_Handler,), {"reply": staticmethod(reply)})
    try:
        server = _Server(("127.0.0.1", port), handler)
    except OSError as error:
        raise UserError(f"port {port}: {error.strerror}; --port takes another, which the recipe has to name") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def run_beside(reply: Reply, port: int, command: Sequence[str]) -> int:
    """Serve while a command runs, which finds the address in `WM_TINY_SERVER`. Returns its exit code.

    Raises:
        UserError: there is no command, or the port is taken.
    """
    if not command:
        raise UserError("name a command to run beside the server")
    with serving(reply, port) as url:
        return subprocess.run(command, check=False, env=os.environ | {URL: url}).returncode


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
            self.close_connection = True  # the rest of the request may still come
            self._answer(400, {"error": {"message": f"no question: {error}"}})
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
        """Nothing: a line a request says nothing."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 512  # a connection that finds the queue full waits for seconds
    daemon_threads = True
