"""τ²-bench results: `{info, tasks, simulations: [{task_id, reward_info, messages, ...}]}`, one document.

The agent speaks first, and there is no system message. In the telecom domain the user calls tools too: `requestor` tells whose
result a message is. The file has the policy, but as a rule no tool definitions.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import ijson

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import Conversation, text_of
from wm_plugin.data.readers.base import Rows, number_of, rest_of
from wm_plugin.data.schema import Context, Fields, Source


def matches(head: files.Head) -> bool:
    return {"info", "tasks"} <= head.keys.keys() and "trajectory" not in head.keys


def read(path: Path, _head: files.Head) -> Rows:
    environment = next((record.value for record in files.items(path, "info.environment_info")), None)
    if not isinstance(environment, dict):
        environment = {}
    tools = environment.get("tool_defs")
    context = Context(
        task=text_of(environment.get("policy")),
        action_space=tuple(tool for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else (),
    )
    profiles = _profiles(path)
    domain = text_of(environment.get("domain_name"))

    def convert(record: Any, source: Source) -> Iterator[Fields]:
        return _convert(record, source, context, domain, profiles)

    records = files.items(path, "simulations.item")
    none = files.Record(0, error=RowError("no list `simulations`, or an empty one", "empty"))
    return chain([next(records, none)], records), convert


def _profiles(path: Path) -> dict[str, dict[str, str]]:
    """Read the user's personal facts by task id, without the reason for the call."""
    profiles: dict[str, dict[str, str]] = {}
    with files.open_file(path) as file:
        try:
            # stop after the tasks, a small part of the file before the simulations
            events = takewhile(lambda event: event[:2] != ("tasks", "end_array"), files.events(file))
            for task in ijson.items(events, "tasks.item"):
                scenario = task.get("user_scenario") if isinstance(task, dict) else None
                if not isinstance(scenario, dict):
                    continue
                instructions = scenario.get("instructions")
                known = instructions.get("known_info") if isinstance(instructions, dict) else None
                facts = {"known_info": known, "persona": scenario.get("persona")}
                profile = {name: text for name, text in facts.items() if isinstance(text, str) and text.strip()}
                if profile:
                    profiles[text_of(task.get("id"))] = profile
        except files.BROKEN:
            pass  # reading the simulations reports the error
    return profiles


def _convert(
    record: Any, source: Source, context: Context, domain: str, profiles: Mapping[str, dict[str, str]]
) -> Iterator[Fields]:
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        raise RowError("a simulation without a list of messages", "no messages")
    conversation = Conversation(record["messages"])
    task = text_of(record.get("task_id"))
    outcome = record.get("reward_info")
    reward = number_of(outcome.get("reward")) if isinstance(outcome, dict) else None
    yield {
        "turns": conversation.fields(),
        "context": {
            "task": "\n\n".join([context.task, *conversation.system]),
            "action_space": context.action_space,
            "initial_state": conversation.initial_state,
        },
        "task_id": f"{domain}/{task}" if domain else task,
        "success": None if reward is None else reward >= 1.0,
        "reward": reward,
        "source": {**vars(source), "id": text_of(record.get("id")) or None},
        "metadata": conversation.rest
        | rest_of(record, "messages", "id", "task_id")
        | ({"user_profile": profiles[task]} if task in profiles else {}),
    }
