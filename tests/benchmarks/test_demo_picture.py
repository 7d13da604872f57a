import json
from xml.etree import ElementTree

import pytest

import demo_picture


def record(share: float) -> dict:
    return {
        "figures": {policy: dict.fromkeys(demo_picture.ROWS, share) for policy in demo_picture.POLICIES},
        "boards": 256,
        "ahead_boards": 64,
    }


@pytest.mark.parametrize("seeds", [1, 3])
def test_bars_are_means_and_dots_are_seeds(seeds: int) -> None:
    picture = ElementTree.fromstring(demo_picture.draw([record(0.25 * seed) for seed in range(1, seeds + 1)]))
    tags = [element.tag.rpartition("}")[2] for element in picture.iter()]
    assert tags.count("rect") == 9
    assert tags.count("circle") == (9 * seeds if seeds > 1 else 0)
    bars = [element for element in picture.iter() if element.tag.endswith("rect")]
    heights = [float(bar.get("height")) for bar in bars]
    assert [float(bar.get("y")) + float(bar.get("height")) for bar in bars] == pytest.approx(
        [demo_picture.FLOOR] * 9, abs=0.1
    )
    mean = 0.25 if seeds == 1 else 0.5
    assert heights == pytest.approx([mean * (demo_picture.FLOOR - demo_picture.TOP)] * 9, abs=0.1)
    assert f"RL alone {mean:.0%}" in picture.get("aria-label")


def test_the_table_begins_with_task_success_and_says_how_many_seeds_there_are() -> None:
    lines = demo_picture.table([record(0.25), record(0.5)]).splitlines()
    assert lines[2].startswith("| task success | 38% | 38% | 38% | +0 ± 0 points: too few seeds |")
    assert any("2 of the 8 seeds that were declared" in line for line in lines)


def test_the_committed_picture_and_table_are_of_the_committed_figures() -> None:
    records = json.loads(demo_picture.RESULTS.read_text())
    assert demo_picture.PICTURE.read_text() == demo_picture.draw(records)
    assert demo_picture.table(records) in demo_picture.README.read_text()
