"""Rollouts of TRL's asynchronous trainer: facts about the environment's tokens, recorded where the conversations are made.

TRL renders the whole conversation anew for every turn, and joins the turns to training rows as far as their tokens agree: a
template or a parser that rewrites what the policy wrote makes tokens of it a context, or begins another row. In either case the
prompt of a turn ends in the results of the calls before it, as the template writes them at the end of any conversation. That is
where they are found, and a result belongs to the first row that has it: none counts twice.

Samples go from the process of the rollouts over a queue and a planner to the collator of the trainer. Of what they hold, the
metrics are the one thing that all of these pass on as it is: the facts are on it.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop, parse_response

from wm_plugin.data.turn_texts import categories
from wm_plugin.errors import UserError
from wm_plugin.hosting.episode import EpisodePort
from wm_plugin.hosting.figures import CONTROL, CONTROLLED, PREFIX, SHARES, summary
from wm_plugin.objectives.weigh import without_variance
from wm_plugin.tokens.chat import Chat, make_locator
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.spans import Ending, Origin, SpanError, ToolBlock, block_spans, ending
from wm_plugin.trl.rollout import CallRecorder, called, parsing_within_bounds, unanswered

if TYPE_CHECKING:
    from trl.experimental.async_grpo.async_rollout_worker import (
        _AsyncRolloutLoop as _Host,
    )  # the mixin is put in front of one
else:
    _Host = object


@dataclass
class _Conversation:
    """A conversation that runs, in a task of its own.

    Attributes:
        tools: as the host parses answers with.
        port: of its environment; None if it has none.
        prompts: the token ids of each turn's prompt.
        ids: of the last turn.
        results: what was observed last.
    """

    tools: Any
    port: EpisodePort | None
    prompts: list[list[int]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


_conversation: ContextVar[_Conversation | None] = ContextVar("wm_conversation", default=None)


class Facts(NamedTuple):
    """What is known of a training row.

    Attributes:
        origins: of the environment's spans, packed; counted from the row's first token.
        without_variance: whether the rewards of the row's group are all equal.
        calls: how many tools its conversation called.
        problem: why the environment's tokens cannot be told apart; None if they can.
        note: what the trainer says once of environment tokens that do not count; None if there are none.
    """

    origins: tuple[tuple[Any, ...], ...]
    without_variance: bool
    calls: int
    problem: str | None
    note: str | None = None


_NOT_NOTED = Facts(
    (),
    False,
    0,
    "a conversation went past _generate_one of WorldModelRolloutMixin: put it before the class that overrides that",
)


class Metrics(dict[str, float]):
    """The metrics of a sample, with the facts about its tokens."""

    facts: Facts


class FactsMixin(_Host):
    """Puts the facts about a training row, its attribute `wm_facts`, on its sample."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        template = self.tokenizer, self.chat_template, self.chat_template_kwargs
        self._wm_chat, self._wm_locator = Chat(*template), make_locator(*template)
        self._wm_end_ids = {*self.eos_token_ids, self.tokenizer.pad_token_id}

    def run(self) -> None:
        with parsing_within_bounds(self.tokenizer):
            super().run()

    async def _score_group(self, group: Any) -> Any:
        samples = await super()._score_group(group)
        rows = [row for rows in group.completions_sequences for row in rows]
        silent = all(without_variance([0] * len(samples), [sample.metrics["reward"] for sample in samples]))
        for sample, row in zip(samples, rows, strict=True):
            sample.metrics = Metrics(sample.metrics)
            sample.metrics.facts = getattr(row, "wm_facts", _NOT_NOTED)._replace(without_variance=silent)
        return samples


class WorldModelRolloutMixin(FactsMixin):
    """Notes the facts in any of TRL's rollout loops that have `_generate_one_turn` called once a turn:
    `class Mine(WorldModelRolloutMixin, MyLoop)`."""

    async def _generate_one_turn(self, prompt_ids: list[int]) -> Any:
        result = await super()._generate_one_turn(prompt_ids)
        if (conversation := _conversation.get()) is not None:
            conversation.prompts.append(prompt_ids)
            conversation.ids = result[0]
        return result

    async def _execute_tool_calls(self, tool_calls: Any, tool_dict: Any) -> Any:
        conversation = _conversation.get()
        port = None if conversation is None else conversation.port
        if conversation is None or port is None or not port.is_turn_aware:
            return await super()._execute_tool_calls(tool_calls, tool_dict)
        prompt, tools = conversation.prompts[-1], conversation.tools
        message = parse_response(self.tokenizer, conversation.ids, prefix=prompt, tools=tools)  # the host's, again
        port.turn(message, conversation.results)
        found = await super()._execute_tool_calls(tool_calls, tool_dict)
        conversation.results = [str(one["content"]) for one in found[0]]
        return found

    async def _generate_one(self, prompt: Any, tool_dict: Any, tools: Any, group_id: int = 0) -> Any:
        environment = _environment(tool_dict)
        port = None if environment is None else EpisodePort(environment)
        conversation = _Conversation(tools, port)
        _conversation.set(conversation)
        calls = CallRecorder()
        (watched,) = calls.wrap([tool_dict], [] if port is None else [port])
        result = await super()._generate_one(prompt, watched, tools, group_id)
        completion, completion_ids, rows, *_ = result
        if port is not None:
            limit = self.max_tool_calling_iterations
            limit = sys.maxsize if limit is None else limit
            answers = unanswered(completion, port, calls.outcomes.get(0, ()), limit)
            if completion and completion[-1]["role"] == "assistant":
                port.turn(completion[-1], conversation.results, executed=0)
            await asyncio.to_thread(port.end, answers)
        how = ending(completion_ids, None, end_ids=self._wm_end_ids, limit=None)
        origins: list[list[Origin]] = [[] for _ in rows]
        problem = None
        try:
            for place, start, block, turn, results in self._wm_blocks(conversation.prompts, completion, rows):
                (ranges,) = self._wm_locator.locate([block])
                failed = [calls.failed(0, message) for message in results]
                kinds = categories(turn, results)
                if place is not None:
                    origins[place] += [
                        Origin(span, results[index], failed[index], kinds[index], how)
                        for span, index in block_spans(block, ranges, start)
                    ]
        except (SpanError, UserError) as error:
            problem, origins = str(error), [[] for _ in rows]
        names = called(completion)
        for row, own in zip(rows, origins, strict=True):
            row.wm_facts = Facts(tuple(origin.pack() for origin in own), False, len(names), problem)
        if port is not None:
            self._wm_log_episode(port, names, result, how, [one for own in origins for one in own])
        return result

    def _wm_blocks(
        self, prompts: list[list[int]], completion: list[Message], rows: list[Any]
    ) -> Iterator[tuple[int | None, int, ToolBlock, Message, list[Message]]]:
        """Yield for each turn with results its row's place, the index of their first token there, their tokens, and the messages.

        The place is None where TRL dropped the row.

        Raises:
            SpanError: a prompt does not end as the template writes results, or was not recorded.
        """
        answers = list(_turns(completion))
        if len(prompts) != len(answers):
            raise SpanError(
                f"a conversation of {len(answers)} turns took {len(prompts)} of _generate_one_turn: put WorldModelRolloutMixin "
                "before the class that overrides it"
            )
        for prompt_ids, (turn, results) in zip(prompts[1:], answers[:-1], strict=True):
            if not results:
                continue
            tools = tuple(message["name"] for message in results)
            contents = tuple(message["content"] for message in results)
            ids = self._wm_chat.result_ids(tools, contents)
            start = len(prompt_ids) - len(ids)
            if start < 0 or prompt_ids[start:] != ids:
                raise SpanError(
                    f"cannot tell which tokens are the content of {', '.join(tools)}: the chat template writes results "
                    "differently at the end of this conversation. Use a chat template that renders tool results as they are, or "
                    "coeff 0 to train without the world-model term"
                )
            holding = (place for place, row in enumerate(rows) if row.input_ids[: len(prompt_ids)] == prompt_ids)
            yield next(holding, None), start, ToolBlock(tools, contents, ids), turn, results

    def _wm_log_episode(
        self, port: EpisodePort, names: list[str], result: tuple[Any, ...], how: Ending, origins: list[Origin]
    ) -> None:
        """Log the episode's figures."""
        figures = port.figures(
            names,
            budget=self.max_tool_calling_iterations,
            truncated=how is Ending.TRUNCATED,
            policy_tokens=len(result[1]),
            environment_tokens=sum(origin.span.end - origin.span.start for origin in origins),
        )
        # pairs, whose sums the host divides: numbers it sums or takes the largest of, by a "total" or "max" in a tool's name
        pairs = {name: (value, 1.0) for name, value in summary([figures]).items()}
        shares = SHARES | {name: (name, CONTROLLED) for name in figures if name.startswith(CONTROL)}
        shares.pop(CONTROLLED, None)  # the whole, which is a mean
        for share, (part, whole) in shares.items():  # ratios of sums over the episodes of a window
            if f"{PREFIX}/{share}" in pairs and part in figures and whole in figures:
                pairs[f"{PREFIX}/{share}"] = (figures[part], figures[whole])
        self._push_metrics(pairs)


class WorldModelRolloutLoop(WorldModelRolloutMixin, _AsyncRolloutLoop):
    """TRL's rollout loop, with facts about the environment's tokens on each sample."""


def _environment(tool_dict: Mapping[str, Any]) -> Any:
    """Return the environment whose methods a conversation's tools are; None if it has none."""
    owners = (getattr(tool, "__self__", None) for tool in tool_dict.values())
    return next((owner for owner in owners if hasattr(owner, "reset")), None)


def _turns(completion: list[Message]) -> Iterator[tuple[Message, list[Message]]]:
    """Yield each of the policy's messages with the results that follow it."""
    turn: Message | None = None
    results: list[Message] = []
    for message in completion:
        if message["role"] == "tool":
            results.append(message)
            continue
        if turn is not None:
            yield turn, results
        turn, results = message, []
    if turn is not None:
        yield turn, results
