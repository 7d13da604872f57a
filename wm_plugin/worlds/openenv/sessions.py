"""OpenEnv's client, for all episodes of a process: what a server says of itself, and sessions.

Everything runs in the background event loop. A server's answers are bounded in size and time, and each is checked.
"""

import asyncio
import contextlib
import ipaddress
import os
import re
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from wm_plugin.client.server import VARIABLE, check_address
from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.runtime import background, secrets
from wm_plugin.untrusted import deeper, loads, number
from wm_plugin.worlds.openenv.tools import line

if TYPE_CHECKING:
    from openenv.core import GenericEnvClient

TIMEOUT = 60.0  # seconds for an answer, as in OpenEnv's client
PATIENCE = 10.0  # seconds in which a server that is gone or full may take a session
LARGEST = 16  # megabytes of an answer
LARGEST_SCHEMA = 1 << 20  # bytes
_LARGEST_ERROR = 1 << 16  # characters of what a server said
_LEVELS = 64  # of an observation
_LARGEST_REWARD = 1e15  # hosts square rewards in float32, and what overflows spoils the whole batch
# Errors after which a session goes on: the action does not fit its schema, or the environment raised.
_GOES_ON = ("(code: VALIDATION_ERROR)", "(code: EXECUTION_ERROR)")
_SAID = "Server error: "  # how OpenEnv's client begins what a server said


class LostError(RuntimeError):
    """A session is gone: the server left, did not answer in time, or answered what no OpenEnv server does."""


class RefusedError(RuntimeError):
    """The server answered an action with an error, and the session goes on."""


@dataclass(frozen=True)
class Step:
    """What a server answers to `reset` and to an action."""

    observation: Any
    reward: float | None
    done: bool


@dataclass(frozen=True)
class Server:
    """A server's address, seconds for each of its answers, and the environment variable that has its token."""

    url: str
    timeout: float = TIMEOUT
    token: str = ""

    @classmethod
    def read(cls, address: str, where: str) -> "Server":
        """Read `http://host:port[/path][?timeout=seconds][&token=VARIABLE]`."""
        where = public(where)
        needs = f"{where}: write openenv:http://host:port, perhaps with ?timeout=seconds&token=VARIABLE"
        try:
            parts = urlsplit(address)
        except ValueError:  # brackets that hold no IPv6 address
            raise UserError(needs) from None
        options = dict(parse_qsl(parts.query))
        timeout, token = options.pop("timeout", str(TIMEOUT)), options.pop("token", "")
        if parts.scheme not in ("http", "https") or not parts.hostname or options or parts.fragment:
            raise UserError(needs)
        url = parts._replace(query="").geturl().rstrip("/")
        check_address(url, where)
        try:
            seconds = float(timeout)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= 86_400:
            raise UserError(f"{where}: timeout is {shown(timeout)}; write seconds above 0")
        if token and not VARIABLE.fullmatch(token) and token not in os.environ:
            raise UserError(
                f"{where}: token does not name an environment variable that is set; write its name, not the token"
            )
        if token and not os.environ.get(token):
            raise UserError(f"{where}: token names the environment variable {shown(token)}, which is not set")
        return cls(url, seconds, token)

    @property
    def headers(self) -> dict[str, str]:
        if not self.token:
            return {}
        token = os.environ.get(self.token, "").strip()
        secrets.hold(token)  # the server may send it back
        secrets.guard_logs("httpx", "httpcore.http11", "httpcore.http2", "websockets.client")
        return {"Authorization": f"Bearer {token}"}

    def client(self) -> "GenericEnvClient":
        """Make a client, whose results are `Step`s."""
        return client_class()(
            base_url=self.url,
            connect_timeout_s=min(self.timeout, PATIENCE),
            message_timeout_s=None,  # `_answer` has it for the whole
            max_message_size_mb=LARGEST,
            mode="simulation",
            headers=self.headers or None,
        )

    def get(self, path: str) -> Any:
        """Return the JSON at a path of the server.

        Raises:
            LostError: there is none, or too much of it.
        """
        return background.wait_for(self._get(path))

    async def _get(self, path: str) -> Any:
        import httpx

        async def read() -> bytes:
            text = b""
            async with (
                httpx.AsyncClient(timeout=self.timeout, trust_env=not is_local(self.url)) as client,
                client.stream("GET", f"{self.url}/{path}", headers=self.headers) as response,
            ):
                response.raise_for_status()
                async for part in response.aiter_bytes():
                    text += part
                    if len(text) > LARGEST_SCHEMA:
                        raise LostError(f"/{path} is larger than {LARGEST_SCHEMA:,} bytes")
            return text

        try:
            return secrets.redact_json(loads(await asyncio.wait_for(read(), min(self.timeout, PATIENCE))))
        except LostError:
            raise
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise LostError(f"/{path}: {_told(error)}") from None

    def tools(self) -> Any:
        """Return the list of the server's MCP tools."""
        return background.wait_for(self._tools())

    async def _tools(self) -> Any:
        client = self.client()
        try:
            step = await _answer(lambda: client.step({"type": "list_tools"}), self.timeout)
        except RefusedError as error:
            raise LostError(str(error)) from None
        finally:
            await _leave(client)
        return step.observation.get("tools") if isinstance(step.observation, Mapping) else None


class Session:
    """The sessions of one environment, one at a time. It is closed when the object is collected and when the process ends."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client: GenericEnvClient | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def open(self, columns: dict[str, Any]) -> Step:
        """Leave the last session and begin one with `reset(**columns)`. A server that is gone or full has `PATIENCE` seconds.

        Raises:
            UserError: it takes no more sessions.
            LostError: it is gone, or its answer is not one.
        """
        self.close()
        self._client, step = background.wait_for(self._open(columns))
        self._end = weakref.finalize(self, _finish, self._client)
        return step

    def step(self, action: Mapping[str, Any]) -> Step:
        """Take an action.

        Raises:
            RefusedError: the server answered with an error.
            LostError: the session is gone.
        """
        client = self._client
        if client is None:
            raise LostError("there is no session")
        try:
            return background.wait_for(_answer(lambda: client.step(dict(action)), self._server.timeout))
        except LostError:
            self.close()
            raise

    def close(self) -> None:
        if self._end is not None:
            self._end()
        self._client = self._end = None

    async def _open(self, columns: dict[str, Any]) -> tuple["GenericEnvClient", Step]:
        deadline, pause = time.monotonic() + PATIENCE, 0.05
        while True:
            client = self._server.client()
            try:
                await client.connect()
                return client, await _answer(partial(client.reset, **columns), self._server.timeout)
            except RefusedError as error:
                problem: Exception = LostError(f"reset: {error}")
                deadline = 0.0  # the same columns would be refused again
            except (LostError, OSError) as error:
                problem = error
            except BaseException:
                await _leave(client)
                raise
            await _leave(client)
            if time.monotonic() + pause > deadline or isinstance(problem.__cause__, TimeoutError):
                if "(code: CAPACITY_REACHED)" in str(problem):
                    raise UserError(
                        f"openenv:{self._server.url} takes no more sessions, and each episode that runs at the same time needs "
                        "one: raise max_concurrent_envs of its create_app"
                    ) from None
                raise LostError(_told(problem)) from None
            await asyncio.sleep(pause)
            pause *= 2


async def _answer(ask: Callable[[], Any], timeout: float) -> Step:
    """Ask OpenEnv's client, which looks for the running event loop."""
    try:
        async with asyncio.timeout(timeout):
            step: Step = await ask()
            return step
    except TimeoutError as error:
        raise LostError(f"no answer within {timeout:g} s") from error
    except LostError:
        raise
    except RuntimeError as error:  # the server's own, and RecursionError
        said = str(error)
        if said.startswith(_SAID) and said.endswith(_GOES_ON):
            raise RefusedError(_line(said.removeprefix(_SAID).rpartition(" (code")[0])) from None
        raise LostError(_told(error)) from None
    except Exception as error:  # the connection, or an answer that the client cannot read
        raise LostError(_told(error)) from None


def _step_of(payload: Any) -> Step:
    """Check the data of an answer, and take the token out of it."""
    payload = secrets.redact_json(payload)
    if not isinstance(payload, Mapping) or "observation" not in payload:
        raise LostError(f"its answer is {shown(payload)}, which has no observation")
    observation, given, done = payload["observation"], payload.get("reward"), payload.get("done", False)
    reward = float(given) if isinstance(given, bool) else number(given)
    if given is not None and (reward is None or abs(reward) > _LARGEST_REWARD):
        raise LostError(f"its reward is {shown(given)}")
    if not isinstance(done, bool):
        raise LostError(f"its `done` is {shown(done)}")
    if deeper(observation, _LEVELS):
        raise LostError(f"its observation is nested more than {_LEVELS} levels deep")
    return Step(observation, reward, done)


def _told(error: BaseException) -> str:
    """Return an error in one line."""
    text = _line(str(error))[:300]
    return text if isinstance(error, LostError) or not text else f"{type(error).__name__}: {text}"


def _line(text: str) -> str:
    """Return a server's text on one line, cut, without the token."""
    return line(secrets.redact_escaped(text[:_LARGEST_ERROR]))


def public(address: str) -> str:
    """Return an address as messages show it: without user, password and query."""
    plain = re.split("[?#]", address, maxsplit=1)[0]
    start = re.match(r"(openenv:)?([a-z]+://)?", plain)
    return f"{start[0]}{plain[start.end() :].rpartition('@')[2]}" if start else plain


async def _leave(client: "GenericEnvClient") -> None:
    with contextlib.suppress(Exception):
        await client.close()


def _finish(client: "GenericEnvClient") -> None:
    background.finish(_leave(client))


def is_local(url: str) -> bool:
    """Return whether a URL is of this machine, which no proxy reaches."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@cache
def client_class() -> type["GenericEnvClient"]:
    """Return OpenEnv's client with checked results.

    Raises:
        MissingExtraError: OpenEnv is not installed.
    """
    try:
        from openenv.core import GenericEnvClient
        from websockets.protocol import State
    except ImportError:
        raise MissingExtraError("A world of an OpenEnv server", "openenv", "openenv") from None

    class Client(GenericEnvClient):  # type: ignore[misc]
        _began = False

        def _parse_result(self, payload: Any) -> Step:
            self._began = True
            return _step_of(payload)

        async def _ensure_connected(self) -> None:
            # OpenEnv's connects again to a session that knows nothing of the episode
            if self._began and (self._ws is None or self._ws.state is not State.OPEN):
                raise LostError("the server closed the session")
            await super()._ensure_connected()

    return Client
