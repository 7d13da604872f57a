"""Any OpenEnv server as a world: `environment: openenv:http://localhost:8000`.

Its action, or each of its MCP tools, is a tool. An episode is a session of its own, which OpenEnv's client opens by
`reset(seed=...)`. What is observed is the server's observation as text (see `text_of`), and the outcome is the last reward that
the server gave, as OpenEnv's own harness takes it. A server that leaves, hangs or answers nonsense loses the episode: it ends
without a reward, and `metrics["lost"]` is 1.
"""

import json
import logging
import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from wm_plugin.errors import UserError, shown
from wm_plugin.hosting.world import turn_limit
from wm_plugin.untrusted import checked, encodable, finite
from wm_plugin.worlds.kit.counted import CountedEnvironment
from wm_plugin.worlds.kit.rows import row_number, rows_of, world_seed
from wm_plugin.worlds.openenv.package import serve
from wm_plugin.worlds.openenv.sessions import LostError, RefusedError, Server, Session, Step, client_class, public
from wm_plugin.worlds.openenv.tools import line, tool_of, tools_of

logger = logging.getLogger(__name__)

MAX_TURNS = 30
LONGEST = 20_000  # characters of an observation; of more, the first and the last half
LARGEST_CALL = 1 << 20  # characters of the arguments of a call, as JSON
_OURS = {"prompt", "environment", "index"}  # columns of a row that are not the server's; verl numbers rows
_INSTRUCTION = "Act by calling the tools, in {turns}.\n\n"


class OpenEnvEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` calls; the reward is the last one that the server gave, and 1 is a success.

    A call is effective if the server does not answer it with an error and it is new.
    """

    refusals = ("Error: ",)
    is_remote = True  # its memory is the server's
    _lost = 0
    _server: Server
    _is_mcp = False

    def __init__(self) -> None:
        super().__init__()
        self._session = Session(self._server)

    def reset(self, seed: int | None = None, max_turns: int | None = None, **columns: Any) -> str:
        """Begin an episode.

        Args:
            seed: goes to the server's `reset`, as other columns do; an empty one does not.
        """
        self._begin()
        self.max_turns = 0  # the episode stays over if a column is refused
        turns = turn_limit(max_turns, MAX_TURNS)
        if seed is not None:
            columns["seed"] = row_number(seed, "seed", "openenv")
        asked = {name: _plain(name, value) for name, value in columns.items() if name not in _OURS}
        try:
            step = self._session.open({name: value for name, value in asked.items() if value is not None})
        except LostError as error:
            return self._observe(self._lost_by(error))
        self.max_turns = turns
        return self._see(step)

    def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        self._take_turn()
        try:
            given = checked(encodable({name: value for name, value in arguments.items() if value is not None}))
            written = json.dumps(given, sort_keys=True)
        except (TypeError, ValueError, RecursionError):
            return self._refuse("the arguments are no JSON")
        if len(written) > LARGEST_CALL:
            return self._refuse(f"the arguments have {len(written)} characters; {LARGEST_CALL} are the most")
        action = {"type": "call_tool", "tool_name": tool, "arguments": given} if self._is_mcp else given
        try:
            step = self._session.step(action)
        except RefusedError as error:
            return self._refuse(str(error).removesuffix("."))
        except LostError as error:
            raise ValueError(self._lost_by(error)) from None  # the host's text: the server said nothing
        self._reward = self._reward if step.reward is None else step.reward
        text = self._see(step)
        failed = text.startswith(self.refusals)
        self._invalid += failed
        self._note(not failed, tool, written)
        return text if text.endswith(self._last_line) else self._observe(text)  # a served world of ours says so itself

    def _see(self, step: Step) -> str:
        self._ended = step.done
        if self.over:
            self._session.close()  # another episode may need its place on the server
        return text_of(step.observation)

    def _lost_by(self, error: LostError) -> str:
        self._lose()
        logger.warning("openenv:%s: an episode was lost: %s", self._server.url, error)
        return f"The world was lost ({error})."


@lru_cache
def world_of(path: str) -> type:
    """Return the class of `openenv:http://host:port` or `openenv:package`; the server must answer.

    Raises:
        UserError: it does not answer, or its tools are not ones that hosts can show.
        MissingExtraError: OpenEnv is not installed.
    """
    address = path.removeprefix("openenv:")
    where = public(path)
    server = Server.read(address if any(sign in address for sign in ":@?") else serve(address, where), where)
    try:
        client_class()  # is OpenEnv there at all?
        schema = server.get("schema")
        action = schema.get("action") if isinstance(schema, Mapping) else None
        properties = action.get("properties") if isinstance(action, Mapping) else None
        if not isinstance(action, Mapping) or not isinstance(properties, Mapping):
            raise UserError(f"{where}: its /schema has {shown(action)} as action; an OpenEnv server has a JSON schema")
        is_mcp = {"tool_name", "arguments"} <= properties.keys() or not properties.keys() - {"metadata", "type"}
        listed = server.tools() if is_mcp else None
    except LostError as error:
        raise UserError(f"{where}: no OpenEnv server answers there ({error}); start it first") from None
    run = OpenEnvEnvironment._call
    tools = (
        tools_of(listed, run, where)
        if is_mcp
        else {"step": tool_of("step", action.get("description"), action, run, where)}
    )

    class FromServer(OpenEnvEnvironment):
        observer = "tool" if is_mcp else "environment"
        _server, _is_mcp = server, is_mcp

    FromServer.__name__ = FromServer.__qualname__ = "OpenEnv"
    FromServer.__doc__ = _description(server)
    for name, tool in tools.items():
        if hasattr(FromServer, name):
            raise UserError(
                f"{where}: a tool is called {name!r}, as an attribute of worlds is; rename it on the server"
            )
        tool.__qualname__ = f"{path}.{name}"  # schemas are kept by it
        setattr(FromServer, name, tool)
    return FromServer


def dataset_rows(
    count: int, seed: int = 0, held_out: bool = False, max_turns: int = MAX_TURNS, *, path: str
) -> list[dict[str, Any]]:
    """Make rows of seeds, with the server's description as prompt. Held-out seeds are divisible by 10."""
    rng = random.Random(seed * 2 + held_out)
    instruction = "\n\n".join(filter(None, [world_of(path).__doc__, _INSTRUCTION]))
    tasks = [{"seed": world_seed(rng, held_out, 10**7)} for _ in range(count)]
    return rows_of(instruction, tasks, max_turns, MAX_TURNS)


def text_of(observation: Any) -> str:
    """Write an observation: its one field alone, or a line `name: value` for each; values that are no text as JSON.

    Fields that are null are left out, and so are `metadata`, which no agent is meant to see, and `reward` and `done`. An MCP
    tool's result is the text of its content, or `Error: ...`. Half of a text that is too long is cut out of its middle.
    """
    if isinstance(observation, Mapping) and "tool_name" in observation and "result" in observation:
        text = _result(observation)
    elif isinstance(observation, Mapping):
        hidden = ("metadata", "reward", "done")
        fields = {name: it for name, it in observation.items() if name not in hidden and it is not None}
        if len(fields) == 1:
            text = _written(next(iter(fields.values())))
        else:
            text = "\n".join(f"{name}: {_written(value)}" for name, value in fields.items())
    else:
        text = _written(observation)
    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half} characters are cut]\n{text[-half:]}"
    return str(encodable(text))


def _result(observation: Mapping[str, Any]) -> str:
    error, result = observation.get("error"), observation["result"]
    if error is not None:
        return f"Error: {_written(error.get('message') if isinstance(error, Mapping) else error)}"
    if not isinstance(result, Mapping) or not isinstance(content := result.get("content"), list):
        return _written(result)
    texts = [
        _written(part["text"]) if isinstance(part, Mapping) and "text" in part else f"[{_kind(part)}]"
        for part in content
    ]
    return ("Error: " if result.get("is_error") is True else "") + "\n".join(texts)


def _kind(part: Any) -> str:
    return line(part.get("type")) if isinstance(part, Mapping) else "content"


def _written(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(finite(value), ensure_ascii=False)


def _plain(name: str, value: Any) -> Any:
    """Return a row's value as JSON has it; arrays and numbers of numpy have `tolist`."""
    value = value.tolist() if hasattr(value, "tolist") else value
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"openenv: a row's column `{name}` is {shown(value)}, which is no JSON; leave it out") from None
    return value


def _description(server: Server) -> str:
    """Return what the server says of itself, in one line."""
    try:
        about = server.get("metadata")
    except LostError:
        about = None
    return line(about.get("description")) if isinstance(about, Mapping) else ""
