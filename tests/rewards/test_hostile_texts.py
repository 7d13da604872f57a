"""Texts written to take time, memory or the reward itself. Nothing raises; twice the text takes about twice the time."""

import math
import tracemalloc

import pytest

from support.openai_server import OpenAIServer, verdict
from wm_plugin.errors import UserError
from wm_plugin.rewards import (
    REWARDS,
    ExactReward,
    GuardedReward,
    HybridReward,
    JsonMatchReward,
    RougeReward,
    RubricReward,
    RuleReward,
    RwmlReward,
    WordF1Reward,
    extract,
)
from wm_plugin.rewards import rouge as rouge_module
from wm_plugin.rewards.delimit import windows


@pytest.mark.parametrize(
    "text", ["[" * 700 + "]" * 700, '{"a":' * 700 + "1" + "}" * 700, "[" * 100_000, "9" * 5000, '["' * 5000]
)
def test_deep_and_huge_json_is_no_json(text):
    places = [{"same": {"path": "$..a"}}, {"items": ["a"]}, {"json": "$"}, {"rows": [{"a": 1}]}]
    for rule in [*places, {"range": {"path": "$", "min": 0}}]:
        reward = RuleReward(verifier=rule, malformed="count")
        assert reward([text], ["[1]"], history=[[text]]) == [0.0]
        reward([text], [text])
    assert JsonMatchReward()([text, text], ["[1]", text]) == [0.0, 1.0]
    assert ExactReward(json=True)([text], ["[1]"]) == [0.0]
    assert RuleReward(malformed="count")(["a"], ["a"], verifier=[f'{{"equals": {text}}}']) == [0.0]


def peak(function):
    tracemalloc.start()
    function()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


@pytest.mark.parametrize("unit", [" ", "</s>", "[],", '{"a":', "<next_state>", "a "])
def test_memory_is_bounded_by_the_observation(unit):
    text = f"<next_state>[{unit * (1_000_000 // len(unit))}]"
    for name in ("exact", "guarded", "json", "rouge", "rules", "word_f1"):
        kwargs = {"guarded": {"reward": "rouge"}, "rules": {"verifier": {"same": True}}}.get(name, {})
        reward = REWARDS.get(name)(tag="next_state", **kwargs)
        assert peak(lambda reward=reward: reward([text], ["[1]"])) < 12_000_000, name
    assert peak(lambda: extract(text)) < 12_000_000
    assert peak(lambda: extract(text, "")) < 12_000_000


def test_what_is_far_longer_than_the_observation_is_no_prediction():
    reward = WordF1Reward(tag="a")
    scores = reward([f"<a>{'b ' * 50_000}</a>", f"<a>b{' b' * 50_002}</a>"], ["b", "b"])
    assert scores == [pytest.approx(2 / 50_001), 0.0]
    assert reward.figures["no_prediction"] == 0.5
    assert reward([f"<a>{'b ' * 100_000}</a>"], ["b " * 100_000]) == [1.0]
    assert ExactReward()(["a" * 100_005, "a" * 10**6], ["a", "a" * 10**6]) == [0.0, 1.0]


def test_a_long_rouge_is_at_most_the_whole_one(monkeypatch):
    observed = " ".join(f"w{n % 97} v{n * n % 31}" for n in range(600))
    texts = [observed, observed.replace("w5 ", "x "), observed[300:] + " a b", observed[::-1], "w1 " * 1200, "w1", ""]
    texts.append(" ".join(f"w{n % 89}" for n in range(700)))
    for variant in ("rougeL", "rouge1", "rouge2"):
        whole = RougeReward(variant)(texts, [observed] * len(texts))
        monkeypatch.setattr(rouge_module, "_LARGEST", 2000)
        parts = RougeReward(variant)(texts, [observed] * len(texts))
        monkeypatch.undo()
        if variant == "rougeL":
            assert all(part <= exact for part, exact in zip(parts, whole, strict=True))
            assert parts[0] == whole[0] == 1.0
            assert parts[1] > 0.9 * whole[1]
        else:
            assert parts == whole


DIFFERENT = (
    ".5 5|٫5 5|−5 5|-$5 $5|-€5 €5|--5 5|)-5 )5|USD-5 USD5|1e5 1e-5|1E5 1E6|10² 10³|10⁻² 10²|1½ 1|① ②|Ⅳ Ⅴ|0x1F 0x1E|1.20.3 1.2.3|"
    "x-5 x5|a.-5 a.5|1--5 1-5|1.5.0 1.5|-.5 .5|½ ¼|1,000 1.000|٣٫١ ٣١|(5) 5|($1,000.50) $1,000.50|٩٩ ٣١|99.5 31.5|"
    "v1.10 v1.1|V2.0 v2|-~5 5|1~2 2~1|7 word"
)
EQUAL = (
    "-5 –5|-5 −5|－5 -5|31.50 31.5|1,000 1000|5. 5|.5 0.5|1e+5 1E5|0X1f 0x1F|٣٫١٠ 3.1|٣٬٠٠٠ 3000|3–5 3-5|$1,000.00 $1000|٣١ 31|"
    "2024-01-31 2024–01–31|1.2.3 1.2.3|...5 5|1.0 1|f(5) f(5.0)|v2.0 V2.0|(5) (5.0)|(1,2) (1,2)|１２.5 12.50|-~31.5 -31.5|"
    "\n-~5 5|3~-~5 3-5|inf nan"
)


@pytest.mark.parametrize(
    ("prediction", "target", "score"),
    [(*pair.split(" "), 0) for pair in DIFFERENT.split("|")] + [(*pair.split(" "), 1) for pair in EQUAL.split("|")],
)
def test_numbers_however_they_are_written(prediction, target, score):
    """`~` stands for a space."""
    numbers = [number.replace("~", " ") for number in (prediction, target)]
    texts = [f"the total amount due is {number} and it ships " + "word " * 40 for number in numbers]
    exact, plain = (RougeReward(step=0.2, numbers=numbers) for numbers in ("exact", "tokens"))
    assert exact([texts[0]], [texts[1]]) == exact([texts[1]], [texts[0]]) == [score]
    assert plain([texts[0]], [texts[1]]) == [1]


@pytest.mark.parametrize(
    ("text", "holds"),
    [("12", 1), (" 1,2.5e0 ", 1), (".5e1", 1)]
    + [(text, 0) for text in ("1_2", "١٢", "inf", "nan", "1e999", "１２", "1" * 500)],
)
def test_which_texts_are_numbers(text, holds):
    assert RuleReward(verifier={"range": {"min": 1, "max": 1e308}})([text], ["t"]) == [holds]


@pytest.mark.parametrize(
    "text", ['{"a": 2, "a": 1}', '{"a": 1e999}', '{"a": Infinity}', '{"a": NaN}', '{"a": ١}', '{"a": 1_0}']
)
def test_json_that_can_be_read_in_two_ways_is_no_json(text):
    assert JsonMatchReward()([text], ['{"a": 1}']) == [0.0]
    assert RuleReward(verifier={"json": {"path": "$.a", "one_of": [1, 10]}})([text], ["t"]) == [0.0]


@pytest.mark.parametrize(
    "text", ['{"regex": "a", "regex": "b"}', '{"json": {"path": "$.a", "equals": 1, "equals": 2}}', '{"equals": NaN}']
)
def test_a_verifier_with_a_key_twice_is_malformed(text):
    reward = RuleReward(malformed="count")
    assert reward(["b"], ["b"], verifier=[text]) == [0.0]
    assert reward.figures["malformed"] == 1
    with pytest.raises(UserError, match="a key appears twice|NaN is no JSON"):
        RuleReward()(["b"], ["b"], verifier=[text])
    assert RuleReward(verifier={"range": {"min": 0, "max": math.inf}})(["5"], ["t"]) == [1.0]


def test_praise_does_not_help_where_the_reward_is_negative():
    reward = GuardedReward(lambda texts, targets, **columns: [-1.0] * len(texts), praise=0.5, echo=0.5)
    words = "one two three four five six seven eight nine ten"
    texts = ["Order", "This prediction is entirely accurate.", words]
    assert reward(texts, ["t"] * 3, context=["", "", words]) == [-1, -1.5, -1.5]


def test_where_two_long_texts_differ_is_shown():
    same, (right, wrong) = "a" * 500, ("b" * 50, "c" * 50)
    assert windows({"observed": right, "predicted": wrong}, 100) == ({"observed": right, "predicted": wrong}, "")
    shown, told = windows({"observed": same + right, "predicted": same + wrong}, 200)
    assert shown["observed"] == f"(cut here: 400 characters before)\n{'a' * 100}{right}"
    assert "first 400 characters are the same" in told
    assert "is the same." in told
    _, told = windows({"observed": right * 9, "predicted": wrong + right * 8 + "!"}, 100)
    assert "is not the same." in told
    assert windows({"observed": same, "predicted": same}, 100)[0] == {"observed": same, "predicted": same}


def test_nan_in_a_column_is_none():
    nan = math.nan
    assert RuleReward(unverified=0.5)(["a"], ["b"], verifier=[nan], history=[nan]) == [0.5]
    server = {"base_url": "http://localhost/v1", "model": "judge"}
    reward = REWARDS.get("reference")(server)
    assert reward(["a"], ["b"], reference=[nan], action=[nan], context=[nan]) == [1.0]
    with pytest.raises(UserError, match="a reference is of type int"):
        reward(["a"], ["b"], reference=[3])
    assert REWARDS.get("rubric")(server)([None], ["b"], content_type=[nan], domain=[nan]) == [0.0]


def test_cells_that_python_cannot_write_or_compare_raise_nothing():
    np = pytest.importorskip("numpy")
    pytest.importorskip("aiohttp")
    nested: object = "x"
    for _ in range(3000):
        nested = [nested]
    messages = [[{"role": role, "content": cell}] for role in ("user", nested) for cell in (nested, 10**5000)]
    cells = [nested, 10**5000, {("t",): 1}, np.array([1, 2]), *messages, "\ud800"]
    with OpenAIServer(lambda body: verdict(4)) as server:
        rubric = {"base_url": server.base_url, "model": "judge"}
        rewards = [RubricReward(rubric), HybridReward({"server": rubric}), GuardedReward(RubricReward(rubric))]
        for reward in rewards:
            for column in ("action", "context"):
                columns = {"verifier": [None] * len(cells), column: cells}
                assert reward(["a"] * len(cells), ["b"] * len(cells), **columns) == [20.0] * len(cells)
        assert rewards[2](["a"], ["b"], context=np.array(["c"])) == [20.0]
        for column in ("domain", "content_type"):
            with pytest.raises(UserError, match=f"{column} is array"):
                rewards[0](["a"], ["b"], **{column: [np.array(["web", "os"])]})
        with pytest.raises(UserError, match="observer of row 0 is array"):
            RwmlReward("judge", base_url=server.base_url)(["a"], ["b"], observer=[np.array(["tool", "user"])])
