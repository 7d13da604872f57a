"""Rows of several worlds."""

from collections import Counter

import pytest

from wm_plugin.errors import UserError
from wm_plugin.worlds import grid, mixture, taxi, wordle


class Bare:
    """An environment without rows of its own: there is no `dataset_rows` in this module."""

    def reset(self, seed, **_): ...


def test_rows_are_those_of_each_world_and_say_whose_they_are():
    rows = mixture.dataset_rows({"grid": 5, "wm_plugin.worlds.wordle:WordleEnvironment": 3}, seed=4)
    assert len({tuple(row) for row in rows}) == 1
    names = [row.pop("environment") for row in rows]
    assert Counter(names) == {"grid": 5, "wm_plugin.worlds.wordle:WordleEnvironment": 3}
    assert names != sorted(names)  # the worlds are mixed
    own = grid.dataset_rows(5, 4), wordle.dataset_rows(3, 4)
    for rows_of_world, of in zip(own, ("grid", "wm_plugin.worlds.wordle:WordleEnvironment"), strict=True):
        rows_without_nones = [
            {column: value for column, value in row.items() if value is not None}
            for row, name in zip(rows, names, strict=True)
            if name == of
        ]
        assert sorted(rows_without_nones, key=str) == sorted(rows_of_world, key=str)
    assert mixture.dataset_rows({"grid": 5}, held_out=True) != mixture.dataset_rows({"grid": 5})


def test_a_world_can_have_arguments_of_its_own():
    pytest.importorskip("gymnasium")
    worlds = {"taxi": {"count": 70, "held_out": True, "repeat": True, "max_turns": 1}, "grid": {"count": 2, "seed": 4}}
    rows = mixture.dataset_rows(worlds | {"forth": {"count": 3, "level": "2"}}, seed=3)
    assert Counter(row["environment"] for row in rows) == {"taxi": 70, "grid": 2, "forth": 3}
    states = {row["state"] for row in rows if row["environment"] == "taxi"}
    assert states == {row["state"] for row in taxi.dataset_rows(60, held_out=True)}
    assert {row["max_turns"] for row in rows} == {1, None}
    assert {row["board"] for row in rows} - {None} == {row["board"] for row in grid.dataset_rows(2, 4)}
    assert {row["level"] for row in rows if row["environment"] == "forth"} == {"2"}
    held_out = mixture.dataset_rows({"forth": {"count": 3}}, held_out=True)
    assert {row["level"] for row in held_out} == {"6"}


@pytest.mark.parametrize(
    ("environments", "message"),
    [
        ({}, "environments is empty"),
        ({"grit": 1}, "did you mean 'grid'"),
        ({"forth": {"count": 1, "turns": 3}}, "environments.forth does not fit wm_plugin.worlds.forth:dataset_rows"),
        ({f"{__name__}:Bare": {"count": 1}}, "has no dataset_rows that could take arguments"),
    ],
)
def test_what_does_not_exist(environments, message):
    with pytest.raises(UserError, match=message):
        mixture.dataset_rows(environments)
