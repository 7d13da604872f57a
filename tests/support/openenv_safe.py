"""A real OpenEnv server with MCP tools: `uvicorn support.openenv_safe:app`. A safe, whose code is the seed's last two digits."""

import os
from typing import Annotated, Any, Literal

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import EnvironmentMetadata, Observation, State
from pydantic import Field


class Opening(Observation):
    text: str


class Safe(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("safe")
        self._code, self._open = 0, False

        @mcp.tool()
        def compare(
            number: Annotated[int, Field(description="To compare\nwith. Returns: nothing", ge=0)],
            how: Literal["above", "below"] = "above",
            note: str | None = None,
        ) -> str:
            """Say whether the code is above or below a number."""
            if number == 13:
                raise ValueError("13 brings bad luck")
            holds = self._code > number if how == "above" else self._code < number
            return f"{'yes' if holds else 'no'}{note or ''}"

        @mcp.tool(name="open-safe")
        def open_safe(code: int) -> dict[str, Any]:
            """Try a code."""
            self._open = code == self._code
            return {"open": self._open}

        super().__init__(mcp)

    def reset(self, seed: int | None = None, episode_id: str | None = None, hint: str = "", **_: Any) -> Opening:
        self._code, self._open = (seed or 0) % 100, False
        return Opening(text=f"A safe with {self._code % 10} dents.{hint}", metadata={"code": self._code})

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError("this world has tools alone")

    async def step_async(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
        seen = await super().step_async(action, timeout_s=timeout_s)
        if isinstance(seen, CallToolObservation) and seen.tool_name == "open-safe" and seen.error is None:
            seen.done, seen.reward = self._open, float(self._open)
        return seen

    @property
    def state(self) -> State:
        return State()

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="safe", description="Open the safe;\nits code has two digits.")


most = int(os.environ.get("SESSIONS", "64"))
app = create_app(Safe, CallToolAction, CallToolObservation, env_name="safe", max_concurrent_envs=most)
