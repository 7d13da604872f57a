"""Rollouts of agents that own their loop, on TRL: OpenEnv captures their requests, and TRL makes training rows of them.

TRL joins a request to the row before it if its prompt begins with all tokens of that row; else it begins another row with the
whole prompt. The new tokens of a request (`tokens.requests`) count in the row that trains its answer: a rewritten history, a
sub-conversation and a repeated request each have theirs. What a row's prompt repeats of earlier requests is context there.

Who wrote an error text, the agent or one of its tools, is not in a request: `include_errors` makes no difference.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
from trl.experimental.async_grpo.async_rollout_worker import TurnRecord, _chain_to_sequences
from trl.experimental.async_grpo.openenv_harness import HarnessRolloutOutcome, _HarnessRolloutLoop

from wm_plugin.data.turn_texts import categories
from wm_plugin.tokens.requests import History, Reading, Request, read_requests
from wm_plugin.tokens.spans import Ending, Origin, ending
from wm_plugin.trl.async_rollout import Facts, FactsMixin

if TYPE_CHECKING:
    from trl.experimental.async_grpo.openenv_harness import (
        _HarnessRolloutLoop as _Host,
    )  # the mixin is put in front of one
else:
    _Host = object

FIGURES = "wm/agent"  # the prefix of a rollout's figures


class _Session:
    """A session that runs, in a thread of its own.

    Attributes:
        requests: of the policy, in the order in which they were answered.
        masks: for each request, which tokens of its answer TRL may train on; None: all.
        outcome: what TRL found at its end.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.masks: list[list[int] | None] = []
        self.outcome: HarnessRolloutOutcome | None = None

    def add(self, prompt_ids: list[int], sampled_ids: list[int], messages: Any, mask: list[int] | None) -> None:
        self.requests.append(Request(list(prompt_ids), list(sampled_ids), messages))
        self.masks.append(mask)


_session: ContextVar[_Session] = ContextVar("wm_session")


class WorldModelHarnessMixin(FactsMixin, _Host):
    """Notes the facts in TRL's harness loop, or in one derived from it: `class Mine(WorldModelHarnessMixin, MyLoop)`."""

    def __init__(
        self,
        *args: Any,
        rollout_reward_fn: Callable[[HarnessRolloutOutcome], float | None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, rollout_reward_fn=self._wm_reward, **kwargs)
        self._wm_reward_fn = rollout_reward_fn
        self._wm_figures: deque[dict[str, tuple[float, float]]] = deque()  # of rollouts, by several threads

    def _wm_reward(self, outcome: HarnessRolloutOutcome) -> float | None:
        """Keep a rollout's outcome, which has the captured requests, and return the reward as the host would."""
        session = _session.get()
        session.outcome = outcome
        for entry in outcome.trace:
            prompt, mask = entry["prompt_token_ids"], entry["loss_mask"]
            messages = (entry.get("request") or {}).get("messages") or []
            session.add(prompt, entry["completion_token_ids"], messages, mask[len(prompt) :])
        return outcome.env_reward if self._wm_reward_fn is None else self._wm_reward_fn(outcome)

    def _sample_turn(self, turns: Any, turn_times: Any, messages: Any, tools: Any, sampling: Any) -> Any:
        result = super()._sample_turn(turns, turn_times, messages, tools, sampling)
        _session.get().add(turns[-1].prompt_ids, turns[-1].output_ids, list(messages), None)
        return result

    def _run_session(self, prompt: Any, group_id: int = 0) -> Any:
        session = _Session()
        _session.set(session)
        result, metrics = super()._run_session(prompt, group_id)
        if metrics is None:  # no rollout, so no rows
            return result, metrics
        if self._wm_reward_fn is None:
            metrics.pop(
                "correctness", None
            )  # the host's figure where a reward function of the user's is beside the reward
        self._wm_note(session, rows=result[2], calls=result[3])
        return result, metrics

    async def _generate_one(self, prompt: Any, tool_dict: Any, tools: Any, group_id: int = 0) -> Any:
        result = await super()._generate_one(prompt, tool_dict, tools, group_id)
        while self._wm_figures:
            self._push_metrics(self._wm_figures.popleft())
        return result

    def _wm_note(self, session: _Session, rows: Sequence[Any], calls: int) -> None:
        """Put the facts on a rollout's rows, and keep its figures."""
        readings = read_requests(session.requests, self._wm_chat, self._wm_locator, self._wm_end_ids)
        places = _rows_of_requests(session, self._fork_threshold_tokens)
        origins: list[list[Origin]] = [[] for _ in rows]
        lost = 0
        for reading, place in zip(readings, places, strict=True):
            found = _origins(reading)
            if place is not None:
                origins[place] += found
            else:
                lost += any(origin.span.content for origin in found)
        unexplained = [reading.problem for reading in readings if reading.problem is not None]
        note = None
        if unexplained:
            note = (
                f"new tokens of {len(unexplained)} of an agent's {len(readings)} requests do not count as content: "
                f"{unexplained[0]}"
            )
        for place, (row, own) in enumerate(zip(rows, origins, strict=True)):
            how = self._wm_ending(session, [index for index, of in enumerate(places) if of == place])
            packed = tuple(origin._replace(ending=how).pack() for origin in own)
            row.wm_facts = Facts(packed, False, calls, None, note)
        spans = [origin.span for own in origins for origin in own]
        counts = {
            "requests": len(readings),
            "conversations": sum(reading.history is History.BEGINS for reading in readings),
            "rewritten": sum(reading.history is History.REWRITTEN for reading in readings),
            "unexplained": len(unexplained),
            "untrained": lost,
            "environment_tokens": sum(span.end - span.start for span in spans),
        }
        self._wm_figures.append({f"{FIGURES}/{name}": (float(count), 1.0) for name, count in counts.items()})

    def _wm_ending(self, session: _Session, places: Sequence[int]) -> Ending:
        """Return how the row of these requests ends."""
        last = max(places, default=-1)
        if session.outcome is not None and session.outcome.timed_out and last == len(session.requests) - 1:
            return Ending.TRUNCATED
        return ending(session.requests[last].sampled_ids, None, end_ids=self._wm_end_ids, limit=None)


class WorldModelHarnessLoop(WorldModelHarnessMixin, _HarnessRolloutLoop):
    """TRL's harness loop, with facts about the environment's tokens on each sample."""


def _origins(reading: Reading) -> list[Origin]:
    """Return the origins of a request's new tokens."""
    kinds = categories(reading.turn or {}, reading.messages)
    return [
        Origin(span, category="other") if index is None else Origin(span, reading.messages[index], False, kinds[index])
        for span, index in reading.spans
    ]


def _rows_of_requests(session: _Session, fork_threshold: int) -> list[int | None]:
    """Return the index of the row that has each request's answer; None: TRL trains on none of it.

    TRL makes the rows anew, of answers whose log-probabilities are the request's number.
    """
    turns = [
        TurnRecord(request.prompt_ids, request.sampled_ids, [float(number)] * len(request.sampled_ids), mask)
        for number, (request, mask) in enumerate(zip(session.requests, session.masks, strict=True), 1)
    ]
    rows, _ = _chain_to_sequences(turns, "", fork_threshold)
    found: list[int | None] = [None] * len(turns)
    for index, row in enumerate(rows):
        for number in np.unique(np.asarray(row.old_log_probs, dtype=np.int64)).tolist():
            if number:
                found[number - 1] = index
    return found
