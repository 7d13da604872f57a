import json
import math

import pytest
import torch

pytest.importorskip("trl", minversion="1.10")
pytest.importorskip("jinja2")

import tables
import wmact
from plans import LEVELS, MAX_TURNS, make_model, make_tokenizer
from wm_plugin.hosting.annealing import TurnBudget

pytestmark = pytest.mark.host


def test_intervals_are_students() -> None:
    assert tables.interval([1.0, 2.0, 3.0]) == (2.0, pytest.approx(4.303 / 3**0.5, abs=1e-3))
    assert tables.interval([0.5] * 5) == (0.5, 0.0)
    assert all(map(math.isnan, tables.interval([0.5, math.nan])))
    assert tables.interval([0.0, 2.0] * 10)[1] == pytest.approx(2.262 * (20 / 19) ** 0.5 / 20**0.5)
    assert [tables.verdict(*pair) for pair in ((0.1, 0.2), (0.0, 0.0), (0.3, 0.2), (-0.3, 0.2))] == [
        "null (the interval contains 0)",
        "null (the interval contains 0)",
        "higher",
        "lower",
    ]


def record(seed: int, success: dict[str, float]):
    def measured(name: str) -> dict[str, float]:
        return {measure: success.get(name, 0.5) for measure in wmact.KEPT}

    names = ("start", *wmact.VARIANTS)
    return {
        "seed": seed,
        "held_out": {name: {level: measured(name) for level in LEVELS} for name in names},
        "training": {name: {measure: [float(seed)] * 8 for measure in wmact.CURVES} for name in wmact.VARIANTS},
        "cpu_seconds": dict.fromkeys(names, 30.0),
        "versions": {"trl": "1"},
    }


def test_a_report_pairs_variants_by_seed_and_says_what_is_null(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(wmact, "RESULTS", tmp_path / "wmact.json")
    for seed, noise in ((2, 0.0), (1, 0.1), (2, 0.2)):  # the last one is in the place of the first
        better = {"+ rescale": 0.5 + noise, "+ anneal": 0.9 + noise, "+ ECHO": 0.9 + noise}
        wmact.add(record(seed, better | {"step penalty": 0.0}))  # not even an action
    records = json.loads((tmp_path / "wmact.json").read_text())
    assert [one["seed"] for one in records] == [1, 2]
    wmact.write_report(records)
    text = (tmp_path / "wmact.md").read_text()
    assert "| + anneal | + rescale | hard | turns | +0.400 ± 0.000 | 2 of 2 | higher |" in text
    assert (
        "| + rescale | interactive | standard | turns | +0.150 ± 0.635 | 2 of 2 | null (the interval contains 0) |"
        in text
    )
    assert (
        "- **+ rescale** against **interactive**. null (the interval contains 0): single-turn success (standard, +0.150)"
        in text
    )
    assert (
        "| + ECHO | + anneal | hard | effective share | +0.000 ± 0.000 | 0 of 2 | null (the interval contains 0) |"
        in text
    )
    assert "| step penalty | + rescale | hard | effective share | – | – | not defined: no actions |" in text
    assert "9 CPU minutes" in text
    assert "<svg" in (tmp_path / "wmact.html").read_text()
    assert wmact.mean_curve(records, "interactive", "turns") == ([4, 8], [1.5, 1.5])


@pytest.mark.parametrize("name", ["entire plan", "+ ECHO"])
def test_a_variant_trains_on_trl(name: str) -> None:
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0)
    before = model.lm_head.weight.clone()
    curves = wmact.train(model, tokenizer, wmact.VARIANTS[name], 0, steps=2)  # the first one has a learning rate of 0
    assert set(curves) == {*wmact.CURVES, *wmact.KEPT}
    assert curves["budget"] == [1 if name == "entire plan" else MAX_TURNS] * 2
    assert all(0 < turns <= budget for turns, budget in zip(curves["turns"], curves["budget"], strict=True))
    assert not torch.equal(before, model.lm_head.weight) or name == "entire plan"  # which has to arrive first


def test_the_ablation_is_the_papers() -> None:
    """Every pair differs in one thing."""
    variants = {"start": None, **wmact.VARIANTS}
    for of, against in wmact.PAIRS:
        if against != "start":
            one, other = vars(variants[of]), vars(variants[against])
            assert sum(one[name] != other[name] for name in one) == 1, (of, against)
    assert TurnBudget(start=MAX_TURNS, every=wmact.EVERY).every < wmact.STEPS
