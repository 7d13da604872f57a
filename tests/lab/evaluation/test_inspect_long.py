"""Rollouts of many turns: rendered in time that is linear in them, with the texts of rendering all that stood before each."""

import pytest

pytest.importorskip("transformers")

from support.templates import TEMPLATES, VISION, make_tokenizer, params
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import inspect
from wm_plugin.lab.evaluation.inspect import Inspector
from wm_plugin.tokens.chat import Chat
from wm_plugin.tokens.spans import SpanError

pytestmark = pytest.mark.host

PROMPT = [{"role": "system", "content": "s"}, {"role": "user", "content": "task"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ EXTRA }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What a template may write that depends on what stood long before.
FAR = [
    "{{ loop.index0 }}",
    "{{ loop.index0 // 60 }}",
    "{{ messages | length }}",
    "{% if messages | length > 60 %}long{% endif %}",
    "{{ messages[3].content if messages | length > 3 }}",
]


def rollout(turns: int, calls: int = 1) -> list[list[dict]]:
    """The policy's turns and the results of each, by turns. Every third one has thoughts."""
    groups = []
    for number in range(turns):
        names = [f"look_{number % 3}"] * calls
        made = [{"type": "function", "function": {"name": name, "arguments": {"n": number}}} for name in names]
        said = ("", f"step {number}", f"<think>\nhm {number}\n</think>\n\n")[number % 3]
        groups.append([{"role": "assistant", "content": said, "tool_calls": made}])
        groups.append([{"role": "tool", "name": name, "content": f"result {number}"} for name in names])
    return groups


def written(monkeypatch, tokenizer, groups, template=None) -> list[list[str] | type]:
    """The texts of the policy's turns: with as little in full as can be, and with all of it in full."""
    texts: list[list[str] | type] = []
    for in_full in (0, len(groups)):
        monkeypatch.setattr(inspect, "_IN_FULL", in_full)
        try:
            texts.append(Inspector(tokenizer, EchoConfig(1.0), chat_template=template)._written(PROMPT, groups, None))
        except (UserError, SpanError) as error:
            texts.append(type(error))
    return texts


@pytest.mark.parametrize(
    "name", params(name for name in sorted(TEMPLATES) if name.removesuffix("_training") not in VISION)
)
def test_the_texts_are_those_of_rendering_everything(monkeypatch, name):
    tokenizer = make_tokenizer(name)
    for groups in (rollout(6), rollout(4, calls=2)[:-1]):
        quick, full = written(monkeypatch, tokenizer, groups)
        assert quick == full


@pytest.mark.parametrize("extra", FAR)
def test_a_template_that_looks_far_back(monkeypatch, extra):
    tokenizer = make_tokenizer("qwen2_5")
    quick, full = written(monkeypatch, tokenizer, rollout(40), CHATML.replace("{{ EXTRA }}", extra))
    assert quick == full


def test_what_is_rendered_grows_with_the_turns(monkeypatch):
    tokenizer = make_tokenizer("qwen3_training")
    render, rendered = Chat.render, []
    monkeypatch.setattr(
        Chat, "render", lambda self, messages, **more: rendered.append(len(messages)) or render(self, messages, **more)
    )
    counts = []
    monkeypatch.setattr(inspect, "_IN_FULL", 4)
    for turns in (24, 48, 96):
        rendered.clear()
        Inspector(tokenizer, EchoConfig(1.0))._written(PROMPT, rollout(turns), None)
        counts.append(sum(rendered))
    assert counts[1] < 2.2 * counts[0]
    assert counts[2] < 2.2 * counts[1]
