"""The answer of a fictional world: how a table is read, and item and row F1 by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases import CASES
from support.examples import examples
from wm_plugin.worlds.fictional.score import (
    MAX_ROWS,
    Column,
    NoTableError,
    Score,
    Table,
    normalised,
    read,
    score,
    written,
)

COLUMNS = (Column("kite"), Column("mass", "mg", is_number=True), Column("built"))
RIGHT = Table(COLUMNS, (("Abo 1", "1250 mg", "1881-05-04"), ("Bec 2", "900 mg", "1882-01-31")))


def scored(text: str) -> Score:
    return score(read(text, COLUMNS), RIGHT)


def test_the_right_table_is_right() -> None:
    assert written(RIGHT).split("\n")[2] == "| Abo 1 | 1250 mg | 1881-05-04 |"
    assert scored(written(RIGHT)) == Score(1.0, 1.0)
    assert scored(written(RIGHT)).success
    assert scored(written(RIGHT)).reward == 1.0


def test_by_hand() -> None:
    """Six right items in two rows; nine of the answer in three, of which five are right, and one row."""
    answer = """
    | kite | mass | built |
    | --- | --- | --- |
    | Abo 1 | 1250 | 1881-05-04 |
    | Bec 2 | 901 | 1882-01-31 |
    | Cid 3 | 1 | 1900-01-01 |
    """
    found = scored(answer)
    assert found.item_f1 == pytest.approx(2 * 5 / (9 + 6))
    assert found.row_f1 == pytest.approx(2 * 1 / (3 + 2))
    assert found.reward == pytest.approx((2 / 3 + 0.4) / 2)
    assert not found.success


@pytest.mark.parametrize(
    ("lines", "item_f1", "row_f1"),
    [
        (["Abo 1 | 1250 | 1881-05-04"], 2 * 3 / (3 + 6), 2 * 1 / (1 + 2)),  # one row is missing
        (["Abo 1 | |", "Bec 2 | |"], 2 * 2 / (2 + 6), 0.0),  # keys alone
        (["Abo 1", "Bec 2 | 900"], 2 * 3 / (3 + 6), 0.0),
        (["Abo 1 | 1250 | 1881-05-04"] * 2, 2 * 3 / (6 + 6), 2 * 1 / (2 + 2)),  # the same row twice
        (["Abo 1 | 7 | x", "Abo 1 | 1250 | 1881-05-04"], 2 * 1 / (6 + 6), 0.0),  # the first one counts
        (["1250 mg | Abo 1 | 1881-05-04"], 0.0, 0.0),
        ([], 0.0, 0.0),
        (["Bec 2 | 900 | 1882-01-31", "Abo 1 | 1250 | 1881-05-04"], 1.0, 1.0),  # in any order
    ],
)
def test_other_answers_by_hand(lines: list[str], item_f1: float, row_f1: float) -> None:
    found = scored("\n".join(f"| {line} |" for line in ["kite | mass | built", *lines]))
    assert found.item_f1 == pytest.approx(item_f1)
    assert found.row_f1 == pytest.approx(row_f1)


def test_columns_by_title_in_any_order_and_none_too_many() -> None:
    text = "So:\n\nBUILT | `Kite` | colour | Mass (mg)\n:-- | --- | --- | --:\n1881-05-04 | Abo 1 | red | 1,250.0 mg\n"
    assert read(text, COLUMNS) == [("abo 1", "1250", "1881-05-04")]
    assert read("| kite |\n| Abo 1 |", COLUMNS) == [("abo 1", "", "")]


@pytest.mark.parametrize(("cell", "is_number", "same"), CASES["cells"])
def test_normalisation(cell: str, is_number: bool, same: str) -> None:
    assert normalised(cell, Column("mass", "mg", is_number)) == same


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write a table"),
        ("Abo 1, 1250", "write a table"),
        ("|---|---|", "write a table"),
        ("| mass |\n| 1 |", "the header has no column 'kite'"),
        ("| kite |\n" + "| a |\n" * (MAX_ROWS + 1), "too many rows"),
        ("|" * 40 + "kite", "too many rows or columns"),
        ("| kite |\n" + "x" * 20_000, "20000 are the most"),
    ],
)
def test_no_table(text: str, message: str) -> None:
    with pytest.raises(NoTableError, match=message):
        read(text, COLUMNS)


@settings(max_examples=examples(500))
@given(
    st.lists(
        st.sampled_from(["|", "\n", "kite", "mass", "Abo 1", "1250", "-", " ", "é", "\x85", "1,2.0 mg"]), max_size=40
    )
)
def test_any_text_is_a_table_or_none(pieces: list[str]) -> None:
    try:
        rows = read("| kite | mass |\n" + "".join(pieces), COLUMNS)
    except NoTableError:
        return
    found = score(rows, RIGHT)
    assert 0 <= found.item_f1 <= 1
    assert 0 <= found.row_f1 <= 1
    assert all(len(row) == 3 for row in rows)
