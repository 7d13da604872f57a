import importlib
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("jinja2")

from support.examples import examples
from wm_plugin import runtime
from wm_plugin.errors import MissingExtraError
from wm_plugin.runtime import page


@settings(max_examples=examples(200), deadline=None)
@given(st.text(st.sampled_from("ab\n"), max_size=300), st.integers(8, 60), st.integers(4, 12))
def test_a_cut_text_is_its_two_ends_and_the_count_between(text: str, longest: int, lines: int) -> None:
    beginning, hidden, end = page.cut(text, longest, lines)
    assert text.startswith(beginning)
    assert text.endswith(end)
    assert len(beginning) + len(end) <= max(longest, 0)
    assert beginning.count("\n") + end.count("\n") < lines
    between = len(text) - len(beginning) - len(end)
    assert hidden == (f"{between:,} of {len(text):,} characters are not shown" if between else "")


def test_a_long_name_keeps_both_ends() -> None:
    assert page.short("a" * 80) == "a" * 80
    assert page.short("a" * 100 + "b" * 100) == "a" * 40 + "…" + "b" * 39


@pytest.mark.parametrize("missing", ["jinja2", "markupsafe"])
def test_without_the_extra_the_module_imports_and_says_what_to_install(missing: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "wm_plugin.runtime.page")
    monkeypatch.setattr(runtime, "page", page)  # the import below sets it; this puts it back afterwards
    module = importlib.import_module("wm_plugin.runtime.page")
    with pytest.raises(MissingExtraError, match=rf"the report needs {missing}: pip install .*\[report\]'"):
        module.render("wm_plugin.lab.report", "report.html", "the report", title="t")
