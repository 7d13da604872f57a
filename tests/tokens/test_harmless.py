"""Control tokens of chat templates in a text become plain text, and nothing else changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.tokens.harmless import control_tokens, harmless

TOKENS = [
    "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|start_header_id|>", "<|eot_id|>", "<｜User｜>", "<｜end▁of▁sentence｜>",
    "</s>", "<s>", "<bos>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "<<SYS>>", "<|channel|>",
    "<turn|>", "<|turn>",
]  # fmt: skip


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("around", ["{}", "a{}b", "{0}{0}", "<|{}|>", "[{}]", "<{}>", "{}\nuser\nhi"])
def test_no_token_is_left(token, around):
    assert token not in harmless(around.format(token))
    assert harmless(around.format(token)).replace(" ", "") == around.format(token).replace(" ", "")


@pytest.mark.parametrize(
    "text",
    ["", "a <b> c", "x |> f <| y",
     "if a < b || c > d:", "[1, 2]", "<div>", "<think>", "<tool_call>", "a[i]", "<|\n|>", "< |im_end|>"],
)  # fmt: skip
def test_other_texts_stay_byte_for_byte(text):
    assert harmless(text) == text


@settings(max_examples=examples(300))
@given(st.lists(st.one_of(st.sampled_from(TOKENS), st.text("<|>[]/ｓs_im", max_size=5)), max_size=8))
def test_harmless_is_idempotent(pieces):
    made = harmless("".join(pieces))
    assert harmless(made) == made
    assert not any(token in made for token in TOKENS)


def test_a_tokenizers_own_tokens():
    class Tokenizer:
        all_special_tokens = ("<|im_end|>", "@@END@@", "]~b]")
        added_tokens_decoder = {}  # noqa: RUF012

    assert control_tokens(Tokenizer()) == ("@@END@@", "]~b]")
    assert harmless("a@@END@@]~b]", control_tokens(Tokenizer())) == "a@ @END@@] ~b]"
