"""Rows that a user's function makes, and what is said of one that makes none; each host's tests have its own settings."""

import re
import sys
from types import SimpleNamespace

import pytest

from wm_plugin.errors import UserError
from wm_plugin.hosting.rows import make_rows

MADE = SimpleNamespace(  # a module of the user's
    number=3,
    counted=lambda count, start=0: ({"prompt": str(index)} for index in range(start, start + count)),
    not_rows=lambda: 7,
    none=list,
    mixed=lambda: [{"prompt": "a"}, "b"],
    fails=lambda: [{"prompt": 1 / 0}],
    refuses=lambda: (_ for _ in ()).throw(UserError("of its own")),
)


@pytest.fixture(autouse=True)
def module(monkeypatch):
    monkeypatch.setitem(sys.modules, "made", MADE)


def rows(path, *, keep=(), **arguments):
    return make_rows(path, arguments, field="train_rows", kwargs="train_rows_kwargs", keep=keep)


def test_rows_are_a_list_whatever_the_function_returns():
    assert rows("made:counted", count=2, start=1) == [{"prompt": "1"}, {"prompt": "2"}]


def test_a_hosts_dataset_is_kept():
    assert rows("made:not_rows", keep=(int,)) == 7
    assert rows("made:none", keep=(list,)) == []


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("rows.jsonl", {}, "train_rows is 'rows.jsonl', a file, and not a function"),
        ("made:number", {}, "train_rows: made:number is no function"),
        (
            "made:counted",
            {"cuont": 2},
            "train_rows_kwargs do not fit made:counted: got an unexpected keyword argument 'cuont'",
        ),
        ("made:counted", {}, "train_rows_kwargs do not fit made:counted: missing a required argument: 'count'"),
        ("made:not_rows", {}, "train_rows: made:not_rows returned int, not a list of rows"),
        ("made:none", {}, "train_rows: made:none returned no rows"),
        ("made:mixed", {}, "train_rows: row 1 of made:mixed is str, not a mapping of columns"),
        ("made:fails", {}, "train_rows: made:fails raised ZeroDivisionError: division by zero ("),
        ("made:refuses", {}, "of its own"),
    ],
)
def test_what_makes_no_rows_is_one_line(path, arguments, message):
    with pytest.raises(UserError, match="^" + re.escape(message)) as refused:
        rows(path, **arguments)
    assert "\n" not in str(refused.value)


def test_a_failure_of_the_users_code_says_where():
    with pytest.raises(UserError, match=r"\(.*test_rows\.py, line \d+\)$"):
        rows("made:fails")
