"""The server of an installed OpenEnv package, started on this machine: `environment: openenv:my_env`.

`openenv init` makes such packages, and their `openenv.yaml` names the application. (`AutoEnv` would start them in Docker.)
"""

import atexit
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from wm_plugin.errors import UserError, shown
from wm_plugin.runtime.texts import read_yaml
from wm_plugin.worlds.openenv.sessions import client_class

_START = 60.0  # seconds until the server answers
_SERVE = """
import os, sys, threading, uvicorn
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
uvicorn.run(sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
"""


def serve(package: str, where: str) -> str:
    """Start the server of a package, once a process, and return its URL. It ends with this process."""
    return _serve(package, where, os.getpid())


@lru_cache
def _serve(package: str, where: str, process: int) -> str:  # noqa: ARG001 - a fork has its own
    application = f"{package}.{_application(package, where)}"
    client_class()  # is OpenEnv there at all?
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVE, application, str(port)],
        stdin=subprocess.PIPE,  # its end is this process's
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)])},
        start_new_session=True,  # Ctrl-C goes to the host alone
    )
    atexit.register(_end, server, os.getpid())
    url = f"http://127.0.0.1:{port}"
    opener, deadline = build_opener(ProxyHandler({})), time.monotonic() + _START
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with opener.open(f"{url}/health", timeout=5):
                return url
        except (URLError, OSError):
            time.sleep(0.1)
    _end(server, os.getpid())
    raise UserError(f"{where}: uvicorn {application} does not serve; what it said is above")


def _application(package: str, where: str) -> str:
    """Return the application that a package's `openenv.yaml` names, as `module:name` within it."""
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"{where}: there is no package {shown(package)}; write openenv:http://host:port, or install it")
    manifest = Path(spec.submodule_search_locations[0], "openenv.yaml")
    if not manifest.is_file():
        raise UserError(f"{where}: {package} has no openenv.yaml; start its server, and write openenv:http://host:port")
    values = read_yaml(manifest, where)
    application = values.get("app") if isinstance(values, dict) else None
    if not isinstance(application, str) or not all(
        part.isidentifier() for part in application.replace(":", ".").split(".")
    ):
        raise UserError(f"{where}: app of its openenv.yaml is {shown(application)}; write server.app:app")
    return application


def _end(server: "subprocess.Popen[bytes]", process: int) -> None:
    if os.getpid() == process and server.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
