"""The rules on real texts: by hand, and on whatever a world may say."""

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.worlds.wrappers.control import PERTURBATIONS, ControlConfig, ControlEpisode
from wm_plugin.worlds.wrappers.control.items import map_texts, read_items
from wm_plugin.worlds.wrappers.control.perturbations import AGAIN, ERRORS, MISSING

FIVE = ["a", "b", "c", "d", "e"]
# Each perturbation, so that it is in force for every call.
ALWAYS = {
    "error": {"rate": 1},
    "partial": {"rate": 1},
    "paginate": {"tools": ["search"], "size": 2},
    "withhold": {"texts": ["secret"]},
    "tease": {"texts": ["secret"], "words": 4},
    "latency": {"rate": 1},
    "style": {"form": "numbered"},
}


def episode(*entries, task="t", **settings):
    return ControlEpisode(ControlConfig.read({"perturbations": list(entries), **settings}, "control"), task)


def changed(name, text, tool="search", task="t", **more):
    one = episode({"name": name, **ALWAYS[name], **more}, task=task)
    return one.perturbed(one.plan(tool), text)


def test_each_perturbation_is_here():
    assert ALWAYS.keys() == PERTURBATIONS.keys()


def test_an_error_takes_the_place_of_the_call():
    one = episode({"name": "error", "rate": 1, "kinds": ["timeout"]})
    plan = one.plan("search")
    assert one.failure(plan) == ERRORS["timeout"][0]
    assert ERRORS["timeout"][1] in plan.instruction
    assert plan.data == {"control": {"names": ["error"], "instruction": plan.instruction}}
    assert {episode({"name": "error", "rate": 1}, task=str(n)).plan("x").instruction for n in range(40)} == {
        f"This call fails: {told}. The call is not carried out and changes nothing. Answer with the error alone."
        for _, told in ERRORS.values()
    }


def test_errors_at_turns():
    one = episode({"name": "error", "turns": [2, 4], "tools": ["search"]})
    failed = []
    for turn in range(1, 6):
        one.begin_turn()
        failed += [(turn, tool) for tool in ("search", "open") if one.failure(one.plan(tool)) is not None]
    assert failed == [(2, "search"), (4, "search")]
    assert "in turn 2, 4" in one.instruction


def test_calls_after_the_first_of_a_turn_fail():
    one = episode({"name": "partial", "of": "calls", "rate": 1})
    one.begin_turn()
    first, second = one.plan("search"), one.plan("search")
    assert (one.failure(first), one.failure(second)) == (None, ERRORS["unavailable"][0])
    one.begin_turn()
    assert one.failure(one.plan("search")) is None


@pytest.mark.parametrize("write", [json.dumps, lambda items: json.dumps({"total": 5, "rows": items})])
def test_a_part_of_a_list_in_json_fails(write):
    seen = set()
    for task in range(20):
        text = changed("partial", write(FIVE), task=str(task))
        value = json.loads(text)
        items = value["rows"] if isinstance(value, dict) else value
        assert items[0] == "a"
        assert [one for one in items if isinstance(one, str)] == [one for one in FIVE if one in items]
        seen.add(tuple(n for n, one in enumerate(items) if one == {"error": MISSING}))
    assert seen == {(1, 3), (1, 4), (2,)}


def test_what_a_world_model_is_told_of_a_part_is_what_the_rule_does():
    for task in range(20):
        one = episode({"name": "partial", "rate": 1}, task=str(task))
        plan = one.plan("search")
        items = json.loads(one.perturbed(plan, json.dumps(list(range(1, 10)))))
        missing = [n for n, item in enumerate(items, 1) if isinstance(item, dict)]
        step = 2 if "every second" in plan.instruction else 3
        assert f"item {missing[0]} and" in plan.instruction
        assert missing == list(range(missing[0], 10, step))


@pytest.mark.parametrize(
    "text", ["- a\n- b\n- c\n", "Found:\n1. a\n   more of a\n2. b\n3. c\nEnd.", "[1] a\n[2] b\n[3] c"]
)
def test_a_part_of_lines_fails(text):
    left = changed("partial", text)
    assert f"- {MISSING}" in left
    assert left.splitlines()[0] == text.splitlines()[0]


@pytest.mark.parametrize(
    "text", ["", "a board\n#.A\n#.G", '{"a": [1], "b": [2]}', "[1]", "12 apples\nand more\nof it\nhere"]
)
def test_what_is_no_list_stays(text):
    assert changed("partial", text) == text


def test_what_is_irreversible_is_never_said_to_have_failed_after_it_was_done():
    config = ControlConfig.read({"perturbations": [{"name": "partial", "rate": 1}]}, "control")
    for irreversible, same in (((), False), (("buy",), True)):
        one = ControlEpisode(config, "t", irreversible=irreversible)
        assert (one.perturbed(one.plan("buy"), json.dumps(FIVE)) == json.dumps(FIVE)) is same


def test_pages_hold_everything_once():
    one = episode({"name": "paginate", "tools": ["search"], "size": 2})
    pages = [one.perturbed(one.plan("search"), json.dumps(FIVE), {"q": "x"})]
    while (page := one.next_page(plan := one.plan("search"), {"q": "x"})) is not None:
        pages.append(one.perturbed(plan, page, page=True))
    values = [json.loads(page) for page in pages]
    assert [item for value in values for item in value["items"]] == FIVE
    assert [value["page"] for value in values] == [f"1 of 3 ({AGAIN})", f"2 of 3 ({AGAIN})", "3 of 3"]
    assert one.next_page(one.plan("search"), {"q": "y"}) is None


def test_other_calls_and_short_results_have_no_pages():
    one = episode({"name": "paginate", "tools": ["search"], "size": 5})
    assert one.perturbed(one.plan("open"), "a\n" * 9) == "a\n" * 9
    assert one.perturbed(one.plan("search"), json.dumps(FIVE)) == json.dumps(FIVE)
    assert one.perturbed(one.plan("search"), "\n".join([*FIVE, "f"])).endswith(f"e\npage: 1 of 2 ({AGAIN})")


def test_withholding_leaves_everything_else():
    row = {"name": "x", "capital": "The secret.", "n": 7, "secret": 1}
    assert json.loads(changed("withhold", json.dumps(row))) == {"name": "x", "capital": "The ….", "n": 7, "…": 1}
    assert changed("withhold", "one\nthe SECRET\ntwo") == "one\nthe …\ntwo"
    assert changed("withhold", '{"a": 1}') == '{"a": 1}'
    assert json.loads(changed("withhold", '{"a": 391482}', texts=["391482"])) == {"a": "…"}


def test_teasing_breaks_off_before_the_answer():
    assert changed("tease", "we know the secret of it\nother") == "we know the …\nother"
    assert changed("tease", "one two three four five") == "one two three four …"
    assert changed("tease", "one two three four") == "one two three four"
    assert json.loads(changed("tease", '[{"snippet": "it is secret"}]')) == [{"snippet": "it is …"}]


def test_latency_and_style():
    text = changed("latency", "x", seconds=[7, 7])
    assert text == "(answered after 7.0 s)\nx"
    assert changed("style", "a\nb") == "1: a\n2: b"
    assert json.loads(changed("style", "a\nb", form="json")) == {"result": "a\nb"}
    assert changed("style", '{"a": 1}', form="json") == '{"a": 1}'
    assert changed("style", "a", form="fenced") == "```\na\n```"


def test_the_order_is_the_config_s_and_a_failing_call_has_nothing_else():
    late, numbered = {"name": "latency", "rate": 1, "seconds": [7, 7]}, {"name": "style", "form": "numbered"}
    for entries, text in (
        ((late, numbered), "1: (answered after 7.0 s)\n2: x"),
        ((numbered, late), "(answered after 7.0 s)\n1: x"),
    ):
        one = episode(*entries)
        assert one.perturbed(one.plan("f"), "x") == text
        assert one.data["control"]["names"] == [entry["name"] for entry in entries]
    one = episode(late, {"name": "error", "rate": 1})
    assert one.plan("f").names == ("error",)


TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.text(max_size=9), max_size=9).map(json.dumps),
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=8,
    ).map(json.dumps),
    st.lists(st.text(max_size=9), max_size=9).map(lambda items: "\n".join(f"- {item}" for item in items)),
)


@settings(deadline=None, max_examples=examples(400))
@given(st.lists(st.sampled_from(sorted(ALWAYS)), min_size=1, max_size=4), TEXTS, st.text(max_size=5))
def test_no_rule_raises_and_all_give_the_same_twice(names, text, task):
    entries = [{"name": name, **ALWAYS[name]} for name in names]
    results = []
    for _ in range(2):
        one = episode(*entries, task=task)
        plan = one.plan("search")
        results.append((one.failure(plan), one.perturbed(plan, text, {"q": text}), one.guard(text, plan), one.data))
    assert results[0] == results[1]
    if {"withhold", "tease"} & set(names) and "error" not in names:
        assert "secret" not in results[0][1].casefold()


@settings(deadline=None, max_examples=examples(200))
@given(TEXTS)
def test_a_list_of_the_same_items_is_the_same(text):
    if (items := read_items(text, lines=True)) is not None:
        same = items.write(items.items, {})
        assert same == text or json.dumps(json.loads(same)) == json.dumps(json.loads(text))
    assert map_texts(text, lambda one: one) == text or "NaN" in text


def test_half_a_surrogate_is_no_part_of_a_text_that_is_written_anew():
    text = json.dumps(["a", "\ud800", "c", "d"])  # escaped, and no tokenizer takes the character itself
    for written in (changed("partial", text), changed("paginate", text)):
        assert written != text
        written.encode()


def test_pages_are_written_one_by_one():
    """What stands around a list is on each of its pages: all of them together would be gigabytes."""
    text = json.dumps({"about": "x" * 500_000, "items": list(range(900))})
    one = episode({"name": "paginate", "tools": ["search"], "size": 1})
    tracemalloc.start()
    first = one.perturbed(one.plan("search"), text, {})
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    second = one.next_page(one.plan("search"), {})
    assert [json.loads(page)["items"] for page in (first, second)] == [[0], [1]]
