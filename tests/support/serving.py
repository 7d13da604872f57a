"""Servers on this machine for the tests: a handler of requests runs in threads while a test asks it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Keeps connections open, writes no log."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait for an acknowledgement

    def log_message(self, *_: Any) -> None:
        pass

    def body(self) -> Any:
        """The JSON that was sent."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def reply(self, value: Any, status: int = 200) -> None:
        """Answer with JSON, or with bytes as they are."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    request_queue_size = 512  # a connection that finds the queue full tries again after seconds, then after a minute
    daemon_threads = True


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The base URL of a server of these requests, with `/v1` at its end."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
