"""TRL's rows of `prompt` and `completion` as messages: training data, and the completions that its trainers log.

`completions/completions_STEP.parquet` of GRPO's `log_completions` also has `advantage` and a column for each reward: they go into
the metadata, and their sum is the reward. Our trainer saves beside it which columns are rewards, and their weights; of a stock
trainer's, all columns of fractions are. Completions that are text have no roles, and are rejected unless they are ChatML.
"""

from collections.abc import Iterator
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.chat import prompt_to_keep
from wm_plugin.data.errors import RowError
from wm_plugin.data.host_dumps import marked, reward_of
from wm_plugin.data.readers import chatml, openai
from wm_plugin.data.readers.base import task_of
from wm_plugin.data.schema import Fields, Source


def matches(head: files.Head) -> bool:
    return isinstance(head.sample, dict) and {"prompt", "completion"} <= head.sample.keys()


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if not isinstance(record, dict):
        raise RowError("not an object", "wrong type")
    prompt, completion = record.get("prompt"), record.get("completion")
    rest = {key: value for key, value in record.items() if key not in ("prompt", "completion")}
    if isinstance(prompt, str) and isinstance(completion, str):
        if chatml.START not in prompt + completion:
            raise RowError("plain text: a world's words cannot be told from the model's", "plain text")
        messages = chatml.messages_of(prompt + completion)
    elif isinstance(prompt, list) and isinstance(completion, list):
        messages = [*prompt, *completion]
        rest["prompt_messages"] = len(prompt)
    else:
        raise RowError("`prompt` and `completion` are neither lists of messages nor texts", "wrong type")
    if rest.get("id") is None and rest.get("task_id") is None:
        rest["task_id"] = task_of(prompt)  # the completions of a group are of one task
    logged = "advantage" in rest
    alone = (
        {"reward": rest.pop("reward")} if logged and "reward" in rest else {}
    )  # a function's of this name, one of several
    for fields in openai.convert({**rest, "messages": messages}, source):
        marked(fields["turns"], "trl")
        if isinstance(prompt, list):
            fields["metadata"] |= prompt_to_keep(prompt, fields["context"])
        if logged:
            fields["metadata"] |= alone
            columns = [
                name for name, value in fields["metadata"].items() if isinstance(value, float) and name != "advantage"
            ]
            fields["reward"] = reward_of(fields["metadata"], dict.fromkeys(columns, 1.0))
        yield fields
