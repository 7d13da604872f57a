"""verl's tool loop, with a record of which tokens the environment wrote, and with our environment classes as tools.

The rollout itself is verl's: its parser, its tokens, its limits. With `wm.protocol` tags the parser is ours, and observations are
the user's (see `wm_plugin.hosting.tags`).
"""

import asyncio
import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from transformers.utils import get_json_schema
from verl.experimental.agent_loop.tool_agent_loop import AgentState, ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import FunctionTool, normalize_function_tool_return
from verl.tools.schemas import OpenAIFunctionToolSchema

from wm_plugin.data.turn_texts import categories
from wm_plugin.errors import UserError
from wm_plugin.hosting.config import check_tool_names
from wm_plugin.hosting.episode import EpisodePort
from wm_plugin.hosting.predictions import acting, prediction_reward, turn_scores
from wm_plugin.hosting.tags import PARAMETER, REMINDER, TOOL, actions_of, begins_to_think, takes_tags
from wm_plugin.hosting.world import tool_methods, tool_names, turn_limit
from wm_plugin.tokens.chat import users
from wm_plugin.tokens.spans import Ending, Origin, SpanError, ending
from wm_plugin.untrusted import DEEPEST, BoundsError, encodable, loads
from wm_plugin.verl import dumps
from wm_plugin.verl.config import read_config
from wm_plugin.verl.names import ERROR, INFO, MAX_TURNS, MESSAGES, ORIGINS, PROMPT, RESULTS, SCORES, TOOLS, TRAINING
from wm_plugin.verl.spans import Block, end_token_ids, locate, make_locator

_OPENING = 16  # tokens in which a `<think>` at the end of a prompt is; a tokenizer of bytes takes 7

if TYPE_CHECKING:
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop as _Host  # the mixin is put in front of one
else:
    _Host = object


class WorldModelLoopMixin(_Host):
    """Adds the record to any subclass of ToolAgentLoop: `class Mine(WorldModelLoopMixin, MyToolAgentLoop)`.

    An instance lives for one trajectory. Its output's `extra_fields` get `wm_origins`, `wm_results`, and with an environment the
    reward and `wm_info`. What goes wrong while spans are located is left in `wm_error`: an exception would only make verl replace
    the trajectory by padding.
    """

    tools: dict[str, Any]
    tool_schemas: list[dict[str, Any]] | None
    server_manager: Any
    tool_parser: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wm = read_config(self.config)
        self._wm_port: EpisodePort | None = None  # of the trajectory's environment
        self._wm_results: list[str] = []  # what the policy read of its last turn's calls
        self._wm_blocks: list[Block] = []
        self._wm_calls: list[str] = []  # names of the tools that were called
        self._wm_cut = 0  # results that verl cut
        self._wm_unanswered = 0  # answers from which no action reached a world that waited
        # (the message before, messages, merge result, mask) of the last messages that were appended
        self._wm_merged: Any = None
        self._wm_dumped = bool(dumps.folders(self.config))
        self._wm_read = any(one.select_rollout for one in self._wm.objectives.values())
        self._wm_shown: Any = None  # the tools that the prompt shows, where rollouts are dumped
        self._wm_said: list[dict[str, Any]] = []  # the messages after the prompt, as far as they are in the tokens
        self._wm_lock = asyncio.Lock()
        self.tools = {name: _watched(tool) for name, tool in self.tools.items()}

    def _use_environment(self, row: Mapping[str, Any]) -> None:
        environment = self._wm.class_of(row)
        if environment is None:
            return
        self._wm_port = EpisodePort(environment())
        self.tools, schemas = {}, []
        for name, method in tool_methods(self._wm_port.environment).items():
            schema, parsed = _schemas(getattr(environment, name))
            schemas.append(schema)
            self.tools[name] = _watched(FunctionTool(name, method, parsed, inspect.iscoroutinefunction(method)))
        self.tool_schemas = schemas
        options = prediction_reward(environment)
        left_out = None if options is None else options.left_out
        if takes_tags(environment):
            self.tool_schemas = None  # nothing of them in the prompt
            self.tool_parser = TagParser(self.tokenizer)
            self.tool_parser.left_out = left_out
        elif left_out is not None:
            self.tool_parser = _PredictionParser(self.tool_parser, left_out)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        if turns := turn_limit(kwargs.pop(MAX_TURNS, None), self._wm.first_turns or 0, MAX_TURNS):
            self.max_assistant_turns = turns
        strength = kwargs.pop(TRAINING, None)  # of trainings alone
        training = strength is not None
        columns = kwargs.get("extra_info")
        self._use_environment({} if columns is None else columns)
        ahead = None if training else (self._wm.look_ahead or {}).get(str(kwargs.get("data_source")))
        if ahead is not None:
            from wm_plugin.verl.look_ahead import AheadServers

            self.server_manager = AheadServers(
                self.server_manager,
                ahead,
                self.tokenizer,
                self.tool_parser,
                self.tool_schemas,
                self.max_parallel_calls,
                self.max_assistant_turns and self.max_assistant_turns - 1,  # the last one answers
            )
        if self._wm_port is not None:
            kwargs["raw_prompt"] = await self._begin(self._wm_port, kwargs, strength)
        output = await super().run(sampling_params, **kwargs)
        if self._wm_dumped:
            form = self.tokenizer, self.apply_chat_template_kwargs, REMINDER if self._takes_tags() else None
            output.extra_fields[PROMPT] = await asyncio.to_thread(
                dumps.shown, kwargs["raw_prompt"], self._wm_said, self._wm_shown, *form
            )
        if self._wm_read:
            output.extra_fields[MESSAGES] = self._wm_said
        output.extra_fields[RESULTS] = [len(self._wm_calls), self._wm_cut]
        try:
            declared = self._declared_tools()
            origins = await asyncio.to_thread(self._origins, output)
            output.extra_fields[ORIGINS] = [origin.pack() for origin in origins]
            output.extra_fields[TOOLS] = declared
        except (SpanError, UserError) as error:
            output.extra_fields[ERROR] = str(error)
        if self._wm_port is not None:
            await self._end(self._wm_port, output)
        return output

    async def _begin(self, port: EpisodePort, row: Mapping[str, Any], strength: float | None) -> list[dict[str, Any]]:
        """Return the prompt with what `reset` returned at its end. `strength`: a curriculum's factor in trainings; else None."""
        messages = [dict(message) for message in row["raw_prompt"]]
        if not messages or not isinstance(messages[-1].get("content"), str):
            raise UserError(
                "a row's prompt does not end in a message of text, which the first observation is to follow"
            )
        columns = self._wm.columns_of(row.get("extra_info"))
        said = {"training": False} if strength is None else {"strength": float(strength)}
        observation = await _call(port.begin, columns, prompt=messages, **said)
        if observation is not None:
            messages[-1]["content"] += observation
        return messages

    async def _end(self, port: EpisodePort, output: Any) -> None:
        """The episode's figures and its reward."""
        await asyncio.to_thread(port.end, self._wm_unanswered)
        length, sampled = len(output.response_ids), sum(output.response_mask)
        info = port.figures(
            self._wm_calls,
            budget=self.max_assistant_turns and self.max_assistant_turns - 1,  # the last one answers
            truncated=self._ending(output) is Ending.TRUNCATED,
            policy_tokens=sampled,
            environment_tokens=length - sampled,
        )
        output.extra_fields[INFO] = info
        output.extra_fields[SCORES] = turn_scores(port.environment)
        output.extra_fields["reward_extra_info"] = dict(info)  # verl's validation logs these by itself
        if hasattr(port.environment, "get_reward"):
            reward = await _call(port.environment.get_reward)
            output.reward_score = None if reward is None else float(reward)  # a number: no reward worker is asked

    # -- the record --------------------------------------------------------------------------------------------------------

    async def _call_tool(self, tool_call: Any, tools_kwargs: dict[str, Any], agent_data: Any) -> Any:
        _running.set(tool_call)
        self._wm_calls.append(tool_call.name)
        async with self._wm_lock if self._wm_port is not None else nullcontext():
            # the calls of one turn act on one world, in their order
            result = await super()._call_tool(tool_call, tools_kwargs, agent_data)
        if result[0].text:
            result = (result[0].model_copy(update={"text": encodable(result[0].text)}), *result[1:])
        known = getattr(agent_data, "_active_tools", self.tools)
        tool_call.failed |= tool_call.name not in known or not _parses(tool_call.arguments)
        # verl's own texts of failures are never cut; what it cuts is longer than the limit by the mark that it puts in
        self._wm_cut += not tool_call.failed and len(result[0].text or "") > self.max_tool_response_length
        return result

    async def _handle_generating_state(
        self, agent_data: Any, sampling_params: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        most = None
        self._wm_shown = getattr(agent_data, "_active_tool_schemas", self.tool_schemas)
        if self._wm.max_turn_tokens is not None:
            # verl's servers take the room that is left for their limit only where none is asked for
            left = self.response_length - len(agent_data.response_mask)
            most = max(1, min(self._wm.max_turn_tokens, left))
            sampling_params = {**sampling_params, "max_tokens": most}
        if self._takes_tags():
            end = await asyncio.to_thread(self.tokenizer.decode, agent_data.prompt_ids[-_OPENING:])
            self.tool_parser.thinking = begins_to_think(end)
        waiting = self._is_waiting() and not self._is_last(agent_data)
        before = len(agent_data.messages)
        state = await super()._handle_generating_state(agent_data, sampling_params, *args, **kwargs)
        if state == AgentState.PROCESSING_TOOLS and most is not None and self._is_cut(agent_data.response_ids, most):
            state = AgentState.TERMINATED  # a turn without its end, after which verl would write the results
        self._wm_unanswered += waiting and state == AgentState.TERMINATED
        port = self._wm_port if self._wm_port is not None and self._wm_port.is_turn_aware else None
        if port is not None or self._wm_dumped or self._wm_read:
            message = await self._said(agent_data, agent_data.messages[before:])
            self._wm_said.append(message)
            if port is not None:
                self._tell(port, message, state)
        return state

    def _is_waiting(self) -> bool:
        return self._wm_port is not None and self._wm_port.is_waiting

    async def _said(self, agent_data: Any, said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the policy's message of this turn."""
        if said:
            return self._plain(said[-1])
        # at a limit verl does not parse the answer
        text = await asyncio.to_thread(self.tokenizer.decode, agent_data.response_ids, skip_special_tokens=True)
        return {"role": "assistant", "content": text}

    def _tell(self, port: EpisodePort, message: dict[str, Any], state: Any) -> None:
        """Tell the environment of a turn, so that a world model is asked about its calls at once."""
        executed = len(message.get("tool_calls") or ()) if state == AgentState.PROCESSING_TOOLS else 0
        port.turn(message, self._wm_results, executed=executed)
        self._wm_results = []

    def _takes_tags(self) -> bool:
        return isinstance(self.tool_parser, TagParser)

    def _is_cut(self, ids: Sequence[int], limit: int) -> bool:
        return len(ids) >= limit and ids[-1] not in {*end_token_ids(self.tokenizer), *self.tool_parser.stop_token_ids}

    def _is_last(self, agent_data: Any) -> bool:
        """Return whether the next answer is the one after the last turn, whose calls verl does not run."""
        most, users = self.max_assistant_turns, self.max_user_turns
        return bool(most and agent_data.assistant_turns + 1 >= most) or bool(users and agent_data.user_turns >= users)

    def _build_assistant_message(self, content: str, agent_data: Any) -> Any:
        # The first place where verl parses arguments. It does so without bounds, and expects no other error than text that is
        # no JSON: what exceeds the bounds counts as that, too.
        agent_data.tool_calls = [_bounded(call) for call in agent_data.tool_calls]
        return super()._build_assistant_message(content, agent_data)

    async def ct_merge_context_msg(
        self, previous_messages: Any, updated_messages: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self._takes_tags():
            before, after = _in_text(previous_messages), _in_text(updated_messages)
            result = await super().ct_merge_context_msg(before, after, *args, **kwargs)
        else:
            result = await super().ct_merge_context_msg(previous_messages, updated_messages, *args, **kwargs)
        appended = updated_messages[len(previous_messages) :]
        self._wm_merged = previous_messages[-1], appended, result[0], result[1]
        return result

    async def _handle_processing_tools_state(self, agent_data: Any) -> Any:
        calls = agent_data.tool_calls[: self.max_parallel_calls]
        before = len(agent_data.response_mask)
        self._wm_merged = None
        if self._wm_port is not None:
            await self._wm_port.ready()
        waiting = self._is_waiting()
        state = await super()._handle_processing_tools_state(agent_data)
        self._wm_unanswered += waiting and all(call.failed for call in calls)
        if self._wm_merged is not None and len(agent_data.response_mask) > before:  # else it was too long, and dropped
            turn, messages, merged, mask = self._wm_merged
            self._wm_results = [message["content"] for message in messages]
            messages = [{**message, "name": call.name} for message, call in zip(messages, calls, strict=True)]
            self._wm_said += messages
            count = merged.appended_token_count
            self._wm_blocks.append(
                Block(
                    start=len(mask) - count,
                    ids=list(merged.token_ids[len(merged.token_ids) - count :]),
                    messages=messages,
                    failed=[call.failed for call in calls],
                    categories=categories(self._plain(turn), messages) if self._wm.objectives.categorize else None,
                )
            )
        return state

    def _plain(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the assistant's message without the special tokens that verl's parsers leave in its text."""
        text = turn["content"]
        for token in self.tokenizer.all_special_tokens:
            text = text.replace(token, "")
        return {**turn, "content": text}

    def _ending(self, output: Any) -> Ending:
        end_ids = end_token_ids(self.tokenizer)
        return ending(output.response_ids, output.response_mask, end_ids=end_ids, limit=self.response_length)

    def _declared_tools(self) -> list[str]:
        """Return the names of all tools of the run, those of other rows' environments too."""
        known = {name for environment in self._wm.classes().values() for name in tool_names(environment)} or set(
            self.tools
        )
        for one in self._wm.objectives.values():
            check_tool_names(one.tool_names, known, "wm.tools")
        return sorted(known)

    def _origins(self, output: Any) -> list[Origin]:
        """Return the environment's spans in the response and what is known of each, for the trainer to weigh."""
        reads_messages = any(one.select for one in self._wm.objectives.values())
        reminder = REMINDER if self._takes_tags() else None
        locator = make_locator(self.continuous_token_builder, self.tool_schemas, reminder)
        how = self._ending(output)
        return [
            # only `select` reads the message, which may be long
            origin._replace(ending=how, message=origin.message if reads_messages else None)
            for origin in locate(self._wm_blocks, output.response_mask, locator)
        ]


class WorldModelToolAgentLoop(WorldModelLoopMixin, ToolAgentLoop):
    """verl's `tool_agent` with the record; registered as `wm_tool_agent`."""


class TagParser(ToolParser):
    """Reads the actions between tags as a call of the environment's one tool; an answer without them is a final one."""

    thinking = False  # whether the prompt of the next answer ends in an open `<think>`
    left_out: str | None = None  # the tag of predictions, whose content is not acted on

    async def extract_tool_calls(self, responses_ids: list[int], *_: Any, **__: Any) -> tuple[str, list[FunctionCall]]:
        text = await asyncio.to_thread(self.tokenizer.decode, responses_ids)
        answer = text if self.left_out is None else acting(text, self.left_out, thinking=self.thinking).acting
        actions = actions_of(answer, thinking=self.thinking)
        calls = [] if actions is None else [FunctionCall(name=TOOL, arguments=json.dumps({PARAMETER: actions}))]
        return text, calls


class _PredictionParser:
    """One of verl's parsers, which is not shown what stands in predictions; they are put at the end of the message's text."""

    def __init__(self, parser: ToolParser, tag: str) -> None:
        self._parser, self._tag = parser, tag

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    async def extract_tool_calls(
        self, responses_ids: list[int], *args: Any, **kwargs: Any
    ) -> tuple[str, list[FunctionCall]]:
        tokenizer = self._parser.tokenizer
        answer = acting(await asyncio.to_thread(tokenizer.decode, responses_ids), self._tag)
        if answer.predicted:
            responses_ids = await asyncio.to_thread(tokenizer.encode, answer.acting, add_special_tokens=False)
        content, calls = await self._parser.extract_tool_calls(responses_ids, *args, **kwargs)
        return f"{content or ''}{answer.predicted}" if answer.predicted else content, calls


def _in_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages of the protocol of tags: calls are in the policy's own words, and observations are the user's."""
    plain: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            plain += users([message["content"]], REMINDER)
        else:
            plain.append({name: value for name, value in message.items() if name != "tool_calls"})
    return plain


@lru_cache  # the same for every trajectory
def _schemas(function: Any) -> tuple[dict[str, Any], OpenAIFunctionToolSchema]:
    """Return a tool's schema as it is, for the prompt, and as verl's own class, which drops `items`, `nullable`, ..."""
    schema = get_json_schema(function)
    return schema, OpenAIFunctionToolSchema.model_validate(schema)


def _watched(tool: Any) -> Any:
    """Return a tool that marks its call as failed when it raises: verl makes a text of the exception, as a tool may itself."""
    return _WatchedFunction(tool) if isinstance(tool, FunctionTool) else _WatchedTool(tool)


class _WatchedFunction(FunctionTool):
    def __init__(self, tool: FunctionTool) -> None:
        super().__init__(tool.name, tool.fn, tool.tool_schema, tool.is_async)
        self._tool = tool

    async def call(self, parameters: dict[str, Any]) -> Any:
        try:
            result = await self._tool.call(parameters)
            normalize_function_tool_return(result)  # verl does so next, and may refuse it
        except Exception:
            _running.get().failed = True
            raise
        return result


class _WatchedTool:
    """A verl `BaseTool`, with everything else passed through."""

    def __init__(self, tool: Any) -> None:
        self._tool = tool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        return await _noting(self._tool.create(*args, **kwargs))

    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        return await _noting(self._tool.execute(*args, **kwargs))


async def _noting(awaitable: Any) -> Any:
    try:
        return await awaitable
    except Exception:
        _running.get().failed = True
        raise


async def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a function, which may take a while, or return an awaitable."""
    result = await asyncio.to_thread(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def _parses(arguments: Any) -> bool:
    try:
        loads(arguments)
    except (ValueError, TypeError):
        return False
    return True


class _Call(FunctionCall):
    """A call of verl's, which knows whether the host made its result up: it is of no tool, does not parse, or the tool raised."""

    failed: bool = False


_running: ContextVar[_Call] = ContextVar("wm_call")  # in the task of a call, where its tool may raise


def _bounded(call: FunctionCall) -> _Call:
    """Return a call that can be copied, rendered and tokenized.

    It has no arguments if they are larger, deeper or of longer integers than is parsed, and no lone surrogates.
    """
    plain = {"name": encodable(call.name), "arguments": encodable(call.arguments)}
    try:
        value = loads(plain["arguments"], levels=DEEPEST)
        if "\\u" in plain["arguments"] and (made := encodable(value)) != value:
            plain["arguments"] = json.dumps(made)
    except BoundsError:
        plain["arguments"] = ""
    except (ValueError, TypeError):
        pass
    return _Call(**{**call.model_dump(), **plain})
