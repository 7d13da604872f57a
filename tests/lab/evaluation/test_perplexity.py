"""Perplexity by hand, on a tiny random model."""

import gzip
import math

import pytest
import torch

from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import perplexity
from wm_plugin.lab.evaluation.measures import Evaluation
from wm_plugin.lab.evaluation.one_step import OneStep
from wm_plugin.lab.evaluation.perplexity import (
    Document,
    Reader,
    Texts,
    drawn,
    measures,
    rows,
    score,
    tokenized,
    windows,
)


class Letters:
    """A tokenizer with a token for each letter, and perhaps one that begins every text."""

    def __init__(self, begin=None):
        self.bos_token_id, self.longest = begin, 0

    def __call__(self, text, add_special_tokens=True, verbose=True):
        self.longest = max(self.longest, len(text))
        begin = [self.bos_token_id] if add_special_tokens and self.bos_token_id is not None else []
        return type("Encoding", (), {"input_ids": begin + [ord(letter) - 96 for letter in text]})


def test_windows():
    assert windows(Letters(), "abcdefg", 3, 3) == [[1, 2, 3]]
    assert windows(Letters(), "abcdefg", 3, 5) == [[1, 2, 3], [4, 5]]
    assert windows(Letters(), "abcdefg", 3, 9) == [[1, 2, 3], [4, 5, 6]]  # nothing predicts the g
    assert windows(Letters(0), "abcdefg", 3, 9) == [[0, 1, 2, 3], [0, 4, 5, 6], [0, 7]]
    assert windows(Letters(), "a", 3, 3) == windows(Letters(), "", 3, 3) == windows(Letters(0), "", 3, 3) == []


def test_no_more_of_a_text_is_tokenized_than_is_needed():
    tokenizer = Letters()
    windows(tokenizer, "a" * 1_000_000, 10, 10)
    assert tokenizer.longest < 1000


def test_spaces_that_become_one_token_do_not_end_the_text_early():
    class Words(Letters):
        def __call__(self, text, **_):
            return type("Encoding", (), {"input_ids": [1] * len(text.split())})

    assert windows(Words(), " " * 10_000 + "a b c d", 3, 3) == [[1, 1, 1]]


def test_documents_of_files_and_rows(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}\n{"body": "x"}\n{"text": " "}\nbroken\n{"text": "three"}\n')
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "d.json").write_text('[{"text": "four"}]')
    (tmp_path / "c" / "e.jsonl.gz").write_bytes(gzip.compress(b'{"text": "five \\ud800"}\n'))
    (tmp_path / "c" / "f.bin").write_bytes(b"\xff\xfe")
    reader = Reader()
    documents = list(reader([tmp_path]))
    assert [document.text for document in documents] == ["one", "two", "three", "four", "five ?"]
    assert documents[2].name == f"{tmp_path / 'b.jsonl'}:4"
    assert reader.failures == {"no text": 1, "empty": 1, "not JSON": 1, "not UTF-8": 1}


def test_rows_without_the_field_are_a_line(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"body": "x", "title": "y"}\n')
    assert [document.text for document in Reader("body")([tmp_path / "b.jsonl"])] == ["x"]
    with pytest.raises(
        UserError, match=r"no row has a text in 'text'; name the field by --field \(its fields: 'body', 'title'\)"
    ):
        list(Reader()([tmp_path / "b.jsonl"]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="the folder has no file"):
        list(Reader()([tmp_path / "empty"]))


def test_the_first_documents_or_random_ones():
    documents = [Document(str(number), "") for number in range(50)]
    assert drawn(documents, 3) == documents[:3]
    assert drawn(documents, 100, seed=0) == documents
    samples = [drawn(documents, 5, seed) for seed in range(200)]
    assert samples[7] == drawn(iter(documents), 5, 7)
    assert all(sample == sorted(sample, key=documents.index) for sample in samples)
    counts = [sum(document in sample for sample in samples) for document in documents]
    assert 5 < min(counts) <= max(counts) < 45  # 20 each on average


def step(nll, tokens):
    zeros = torch.zeros(len(nll), dtype=torch.float64)
    return OneStep(torch.tensor(nll, dtype=torch.float64), torch.tensor(tokens, dtype=torch.float64), zeros, zeros)


def result(after, before, names):
    texts = Texts([[0] * (int(count) + 1) for count in after.tokens], names)
    return Evaluation("perplexity", "a", "d", {}, measures(texts, after, before)), list(rows(texts, after, before))


def test_the_mean_is_over_tokens_and_the_difference_is_paired():
    # documents x, x, y; nats a token: (6 + 2 + 2) / 10 after, (4 + 2 + 6) / 10 before
    after, before = step([6.0, 2.0, 2.0], [3, 2, 5]), step([4.0, 2.0, 6.0], [3, 2, 5])
    made, each = result(after, before, ["x", "x", "y"])
    assert made.measure("nll").value == pytest.approx(1.0)
    assert made.measure("nll").count == 2
    assert made.measure("perplexity").value == pytest.approx(math.e)
    assert made.measure("perplexity", "model", "before").value == pytest.approx(math.exp(1.2))
    difference = made.measure("nll_difference")
    assert difference.value == pytest.approx(-0.2)
    # of documents drawn twice: x alone 8/5 - 6/5, y alone 2/5 - 6/5
    assert (difference.low, difference.high) == (pytest.approx(-0.8), pytest.approx(0.4))
    assert made.measure("perplexity_ratio").value == pytest.approx(math.exp(-0.2))
    assert made.measure("perplexity_ratio").low == pytest.approx(math.exp(-0.8))
    assert "no difference at this sample size" in difference.note
    assert each[0] == {"document": "x", "tokens": 3, "scores": {"nll": 2.0, "nll_before": 4 / 3}}


def test_one_document_has_no_interval():
    made, _ = result(step([4.0], [2]), step([2.0], [2]), ["x"])
    assert (made.measure("nll_difference").value, made.measure("nll_difference").low) == (1.0, None)
    made, each = result(step([4.0], [2]), None, ["x"])
    assert [one.name for one in made.measures] == ["perplexity", "nll"]
    assert each[0]["scores"] == {"nll": 2.0}


def test_a_hopeless_model_has_an_infinite_perplexity_and_no_error():
    assert result(step([4000.0], [2]), None, ["x"])[0].measure("perplexity").value == math.inf


@pytest.mark.host
def test_the_scores_of_a_model_are_those_of_its_log_probabilities():
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0).eval()
    documents = [Document("x", "The quick brown fox."), Document("y", "A"), Document("z", "Hello, world! " * 5)]
    texts = tokenized(tokenizer, documents, 16, 2)
    assert texts.documents == ["x", "z", "z"] or texts.documents == ["x", "x", "z", "z"]
    expected = []
    for ids in texts.rows:
        with torch.no_grad():
            logps = model(torch.tensor([ids])).logits.log_softmax(-1)[0]
        expected.append(-sum(float(logps[place, token]) for place, token in enumerate(ids[1:])))
    for batch_size in (1, 3):
        made = score(model, texts.rows, batch_size=batch_size)
        assert made.nll.tolist() == pytest.approx(expected, rel=1e-4)
        assert made.tokens.tolist() == [len(ids) - 1 for ids in texts.rows]


def test_of_a_long_text_the_cut_character_goes_and_of_others_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(perplexity, "_LARGEST", 5)
    (tmp_path / "a.txt").write_bytes("abcäö".encode()[:6])
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00abcdef")  # no text, however long it is
    (tmp_path / "c.txt").write_bytes("abcd€".encode())
    reader = perplexity.Reader()
    assert [one.text for one in reader([tmp_path])] == ["abcä", "abcd"]
    assert reader.failures == {"not UTF-8": 1}
