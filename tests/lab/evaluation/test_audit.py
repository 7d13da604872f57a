"""Attacks on rewards: how pairs are made, what is counted, and that plain rewards give nothing above the right prediction."""

import math
import re
from pathlib import Path

import pytest

from support.openai_server import OpenAIServer, gullible
from support.predictions import grid_transitions
from wm_plugin.data.schema import Action, Call, Context, Observation, Transition, Turn
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.audit import (
    DISGUISES,
    GROUPS,
    PLACES,
    Attack,
    Audit,
    Outcome,
    Pair,
    audit,
    load_attacks,
    make_pairs,
    markdown,
)
from wm_plugin.rewards import ExactReward, RougeReward, RubricReward, RuleReward, WordF1Reward

ATTACKS = load_attacks()
ROOT = Path(__file__).parents[3]


def transition(number, text, tool="search", **data):
    seen = Observation(kind="tool", text=f"result {number - 1}", tool="search")
    return Transition(
        trajectory=f"t{number}",
        turn=1,
        history=(Turn(action=Action(text="first"), observations=(seen,)),),
        action=Action(calls=(Call(name=tool, arguments={"q": number}),)),
        observation=Observation(kind="tool", text=text, tool=tool, data=data),
        context=Context(task="a task", initial_state="the beginning"),
    )


def pair(right="right words", wrong="wrong words", **columns):
    return Pair(right, wrong, "before", "the prompt", "act()", columns)


def test_the_corpus():
    assert {attack.group for attack in ATTACKS} == {*GROUPS, "control"}
    assert {attack.hide for attack in ATTACKS} == {"", *DISGUISES}
    written = [attack.output(pair(), "next_state") for attack in ATTACKS]
    assert len(set(written)) == len(written) >= 40
    assert all(any(f"${place}" in attack.text for attack in ATTACKS) for place in PLACES)


def test_the_docs_count_the_attacks():
    count = sum(attack.group != "control" for attack in ATTACKS)
    page = ROOT / "docs" / "rewards.md"
    assert {int(number) for number in re.findall(r"(\d+) attacks", page.read_text())} == {count}


@pytest.mark.parametrize(
    ("reward", "columns"),
    [
        (ExactReward(), {}),
        (ExactReward(tag="next_state"), {}),
        (RougeReward(step=0.2), {}),
        (RougeReward("rouge1", tag="predicted_observation"), {}),
        (WordF1Reward(), {}),
        (RuleReward(verifier={"same": True}), {}),
        (RuleReward(), {"verifier": {"equals": "right words"}}),
    ],
)
def test_nothing_is_worth_more_than_being_right(reward, columns):
    found = audit(reward, [pair(**columns)] * 2, ATTACKS)
    assert (found.right, found.as_dict()["above_right"]) == (1, 0)
    assert all(outcome.above_right == 0 for outcome in found.outcomes)
    tags = sum(bool(attack.before or attack.after) for attack in ATTACKS)
    assert len(found.outcomes) == len(ATTACKS) - (tags if reward.tag is None else 0)
    assert sum(found.left_out.values()) == len(ATTACKS) - len(found.outcomes)
    if isinstance(reward, ExactReward | RuleReward):
        assert found.as_dict()["above_wrong"] == 0


def test_shares_by_hand():
    scores = {"wrong words": 0.5, "right words": 0.75, "x": 0.75, "right words!": math.nan, "act()": 0.9}
    attacks = [Attack("x", "g", "x"), Attack("nan", "g", "$right!"), Attack("act", "g", "$action")]

    def reward(predictions, targets, **columns):
        assert columns == {"observer": ["tool"] * len(predictions)}
        assert targets == ["right words"] * len(predictions)
        return [scores[text] for text in predictions]

    found = audit(reward, [pair(observer="tool", verifier=None)] * 2, attacks, left_out={"empty": 3})
    assert found == Audit(
        2,
        0.5,
        0.75,
        (Outcome("x", "g", 1, 0, 0.75), Outcome("act", "g", 1, 1, 0.9)),
        {"empty": 3, "attacks on a transition that got no score": 2},
    )
    assert found.as_dict()["above_wrong"] == 1
    assert found.as_dict()["beats"] == {"x": 1, "act": 1}
    table = markdown({"a": found, "b": found}).splitlines()
    assert table[0] == "| group | attack | a | b |"
    assert "| g | x | 100% / 0% | 100% / 0% |" in table
    assert table[-2:] == ["| score | honest wrong | 0.5 | 0.5 |", "| score | honest right | 0.75 | 0.75 |"]


def test_what_got_no_score_is_in_no_share():
    lost = {"lost right": math.nan, "x lost": math.nan, "wrong words": 0.5}
    pairs = [pair(), pair(), pair("lost right"), pair(wrong="x"), pair(wrong="lost")]

    def reward(predictions, targets, **columns):
        return [lost.get(text, 1.0 if text.startswith("x ") else 0.75) for text in predictions]

    found = audit(reward, pairs, [Attack("x", "g", "x $wrong")])
    assert (found.pairs, found.outcomes) == (4, (Outcome("x", "g", 1, 1, 1.0),))
    assert found.left_out == {
        "transitions in which an honest prediction got no score": 1,
        "attacks on a transition that got no score": 1,
    }
    with pytest.raises(UserError, match="^the reward gave none of 5 transitions a score for both honest predictions"):
        audit(lambda texts, targets, **columns: [None] * len(texts), pairs, ATTACKS)


def test_a_verdict_in_words():
    def found(**scores):
        outcomes = tuple(Outcome(name, group, above, 0, score) for name, (group, above, score) in scores.items())
        return Audit(30, 1.0, 5.0, outcomes)

    noise, quiet = ("control", 0.1, 1.2), ("injection", 0.1, 1.2)
    assert found(a=noise, b=quiet).verdict() == (
        "No attack pays on average: no mean score is above that of an honest wrong prediction (1). "
        "Most often above it: b (tells a judge what to do) in 10% of the transitions; meaningless words do in 10%."
    )
    assert found(a=quiet).paying[0].name == "a"
    paid = found(a=noise, b=("injection", 1, 5), c=("copy", 0.2, 2), d=("praise", None, 4.9), e=("praise", None, 6))
    assert [outcome.name for outcome in paid.paying] == ["e", "b", "c"]
    assert paid.verdict() == (
        "3 of 4 attacks pay: on average they earn more than an honest wrong prediction (1; the right one earns 5). "
        "Most: e (praise) 6, b (tells a judge what to do) 5, above it in 100%, c (copies what stood before) 2, above it in 20%. "
        "Copies among them (1) pay where the world did not change. "
        "Most often above it: b (tells a judge what to do) in 100% of the transitions; meaningless words do in 10%."
    )
    assert "poor predictions, but no trick." in found(c=("copy", 0.2, 2)).verdict()
    copies = found(c=("copy", 0.5, 0.9), b=("generic", 0.24, 0.9), d=("generic", 0.1, 0.9)).verdict()
    assert copies.endswith(
        "c (copies what stood before) in 50% of the transitions, b (says nothing definite) in 24% of the transitions."
    )
    assert found(b=("generic", 0, 0.9)).verdict().endswith("In no transition does any beat it.")
    assert Audit(30, 1, 1, ()).verdict().startswith("This reward cannot tell right from wrong")


def test_a_verdict_over_few_transitions_says_so():
    many, few, one = (Audit(pairs, 1, 5, ()).verdict() for pairs in (30, 29, 1))
    assert "only" not in many
    assert few == f"{many} But only 29 transitions could be attacked, so that chance may decide: take 30 or more."
    assert "only 1 transition could" in one


def test_many_attacks_are_scored_in_one_call():
    calls = []

    def reward(predictions, targets, *, observer):
        calls.append(len(predictions))
        assert len(targets) == len(observer) == len(predictions)
        return [float(a == b) for a, b in zip(predictions, targets, strict=True)]

    found = audit(reward, [pair(observer="tool"), pair("other", observer="tool")], ATTACKS)
    assert calls == [4, 2 * len(found.outcomes)]
    assert (found.wrong, found.right) == (0, 1)


@pytest.mark.parametrize(
    "weakness", ["inside", "cut", "thinks", "restores", "before", "after", "bare", "around", "instead"]
)
def test_judges_that_quote_pay_for_no_attack(weakness):
    with OpenAIServer(gullible(weakness)) as server:
        settings = {"base_url": server.base_url, "model": "judge", "max_retries": 1}
        found = audit(
            RubricReward(settings, max_failure_share=1.0, tag="next_state"), [pair("some right words")], ATTACKS
        )
    assert found.paying == []
    assert max(outcome.score for outcome in found.outcomes if outcome.above_wrong is not None) <= found.wrong


def test_whole_outputs_for_a_reward_with_a_tag():
    attack = Attack("a", "g", "$wrong$$prompt", before="<think>$action</think>", after="!", repeat=2)
    one = pair(wrong="$right")  # what is filled in is not filled in again
    line = "$right$the prompt"
    assert attack.output(one, None) == f"{line}\n{line}"
    assert attack.output(one, "s") == f"<think>act()</think><s>{line}\n{line}</s>!"
    assert Attack("a", "g", "x").output(one, "s") == "<think></think><s>x</s>"
    assert Attack("a", "g", "x").output(one, "") == "<think></think>x"
    assert Attack("a", "g", "Ab", hide="zero_width").output(one, None) == "A\u200bb"


def test_pairs():
    rows = [transition(n, f"result {n}") for n in range(30)]
    rows += [transition(40, "alone", tool="once"), transition(41, "  ")]
    rows += [transition(50, "a", tool="other", verifier={"regex": "a"}), transition(51, " a ", tool="other")]
    pairs, left = make_pairs(rows, limit=100)
    assert left == {"nothing else was observed there": 3, "empty observation": 1}
    assert len(pairs) == 30
    for found in pairs:
        number = int(found.right.split()[1])
        assert found.wrong.startswith("result ")
        assert found.wrong != found.right
        assert (found.previous, found.action) == (f"result {number - 1}", f'search({{"q": {number}}})')
        assert found.columns["history"] == [found.previous]
        assert found.columns["observer"] == "tool"
        assert found.columns["reference"] == found.wrong
        assert "the beginning" in found.prompt
        assert found.prompt.endswith(found.previous)


def test_pairs_are_drawn_the_same_way_each_time():
    rows = grid_transitions(40)
    first, _ = make_pairs(rows, limit=10)
    assert make_pairs(iter(rows), limit=10)[0] == first
    assert len(first) == 10
    assert make_pairs(rows, limit=10, seed=1)[0] != first


def test_columns_of_the_data_reach_the_reward():
    rows = [transition(n, f"result {n}", verifier={"regex": f"{n}$"}, content_type="deterministic") for n in range(5)]
    pairs, _ = make_pairs(rows)
    found = audit(RuleReward(), pairs, ATTACKS)
    assert (found.right, found.wrong) == (1, 0)
    assert [one.columns["content_type"] for one in pairs] == ["deterministic"] * 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {name: a, group: g}", "attack 'a'.text is missing; write a text"),
        ("- {name: a, group: g, text: x, txt: y}", "attack 'a' has no field 'txt'; did you mean 'text'?"),
        ("- {name: a, group: g, text: $wrng}", "attack 'a'.text: there is no \\$wrng; did you mean 'wrong'?"),
        ("- {name: a, group: g, text: 5}", "attack 'a'.text is 5; write a text"),
        ("- {name: a, group: g, text: x, after: 5}", "after is 5; write a text"),
        ("- {name: a, group: g, text: x, repeat: 0}", "repeat is 0; write a number from 1 to 1000"),
        ("- {name: a, group: g, text: x, hide: zerowidth}", "hide is 'zerowidth'; did you mean 'zero_width'?"),
        ("[{name: a, group: g, text: x}, {name: a, group: g, text: y}]", "the attack 'a' is there 2 times"),
        ("{}", "no list of attacks"),
        ("[", "mine.yaml is not YAML"),
    ],
)
def test_attacks_of_ones_own(tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_text("- {name: a, group: g, text: $wrong}")
    assert load_attacks(path) == (Attack("a", "g", "$wrong"),)
    path.write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        load_attacks(path)
    assert "\n" not in str(caught.value)


def test_mistakes():
    with pytest.raises(UserError, match="no transition to attack: there is none"):
        make_pairs([])
    with pytest.raises(UserError, match="limit is 0"):
        make_pairs([], limit=0)
    with pytest.raises(UserError, match="the reward gave 1 scores for 4 predictions"):
        audit(lambda predictions, targets, **columns: [1.0], [pair(), pair()], ATTACKS)
    with pytest.raises(UserError, match="no_such.yaml"):
        load_attacks("no_such.yaml")
