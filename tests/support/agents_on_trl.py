"""A run whose rollouts an agent's process makes, on TRL: a policy's server that answers as vLLM does, and all else is real:
OpenEnv's capture, the processes and TRL's loop."""

import json
import re
import sys
import threading
import zlib
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers.utils import get_json_schema
from trl.chat_template_utils import add_response_schema, parse_response
from trl.experimental.async_grpo.openenv_harness import _HarnessRolloutLoop

from support.async_on_trl import LocalWorker
from support.on_trl import ToolEnvironment, call, make_tokenizer
from support.reference import BYTES
from support.serving import Handler
from wm_plugin.tokens.chat import plain_messages
from wm_plugin.trl.agents import AgentSessions
from wm_plugin.trl.harness import WorldModelHarnessLoop

AGENT = Path(__file__).parent / "scripted_agent.py"
ENVIRONMENT = ToolEnvironment()
SCHEMAS = [get_json_schema(tool) for tool in (ENVIRONMENT.lookup_doc, ENVIRONMENT.run_code)]
PLANS = ("plain", "compacted", "rewritten", "parallel", "retried", "in_text")


def tokenizer_of_agents() -> Any:
    return make_tokenizer([ENVIRONMENT.run_code, ENVIRONMENT.lookup_doc])


def answer(prompt: str) -> str:
    """A turn, the same for the same prompt: calls, in three ways of writing them."""
    number = zlib.crc32(prompt.encode()) % 9999
    if "# Tools" not in prompt:
        return f"ls {number}<|im_end|>"
    one = call("run_code", code=f"{number}")
    texts = (one, f"hm\n{one}", f"{one}\n{call('lookup_doc', name='é')}", one.replace(": ", ":"))
    return texts[number % len(texts)] + "<|im_end|>"


def policy(tokenizer: Any, turn: Any = answer) -> type[Handler]:
    """Handles chat completions as vLLM does with `return_token_ids`."""
    lock = threading.Lock()  # the tokenizer is not for several threads
    tokenizer = add_response_schema(tokenizer)

    class Policy(Handler):
        def do_POST(self):
            body = self.body()
            with lock:
                prompt = tokenizer.apply_chat_template(
                    plain_messages(body["messages"]),
                    tools=body.get("tools"),
                    add_generation_prompt=True,
                    return_dict=False,
                )
                ids = tokenizer(turn(tokenizer.decode(prompt))).input_ids
                message = parse_response(tokenizer, ids, prefix=prompt, tools=body.get("tools"))
            calls = [
                {
                    "id": f"call_{len(prompt)}_{place}",
                    "type": "function",
                    "function": {
                        "name": one["function"]["name"],
                        "arguments": json.dumps(one["function"]["arguments"]),
                    },
                }
                for place, one in enumerate(message.get("tool_calls") or [])
            ]
            said = {"role": "assistant", "content": message.get("content") or None}
            choice = {
                "index": 0,
                "message": said | ({"tool_calls": calls} if calls else {}),
                "finish_reason": "tool_calls" if calls else "stop",
                "token_ids": ids,
                "logprobs": {"content": [{"token": f"token_id:{token}", "logprob": -2.0} for token in ids]},
            }
            self.reply(
                {"id": "0", "object": "chat.completion", "model": "m", "prompt_token_ids": prompt, "choices": [choice]}
            )

    return Policy


def rows(plans: tuple[str, ...], count: int = 64) -> Dataset:
    tasks = [f"task {number} {plans[number % len(plans)]}" for number in range(count)]
    return Dataset.from_list([{"prompt": [{"role": "user", "content": task}]} for task in tasks])


def flat(folder: Path, messages: list[dict[str, Any]]) -> float:
    return 1.0


class Rising:
    """Rewards that differ within a group: the length of the agent's file, and the episode's number."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, folder: Path, messages: list[dict[str, Any]]) -> float:
        self.number += 1
        return len((folder / "answer.txt").read_text()) + self.number % 5


def sessions(url: str, **settings: Any) -> Any:
    given = {
        "reward": flat,
        "command": [sys.executable, "-S", "-E", str(AGENT)],
        "env": {"AGENT_TOOLS": json.dumps(SCHEMAS)},
    }
    return partial(AgentSessions, server=url, model="m", **{**given, **settings})


def agent_worker(
    url: str, tokenizer: Any, *, ours: bool, plans: tuple[str, ...], ready: int, reward: Any = flat, **settings: Any
) -> LocalWorker:
    return LocalWorker(
        WorldModelHarnessLoop if ours else _HarnessRolloutLoop,
        ready,
        dataset=rows(plans),
        reward_funcs=[],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=settings.pop("num_generations", 2),
        harness_session_factory=settings.pop("factory", None) or sessions(url, reward=reward),
        **settings,
    )


def contents(samples: list[Any], tokenizer: Any) -> list[list[tuple[int, int, str, str]]]:
    """(first token, token behind the last, tool, text) of the observations that count in each sample, from the bytes alone.

    An observation counts where its conversation shows it first, and once more in the row of a repeated request. The last request
    of a row that repeats one is all that comes after the same prompt, so that what it repeats is what the row's prompt ends in.
    """
    seen: dict[tuple[int, str], list[int]] = {}  # of each rollout, the prompt in which a text was new
    found = []
    for sample in samples:
        ids, sampled = sample.input_ids.tolist(), sample.completion_mask.tolist()
        pieces = [BYTES[token] if token in BYTES else token.encode() for token in tokenizer.convert_ids_to_tokens(ids)]
        offsets = [0]
        for piece in pieces:
            offsets.append(offsets[-1] + len(piece))
        own = []
        text = b"".join(pieces)
        shown = rb"<tool_response>\n((?:OUT|DOC).*?)\n</tool_response>|<\|im_start\|>user\n(OBS.*?)<\|im_end\|>"
        for match in re.finditer(shown, text, re.S):
            group = 1 if match.group(1) else 2
            start, end = (offsets.index(place) for place in match.span(group))
            content = match.group(group).decode()
            answered = ids[: next(place for place in range(end, len(ids)) if sampled[place])]
            first = seen.setdefault((id(sample.completion), content), answered)
            if first == answered:
                tool = {"OUT": "run_code", "DOC": "lookup_doc", "OBS": None}[content[:3]]
                own.append((start, end, tool, content))
        found.append(own)
    return found
