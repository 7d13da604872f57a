"""Rules are tried on what was really observed, before a run trains on them."""

import pytest

from wm_plugin.errors import UserError
from wm_plugin.rewards import ExactReward, GuardedReward, HybridReward, RuleReward
from wm_plugin.rewards.rule_truth import ROWS, check_rules, rules_of, rules_of_spec

SERVER = {"base_url": "http://127.0.0.1:1/v1", "model": "judge"}
NUMBER = {"regex": "^[0-9]"}


def rows(*targets, **columns):
    return [{"target": text, **{name: values[n] for name, values in columns.items()}} for n, text in enumerate(targets)]


def test_rules_that_no_observation_satisfies_are_refused():
    with pytest.raises(
        UserError, match=r"hold for 0 of 2 real observations .*'quantity.n8'.*no right prediction"
    ) as said:
        check_rules(RuleReward(verifier=NUMBER, tag="next_state"), rows("quantity\n8", "no such table"))
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(("right", "warned"), [(10, False), (9, False), (8, True), (1, True)])
def test_rules_that_few_satisfy_cause_a_warning(right, warned):
    warning = check_rules(RuleReward(verifier=NUMBER), rows(*["1"] * right, *["one"] * (10 - right)))
    assert (f"hold for {right} of 10" in warning) if warned else warning is None


def test_each_row_has_its_own_rule_and_its_columns():
    wrong = {"state": {"path": "$.id", "then": "appears"}}
    own = {"verifier": ["", NUMBER, wrong], "history": [[], [], ['{"id": "a1"}']]}
    assert check_rules(RuleReward(), rows("free", "3", "a1", **own)) is None
    assert "none of the first 1 rows of the training data has a verifier" in check_rules(
        RuleReward(), rows("free", None)
    )
    assert check_rules(RuleReward(), []) is None
    assert "1 of 2" in check_rules(RuleReward(), rows("free", "3", "b2", **own))
    with pytest.raises(UserError, match=r"the verifier of row 1: there is no rule 'regx'"):
        check_rules(RuleReward(), rows("a", "b", verifier=["", {"regx": "a"}]))


def test_the_first_rows_are_taken():
    def endless():
        while True:
            yield {"truth": "1"}

    assert ROWS >= 100
    assert check_rules(RuleReward(verifier=NUMBER), endless(), "truth") is None


def test_which_rules_a_reward_has():
    hybrid = HybridReward({"server": SERVER}, {"verifier": NUMBER})
    assert rules_of(GuardedReward(hybrid, tag="t")) is rules_of(hybrid) is hybrid.rules
    assert rules_of(ExactReward()) is rules_of(len) is rules_of(None) is None
    kwargs = {"rubric": {"server": SERVER}, "rules": {"verifier": NUMBER}}
    spec = {"path": "hybrid", "kwargs": kwargs}
    for one in (
        spec,
        {"path": "guarded", "kwargs": {"reward": spec, "tag": "t"}},
        {"path": "rules", "kwargs": kwargs["rules"]},
    ):
        with pytest.raises(UserError, match="0 of 1"):
            check_rules(rules_of_spec(one), rows("quantity"))
    assert isinstance(rules_of_spec("rules"), RuleReward)
    assert rules_of_spec({"path": "wm_plugin.rewards:EmbeddingReward", "kwargs": {"model": "no such folder"}}) is None


def test_listing_everything_passes_no_rule():
    known = "\n".join(f"row {n}: value {n * 37}" for n in range(400))
    rules = RuleReward(verifier={"regex": r"\b7400\b"})
    assert rules([known, "value 7400", "value 7400" + " " * 2_000, "value 7400" + " " * 2_031], ["value 7400"] * 4) == [
        *(0.0, 1.0, 1.0, 0.0)
    ]
    assert rules.figures["too_long"] == 0.5
