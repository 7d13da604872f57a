"""A server that speaks OpenEnv's protocol until it misbehaves: `uvicorn support.openenv_broken:app`.

A session misbehaves at its first step in the way that the column `fault` of its reset names, or at the reset itself. The folder
in the URL chooses what /schema says.
"""

import asyncio
import json
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket


def observed(text: Any, **fields: Any) -> str:
    data = {"observation": {"text": text}, "reward": 0.5, "done": False} | fields
    return json.dumps({"type": "observation", "data": data})


def error(message: str, code: str) -> str:
    return json.dumps({"type": "error", "data": {"message": message, "code": code}})


FAULTS = {
    "huge": lambda: observed("x" * (17 << 20)),
    "long": lambda: observed("a" * 30_000 + "\ud800" + "b" * 30_000),
    "nan": lambda: observed("", reward=float("nan")),
    "infinite": lambda: observed("", reward=1e400),
    "overflow": lambda: observed("", reward=-1e38),
    "text reward": lambda: observed("", reward="1"),
    "done": lambda: observed("", done="yes"),
    "deep": lambda: observed(json.loads("[" * 400 + "]" * 400)),
    "deeper": lambda: '{"type": "observation", "data": {"observation": ' + "[" * 100_000 + "]" * 100_000 + "}}",
    "digits": lambda: observed(0).replace('"text": 0', '"text": ' + "9" * 5000),
    "html": lambda: "<html>502</html>",
    "list": lambda: "[1]",
    "data": lambda: '{"type": "observation", "data": [1]}',
    "nothing": lambda: "{}",
    "refused": lambda: error("the door\nis locked", "EXECUTION_ERROR"),
    "session": lambda: error("no such session", "SESSION_ERROR"),
}


async def session(socket: WebSocket) -> None:
    await socket.accept()
    fault = ""
    while True:
        message = json.loads(await socket.receive_text())
        if message["type"] == "close":
            return await socket.close()
        if message["type"] == "reset":
            fault = message["data"].get("fault", "")
            where, _, name = fault.rpartition("@")
            await socket.send_text(FAULTS[name]() if where == "reset" else observed("It is dark."))
        elif fault == "closes":
            return await socket.close()
        elif fault == "hangs":
            await asyncio.sleep(3600)
        elif fault == "leaves":
            await socket.send_text(observed("You go."))
            return await socket.close()
        else:
            await socket.send_text(FAULTS[fault]() if fault in FAULTS else observed(message["data"]))


def action(**properties: Any) -> dict[str, Any]:
    return {"action": {"type": "object", "properties": properties, "required": list(properties)}}


SCHEMAS: dict[str, Any] = {
    "": action(word={"type": "string"}),
    "array": [],
    "text": {"action": "a text"},
    "keyword": action(**{"class": {"type": "string"}}),
    "code": action(**{"x): import os; (y": {"type": "string"}}),
    "many": action(**{f"p{number}": {"type": "string"} for number in range(65)}),
    "huge": action(word={"type": "string", "description": "x" * (1 << 21)}),
    "section": action(Returns={"type": "string"}),
}


async def schema(request: Request) -> Response:
    return Response(json.dumps(SCHEMAS[request.path_params.get("kind", "")]), media_type="application/json")


AUTHORIZATION = "Bearer secret-1"


async def private(request: Request) -> Response:
    is_known = request.headers.get("authorization") == AUTHORIZATION
    return Response(json.dumps(SCHEMAS[""]), 200 if is_known else 401, media_type="application/json")


async def private_session(socket: WebSocket) -> None:
    await (session(socket) if socket.headers.get("authorization") == AUTHORIZATION else socket.close())


routes = [Route("/schema", schema), Route("/private/schema", private), Route("/{kind}/schema", schema)]
routes += [WebSocketRoute("/ws", session), WebSocketRoute("/private/ws", private_session)]
app = Starlette(routes=routes)
