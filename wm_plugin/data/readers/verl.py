"""verl's dumps (`trainer.rollout_data_dir`, `trainer.validation_data_dir`): `{input, output, gts, score, step, ...}` a line.

Input and output are decoded text, as a rule without special tokens. Then only `<tool_response>` between the lines `user` and
`assistant` separates observations from the model's output. Text with ChatML's marks is read by these. A row with neither is
rejected: observations cannot be separated from the model's output. Our trainer adds the messages, as `prompt` and `completion`:
the latter, as verl's parser of calls read it, is for the texts that would be rejected.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.chat import prompt_to_keep
from wm_plugin.data.errors import RowError
from wm_plugin.data.host_dumps import COMPLETION, PROMPT, marked
from wm_plugin.data.messages import Conversation, text_of
from wm_plugin.data.readers import chatml
from wm_plugin.data.readers.base import Rows, number_of, rest_of, task_of
from wm_plugin.data.schema import Fields, Source
from wm_plugin.errors import UserError

_PROMPTS = {"data_source", "prompt", "reward_model"}  # the columns of verl's RL training data
_OPEN = "<tool_response>"
_USER = re.compile(rf"(?:^|\n)user\n(?={_OPEN})")
_CLOSE = re.compile(r"</tool_response>\s*")
_ROLE = re.compile(r"(?:^|\n)(?:user|assistant|system)\n")


def matches(head: files.Head) -> bool:
    return isinstance(head.sample, dict) and (
        {"input", "output", "step"} <= head.sample.keys() or _prompts(head.sample)
    )


def read(path: Path, head: files.Head) -> Rows:
    if isinstance(head.sample, dict) and _prompts(head.sample):
        raise UserError(
            f"{path}: prompts of verl's RL training, and no rollouts; name what trainer.rollout_data_dir had written"
        )
    return files.records(path, head), convert


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if not isinstance(record, dict):
        raise RowError("not an object", "wrong type")
    for key in ("input", "output"):
        if not isinstance(record.get(key), str):
            raise RowError(f"`{key}` is no text", "wrong type")
    try:
        context, messages = _messages(record["input"], record["output"], record.get(PROMPT))
    except RowError:
        if not (isinstance(record.get(PROMPT), list) and isinstance(record.get(COMPLETION), list)):
            raise
        context, messages = None, [*record[PROMPT], *record[COMPLETION]]
    conversation = Conversation(messages)
    if context is None:
        context = {
            "task": conversation.task,
            "initial_state": conversation.initial_state,
            "action_space": chatml.tools_of(conversation.task),
        }
    kept = prompt_to_keep(record[PROMPT], context) if record.get(PROMPT) else {}
    reward = number_of(record.get("score"))
    identity = record.get("request_id")
    yield {
        "turns": marked(conversation.fields(), "verl"),
        "context": context,
        "task_id": task_of(record["input"]),
        "reward": reward,
        "source": vars(source) if identity is None else {**vars(source), "id": text_of(identity)},
        "metadata": {**rest_of(record, "input", "output", "request_id", PROMPT, COMPLETION, score=reward), **kept},
    }


def _messages(prompt: str, output: str, known: Any) -> tuple[Fields | None, list[dict[str, Any]]]:
    """Split the conversation into messages. Text without role marks is not split at the prompt: its context is returned, too."""
    if known is not None:
        if not isinstance(known, list):
            raise RowError(f"`{PROMPT}` is no list of messages", "wrong type")
        return None, [*known, *_messages("", output, None)[1]]
    if chatml.START in prompt or chatml.START in output:
        if not prompt.rstrip().endswith(f"{chatml.START}assistant"):
            prompt += f"{chatml.END}\n{chatml.START}assistant"
        return None, chatml.messages_of(f"{prompt.rstrip()}\n{output}")
    pieces = _split(output)
    if len(pieces) == 1:
        raise RowError("plain text: no role and no tool response is marked in it", "plain text")
    if any(_ROLE.search(text) for text in pieces[::2]):
        raise RowError("a line that may be a role's or the text's: special tokens were left out", "plain text")
    messages = []
    for index, text in enumerate(pieces):
        if index % 2:
            messages += chatml.results(text)
        elif text.strip():
            messages.append(chatml.assistant(text))
    return {"task": prompt, "action_space": chatml.tools_of(prompt)}, messages


def _split(text: str) -> list[str]:
    """Split text into the model's texts and the results between them, in turn.

    Results are a run of `<tool_response>` from a line `user` up to a line `assistant`, or the end. The ends of all runs are found
    first: a regular expression would look for them again and again.
    """
    closings = list(_CLOSE.finditer(text))
    starts = [closing.start() for closing in closings]

    def closing_of(place: int) -> int:
        return bisect_left(starts, place + len(_OPEN))

    ends = [closing.end() for closing in closings]  # of the run that the closing is in
    for number in reversed(range(len(ends))):
        if text.startswith(_OPEN, ends[number]) and (following := closing_of(ends[number])) < len(ends):
            ends[number] = ends[following]
    pieces, place = [], 0
    for user in _USER.finditer(text):
        number = closing_of(user.end())
        if user.start() < place or number == len(ends):
            continue
        end = ends[number]
        if end == len(text) or text.startswith("assistant\n", end):
            pieces += [text[place : user.start()], text[user.end() : end]]
            place = min(end + len("assistant\n"), len(text))
    return [*pieces, text[place:]]


def _prompts(record: dict[str, Any]) -> bool:
    return record.keys() >= _PROMPTS and not {"completion", "messages", "response"} & record.keys()
