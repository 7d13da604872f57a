"""Decoding from a cache gives what the whole text gives."""

import random

import pytest
import torch

pytest.importorskip("transformers")

from wm_plugin.client.decode import Decoder, pick
from wm_plugin.errors import UserError
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

pytestmark = pytest.mark.host

TOKENIZER = make_tokenizer()
MODEL = make_model(TOKENIZER, 0).eval()


def whole(ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return MODEL(input_ids=torch.tensor([ids])).logits[0, -1]


def test_rows_of_different_lengths_go_on_are_copied_and_cut_back():
    decoder = Decoder(MODEL)
    decoder.start([[5, 6, 7], [8], [9, 10]])
    for row, ids in enumerate([[5, 6, 7], [8], [9, 10]]):
        torch.testing.assert_close(decoder.logits[row], whole(ids))
    decoder.select([2, 0, 2])
    mark = decoder.columns
    decoder.feed([[1], [2, 3, 4], []])
    decoder.cut(mark)
    decoder.feed([[11, 12], [13], [14, 15, 16]])
    for row, ids in enumerate([[9, 10, 11, 12], [5, 6, 7, 13], [9, 10, 14, 15, 16]]):
        torch.testing.assert_close(decoder.logits[row], whole(ids))
    assert decoder.fed == 6 + 4 + 6


def test_texts_are_greedy_at_temperature_0_and_end_where_they_are_told_to():
    prompts = [[5, 6, 7], [8], [9]]
    expected = []
    for ids in prompts:
        for _ in range(6):
            ids = [*ids, int(whole(ids).argmax())]
        expected.append(ids[-6:])
    decoder = Decoder(MODEL)
    decoder.start(prompts)
    tokens, logps = decoder.sample([random.Random(0)] * 3, temperature=0.0, limits=[6, 2, 0])
    assert tokens == [expected[0], expected[1][:2], []]
    first, second = whole([8]).log_softmax(-1), whole([8, expected[1][0]]).log_softmax(-1)
    assert logps[1] == pytest.approx(float(first.max() + second.max()), abs=1e-4)
    decoder.feed([[one[-1]] if one else [3] for one in tokens])  # the last token was not read yet
    torch.testing.assert_close(decoder.logits[0], whole(prompts[0] + expected[0]))
    torch.testing.assert_close(decoder.logits[1], whole([8, *expected[1][:2]]))
    decoder.start(prompts[:1])
    assert (
        decoder.sample([random.Random(0)], temperature=0.0, limits=[6], ends={expected[0][1]})[0][0] == expected[0][:2]
    )
    decoder.start(prompts[:1])
    stopped = decoder.sample([random.Random(0)], temperature=0.0, limits=[6], stop=lambda row, ids: len(ids) == 3)[0]
    assert stopped[0] == expected[0][:3]
    decoder.start(prompts[:1])
    begun = decoder.sample([random.Random(0)], temperature=0.0, limits=[4], begun=[expected[0][0]])[0]
    assert begun[0] == expected[0][:4]


def test_numbers_pick_tokens_in_proportion_to_their_probability():
    logits = torch.tensor([[0.1, 0.2, 0.7]]).log()
    luck = torch.tensor([[0.0, 0.099, 0.101, 0.299, 0.301, 0.999]])
    tokens, logps = pick(logits, luck, 1.0)
    assert tokens.tolist() == [[0, 0, 1, 1, 2, 2]]
    assert logps[0].exp().tolist() == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.7, 0.7])
    assert pick(logits, luck, 0.0)[0].unique().tolist() == [2]
    sharp, sharp_logps = pick(logits, luck, 0.5)  # .01, .04, .49 of .54; log-probabilities stay those at 1
    assert sharp.tolist() == [[0, 2, 2, 2, 2, 2]]
    assert float(sharp_logps[0, 1].exp()) == pytest.approx(0.7)
    assert pick(torch.tensor([[0.0, -torch.inf]]), torch.tensor([[0.9999999]]), 1.0)[0].tolist() == [[0]]


def test_a_state_that_cannot_be_taken_back_is_refused():
    model = make_model(TOKENIZER, 0)
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(UserError, match=r"linear_attention.*behind a server"):
        Decoder(model)
