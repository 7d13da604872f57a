import json

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


def test_a_run_is_kept_with_all_that_the_tables_show() -> None:
    measures = ("exact", "env_nll", "success", "turns")
    arm = {f"{measure}_{when}": 0.25 for measure in measures for when in ("start", "end")}
    claim = {"of": "x", "against": "y", "difference": 1 / 3, "low": 0.0, "high": 1.0, "verdict": "no difference"}
    result = {
        "seed": 3,
        "arms": [arm | {"coeff": coeff, "cpu_seconds": 99.9} for coeff in (0.0, 1.0)],
        "look_ahead": {
            "figures": {policy: {"plain": 0.25, "ahead": 2 / 3} for policy in demo.POLICIES},
            "claims": [claim | {"measure": "look_ahead", "sentence": "..."}],
            "boards": 128,
            "episodes_a_move": 4,
            "cpu_seconds": 60.2,
        },
        "warm_start": {"exact_reached": 0.9, "exact_wanted": 0.85, "cpu_seconds": 60.0},
        "boards": 512,
        "cpu_seconds": 400.4,
    }
    kept = demo.record(result)
    assert json.loads(json.dumps(kept)) == kept
    assert kept["claims"] == [claim | {"difference": 0.3333}]
    assert kept["figures"]["start"] == dict.fromkeys(measures, 0.25) | {"plain": 0.25, "ahead": 0.6667}
    assert kept["cpu_seconds"]["looking ahead"] == 60
    assert "0.667" in demo.tables([kept])
