"""verl's tool loop driven without Ray: its own parser, tokens and limits, and a policy that says what a test wants."""

import asyncio
import json

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from support.tiny import CALL, byte_level, fast
from wm_plugin.verl.agent_loop import WorldModelToolAgentLoop
from wm_plugin.verl.config import read_config

TEMPLATE = (
    "{%- for tool in tools or [] %}{{- tool | tojson }}{%- endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
    "{%- for call in m.tool_calls or [] %}{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
CORPUS = [
    "<tool_response>\nmoved to 1 ✓ 日本語\n</tool_response>\n",
    "user\n🚪🚪 é1: red door, rooms visited so far include 3",
]


def make_tokenizer(merges=True, normalizer=None):
    """A byte-level BPE, whose `<tool_response>` is plain text unless it has no merges."""
    backend = byte_level(CORPUS * 50, 600) if merges else byte_level()
    if normalizer:
        backend.normalizer = normalizer
    return fast(backend, TEMPLATE, plain=CALL)


class Server:
    """Says one turn after the other."""

    def __init__(self, tokenizer, turns):
        self.tokenizer, self.turns = tokenizer, list(turns)

    async def generate(self, prompt_ids, **_):
        ids = self.tokenizer.encode(self.turns.pop(0) + "<|im_end|>", add_special_tokens=False)
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), stop_reason="completed", extra_fields={})


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def config(wm, response_length=900, **multi_turn):
    multi_turn = {
        "format": "hermes",
        "max_user_turns": None,
        "max_assistant_turns": None,
        "max_parallel_calls": 4,
        "max_tool_response_length": 400,
        "tool_response_truncate_side": "middle",
    } | multi_turn
    rollout = {
        "prompt_length": 1024,
        "response_length": response_length,
        "full_determinism": False,
        "multi_turn": multi_turn,
    }
    return OmegaConf.create({"wm": {"coeff": 1.0} | wm, "data": {}, "actor_rollout_ref": {"rollout": rollout}})


async def episode(tokenizer, turns, settings, row, *, tools=(), cls=WorldModelToolAgentLoop):
    """One trajectory.

    Args:
        turns: what the policy says, turn by turn; or a server of them.
        settings: a trainer's config, of `config`.
        row: columns as verl gives them to the loop.
    """
    loop = cls(
        trainer_config=DictConfigWrap(settings),
        server_manager=turns if hasattr(turns, "generate") else Server(tokenizer, turns),
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(settings.data),
        hf_model_type="qwen2",
        tools=ToolListWrap(list(tools)),
    )
    return await loop.run({}, **row)


def rollout(tokenizer, turns, wm, tools=(), row=None, cls=WorldModelToolAgentLoop, **settings):
    """The same by itself, with the objective of its config, from which the trainer gives spans their weights."""
    made = config(wm, **settings)
    row = {"raw_prompt": [{"role": "user", "content": "Go."}], "extra_info": {"start": 3}} | (row or {})
    output = asyncio.run(episode(tokenizer, turns, made, row, tools=tools, cls=cls))
    output.extra_fields["objective"] = read_config(made).objective
    return output
