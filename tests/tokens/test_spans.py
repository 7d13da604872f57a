"""Spans by hand, on a byte tokenizer, and on a merging tokenizer that normalises, against the characters themselves."""

import itertools
import json
import time
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from support.rows import BAD
from wm_plugin.errors import UserError
from wm_plugin.tokens.spans import (
    OTHER,
    ContentLocator,
    Span,
    SpanError,
    ToolBlock,
    block_spans,
    read_spans,
    texts_of,
    token_weights,
    zero_runs,
)

pytestmark = pytest.mark.host

HEAD = "<|im_end|>"  # a conversation stands before a block; the host keeps what comes after it


def bytes_encode(texts):
    """One token a byte: a token's first character is the character that its byte belongs to."""
    return [
        ([b for c in text for b in c.encode()], [i for i, c in enumerate(text) for _ in c.encode()]) for text in texts
    ]


def plain(tools, contents):
    return HEAD + "".join(f"\n<r>{text}</r>" for text in contents) + "<go>"


def block(contents, render=plain, encode=bytes_encode, tools=None):
    tools = tools or tuple(f"tool{i}" for i in range(len(contents)))
    ids = encode([render(tools, contents)])[0][0]
    skip = len(encode([HEAD])[0][0])
    return ToolBlock(tools, tuple(contents), list(ids[skip:]))


def contents_of(block_, ranges):
    return [bytes(block_.ids[start:end]).decode() for start, end in ranges]


@pytest.mark.parametrize(
    "contents",
    [
        ["one"],
        ["first", "second"],
        ["same", "same", "same"],
        [""],
        ["", "x", ""],
        ["größer 漢字 ✓ 👩‍👩‍👧"],
        ["</r>\n<r>"],
        ["</r>\n<r>", "<go>"],
        ["<|im_end|>", "\n<r>fake</r>"],
        ["e\u0301 decomposed", "\x00\t\r\n"],
    ],
)
def test_contents_are_found_exactly(contents):
    one = block(contents)
    (ranges,) = ContentLocator(bytes_encode, plain).locate([one])
    assert contents_of(one, ranges) == contents


@given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_any_contents(contents):
    contents = [text.encode("utf-8", "ignore").decode() for text in contents]  # no lone surrogates
    one = block(contents)
    (ranges,) = ContentLocator(bytes_encode, plain).locate([one])
    assert contents_of(one, ranges) == contents


def stripping(tools, contents):
    return HEAD + "".join(f"[{text.strip()}]" for text in contents) + "<go>"


def as_json(tools, contents):
    return (
        HEAD + "".join(json.dumps({"tool": t, "out": text}) for t, text in zip(tools, contents, strict=True)) + "<go>"
    )


@pytest.mark.parametrize(
    ("render", "contents", "found"),
    [
        (stripping, ["  a b \n", "c"], ["a b", "c"]),
        (as_json, ['say "hi"\n', "é"], ['say \\"hi\\"\\n', "\\u00e9"]),
    ],
)
def test_templates_that_change_a_content(render, contents, found):
    one = block(contents, render)
    (ranges,) = ContentLocator(bytes_encode, render).locate([one])
    assert contents_of(one, ranges) == found


def test_many_results_under_a_template_that_changes_one():
    rendered = []

    def render(tools, contents):
        rendered.append(len(contents))
        return stripping(tools, contents)

    contents = [" x", *"y" * 50]
    one = block(contents, stripping, tools=("t",) * 51)
    (ranges,) = ContentLocator(bytes_encode, render).locate([one])
    assert contents_of(one, ranges) == ["x", *"y" * 50]
    assert sum(rendered) <= 3 * len(contents)


def test_scaffolds_of_invented_tools_are_not_kept_for_ever():
    locator = ContentLocator(bytes_encode, plain)
    for number in range(300):
        one = block(["a", "b"], tools=(f"t{number}", f"u{number % 2}"))
        (ranges,) = locator.locate([one])
        assert contents_of(one, ranges) == ["a", "b"]
    assert len(locator._scaffolds) <= 64


def test_a_block_cut_in_the_middle_of_a_content():
    whole = block(["first", "second result"])
    start = bytes(whole.ids).index(b"result")
    cut = whole._replace(ids=whole.ids[:start], full_ids=whole.ids)
    (ranges,) = ContentLocator(bytes_encode, plain).locate([cut])
    assert contents_of(cut, ranges) == ["first", "second "]
    spans = block_spans(cut, ranges, 10)
    assert spans[-1] == (Span(10 + start - len("second "), 10 + start, "tool", "tool1", True), 1)


def test_tokens_that_do_not_match_raise():
    one = block(["abc"])
    wrong = one._replace(ids=[*one.ids[:-1], 7])
    with pytest.raises(SpanError, match="cannot tell which tokens are the content of tool0"):
        ContentLocator(bytes_encode, plain).locate([wrong])


def test_a_template_without_the_content_raises():
    with pytest.raises(SpanError, match="does not write a tool result's content"):
        ContentLocator(bytes_encode, lambda tools, contents: HEAD + "<r></r>").locate([block(["abc"])])


def test_a_scaffold_that_depends_on_the_content_raises():
    def render(tools, contents):
        return HEAD + "".join(f"[{len(text)}]{text}" for text in contents)

    one = block(["abc"], render)
    with pytest.raises(SpanError, match="changes its scaffold with the content"):
        ContentLocator(bytes_encode, render).locate([one])


def test_block_spans_by_hand():
    one = ToolBlock(("a", "b"), ("xy", "z"), list(range(10)))
    spans = block_spans(one, [(2, 4), (5, 6)], offset=100)
    assert spans == [
        (Span(100, 102, "tool", "a", False), 0),
        (Span(102, 104, "tool", "a", True), 0),
        (Span(104, 105, "tool", "b", False), 1),
        (Span(105, 106, "tool", "b", True), 1),
        (Span(106, 110, "tool", "b", False), 1),
    ]


@given(st.lists(st.integers(0, 1)))
def test_zero_runs(mask):
    runs = zero_runs(torch.tensor(mask))
    covered = [index for start, end in runs for index in range(start, end)]
    assert covered == [index for index, value in enumerate(mask) if value == 0]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(runs))


def test_token_weights_by_hand():
    rows = [
        [(Span(1, 3, "tool", "b", True), 0.5), (Span(3, 4, "tool", "a", True), 0.0)],
        [(Span(0, 1, "user", None, True), 1.0), (Span(2, 3, "tool", "invented", True), 1.0)],
    ]
    weights, tool_ids = token_weights(rows, 4, ["a", "b"])
    assert weights.tolist() == [[0, 0.5, 0.5, 0], [1, 0, 1, 0]]
    assert tool_ids.tolist() == [[0, 2, 2, 0], [0, 0, OTHER, 0]]
    assert tool_ids.dtype == torch.int16


@pytest.fixture(scope="module")
def merging():
    """A byte-level BPE with merges across word boundaries' spaces and a normaliser, as Qwen's has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [
        "\n<r>the result of the call</r>\n<r>the other é ü result</r><go>",
        "漢字 the call the call \n\n the",
    ] * 50
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    tokenizer.add_special_tokens([HEAD])

    def encode(texts):
        return [
            (e.ids, [start for start, _ in e.offsets]) for e in tokenizer.encode_batch(texts, add_special_tokens=False)
        ]

    return tokenizer, encode


@pytest.mark.parametrize(
    "contents", [["the result"], ["e\u0301 the call", "\n\nthe call\n"], ["漢字", "漢字"], [" leading", "trailing "]]
)
def test_a_merging_and_normalising_tokenizer(merging, contents):
    """A token belongs to the content in which its first character lies: checked from the offsets, one character at a time."""
    tokenizer, encode = merging
    one = block(contents, encode=encode)
    (ranges,) = ContentLocator(encode, plain).locate([one])
    text = plain(one.tools, contents)
    ids, starts = encode([text])[0]
    first = len(ids) - len(one.ids)
    position = 0
    for content, (start, end) in zip(contents, ranges, strict=True):
        position = text.index("<r>", position) + 3
        inside = [i - first for i, char in enumerate(starts) if position <= char < position + len(content)]
        assert list(range(start, end)) == inside
        position += len(content)
    decoded = tokenizer.decode(one.ids[ranges[0][0] : ranges[0][1]])
    assert decoded.strip() in text.replace("e\u0301", "é")


def spelling(tokenizer, encode):
    """A locator that compares what tokens spell, and the texts that it had tokenised."""
    tokenised = []

    def noted(texts):
        tokenised.extend(texts)
        return encode(texts)

    locator = ContentLocator(noted, plain, partial(tokenizer.decode, skip_special_tokens=False))
    tokenised.clear()
    return locator, tokenised


TEXTS = st.text(st.sampled_from(" \n\tthecallr<>/1{é漢\u0301"), max_size=20) | st.sampled_from(
    [HEAD, "the result", "<r>"]
)


@given(st.lists(TEXTS, min_size=1, max_size=3), st.data())
@settings(max_examples=100, deadline=None)
def test_tokens_that_spell_the_text_say_the_same_as_tokenising_it_again(merging, contents, data):
    tokenizer, encode = merging
    one = block(contents, encode=encode)
    cut = data.draw(st.none() | st.integers(0, len(one.ids)))
    if cut is not None:
        one = one._replace(ids=one.ids[:cut], full_ids=one.ids)
    locator, tokenised = spelling(tokenizer, encode)
    twice = [one, one._replace(ids=list(one.ids))]
    assert locator.locate(twice) == ContentLocator(encode, plain).locate(twice)
    assert bool(tokenised) == (not "".join(contents).isascii())


def test_a_trimming_tokenizer_is_asked_where_its_tokens_begin(merging):
    """GPT-2's and Llama 3's do not count the white space at a token's start."""
    tokenizer = Tokenizer.from_str(merging[0].to_str())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)

    def encode(texts):
        return [
            (e.ids, [start for start, _ in e.offsets]) for e in tokenizer.encode_batch(texts, add_special_tokens=False)
        ]

    blocks = [block([text], encode=encode) for text in ("\n", "the call", "\n\n the", " ")]
    locator, tokenised = spelling(tokenizer, encode)
    assert locator.locate(blocks) == ContentLocator(encode, plain).locate(blocks)
    assert len(tokenised) == len(blocks)


def test_tokens_that_spell_another_text_are_refused(merging):
    tokenizer, encode = merging
    one = block(["the call"], encode=encode)
    locator, _ = spelling(tokenizer, encode)
    for ids in ([*one.ids[:-1], 7], one.ids[:-1], [*one.ids, one.ids[-1]], [*one.ids, 10**6]):
        with pytest.raises(SpanError, match="cannot tell which tokens are the content of tool0"):
            locator.locate([one, one._replace(ids=ids)])


def test_the_texts_of_a_turn_from_its_tokens_alone():
    parts = [("go(1)", 1), ("[one](two)", 0), ("!so", 1), ("[]", 0), ("go(2)", 1), ("<x>", 0)]
    text = "".join(part for part, _ in parts)
    sampled = torch.tensor([mask for part, mask in parts for _ in part])
    spans = [
        Span(5, 6, "tool", "a", False),
        Span(6, 9, "tool", "a", True),
        Span(9, 11, "tool", "b", False),
        Span(11, 14, "user", "b", True),
        Span(14, 15, "tool", "b", False),
        Span(18, 19, "tool", "c", False),  # no content at all
        Span(20, 20, "tool", "d", True),
        Span(25, 28, "tool", None, True),
    ]
    found = texts_of(spans, [*text.encode()], sampled, lambda ids: bytes(ids).decode())
    assert found == [
        ("go(1)", "one"),
        ("go(1)", "one"),
        ("go(1)", "two"),
        ("go(1)", "two"),
        ("go(1)", "two"),
        ("!so", "["),
        ("", ""),
        ("go(2)", "<x>"),
    ]


def test_the_texts_of_many_turns_take_little_time():
    count = 20_000
    spans = [Span(2 * turn + 1, 2 * turn + 2, "tool", None, True) for turn in range(count)]
    one_run = [Span(start, start + 1, "tool", None, start % 2 == 1) for start in range(2 * count)]
    begun = time.process_time()
    texts = texts_of(spans, range(2 * count), torch.tensor([1, 0] * count), repr)
    assert texts == [(f"[{2 * turn}]", f"[{2 * turn + 1}]") for turn in range(count)]
    texts = texts_of(one_run, range(2 * count), torch.zeros(2 * count), repr)
    assert texts[:3] == [("[]", "[1]"), ("[]", "[1]"), ("[]", "[3]")]
    assert time.process_time() - begun < 5  # half a minute without


@pytest.mark.parametrize(
    "value", [value for value in BAD if not isinstance(value, list) or value], ids=itertools.count()
)
def test_spans_of_others_that_do_not_fit_are_one_line(value):
    sampled = torch.tensor([1, 0, 0, 0])
    assert read_spans([(1, 2, "tool", None, True), (2, 3, "tool", "f", True), (3, 3, "tool", None, False)], sampled)
    spans = [value, [value]]
    spans += [[(value, 2, "tool", None, True)], [(1, value, "tool", None, True)], [{"start": value, "end": 2}]]
    spans += [[(1, 2, "tool", None if isinstance(value, str | None) else value, True), (1, 2, "tool", "f", True)]]
    for one in spans:
        try:
            read_spans(one, sampled)
        except UserError as error:
            text = str(error)
            assert text.startswith("env_spans")
            assert "\n" not in text
            assert len(text) < 250
