"""Rules by hand, hostile rules, and the rewards that follow."""

import json
import math
import time
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.rewards.rule_errors import KINDS as ERRORS
from wm_plugin.rewards.rule_errors import error_kind
from wm_plugin.rewards.rule_places import TooMuchError, Work, regex, searched
from wm_plugin.rewards.rules import KINDS, MalformedRuleError, RuleReward, _read, read

pytest.importorskip("re2")
pytest.importorskip("jsonpath")

ORDER = json.dumps(
    {"id": 7, "status": "ok", "total": "1,200.50", "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]}
)
ROWS = [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]


def holds(rule, prediction, target=None, **columns):
    """By default the observation is as long as the prediction, and nothing that a rule looks for."""
    target = "t" * len(prediction) if target is None else target
    (verdict,) = RuleReward().verdicts([prediction], [target], verifier=[rule], **columns)
    return verdict


@pytest.mark.parametrize(
    ("rule", "prediction", "verdict"),
    [
        ({"regex": "^Deleted [0-9]+ rows"}, "Deleted 3 rows.", True),
        ({"regex": "^Deleted [0-9]+ rows"}, "I deleted 3 rows", False),
        ({"regex": {"pattern": "DELETED", "ignore_case": True}}, "deleted", True),
        ({"regex": {"pattern": "a+", "full": True}}, " aaa\n", True),
        ({"regex": {"pattern": "a+", "full": True}}, "aaab", False),
        ({"equals": "two words"}, "  two words\n", True),
        ({"equals": "two words"}, "two  words", False),
        ({"equals": {"value": "Two words", "ignore_whitespace": True, "ignore_case": True}}, "two \n words", True),
        ({"equals": 1}, "true", False),
        ({"equals": {"value": {"a": [1], "b": 2}}}, '{"b": 2, "a": [1]}', True),
        ({"json": "$.status"}, ORDER, True),
        ({"json": "$.missing"}, ORDER, False),
        ({"json": "$.status"}, f"Here it is: {ORDER}", False),  # an environment does not introduce itself
        ({"json": "$"}, "[]", True),
        ({"json": {"path": "$", "equals": "x"}}, '"x"', True),
        ({"json": {"path": "$.id", "equals": 7}}, ORDER, True),
        ({"json": {"path": "$.id", "type": "integer", "one_of": [6, 7]}}, ORDER, True),
        ({"json": {"path": "$.lines[*].n", "type": "number", "count": 2}}, ORDER, True),
        ({"json": {"path": "$.lines[*].n", "equals": 1}}, ORDER, False),  # every one of them
        ({"json": {"path": "$.lines[?@.sku == 'b'].n", "equals": 2}}, ORDER, True),
        ({"json": {"path": "$..sku", "pattern": "^[a-z]$"}}, ORDER, True),
        ({"json": {"path": "$.id", "pattern": "7"}}, ORDER, False),
        ({"json": {"path": "$.missing", "count": 0}}, ORDER, True),
        ({"range": {"path": "$.total", "min": 1000, "max": 1300}}, ORDER, True),
        ({"range": {"path": "$.lines[*].n", "max": 1}}, ORDER, False),
        ({"range": {"pattern": "took ([0-9.]+) ms", "min": 0, "max": 100}}, "took 12.5 ms", True),
        ({"range": {"pattern": "took ([0-9.]+) ms", "max": 100}}, "took a while", False),
        ({"range": {"min": 1, "max": 3}}, " 2\n", True),
        ({"range": {"min": 1, "max": 3}}, "nan", False),
        ({"range": {"path": "$", "max": 3}}, "true", False),
        ({"items": ["a.txt", "b.txt"]}, "b.txt\n\na.txt\n", True),
        ({"items": ["a.txt", "b.txt"]}, "a.txt\nb.txt\nc.txt", False),
        ({"items": {"values": ["a", "b"], "measure": "recall"}}, "c\nb\na", True),
        ({"items": {"values": ["a", "b"], "least": 0.8}}, "c\nb\na", True),  # F1 = 2 · 2 / 5
        ({"items": {"values": ["a", "b"], "least": 0.81}}, "c\nb\na", False),
        ({"items": {"values": [2, 1], "path": "$.lines[*].n"}}, ORDER, True),
        ({"items": {"values": [1, True], "path": "$[*]"}}, "[1.0, 1]", False),
        ({"items": {"values": ["12", "13"], "pattern": "id=([0-9]+)"}}, "id=13 id=12", True),
        ({"items": {"values": ["a", "a"]}}, "a", False),
        ({"rows": {"rows": ROWS, "path": "$.lines[*]"}}, ORDER, True),
        ({"rows": ROWS}, json.dumps([*reversed(ROWS)]), True),
        ({"rows": ROWS}, json.dumps([{**row, "more": 1} for row in ROWS]), True),  # by the keys that are asked for
        ({"rows": ROWS}, json.dumps([ROWS[0], {"sku": "b", "n": 3}]), False),
        ({"rows": {"rows": ROWS, "least": 0.5}}, json.dumps([ROWS[0], {"sku": "b", "n": 3}]), True),
        ({"rows": {"rows": ROWS, "by": ["sku"], "least": 0.75}}, json.dumps([ROWS[0], {"sku": "b", "n": 3}]), True),
        ({"rows": {"rows": ROWS, "by": ["sku"], "least": 0.76}}, json.dumps([ROWS[0], {"sku": "b", "n": 3}]), False),
        ({"rows": ROWS}, "no JSON", False),
        ({"error": True}, "bash: nosuch: command not found", True),
        ({"error": False}, "3 files, 0 errors found", True),
        ({"error": "not_found"}, '{"error": "Order 9 not found"}', True),
        ({"error": "permission"}, '{"error": "Order 9 not found"}', False),
        ({"not": {"error": True}}, "fine", True),
        ({"all": [{"regex": "a"}, {"regex": "b"}]}, "ab", True),
        ({"any": [{"regex": "a"}, {"regex": "b"}]}, "b", True),
        ([{"regex": "a"}, {"not": {"any": [{"regex": "b"}, {"regex": "c"}]}}], "a", True),
        ([{"regex": "a"}, {"not": {"any": [{"regex": "b"}, {"regex": "c"}]}}], "ac", False),
    ],
)
def test_each_kind_by_hand(rule, prediction, verdict):
    assert holds(rule, prediction) is verdict
    assert holds(json.dumps(rule), prediction) is verdict


@pytest.mark.parametrize(
    ("rule", "prediction", "target", "verdict"),
    [
        ({"same": True}, " a\n", "a", True),
        ({"same": {}}, "a b", "a", False),
        ({"same": True}, '{"b": 1, "a": 2}', '{"a": 2, "b": 1.0}', True),
        ({"same": {"path": "$.a"}}, '{"a": 2, "b": 9}', '{"a": 2, "b": 1}', True),
        ({"same": {"path": "$.a"}}, '{"b": 1}', '{"a": 2, "b": 1}', False),
        ({"same": {"pattern": "exit code ([0-9]+)"}}, "other words, exit code 2", "exit code 2", True),
        ({"same": {"pattern": "exit code ([0-9]+)"}}, "exit code 2 exit code 0", "exit code 2", False),
        ({"error": "target"}, "no such file", "x", True),
        ({"error": "target"}, "x", "Error: timed out", False),
        ({"error": "target"}, "Error: the request timed out", "Error: timed out", True),
    ],
)
def test_rules_that_look_at_the_observation(rule, prediction, target, verdict):
    assert holds(rule, prediction, target) is verdict


HISTORY = ['{"balance": 40, "user": "ada"}', "export TOKEN=abc12", '{"balance": 35}']


@pytest.mark.parametrize(
    ("rule", "prediction", "verdict"),
    [
        ({"path": "$.user"}, "hello ada!", True),
        ({"path": "$.user"}, "hello adam", False),
        ({"path": "$.balance"}, "you have 35", True),  # the last that has it
        ({"path": "$.balance", "turn": 0}, "you have 40", True),
        ({"path": "$.balance", "turn": -1}, "you have 40", False),
        ({"pattern": "TOKEN=(\\w+)"}, "abc12", True),
        ({"pattern": "TOKEN=(\\w+)"}, "abc123", False),
        ({"path": "$.balance", "then": "unchanged"}, '{"balance": 35.0}', True),
        ({"path": "$.balance", "then": "unchanged"}, '{"balance": 40, "was": 35}', False),
        ({"path": "$.balance", "then": "unchanged"}, "35", False),
    ],
)
def test_state_across_turns(rule, prediction, verdict):
    assert holds({"state": rule}, prediction, history=[HISTORY]) is verdict
    assert holds({"state": rule}, prediction, history=[json.dumps(HISTORY)]) is verdict


@pytest.mark.parametrize(
    ("rule", "columns", "said"),
    [
        ({"state": {"path": "$.a"}}, {}, "state needs the column 'history'"),
        ({"state": {"path": "$.a"}}, {"history": [[{"role": "tool"}]]}, "state needs the column 'history'"),
        ({"state": {"path": "$.nope"}}, {"history": [HISTORY]}, "no earlier observation has anything at '$.nope'"),
        ({"state": {"path": "$.user", "turn": 9}}, {"history": [HISTORY]}, "no earlier observation"),
        ({"same": {"path": "$.a"}}, {}, "the observation has nothing at '$.a'"),
    ],
)
def test_a_rule_that_asks_for_what_its_row_does_not_have(rule, columns, said):
    with pytest.raises(UserError, match=f"the verifier of row 0: .*{said.replace('$', '.')}"):
        holds(rule, "x", **columns)
    reward = RuleReward(malformed="count")
    assert reward.verdicts(["x"], ["t"], verifier=[rule], **columns) == [None]
    assert reward.figures["malformed"] == 1


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"regx": 1}, "there is no rule 'regx'; did you mean 'regex'?"),
        ({"regex": {"patern": "x"}}, "regex: there is no 'patern'; did you mean 'pattern'?"),
        ({"regex": {}}, "regex: pattern is missing"),
        ({"regex": "("}, "regex: '(' is not an RE2 regular expression"),
        ({"regex": "(?=a)"}, "no look-around and no back-references: invalid perl operator: (?="),
        ({"regex": "(a{1000}){1000}"}, "is not an RE2 regular expression"),
        ({"regex": "x" * 1001}, "a pattern of 1001 characters; the limit is 1000"),
        ({"json": "status"}, "json: 'status' is not a JSON path"),
        ({"json": "$[?match(@.a, '(a*)*b')]"}, "a filter that does more than compare"),
        ({"json": "$[?@[?@.a == 1]]"}, "a filter that does more than compare"),
        ({"json": "$..a..b"}, "more than one '..'"),
        ({"json": "$[*,*]"}, "several selectors in one bracket"),
        ({"json": {"path": "$", "type": "text"}}, "type: Input should be 'string', "),
        ({"range": {"path": "$.a"}}, "range: min is -inf and max is inf"),
        ({"range": {"min": 1, "path": "$", "pattern": "x"}}, "path and pattern exclude each other"),
        ({"range": 3}, "range: 3 is not an object with the fields path, pattern, min, max"),
        ({"error": "notfound"}, "error: kind is 'notfound'; did you mean 'not_found'?"),
        ({"state": {}}, "state: write a path or a pattern"),
        ({"all": []}, "all: write a list of rules"),
        ({"not": [1]}, "a rule is an object with one key"),
        ({"regex": "a", "equals": "b"}, "not with the keys 'regex', 'equals'"),
        (5, "a rule is an object with one key"),
        ("{", "not JSON: Expecting property name"),
        ("[" * 100_000, "not JSON: "),
        ([{"regex": "a"}] * 201, "more than 200 rules"),
    ],
)
def test_a_malformed_rule_says_what_is_wrong_in_one_line(rule, said):
    with pytest.raises(UserError) as caught:
        RuleReward()(["p", "q"], ["t", "t"], verifier=[{"regex": "p"}, rule])
    assert str(caught.value).startswith("the verifier of row 1: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="^verifier: "):
        RuleReward(verifier=rule)


def test_rules_nested_too_deep():
    rule = {"regex": "a"}
    for _ in range(20):
        rule = {"not": rule}
    assert holds(rule, "a") is True
    with pytest.raises(UserError, match="nested more than 20 levels deep"):
        holds({"not": rule}, "a")


def test_scores_and_figures():
    reward = RuleReward(scale=25, malformed="count", tag="next_state")
    outputs = ["<next_state>a</next_state>", "<next_state>b</next_state>", "a", "<next_state>a</next_state>", None]
    verifiers = ['{"regex": "a"}', {"regex": "a"}, {"regex": "a"}, None, {"regx": "a"}]
    assert reward(outputs, ["t"] * 5, verifier=verifiers) == [25, 0, 0, 0, 0]
    shares = {"no_prediction": 0.4, "too_long": 0, "no_verifier": 0.2, "malformed": 0.2, "code_failed": 0}
    assert reward.figures == {**shares, "verified": 0.6, "passed": 1 / 3}
    assert reward([], []) == []
    assert set(reward.figures.values()) == {0}


def test_rows_without_a_verifier():
    assert RuleReward()(["a", "b"], ["t", "t"]) == [0, 0]
    nothing = [None, "", " ", [], {}, "null", "[]", "{}"]
    assert RuleReward().verdicts(["a"] * 8, ["t"] * 8, verifier=nothing) == [None] * 8
    assert math.isnan(RuleReward(unverified=math.nan)(["a"], ["t"])[0])
    assert RuleReward(verifier={"regex": "a"})(["a", "b"], ["t", "t"], verifier=[None, {"regex": "b"}]) == [1, 1]


def test_nulls_that_parquet_fills_in_are_nothing():
    filled = {"regex": None, "json": {"path": "$.a", "type": None, "equals": None}, "all": None}
    assert holds(filled, '{"a": 1}') is True
    assert holds('{"json": {"path": "$.a", "equals": null}}', '{"a": 1}') is False
    assert holds('{"json": {"path": "$.a", "equals": null}}', '{"a": null}') is True
    assert holds({"json": {"path": "$.a", "type": "null"}}, '{"a": null}') is True


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"malformed": "skip"}, "malformed is 'skip'; there is 'count', 'raise'"),
        ({"scale": 0}, "scale is 0; write a number > 0"),
        ({"sandbox": {"memry": 1}}, "sandbox.* 'memry'; did you mean 'memory'"),
        ({"sandbox": {"timeout": 0}}, "sandbox.*timeout is 0"),
    ],
)
def test_invalid_settings(settings, said):
    with pytest.raises(UserError, match=said):
        RuleReward(**settings)
    with pytest.raises(UserError, match="2 targets and 1 values of verifier"):
        RuleReward()(["a", "b"], ["t", "t"], verifier=[None])


@pytest.mark.parametrize("rule", [{"python": "def verify(*_): return True"}, {"not": {"all": [{"python": "x"}]}}])
@pytest.mark.parametrize("malformed", ["raise", "count"])  # it is well-formed, but asks for something not allowed
def test_code_is_refused_without_being_asked_for(rule, malformed):
    with pytest.raises(UserError, match="allow_code=True runs it in a sandbox"):
        RuleReward(malformed=malformed)(["a"], ["t"], verifier=[rule])


@pytest.mark.parametrize(("module", "rule"), [("re2", {"regex": "once only 1"}), ("jsonpath", {"json": "$.once[1]"})])
def test_a_missing_library_names_its_extra(monkeypatch, module, rule):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[rules\]'"):
        read(rule)


@contextmanager
def within(seconds):
    start = time.thread_time()
    yield
    assert time.thread_time() - start < seconds


def test_patterns_and_paths_that_are_slow_elsewhere():
    nested = "1"
    for _ in range(90):
        nested = f'{{"a": [{nested}, {nested[:10_000] if nested == "1" else 2}]}}'
    wide = json.dumps([[n] * 20 for n in range(2000)])
    with within(10):
        for pattern in ("(a*)*b", "(a|aa)+$b", "(.*)(.*)(.*)(.*)(.*)x", "([a-z]+)*[0-9]"):
            assert holds({"regex": pattern}, "a" * 50_000) is False
        for path in ("$..a[*][*].b", "$..*", "$[?@[0] == 1999][*]", "$..[?@.x == 1]"):
            for text in (nested, wide):
                assert holds({"json": {"path": path, "equals": "never"}}, text) is False
        assert holds({"json": "$..a"}, "[" * 100_000 + "]" * 100_000) is False
        assert holds({"json": {"path": "$..a", "equals": 1}}, '{"a":' * 900 + "1" + "}" * 900) is False


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error: order #W9 not found", "not_found"),
        ("bash: line 1: foo: command not found", "not_found"),
        ("cat: x: No such file or directory", "not_found"),
        ("cat: /etc/shadow: Permission denied", "permission"),
        ("Traceback (most recent call last):\n  File ...\nValueError: x", "invalid"),
        ('{"error": {"code": 401, "message": "unauthorized"}}', "authentication"),
        ('{"status": "error", "message": "Too many requests"}', "rate_limit"),
        ('{"success": false}', "other"),
        ('{"code": 503, "detail": "service"}', "connection"),
        ("curl: (28) error: operation timed out", "timeout"),
        ('Error: near "SELEC": syntax error', "syntax"),
        ("UNIQUE constraint failed", None),  # without a sign that it is an error
        ("Error: UNIQUE constraint failed: users.id", "exists"),
        ("process ended with exit code 1", "other"),
        ("exit code 0", None),
        ("0 errors, 12 passed", None),
        ("The book 'Trial and Error: a life' is in stock", None),
        ('{"errors": [], "items": [{"note": "Error: not found"}]}', None),
        ('[{"error": "x"}]', None),
        ("", None),
        ("You see an error message on the wall.", None),
    ],
)
def test_kinds_of_errors(text, kind):
    assert error_kind(text) == kind


def test_a_list_of_all_errors_has_one_kind():
    everything = "Error: " + " ".join(f"{name} {name.replace('_', ' ')} denied invalid timeout" for name in ERRORS)
    assert sum(holds({"error": name}, everything) for name in ERRORS) == 1


KEYS = [*KINDS, "path", "pattern", "values", "rows", "min"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=2),
)


@given(JSON, st.text(max_size=40))
def test_any_rule_has_a_defined_outcome(rule, text):
    reward = RuleReward(malformed="count")
    try:
        (verdict,) = reward.verdicts([text], [text], verifier=[rule], history=[[text]])
    except UserError:
        verdict = None
        assert "python" in json.dumps(rule)  # it asks for code, which is refused
    assert verdict in (True, False, None)
    try:
        read(rule)
    except MalformedRuleError:
        assert verdict is None
    assert error_kind(text) in (None, *ERRORS)
    assert error_kind(json.dumps({"error": text})) in (None, *ERRORS)


def test_words_take_bounded_time():
    zeros, state = " ".join(["0"] * 10_000), {"state": {"pattern": r"\S+"}}
    with within(1.5):
        assert holds(state, "0" * 900 + " 0 " + "1" * 98_000, history=[[zeros]])
        assert not holds(state, "0" * 99_000, history=[[zeros]])
        assert not holds(state, "-" + "0" * 98_000, history=[["-" + "0" * 900 + "-"]])
        history = [[json.dumps({"g": [0] * 1600})]]
        assert holds({"state": {"path": "$.g[*]"}}, "0" * 900 + " 0 " + "1" * 20_000, history=history)


LONG = "a" * 1900 + "c" * 98_000
MANY = json.dumps([{f"k{number}": number} for number in range(4000)])


@pytest.mark.parametrize(
    ("rule", "prediction", "target", "columns", "verdict"),
    [
        ({"same": {"pattern": "a.*b|a"}}, LONG, "a " * 1900, {}, False),
        ({"not": {"range": {"pattern": "a.*b|a", "min": 1}}}, LONG, "x", {}, False),
        ({"json": {"path": "$[?@.a == 1]", "count": 0}}, MANY, "x", {}, False),
        ({"same": {"path": "$[?@.k1 == 1]"}}, MANY, MANY, {}, None),
        ({"not": {"state": {"path": "$..zzz"}}}, "x", "x", {"history": [[MANY] * 20]}, None),
        ({"same": True}, MANY, MANY, {}, True),
        ({"not": {"error": True}}, MANY, MANY, {}, True),
        ({"regex": "(?:a?){500}b"}, LONG, "x", {}, False),
    ],
)
def test_the_rules_of_a_row_share_their_work(monkeypatch, rule, prediction, target, columns, verdict):
    """Each rule is within the bounds alone; 100 of them would take 100 times as long."""
    monkeypatch.setattr("wm_plugin.rewards.rule_places.MAX_WORK", 20_000_000)
    monkeypatch.setattr("wm_plugin.rewards.rules._MAX_RATIO", 1_000_000)  # no prediction is too long
    reward = RuleReward(malformed="count")
    with within(1):
        assert reward.verdicts([prediction], [target], verifier=[[rule] * 100], **columns) == [verdict]


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        ({"json": {"path": "$[*]", "one_of": [*range(1, 4000), 0]}}, [0] * 9000),
        ({"json": {"path": "$[*]", "equals": list(range(4000))}}, [0] * 9000),
        ({"rows": {"rows": [{f"k{key}": 1 for key in range(4000)}], "measure": "recall"}}, [{}] * 9000),
        ({"rows": {"rows": [{"a": 1}], "by": ["x"] * 4000}}, [{"a": 1}] * 9000),
        ({"rows": {"rows": [{f"k{key}": 1 for key in range(4000)}], "by": ["k1"]}}, [{"k1": 1}] * 9000),
    ],
)
def test_long_lists_in_a_rule_take_bounded_time(rule, rows):
    with within(1):
        holds(rule, json.dumps(rows))


def test_a_pattern_of_many_states_is_charged_for_each_of_them():
    """RE2 goes through all of them at each character where its automaton does not fit: seconds for this text."""
    with pytest.raises(TooMuchError):
        searched(regex("(a?){999}b"), "a" * 100_000, Work(TooMuchError))
    assert searched(regex("total: ([0-9]+)"), "a" * 100_000, Work(TooMuchError)) == "a" * 100_000


@pytest.mark.parametrize(
    ("text", "verdict"),
    [('[1.0, "a", [2, true], {"b": null}, {}]', True)]
    + [(text, False) for text in ("[true]", '["a "]', "[[2, 1]]", "[[]]", "[]", '[{"b": 0}]')],
)
def test_values_that_are_one_of_some(text, verdict):
    rule = {"json": {"path": "$[*]", "one_of": [1, "a", [2.0, True], {"b": None}, {}]}}
    assert holds(json.dumps(rule), text) is verdict


@pytest.mark.parametrize("number", ["1e400", "1E999", "-1e400"])
def test_a_number_in_a_path_that_no_float_holds_is_malformed(number):
    with pytest.raises(MalformedRuleError, match="not a JSON path"):
        read({"json": {"path": f"$[?@.a == {number}]"}})


def test_a_verifier_of_a_table_may_be_an_array():
    numpy = pytest.importorskip("numpy")
    arrays = [numpy.array([{"regex": "a"}, {"regex": "b"}]), {"items": numpy.array(["a b"])}, numpy.array([])]
    assert RuleReward().verdicts(["a b", "a b", "a"], ["x"] * 3, verifier=arrays) == [True, True, None]


def test_large_verifiers_are_not_kept():
    _read.cache_clear()
    for number in range(5):
        assert read({"equals": [number] * 10_000})
        assert read({"equals": [number]})
    assert _read.cache_info().currsize == 5
    for pattern in (r"\pL{300}", r"(?i)\pL{200}"):  # automata of many megabytes
        with pytest.raises(MalformedRuleError, match="too large"):
            read({"regex": pattern})


@pytest.mark.parametrize(
    "rule",
    [
        {"json": {"path": "$.rows[*]", "count": 0}},
        {"json": {"path": "$..a", "count": 0, "type": "string"}},
        {"items": {"path": "$.x[*]", "values": []}},
        {"rows": []},
        {"rows": {"path": "$.x", "rows": []}},
    ],
)
def test_empty_expectations_still_need_json(rule):
    assert holds(rule, "{}")
    assert not any(holds(rule, text) for text in ("garbage, no rows", "", "[1", '{"a": 1, "a": 2}'))


EMPTY = [{"rows": {"rows": []}}, {"rows": {"rows": [{}], "by": ["a"]}}, {"items": {"values": []}}]


@pytest.mark.parametrize("rule", EMPTY)
def test_the_recall_of_nothing(rule):
    with pytest.raises(MalformedRuleError, match="the recall of nothing is always full"):
        read({kind: fields | {"measure": "recall"} for kind, fields in rule.items()})


@pytest.mark.parametrize(
    ("rule", "write"),
    [
        ({"same": {"pattern": r"-?\d+"}}, lambda values: " ".join(map(str, values))),
        ({"same": {"path": "$.r[*]"}}, lambda values: json.dumps({"r": values})),
    ],
)
def test_cut_texts_are_never_the_same(rule, write):
    right, wrong, long = (
        write(range8000 := list(range(8_000))),
        write([*range8000[:-1], -1]),
        write(list(range(12_000))),
    )
    assert [holds(rule, text, right) for text in (right, wrong, long)] == [True, False, False]
    assert not holds({"not": rule}, long, right)
    reward = RuleReward()  # what a world writes is counted, and stops no run
    for text, target, verifier, history in (
        (write([*range(11_999), -1]), long, rule, []),
        ("x", "x", {"state": rule["same"]}, [long]),
    ):
        assert reward.verdicts([text], [target], verifier=[verifier], history=[history]) == [None]
        assert reward.figures["malformed"] == 1


def test_long_texts_whose_work_is_cut_are_not_the_same():
    text = " ".join(f"{number:06}" for number in range(60_000))
    assert not holds({"same": {"pattern": "[0-9]+"}}, text, "000000")
    assert RuleReward().verdicts([text], [text], verifier=[{"same": {"pattern": "[0-9]+"}}]) == [None]


def test_json_too_deep_for_a_path_does_not_hold():
    deep = '{"b":' * 200 + "1" + "}" * 200
    for rule in ({"json": {"path": "$..a", "count": 0}}, {"items": {"path": "$..a", "values": []}}):
        assert not holds(rule, deep)
        assert not holds({"not": rule}, deep)
