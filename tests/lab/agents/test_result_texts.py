"""Where results begin and end by a chat template, and what a policy predicts there."""

import pytest
import torch

pytest.importorskip("transformers")

from wm_plugin.client.predict import LocalPredictor
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory
from wm_plugin.lab.agents.branches import ResultTexts, branches_of
from wm_plugin.lab.agents.imaginers import LocalImaginer
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.tokens.chat import Chat

pytestmark = pytest.mark.host

# In the form of Qwen's: results stand in a user's turn, one after the other.
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}<|im_start|>user{%- endif -%}"
    "{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}"
    "{%- else -%}{{- '<|im_start|>' + message.role + '\n' + message.content -}}"
    "{%- for call in message.tool_calls or [] -%}{{- '<tool_call>' + call.function.name + '</tool_call>' -}}{%- endfor -%}"
    "{{- '<|im_end|>\n' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
TOKENIZER = make_tokenizer()
TOKENIZER.chat_template = TEMPLATE
TEXTS = ResultTexts(Chat(TOKENIZER))
CONTENTS = ["", "a", "7", "[1]", "\n", " x", "</tool_response>", "A longer one.\nOf two lines."]


@pytest.mark.parametrize("text", CONTENTS)
@pytest.mark.parametrize("before", [[], ["said"], ["one", "two"]])
def test_every_block_begins_with_its_opening_and_goes_on_with_the_content(text, before):
    tools = tuple("fgh"[: len(before) + 1])
    block = TOKENIZER.decode(TEXTS.chat.result_ids(tools, [*before, text]))
    opening = TOKENIZER.decode(TEXTS.opening(tools, before))
    assert block.startswith(opening + text)
    assert opening.endswith("<tool_response>\n")
    rest = block[len(opening) :]
    if "</tool_response>" not in text:
        assert TEXTS.content(rest, tools, len(before)) == text


def test_a_result_between_others_ends_where_the_next_begins():
    assert TEXTS.closing(("f", "g"), 0) == ("\n", "</tool_response>")
    assert TEXTS.closing(("f", "g"), 1) == ("\n", "</tool_response>")
    assert TEXTS.content("no end<|im_end|>", ("f",), 0) == "no end"


@pytest.mark.parametrize("length", [0, 5])
def test_results_of_several_calls_are_predicted_one_after_the_other_as_from_the_whole_text(length):
    model = make_model(TOKENIZER, 3).eval()
    config = LookAheadConfig(
        observation_tokens=length, max_observation_tokens=7, max_new_tokens=3, temperature=1.0, marks={"won": "x"}
    )
    imaginer = LocalImaginer(LocalPredictor(model, TOKENIZER), config)
    states = [Trajectory(turns=(), context=Context(initial_state=text)) for text in ("Go.", "Where to now?")]
    branches = [one for state in states for one in branches_of(state, 1, 2, 9)]
    imaginer.begin(branches, go_on=True)
    calls = [(Call(name="f"), Call(name="g")), (Call(name="f"),), (Call(name="h"),), (Call(name="g"), Call(name="f"))]
    for branch, made in zip(branches, calls, strict=True):
        branch.act(Action(calls=made))
    kept = branches[:1] + branches[2:]  # one is over
    predicted = imaginer.predict(kept)
    for branch, texts in zip(kept, predicted, strict=True):
        names = tuple(call.name for call in branch.action.calls)
        before = imaginer.prompt_ids(branch.state) + branch.first_ids
        said: list[str] = []
        for index, text in enumerate(texts):
            asked = before + TEXTS.opening(names, said)
            expected = []
            while len(expected) < (length or 7):
                with torch.inference_mode():
                    token = int(model(input_ids=torch.tensor([asked + expected])).logits[0, -1].argmax())
                expected.append(token)
                if not length and token == TOKENIZER.eos_token_id:
                    break
            whole = TOKENIZER.decode(expected)
            assert text == (whole if length else TEXTS.content(whole, names, index))
            said.append(text)
        assert len(texts) == len(names)
        seen = [Observation(kind="tool", text=text, call=n) for n, text in enumerate(texts)]
        branch.observe(seen, over=False, won=False, reward=0.0)
    imaginer.config = LookAheadConfig(max_new_tokens=2, temperature=0.0, marks={"won": "x"})
    imaginer.act(kept)
    for branch in kept:
        turn = branch.turns[0]
        names = tuple(call.name for call in turn.action.calls)
        ids = imaginer.prompt_ids(branch.state) + branch.first_ids
        ids += TEXTS.chat.result_ids(names, [one.text for one in turn.observations])
        with torch.inference_mode():
            first = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        assert branch.action.text.endswith(TOKENIZER.decode([first], skip_special_tokens=True))
        assert (branch.stopped, branch.over, branch.live) == (True, False, False)  # no call
