import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("trl", minversion="1.5")  # before it no template that TRL knows preserves prefixes

from support import information
from support.information import ANSWERS, RATIOS
from support.on_trl import Batches, Scripted, config, make_tokenizer, run
from support.pages import Page
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.inspect import Inspector, summary, to_page, token_texts
from wm_plugin.tokens.spans import Span
from wm_plugin.tokens.view import LEGEND
from wm_plugin.trl import WorldModelGRPOTrainer

pytestmark = pytest.mark.host

TOKENIZER = make_tokenizer()
PROMPT = [{"role": "system", "content": "s"}, {"role": "user", "content": "task"}]
HOST_MADE = str({"error": "boom"})


class Kept(Batches, Scripted, WorldModelGRPOTrainer):
    """Keeps the messages of every completion, by its tokens."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rollouts = zip(completion_ids_list, prompts, completions, strict=True)
        self.kept = getattr(self, "kept", {}) | {tuple(ids): (prompt, messages) for ids, prompt, messages in rollouts}
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def turn(*calls, content=""):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(name, content, **fields):
    return {"role": "tool", "name": name, "content": content, **fields}


def shown(inspection):
    return [(piece.kind, piece.tool, piece.text, piece.weight) for piece in inspection.pieces]


def test_turn_information_by_hand():
    inspector = Inspector(TOKENIZER, EchoConfig(0.1, turn_information=True))
    inspection = inspector.messages(PROMPT, information.messages())
    found = [(text, weight) for kind, _, text, weight in shown(inspection) if kind == "content"]
    assert found == list(zip(ANSWERS.values(), RATIOS, strict=True))
    lengths = [len(text.encode()) for text in ANSWERS.values()]
    tools = inspection.tools()["ask"]
    assert tools["tokens"] == sum(lengths)
    total = sum(length * ratio for length, ratio in zip(lengths, RATIOS, strict=True))
    assert tools["weight"] == pytest.approx(total / sum(lengths))


@pytest.mark.parametrize(
    "echo",
    [
        EchoConfig(0.1, {"run_code": 0.3, "lookup_doc": 0.07}),
        EchoConfig(0.1, content_only=False, include_errors=True, include_truncated=False),
        EchoConfig(0.1, include_errors=True, turn_information={"action": 0.3, "retrieval": 0.6}),
    ],
    ids=["by tool", "with scaffold and errors", "turn information"],
)
def test_the_weights_are_those_of_the_trainer(echo):
    trainer, _ = run(Kept, args=config(max_steps=1), world_model=echo)
    inspector = Inspector(trainer.processing_class, echo)
    whole = environment = cut = 0
    for batch in trainer.batches:
        for row, counts in enumerate(batch["completion_mask"].bool()):
            ids, weights = batch["completion_ids"][row][counts].tolist(), batch["wm_weights"][row][counts]
            inspection = inspector.messages(*trainer.kept[tuple(ids)])
            found = torch.tensor([token.weight for token in inspection.tokens[inspection.prompt_tokens :]])
            written = inspection.ids[inspection.prompt_tokens :]
            if written == ids:
                whole += 1
                assert torch.equal(found, weights)
            # A turn may be written with other white space than it was sampled; the environment's tokens may not.
            theirs = [(i, w) for i, w, m in zip(ids, weights, batch["tool_mask"][row][counts], strict=True) if not m]
            ours = [
                (i, w)
                for i, w, token in zip(written, found, inspection.tokens[inspection.prompt_tokens :], strict=True)
                if token.kind in ("content", "scaffold")
            ]
            if not echo.include_truncated and ids[-1] != TOKENIZER.eos_token_id:
                cut += 1  # messages do not say that the last turn was cut
                assert not any(weight for _, weight in theirs)
                assert [i for i, _ in ours] == [i for i, _ in theirs]
            else:
                assert ours == theirs
                environment += len(ours)
    assert whole > 0
    assert environment > 100
    assert echo.include_truncated or cut > 0


def test_a_rollout_by_hand():
    completion = [
        turn(call("f", a=1), call("g", b=2)),
        result("f", "one\n"),
        result("g", "zwö"),
        {"role": "assistant", "content": "end"},
    ]
    inspection = Inspector(TOKENIZER, EchoConfig(1.0, {"f": 0.5})).messages(PROMPT, completion)
    prompt = (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\ntask<|im_end|>\n<|im_start|>assistant\n"  # as the template
    )
    calls = (
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"b": 2}}\n</tool_call><|im_end|>'
    )
    assert shown(inspection) == [
        ("prompt", None, prompt, 0.0),
        ("policy", None, calls, 0.0),
        ("scaffold", "f", "\n<|im_start|>user\n<tool_response>\n", 0.0),
        ("content", "f", "one\n", 0.5),
        ("scaffold", "g", "\n</tool_response>\n<tool_response>\n", 0.0),
        ("content", "g", "zwö", 0.0),
        ("scaffold", "g", "\n</tool_response><|im_end|>\n<|im_start|>assistant\n", 0.0),
        ("policy", None, "end<|im_end|>", 0.0),
    ]
    assert inspection.tools() == {
        "f": {"tokens": 4, "weight": 0.5, "environment_tokens": 4 + 1 + 1 + 4 + 1 + 1 + 1},
        "g": {"tokens": 0, "weight": 0.0, "environment_tokens": 5 + 4 + 15},
    }
    assert TOKENIZER.decode(inspection.ids) == "".join(token.text for token in inspection.tokens)
    assert [piece.start for piece in inspection.pieces[1:]] == [piece.end for piece in inspection.pieces[:-1]]
    assert inspection.pieces[-1].end == len(inspection.tokens)


@pytest.mark.parametrize(
    ("message", "tools", "counts", "guessed"),
    [
        (result("f", HOST_MADE), None, False, 1),
        (result("f", HOST_MADE, failed=False), None, True, 0),
        (result("f", "fine", failed=True), None, False, 0),
        (result("f", "{'error': 'a tool', 'code': 3}"), None, True, 0),
        (result("f", "{'error': nothing}"), None, True, 0),
        (result("f", "fine"), [{"type": "function", "function": {"name": "f"}}], True, 0),
        (result("f", "fine"), [{"name": "g"}], False, 1),
    ],
)
def test_failures_that_the_host_made_do_not_count(message, tools, counts, guessed):
    completion = [turn(call("f")), message]
    inspection = Inspector(TOKENIZER, EchoConfig(1.0)).messages(PROMPT, completion, tools)
    (content,) = (piece for piece in inspection.pieces if piece.kind == "content")
    assert (content.weight > 0, content.failed, inspection.guessed) == (counts, not counts, guessed)
    kept = Inspector(TOKENIZER, EchoConfig(1.0, include_errors=True)).messages(PROMPT, completion, tools)
    assert kept.tools()["f"]["tokens"] > 0


def test_a_completion_that_ends_in_a_result_is_cut():
    completion = [turn(call("f")), result("f", "one")]
    inspector = Inspector(TOKENIZER, EchoConfig(1.0, include_truncated=False))
    assert inspector.messages(PROMPT, completion).tools()["f"]["tokens"] == 0
    assert inspector.messages(PROMPT, [*completion, turn(content="x")]).tools()["f"]["tokens"] == 3


def test_select_sees_the_span_and_the_message():
    seen = []
    inspector = Inspector(
        TOKENIZER, EchoConfig(1.0, select=lambda span, message: seen.append((span, message)) or False)
    )
    inspector.messages(PROMPT, [turn(call("f")), result("f", "one")])
    ((span, message),) = seen
    assert (span.tool, span.content, message["content"]) == ("f", True, "one")


def test_a_template_that_writes_an_answer_differently_is_refused():
    template = "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}{% if add_generation_prompt %}GO{% endif %}"
    with pytest.raises(UserError, match="once the assistant has answered"):
        Inspector(TOKENIZER, EchoConfig(1.0), chat_template=template).messages(PROMPT, [turn(content="x")])


def test_a_turn_ends_at_any_token_that_ends_one():
    end = TOKENIZER.convert_tokens_to_ids("<tool_call>")
    template = (
        "{% for m in messages %}{{ m.role ~ m.content }}<tool_call>!{% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}"
    )
    ends = [
        Inspector(TOKENIZER, EchoConfig(1.0), chat_template=template, end_ids=ids).messages(PROMPT, [turn(content="x")])
        for ids in ((), (end,))
    ]
    assert [shown(inspection)[-1][2] for inspection in ends] == ["x<tool_call>!", "x<tool_call>"]


def test_a_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(UserError, match="Slow is a slow tokenizer"):
        Inspector(Slow(), EchoConfig(1.0))


def test_given_spans():
    ids = TOKENIZER("call-result!").input_ids
    spans = [[5, 11, "tool", "f", True], Span(11, 12, "user", None, True)._asdict()]
    inspection = Inspector(TOKENIZER, EchoConfig(1.0, ["f"])).spans(ids, spans[::-1], prompt_ids=ids[:4])
    assert shown(inspection) == [
        ("prompt", None, "call", 0.0),
        ("policy", None, "call-", 0.0),
        ("content", "f", "result", 1.0),
        ("content", None, "!", 0.0),
    ]
    assert summary([inspection, inspection]) == {
        "f": {"tokens": 12, "weight": 1.0, "environment_tokens": 12},
        "user": {"tokens": 0, "weight": 0.0, "environment_tokens": 2},
    }


def test_turn_information_of_given_spans_is_read_off_their_tokens():
    ids = TOKENIZER("say hello<|im_end|>hello say!").input_ids
    spans = [[10, 19, "tool", "f", True], [19, 19, "tool", "f", True]]
    inspection = Inspector(TOKENIZER, EchoConfig(1.0, turn_information=True)).spans(ids, spans)
    assert shown(inspection)[1] == ("content", "f", "hello say", 0.05)


@pytest.mark.parametrize(
    ("spans", "error"),
    [
        ([[0, 2, "tool", "f"]], "is not a span"),
        ([[0, 2, "tool", "f", 1]], "is not a span"),
        ([[0, 2.0, "tool", "f", True]], "is not a span"),
        (["abcde"], "is not a span"),
        ([[0, 5, "tool", "f", True]], "4 tokens"),
        ([[2, 1, "tool", "f", True]], "does not lie"),
        ([[0, 2, "tool", "f", True], [1, 3, "tool", "f", True]], "overlap"),
    ],
)
def test_bad_spans_are_refused(spans, error):
    with pytest.raises(UserError, match=error):
        Inspector(TOKENIZER, EchoConfig(1.0)).spans([1, 2, 3, 4], spans)


@pytest.mark.parametrize("bad", [-1, 10**6, 1.0, True, "x"])
def test_ids_of_another_tokenizer_are_refused(bad):
    with pytest.raises(UserError, match="not a token id"):
        Inspector(TOKENIZER, EchoConfig(1.0)).spans([1, bad], [])


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12))
def test_token_texts_put_the_text_together_again(text):
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    texts = token_texts(TOKENIZER, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == TOKENIZER.decode(ids)


def test_a_character_of_several_tokens_is_written_at_its_last():
    assert token_texts(TOKENIZER, TOKENIZER("aéb").input_ids) == ["a", "", "é", "b"]
    broken = TOKENIZER("é").input_ids[:1]
    assert token_texts(TOKENIZER, broken) == ["\ufffd"]
    assert len("".join(token_texts(TOKENIZER, broken * 9))) == 9


def test_the_page_escapes_and_loads_nothing():
    inspection = Inspector(TOKENIZER, EchoConfig(1.0)).messages(
        PROMPT, [turn(call("f")), result("f", "<script>alert(1)</script>")]
    )
    page = to_page("<b>title", [("<i>one", inspection)])
    assert page.startswith("<!doctype html>")
    for text in ("<script", "<b>title", "<i>one", "src="):
        assert text not in page
    checked = Page(page, "<b>title")
    assert "25 of 49 of the environment (51.0%)" in checked.text
    assert checked.text.index("25 of the environment's 49 tokens count") < checked.text.index("How to read")
    for meaning in LEGEND.values():
        assert checked.text.count(meaning) >= 1  # of the legend; tooltips are no text
    for kind in LEGEND:
        assert f'class="wm-{kind}' in page
    for mark in ("underlined: counts", "faint: left out", "a line end"):
        assert mark in checked.text


def test_the_page_of_many_rollouts_is_bounded_and_marks_what_it_leaves_out():
    many = Inspector(TOKENIZER, EchoConfig(1.0)).messages(PROMPT, [turn(call("f")), result("f", "word " * 2000)])
    page = to_page("many", [(f"rollout {number}", many) for number in range(150)])
    checked = Page(page, "many")
    assert len(page) < 6_000_000
    assert "50 of 150 rollouts are not shown" in checked.text
    assert f"{len(many.tokens) - 200:,} of {len(many.tokens):,} tokens are not shown" in checked.text
    assert checked.text.count("tokens are not shown") == 100
