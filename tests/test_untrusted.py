"""JSON from others: what is read is what Python reads, what is out of bounds is a ValueError, and nothing takes long."""

import html
import json
import math
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from support.timing import repeated, too_slow
from wm_plugin import untrusted
from wm_plugin.untrusted import DIGITS, LEVELS, BoundsError, deeper, loads, number

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)
HOSTILE = [*'"\\[]{},:-0 \x00é\ud800', "true", '"a"', "\\u12", '{"a":1,"a":2}', "NaN", "1e999"]
HOSTILE += ["1" * 400, "[" * 300, "]" * 300, '{"a":' * 300]
hostile = st.lists(st.sampled_from(HOSTILE), max_size=12).map("".join)


def nest(levels: int) -> str:
    return "[" * levels + "]" * levels


@given(json_values)
@settings(max_examples=examples(200))
def test_values_are_read_as_python_reads_them(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        for read in (loads(text), loads(text, strict=True), loads(text.encode(errors="backslashreplace"))):
            assert repr(read) == repr(json.loads(text)) or "\ud800" <= max(text) <= "\udfff"


@given(hostile)
@settings(max_examples=examples(500))
def test_what_is_no_json_is_a_value_error(text):
    for data in (text, text.encode(errors="surrogatepass")):
        for strict in (False, True):
            try:
                value = loads(data, strict=strict)
            except ValueError:
                continue
            assert not deeper(value, LEVELS)


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("before", ["", '"[[[\\"[", ', '"\\\\", ', "NaN, ", f"{10**40}, "])
@pytest.mark.parametrize("levels", [LEVELS, LEVELS + 1, 700, 1100, 100_000])
def test_depth(levels, before, close):
    text = f"[{before}{nest(levels - 1) if close else '[' * (levels - 1)}]"
    if levels == LEVELS and close:
        assert deeper(loads(text), LEVELS - 1)
    else:
        with pytest.raises(ValueError, match="nested more than 250 levels deep" if close or levels > 1000 else None):
            loads(text)


def test_brackets_in_strings_are_no_levels():
    value = {"\\": '["{\\' * 1000, "b": ["[" * 1000, '\\"[']}
    assert loads(json.dumps(value)) == value


def test_a_stack_that_is_nearly_full():
    def read_at(depth: int) -> Any:
        return read_at(depth - 1) if depth else loads(nest(LEVELS), strict=True)

    frame, used = sys._getframe(), 0
    while frame := frame.f_back:  # type: ignore[assignment]
        used += 1
    with pytest.raises(BoundsError):
        read_at(sys.getrecursionlimit() - used - 100)


def test_digits():
    assert loads("9" * DIGITS) == int("9" * DIGITS)
    assert math.isfinite(float(loads("-" + "9" * DIGITS)))
    for text in ("9" * (DIGITS + 1), f'{{"a": [1, -{10**400}]}}', "1" * 100_000):
        with pytest.raises(ValueError, match="digits"):
            loads(text)
    assert loads('"' + "1" * 400 + '"') == "1" * 400
    assert loads("0." + "1" * 400) == pytest.approx(1 / 9)


def test_size():
    assert loads('"aa"', largest=4) == "aa"
    with pytest.raises(BoundsError, match="larger than 3 bytes"):
        loads('"aa"', largest=3)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "\\u0061": 2}}]', "NaN", "[Infinity]", "-1e999"])
def test_strict(text):
    assert repr(loads(text)) == repr(json.loads(text))
    with pytest.raises(ValueError):  # noqa: PT011 - each has a message of its own
        loads(text, strict=True)


SHAPES = {
    "open lists": "[",
    "open objects": '{"a":',
    "empty lists": "[],",
    "quotes": '"',
    "backslashes": "\\",
    "escaped quotes": '\\"',
    "digits": "1",
    "numbers": f"{10**20},",
    "minus": "-",
    "lists in strings": '"[[[["]',
    "closed": "]",
}


@pytest.mark.parametrize("before", ["", "[", '["'])
@pytest.mark.parametrize("shape", SHAPES)
def test_time_is_linear(shape, before):
    for strict in (False, True):
        assert too_slow(partial(loads, strict=strict), repeated(SHAPES[shape], before)) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((1, 1.0), (0.5, 0.5), (-(10**300), -1e300), (10**400, None), (math.nan, None), (math.inf, None)),
        *((True, None), ("1", None), (None, None), ([1], None)),
    ],
)
def test_numbers(value, expected):
    assert number(value) == expected


@settings(max_examples=examples(100), deadline=None)
@given(st.text("&#x0123456789;amplt", max_size=40))
def test_escapes_of_html_are_read_as_python_reads_them(text):
    assert untrusted.unescape(text) == html.unescape(text)


def test_escapes_of_html_have_any_number_of_digits():
    assert untrusted.unescape(f"a &#{'9' * 5000}; &#{'0' * 5000}65; &#{'0' * 5000}; b") == "a \ufffd A \ufffd b"
    assert untrusted.unescape(f"&#x{'f' * 5000};") == "\ufffd"


@given(json_values, st.text(st.characters(codec=None, categories=["Cs", "L"])))
@settings(max_examples=examples(50), deadline=None)
def test_what_cannot_be_encoded_is_replaced(value, text):
    made = untrusted.encodable({text: [value, {"a": text}]})
    json.dumps(made, ensure_ascii=False).encode()
    assert made == json.loads(json.dumps({text: [value, {"a": text}]}, ensure_ascii=False).encode(errors="replace"))


def test_tokenizers_get_texts_that_can_be_encoded() -> None:
    """Half a surrogate pair, which JSON can write, makes them raise. Elsewhere the texts are ours, or replaced before."""
    root = Path(untrusted.__file__).parent
    calls = {
        str(path.relative_to(root)): re.findall(r"(?<!\w)tokenizer\((?!encodable\(|\)).*", path.read_text())
        for path in root.rglob("*.py")
    }
    places = {path for path, found in calls.items() if found and not path.startswith("lab/tiny/")}
    assert places == {"rewards/embedding.py", "tokens/tokenizer.py"}
