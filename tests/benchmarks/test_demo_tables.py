import json
import subprocess
import sys
from importlib import metadata

import pytest

import demo
import stamps


def record(seed: int, ahead: float) -> dict:
    """As `demo.record` makes it; `ahead` is what looking ahead is worth with the objective."""
    figures = {policy: dict.fromkeys(demo.MEASURES, 0.5) for policy in demo.POLICIES}
    figures[demo.KEPT]["ahead"] = 0.5 + ahead
    claim = {
        "measure": "m",
        "of": "x",
        "against": "y",
        "difference": ahead,
        "low": -0.1,
        "high": 0.9,
        "verdict": "same",
    }
    return {
        "seed": seed,
        "figures": figures,
        "claims": [claim],
        "warm_start": {"exact_reached": 0.9, "exact_wanted": 0.85, "cpu_seconds": 60.0},
        "boards": 256,
        "ahead_boards": 64,
        "episodes_a_move": 4,
        "cpu_seconds": {"all": 400},
        "versions": {"trl": "1"},
    }


@pytest.fixture
def records(monkeypatch) -> list[dict]:
    monkeypatch.setattr(demo, "SEEDS", (0, 1, 2))
    return [record(0, 0.2), record(1, 0.3), record(2, 0.25)]


def test_tables_show_every_seed_and_follow_the_figures(records) -> None:
    text = demo.tables(records)
    assert "n: seeds 0 to 2," in text
    assert "Seeds that have ended: 0, 1, 2." in text
    assert "| with the objective | 0.50 (0.50 to 0.50) |" in text
    assert "0.75 (0.70 to 0.80)" in text
    assert "| looking ahead: with the objective against RL alone | +0.250 ± 0.124 | higher |" in text
    assert "| RL alone: looking ahead against not | +0.000 ± 0.000 | null (the interval contains 0) |" in text
    assert text.count("| m | x | y |") == 3
    assert "{" not in text


def test_fewer_seeds_than_declared_are_called_nothing(records) -> None:
    text = demo.tables(records[:2])
    assert "with the objective against RL alone | +0.250 ± 0.635 | too few seeds |" in text
    assert "higher |" not in text
    assert "| +0.200 | one seed |" in demo.tables(records[:1])


def test_what_a_run_says_is_what_is_recorded() -> None:
    measures = ("exact", "env_nll", "success", "turns")
    arm = {f"{one}_{when}": place / 4 for place, one in enumerate(measures) for when in ("start", "end")}
    between = {"of": "RL + objective", "against": "RL alone, step 1", "difference": 0.1, "low": 0, "high": 0.2}
    claims = [{**between, "measure": "success", "verdict": "no"}, {**between, "measure": "success", "against": "start"}]
    ahead = dict.fromkeys(("plain", "coin", "ahead", "oracle"), 0.5)
    run = {
        "seed": 3,
        "arms": [{**arm, "coeff": coeff, "cpu_seconds": 2.0} for coeff in (0.0, 0.05)],
        "claims": claims,
        "look_ahead": {
            "figures": dict.fromkeys(demo.POLICIES, ahead),
            "claims": [],
            "boards": 2,
            "episodes_a_move": 4,
            "cpu_seconds": 1.0,
        },
        "warm_start": {"exact_reached": 0.9, "exact_wanted": 0.95, "cpu_seconds": 3.0},
        "steps": 1,
        "kernels": "plain",
        "boards": 8,
        "cpu_seconds": 9.0,
    }
    made = demo.record(run)
    assert set(made["figures"]) == set(demo.POLICIES)
    assert set(made["figures"][demo.KEPT]) == set(demo.MEASURES)
    assert [claim["against"] for claim in made["claims"]] == ["RL alone, step 1"]


def test_the_committed_tables_are_those_of_the_committed_figures() -> None:
    page = stamps.headed(demo.tables(demo.read()), stamps.read()["demo"])
    assert demo.RESULTS.with_suffix(".md").read_text() == page


@pytest.mark.nightly
@pytest.mark.host
def test_a_committed_seed_comes_out_again_to_the_digit(tmp_path) -> None:
    pytest.importorskip("trl", minversion="1.16")
    row = demo.read()[0]
    if metadata.version("torch") != row["versions"]["torch"]:
        pytest.skip(f"the digits are those of torch {row['versions']['torch']}")
    command = [sys.executable, "-m", "wm_plugin", "demo", "--seed", str(row["seed"]), "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert demo.record(json.loads(done.stdout.splitlines()[-1]))["figures"] == row["figures"]
