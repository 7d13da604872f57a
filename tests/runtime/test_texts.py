"""YAML from a user's hand."""

import pytest
import yaml

from wm_plugin.runtime.texts import load_yaml


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "x:\n  a: 1\n  a: 1", "- {a: 1, 'a': 2}", "a: &a {b: 1, b: 2}"])
def test_a_key_that_a_mapping_has_twice_is_refused(text):
    with pytest.raises(yaml.YAMLError, match=r"a key appears twice, '[ab]' in line \d; keep one"):
        load_yaml(text)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {x: 1}\nb: {<<: *a, x: 2}",
        # an anchor with a merge of its own, which another mapping merges before it is read
        "a: &a {x: 1}\nouter: {b: &b {<<: *a, x: 2}}\nc: {<<: *b}",
        "1: a\n'1': b",
    ],
)
def test_a_key_that_a_mapping_has_once_is_read_as_ever(text):
    assert load_yaml(text) == yaml.safe_load(text)


def test_a_mistake_is_told_by_its_place():
    with pytest.raises(yaml.YAMLError) as told:
        load_yaml("a: [1\nb: 2\n")
    assert [line.strip() for line in str(told.value).split("\n") if " at " in line] == [
        "at line 1, column 4:",
        "at line 2, column 2:",
    ]
    assert "unicode string" not in str(told.value)
