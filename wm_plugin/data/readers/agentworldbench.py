"""AgentWorldBench: `{task, id, prompt: [str], response: [str], system_str, turn_idx, total_turns}`, a turn to predict per record.

A prompt holds the action in a fence after `**Action:**`; a response holds the observation after `**Environment Observation:**`.
"""

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import text_of
from wm_plugin.data.readers.base import rest_of
from wm_plugin.data.schema import Action, Context, Observation, Source, Trajectory, Turn

_ACTION = re.compile(r"\*\*Action:\*\*\s*(?:```[^\n]*\n(.*?)\n?```|(.*))", re.S)
OBSERVATION = "**Environment Observation:**"


def matches(head: files.Head) -> bool:
    return isinstance(head.sample, dict) and {"prompt", "response", "system_str", "turn_idx"} <= head.sample.keys()


def convert(record: Any, source: Source) -> Iterator[Trajectory]:
    if not isinstance(record, dict):
        raise RowError("not an object", "wrong type")
    prompts, responses = record.get("prompt"), record.get("response")
    for name, texts in (("prompt", prompts), ("response", responses)):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise RowError(f"`{name}` is no list of texts", "wrong type")
    if not prompts or not responses:
        raise RowError("no prompt or no response", "empty")
    if not 0 <= len(prompts) - len(responses) <= 1:  # the last prompt may have no response
        raise RowError(f"{len(prompts)} prompts, but {len(responses)} responses", "prompts and responses differ")
    turns = tuple(_turn(prompt, response) for prompt, response in zip_longest(prompts, responses))
    domain = text_of(record.get("task"))
    around = [_ACTION.sub("", prompt, count=1).strip() if _ACTION.search(prompt) else "" for prompt in prompts]
    yield Trajectory(
        turns=turns,
        context=Context(task=text_of(record.get("system_str")), initial_state=around[0]),
        task_id=f"{domain}/{record.get('id')}",
        source=source.model_copy(update={"id": str(record.get("id"))}),
        metadata={
            "domain": domain,
            "turn": record.get("turn_idx"),
            "turns": record.get("total_turns"),
            **(
                {"around_actions": around} if any(around[1:]) else {}
            ),  # of the prompts; mostly, what was observed before
            **rest_of(record, "task", "id", "prompt", "response", "system_str", "turn_idx", "total_turns"),
        },
    )


def _turn(prompt: str, response: str | None) -> Turn:
    match = _ACTION.search(prompt)
    action = prompt if match is None else (match[1] if match[1] is not None else match[2])
    if response is None:
        return Turn(action=Action(text=action.strip("\n")))
    before, mark, after = response.partition(OBSERVATION)
    data = {"before": before} if mark and before.strip() else {}
    observed = Observation(kind="environment", text=(after if mark else response).strip("\n"), data=data)
    return Turn(action=Action(text=action.strip("\n")), observations=(observed,))
