import json
from xml.etree import ElementTree

import pytest

import demo_picture


def record(exact: float, ahead: float) -> dict:
    return {"figures": {policy: {"exact": exact, "ahead": ahead} for policy in demo_picture.POLICIES}}


@pytest.mark.parametrize("seeds", [1, 3])
def test_bars_are_means_and_dots_are_seeds(seeds: int) -> None:
    picture = ElementTree.fromstring(demo_picture.draw([record(0.25 * seed, 0.5) for seed in range(1, seeds + 1)]))
    tags = [element.tag.rpartition("}")[2] for element in picture.iter()]
    assert tags.count("rect") == 6
    assert tags.count("circle") == (6 * seeds if seeds > 1 else 0)
    heights = [float(element.get("height")) for element in picture.iter() if element.tag.endswith("rect")]
    full = demo_picture.FLOOR - demo_picture.TOP
    mean = 0.25 if seeds == 1 else 0.5
    assert heights == pytest.approx([mean * full] * 3 + [0.5 * full] * 3, abs=0.1)
    assert f"RL alone {mean:.0%}" in picture.get("aria-label")


def test_the_committed_picture_is_of_the_committed_figures() -> None:
    records = json.loads(demo_picture.RESULTS.read_text())
    assert demo_picture.PICTURE.read_text() == demo_picture.draw(records)
    assert demo_picture.sentences(records) in demo_picture.README.read_text()
