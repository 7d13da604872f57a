"""The tables of benchmarks/rwml_tiny.py: what no run showed is written as that."""

import pytest

import rwml_tiny
from rwml_runs import Trained

VERSIONS = {"trl": "1", "python": "3"}


def record(seed, rise, **more):
    of_a_run = {"world": "textworld", "host": "trl", "algorithm": "grpo", "seed": seed, "before": [0.2, 0.1]}
    of_a_run |= {"after": [0.3, 0.1], "greedy": [], "transitions": 9, "steps": 1, "cpu_seconds": 2}
    return of_a_run | {"versions": VERSIONS, "rise": rise} | more


def test_seeds_without_a_difference_are_counted_as_such():
    records = [record(seed, rise) for seed, rise in enumerate([(0.3, 0.1), (0.1, 0.1), (-0.3, 0.1), (0.0, 0.0)])]
    text = rwml_tiny.tables(records)
    assert "| textworld | trl | GRPO | 4 | 0.025 | -0.300 | 0.300 | 1 | 2 | 1 |" in text
    assert "0.000 ± 0.000 | – | – | – | – | 9 | 1 | 2 |" in text  # no rise, whatever the error
    assert "right at 0.2 before" not in text


def test_distances_are_compared_by_transition(monkeypatch):
    distances = {"before": [0.9, 0.5, 0.1, 0.7], "after": [0.8, 0.5, 0.3, 0.1]}
    monkeypatch.setattr(rwml_tiny, "distances", lambda outputs, model: distances[outputs])
    trained = Trained([], [], 1, 0.0, [], outputs=["before", "after"])
    made = rwml_tiny.distribution(trained, "model")
    assert made["change"][0] == pytest.approx(-0.125)
    assert (made["nearer"], made["farther"], made["right_at_0.2"]) == (2, 1, [0.25, 0.25])
    row = rwml_tiny.tables([record(1, (0.1, 0.1), **made)]).splitlines()[-3]
    assert row.startswith("| trl | GRPO | 1 | 0.20 / 0.60 / 0.85 | 0.15 / 0.40 / ")
