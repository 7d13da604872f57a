"""OpenEnv's server over a world: its HTTP and WebSocket routes, its types of actions and observations.

A world's tools travel as those of OpenEnv's MCP environments do: as the actions `list_tools` and `call_tool`, and by JSON-RPC at
`/mcp`. OpenEnv's own class for that, `MCPEnvironment`, would have FastMCP check and convert the arguments before the world sees
them, answer mistakes in its own words, and give up after 30 seconds. So this is an `Environment` that takes the same actions.
"""

import asyncio
import socket
import threading
from contextvars import ContextVar
from functools import partial
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.hosting.world import tool_names
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.served import Session, Source

LARGEST = 1 << 22  # bytes of a message or a request
_QUEUED = 2  # messages of a connection that wait
_GOODBYE = 5  # seconds that sessions have to end with the server

_on_socket: ContextVar[bool] = ContextVar("wm_on_socket", default=False)


def application(source: Source, *, sessions: int, idle: float) -> Any:
    """Return the ASGI application.

    Args:
        sessions: at once; more are refused.
        idle: seconds after which a session without a WebSocket is closed: its client has gone, or it only speaks HTTP.

    Raises:
        MissingExtraError: openenv is not installed, or transformers, which makes the tools' schemas.
    """
    try:
        from fastapi import FastAPI
        from fastapi.responses import JSONResponse
        from openenv.core.env_server.http_server import HTTPEnvServer
        from openenv.core.env_server.interfaces import Environment
        from openenv.core.env_server.mcp_types import (
            CallToolAction,
            CallToolObservation,
            ListToolsAction,
            ListToolsObservation,
            Tool,
            ToolError,
        )
        from openenv.core.env_server.types import ConcurrencyConfig, EnvironmentMetadata, Observation, State
    except ModuleNotFoundError:
        raise MissingExtraError("wm env serve", "openenv", "openenv") from None

    tools = [
        Tool(name=one["name"], description=one["description"], input_schema=one["parameters"])
        for one in map(partial(_schema, source.environment), tool_names(source.environment))
    ]

    class Start(Observation):  # type: ignore[misc]
        """What a reset returns: the task and, at its end, what is observed first, as a host shows them to a policy."""

        text: str = ""
        system: str | None = None  # a system message, of the few worlds that have one

    class ServedWorld(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._session = Session(source)
            self._episode: str | None = None

        def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
            self._episode = episode_id
            context, told = self._session.reset({"seed": seed, **options})
            return Start(text=context.initial_state, system=context.task or None, done=told.over, reward=told.reward)

        def step(self, action: Any, **_: Any) -> Observation:
            if isinstance(action, ListToolsAction):
                return ListToolsObservation(tools=tools)
            told = self._session.call(action.tool_name, action.arguments)
            return CallToolObservation(
                tool_name=action.tool_name,
                result=told.text,
                error=told.error and ToolError(error_type=told.error[0], message=told.error[1]),
                done=told.over,
                reward=told.reward,
            )

        @property
        def state(self) -> State:
            return State(**self._session.about | {"episode_id": self._episode, "step_count": self._session.steps})

        def get_metadata(self) -> EnvironmentMetadata:
            return EnvironmentMetadata(name=source.world.name, description=source.world.summary)

        def close(self) -> None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # in the session's own thread
                self._session.close()
            else:  # of one HTTP request, in the server's: an engine may take a second to end
                threading.Thread(target=self._session.close).start()

    class Server(HTTPEnvServer):  # type: ignore[misc]
        async def _create_session(self) -> tuple[str, Environment]:
            """A session that a WebSocket owns ends with it, and not before: a trainer may be idle for longer than `idle`."""
            name, environment = await super()._create_session()
            if _on_socket.get():
                self._session_websocket_attachments.add(name)
            return name, environment

    server = Server(
        ServedWorld,
        CallToolAction,
        CallToolObservation,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=idle),
        env_name=source.world.name,
        reset_observation_cls=Start,
    )
    app = FastAPI(title=f"wm: {source.world.name}", description=source.world.summary)
    server.register_routes(app)
    app.add_exception_handler(UserError, lambda _, error: JSONResponse({"detail": str(error)}, status_code=400))
    return _Bounded(app)


def _schema(environment: type, tool: str) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = tool_schema(getattr(environment, tool))["function"]
        return schema
    except UserError:
        raise
    except Exception as error:  # of the docstring, or of the types
        raise UserError(f"{environment.__name__}.{tool}: {error}") from None


class _Bounded:
    """An application whose requests have bodies of at most `LARGEST` bytes. uvicorn bounds the messages of WebSockets."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.exceptions import HTTPException

        size = 0

        async def bounded() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > LARGEST:
                raise HTTPException(413, f"the request is larger than {LARGEST:,} bytes")
            return message

        _on_socket.set(scope["type"] == "websocket")
        await self._app(scope, bounded if scope["type"] == "http" else receive, send)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one.

    Raises:
        UserError: the address is taken, or does not exist.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise UserError(f"--host {host} --port {port}: {reason}; choose another") from None


def serve(app: Any, listening: socket.socket) -> None:
    """Serve until a signal ends it, which is raised again when all sessions are closed."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        ws_max_size=LARGEST,
        ws_max_queue=_QUEUED,
        ws_per_message_deflate=False,  # it costs a session memory, and a step time
        timeout_graceful_shutdown=_GOODBYE,
    )
    uvicorn.Server(config).run(sockets=[listening])
