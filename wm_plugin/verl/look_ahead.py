"""Validation sets whose episodes the policy plays looking ahead with itself, by the very engine that generates rollouts.

verl's loop asks its server manager for a turn. In a validation of such a set, `AheadServers` stands before it: it asks the
engine for several turns, lets the policy go on with each (its results, its next turns), and gives the loop the first turn of the
best, as the engine sampled it. Trainings are not touched.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from wm_plugin.data.messages import arguments_of
from wm_plugin.data.schema import Action, Call, Trajectory
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.branches import Branch, ResultTexts
from wm_plugin.lab.agents.imagined_worlds import imagined
from wm_plugin.lab.agents.lookahead import taken
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
from wm_plugin.tokens.chat import Chat


class AheadServers:
    """Stands for verl's server manager in one episode.

    Args:
        servers: verl's own, or any with its `generate`.
        tokenizer, parser: the loop's.
        schemas: of the tools, as the parser takes them.
        most: calls of a turn that the loop runs; None: all.
        left: turns with calls that the episode has; none is imagined beyond. None: no limit.
    """

    def __init__(
        self,
        servers: Any,
        config: LookAheadConfig,
        tokenizer: Any,
        parser: Any,
        schemas: Any = None,
        most: int | None = None,
        left: int | None = None,
    ) -> None:
        self._servers, self._config, self._tokenizer = servers, config, tokenizer
        self._parser, self._schemas, self._most = parser, schemas, most
        self._left = left
        self._results = ResultTexts(Chat(tokenizer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._servers, name)

    async def generate(
        self, request_id: Any, *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **others: Any
    ) -> Any:
        """Return the first turn of the best imagined episode, as the engine gave it."""
        config = self._config
        state, depth = Trajectory(turns=()), config.depth
        if self._left is not None:
            depth = min(depth, max(1, self._left))
            self._left -= 1
        branches = [Branch(state, number, depth) for number in range(config.continuations)]
        turn = {**sampling_params, "temperature": config.temperature}
        room = sampling_params.get("max_tokens")
        turn["max_tokens"] = config.max_new_tokens if room is None else min(config.max_new_tokens, room)
        outputs = await asyncio.gather(
            *(self._imagine(branch, request_id, list(prompt_ids), turn, others) for branch in branches)
        )
        best, _ = taken(branches, config)
        return outputs[branches.index(best)]

    async def _imagine(
        self, branch: Branch, request_id: Any, ids: list[int], turn: dict[str, Any], others: Mapping[str, Any]
    ) -> Any:
        """Go on to the end of an episode; returns what the engine gave as its first turn."""
        # under the rollout's own id, which keeps it at the engine that has its prefix
        first = await self._servers.generate(
            request_id=request_id, prompt_ids=ids, sampling_params=dict(turn), **others
        )
        branch.tokens += len(first.token_ids)
        branch.act(await self._action(first.token_ids))
        try:
            await self._go_on(branch, ids + list(first.token_ids), turn, others)
        except UserError:  # the chat template gives no exact tokens: every episode would fail
            raise
        except Exception as error:  # of the engine, such as a text that is longer than it takes
            branch.fail(type(error).__name__)
        return first

    async def _go_on(self, branch: Branch, ids: list[int], turn: Mapping[str, Any], others: Mapping[str, Any]) -> None:
        while branch.live:
            names = tuple(call.name for call in branch.action.calls)
            said: list[str] = []
            for index in range(len(names)):
                said.append(await self._result(ids, names, said, index, turn, others))
            imagined(branch, said, self._config.marks)
            if not branch.live:
                return
            ids = ids + await asyncio.to_thread(self._results.block, names, said)
            output = await self._servers.generate(
                request_id=uuid4().hex, prompt_ids=ids, sampling_params=dict(turn), **others
            )
            ids = ids + list(output.token_ids)
            branch.tokens += len(output.token_ids)
            branch.act(await self._action(output.token_ids))

    async def _action(self, ids: Sequence[int]) -> Action:
        text, calls = await self._parser.extract_tool_calls(list(ids), self._schemas)
        run = calls[: self._most]
        return Action(
            text=text, calls=tuple(Call(name=call.name, arguments=arguments_of(call.arguments)) for call in run)
        )

    async def _result(
        self,
        ids: Sequence[int],
        names: tuple[str, ...],
        said: Sequence[str],
        index: int,
        turn: Mapping[str, Any],
        others: Mapping[str, Any],
    ) -> str:
        config = self._config
        asked = {
            **{name: value for name, value in turn.items() if name not in ("stop_token_ids", "stop")},
            "temperature": config.observation_temperature,
            "max_tokens": config.observation_tokens or config.max_observation_tokens,
        }
        if config.observation_tokens:
            asked["ignore_eos"] = True
        else:
            asked["stop"] = [self._results.closing(names, index)[1]]
        output = await self._servers.generate(
            request_id=uuid4().hex,
            prompt_ids=list(ids) + self._results.opening(names, said),
            sampling_params=asked,
            **others,
        )
        text = await asyncio.to_thread(self._tokenizer.decode, output.token_ids, skip_special_tokens=False)
        return text if config.observation_tokens else self._results.content(text, names, index)
