import pytest

pytest.importorskip("trl", minversion="1.10")
pytest.importorskip("jinja2")

import demo
import stamps

pytestmark = pytest.mark.host


def record(seed: int, ahead: float) -> dict:
    """As `demo.record` makes it; `ahead` is what looking ahead is worth at coefficient 1."""
    figures = {policy: dict.fromkeys(demo.MEASURES, 0.5) for policy in demo.POLICIES}
    figures["coeff 1"]["ahead"] = 0.5 + ahead
    claim = {"of": "x", "against": "y", "difference": ahead, "low": -0.1, "high": 0.9, "verdict": "no difference"}
    return {
        "seed": seed,
        "figures": figures,
        "claims": [claim],
        "warm_start": {"exact_reached": 0.9, "exact_wanted": 0.85, "cpu_seconds": 60.0},
        "boards": 512,
        "ahead_boards": 128,
        "episodes_a_move": 4,
        "cpu_seconds": {"all": 400},
        "versions": {"trl": "1"},
    }


def test_tables_show_every_seed_and_follow_the_figures() -> None:
    text = demo.tables([record(0, 0.2), record(1, 0.3), record(2, 0.25)])
    assert "Seeds 0, 1, 2;" in text
    assert "| coeff 1 | 0.50 (0.50 to 0.50) |" in text
    assert "0.75 (0.70 to 0.80)" in text
    assert "| success, looking ahead: coeff 1 against coeff 0 | +0.250 ± 0.124 | higher |" in text
    assert "| success: coeff 0, looking ahead against not | +0.000 ± 0.000 | null (the interval contains 0) |" in text
    assert text.count("| x | y |") == 3
    assert "{" not in text
    assert "## Differences" not in demo.tables([record(0, 0.2)])


def test_the_committed_tables_are_those_of_the_committed_figures() -> None:
    page = stamps.headed(demo.tables(demo.read()), stamps.read()["demo"])
    assert demo.RESULTS.with_suffix(".md").read_text() == page
