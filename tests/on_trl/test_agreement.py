"""What both adapters must compute is what TRL's does; verl's is compared with it in tests/on_verl/test_agreement.py."""

import pytest

pytest.importorskip("trl", minversion="1.5")  # before it TRL has another chat template

from support import agreement_on_trl, selection, selection_on_trl
from support.agreement import OBJECTIVES, TURNS, assert_agree, read_fixture, read_tokenizer

# the others differ in what test_gradient.py checks of each
FAST = ("multipliers", "scaffold", "bounds", "turn information by tool")
MEND = "if this is meant, write it anew: cd tests && python -m support.agreement_on_trl"


@pytest.fixture(scope="module")
def fixture():
    return read_fixture()


@pytest.fixture(scope="module")
def measured():
    return agreement_on_trl.measure(FAST)


def test_the_rollouts_are_the_stored_ones(measured, fixture):
    assert len(measured["rollouts"]) == 8
    for found, stored in zip(measured["rollouts"], fixture["rollouts"], strict=True):
        assert found["advantage"] == pytest.approx(stored["advantage"], abs=1e-6), MEND
        assert {**found, "advantage": 0} == {**stored, "advantage": 0}, MEND


def test_the_figures_are_the_stored_ones(measured, fixture):
    assert measured["figures"].keys() == {"policy", *FAST}
    for name, found in measured["figures"].items():
        assert_agree(found, fixture["figures"][name])


@pytest.mark.slow
def test_so_are_those_of_the_other_objectives(fixture):
    figures = agreement_on_trl.measure([name for name in OBJECTIVES if name not in FAST])["figures"]
    assert {*figures, *FAST} == fixture["figures"].keys()
    for name, found in figures.items():
        assert_agree(found, fixture["figures"][name])


def test_the_stored_tokenizer_is_the_one_that_made_the_tokens(fixture):
    tokenizer = read_tokenizer()
    texts = [turn for rollouts in TURNS.values() for turns in rollouts for turn in turns]
    assert tokenizer(texts).input_ids == agreement_on_trl.tokenizer()(texts).input_ids
    assert "größer 漢字 ✓" in tokenizer.decode(fixture["rollouts"][3]["response"])


def test_the_selections_are_the_stored_ones():
    """Truncated completions, the host's failures, groups without variance, a user's own spans, and every share of N."""
    assert selection_on_trl.measure() == selection.read(), (
        "if this is meant: cd tests && python -m support.selection_on_trl"
    )
