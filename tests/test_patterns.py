"""Each regular expression of the package is in a table here. Those that see untrusted text take linear time on hostile texts."""

import ast
import os
import random
import re
from functools import cache

import pytest

from support.patterns import Use, hostile, run, uses
from support.timing import repeated, seconds, too_slow
from wm_plugin.data import filter as filters
from wm_plugin.lab.evaluation import blind_spots
from wm_plugin.worlds.dialogue import user

MOST = 100_000 if os.environ.get("WM_ALL_EXAMPLES") else 30  # texts for a pattern

found = cache(uses)  # by the process that runs these tests, not by each that collects them

# Patterns that see what a policy, a dataset, a server or a file says.
UNTRUSTED = {
    "cli/terminal.py harmless",
    "worlds/wrappers/control/items.py _ITEM",
    "worlds/wrappers/counting.py _INVALID",
    "worlds/dialogue/user.py ASKS",
    "worlds/dialogue/user.py REFUSES",
    "worlds/dialogue/user.py IDIOMS",
    "worlds/dialogue/user.py CLAUSES",
    "worlds/dialogue/user.py IF",
    "worlds/dialogue/user.py CONDITION",
    "worlds/dialogue/user.py DENIED",
    "worlds/dialogue/user.py UNSURE",
    "worlds/dialogue/user.py ANSWERED_NO",
    "worlds/dialogue/user.py FAILED",
    "worlds/dialogue/user.py LOST",
    "worlds/dialogue/user.py DONE",
    "worlds/dialogue/user.py LATER",
    "worlds/dialogue/user.py GENERIC",
    "worlds/dialogue/user.py CONFIRMS",
    "worlds/dialogue/user.py PROPOSES",
    "worlds/dialogue/user.py BYE",
    "worlds/dialogue/user.py NUMBER",
    "worlds/dialogue/user.py DATE",
    "worlds/dialogue/user.py _sentences",
    "worlds/dialogue/user.py Heard.hear",
    "worlds/dialogue/user.py ScriptedUser._facts",
    "worlds/dialogue/user.py _is_done",
    "worlds/deepdive/web.py Web._address",
    "worlds/forth/machine.py execute",
    "tokens/harmless.py _TOKEN",
    "tokens/harmless.py _of",
    "worlds/kit/customer.py _PLAIN",
    "worlds/kit/reading.py ReadingEnvironment._open",
    "worlds/kit/search.py TOKEN",
    "worlds/kit/sqlite_guard.py CONVERSION",
    "worlds/kit/sqlite_guard.py LEADING",
    "worlds/kit/sqlite_guard.py PRECISION",
    "worlds/kit/sqlite_guard.py TOKEN",
    "worlds/kit/sqlite_guard.py cell",
    "worlds/sql/__init__.py SqlEnvironment._call",
    "worlds/sql/__init__.py NUMERAL",
    "worlds/sql/state.py state_after",
    "worlds/wrappers/tags.py _TAG",
    "worlds/textworld.py Engine.step",
    "worlds/textworld.py tidy",
    "lab/evaluation/blind_spots.py _ARTICLE",
    "lab/evaluation/blind_spots.py _DENIED",
    "lab/evaluation/blind_spots.py _NUMBER",
    "lab/evaluation/blind_spots.py _OPPOSITE",
    "lab/evaluation/blind_spots.py _VERB",
    "lab/evaluation/blind_spots.py _WORD",
    "lab/evaluation/blind_spots.py _layout",
    "lab/evaluation/blind_spots.py _short_form",
    "data/host_failures.py _ERROR",
    "lab/evaluation/published_replies.py _BARE_KEY",
    "lab/evaluation/published_replies.py _BRACE_OR_QUOTE",
    "lab/evaluation/published_replies.py _COMMA_TOO_MANY",
    "lab/evaluation/published_replies.py _QUOTED_KEY",
    "lab/evaluation/published_replies.py _SCORES",
    "lab/evaluation/published_replies.py _SIGN",
    "lab/evaluation/published_replies.py _THOUGHT",
    "lab/evaluation/published_replies.py _last_block",
    "lab/evaluation/published_replies.py _last_block 2",
    "lab/evaluation/published_replies.py without_thoughts",
    "lab/report/arms.py _SEED",
    "lab/evaluation/rule_form.py WORD",
    "lab/evaluation/rule_form.py _KEY",
    "lab/evaluation/rule_form.py _PART",
    "lab/evaluation/rule_form.py _PROMPT",
    "lab/evaluation/rule_form.py _paths",
    "lab/evaluation/rule_commands.py _LITERAL",
    "lab/evaluation/rule_commands.py _NAME",
    "lab/evaluation/rule_commands.py _SELECT",
    "lab/evaluation/rule_commands.py _TABLE",
    "lab/evaluation/rule_commands.py _VARIABLE",
    "objectives/information.py _WORD",
    "rewards/background.py _TURN",
    "rewards/delimit.py _UNSEEN",
    "rewards/delimit.py _ANGLED",
    "rewards/delimit.py _SQUARE",
    "rewards/delimit.py _UNCLOSED",
    "rewards/detect.py _PRAISE",
    "rewards/detect.py _FOR_A_JUDGE",
    "rewards/detect.py _WORD",
    "rewards/extract.py _ENDS_BACKWARDS",
    "rewards/rouge.py _HIDDEN",
    "rewards/rouge.py _NUMBER",
    "rewards/rouge.py _SIGN_BEFORE",
    "rewards/rouge.py _SIGN_BEHIND",
    "rewards/rule_checks.py _NUMERAL",
    "rewards/rule_checks.py _RUN",
    "rewards/rule_errors.py _KIND",
    "rewards/rule_errors.py _SIGN",
    "rewards/verdict.py _LIKE",
    "rewards/verdict.py _FORGED",
    "rewards/verdict.py _OPENS",
    "rewards/verdict.py _CLOSES",
    "rewards/verdict.py _THOUGHT",
    "rewards/verdict.py _THOUGHT_LIKE",
    "rewards/verdict.py _ENDING",
    "rewards/verdict.py _QUOTED",
    "rewards/verdict.py _BRACE_OR_KEY",
    "rewards/verdict.py _FENCE",
    "rewards/verdict.py _TRAILING_COMMA",
    "rewards/verdict.py _NUMBER",
    "rewards/words.py _WORD",
    "runtime/command.py _one_line",
    "runtime/secrets.py _CODED",
    "runtime/secrets.py _END",
    "runtime/secrets.py hold",
    "runtime/secrets.py _bare_forms",
    "data/prompts/__init__.py _fill",
    "data/failures.py _FAILED",
    "data/failures.py _GARBAGE",
    "data/failures.py _UNKNOWN",
    "data/filter.py SOME",
    "data/filter.py _patterns",
    "data/readers/agentworldbench.py _ACTION",
    "data/readers/chatml.py _FUNCTION",
    "data/readers/chatml.py _NAME",
    "data/readers/verl.py _USER",
    "data/readers/verl.py _CLOSE",
    "data/readers/verl.py _ROLE",
    "data/turn_texts.py _ESCAPE",
    "data/values.py _IDENTITY",
    "untrusted.py _LONG_REFERENCE",
    "untrusted.py _STRUCTURE",
}
# Patterns that only see what we or the user of this package wrote, and who that is.
OURS = {
    "cli/env/play.py _arguments": "the docstrings of an environment's tools",
    "worlds/forth/machine.py DEFINITION": "the documentation that comes with gforth",
    "worlds/forth/machine.py PRIMITIVE": "the documentation that comes with gforth",
    "worlds/forth/machine.py MARKUP": "the documentation that comes with gforth",
    "worlds/forth/machine.py glossary": "the documentation that comes with gforth",
    "worlds/sql/state.py tables": "the schemas of our databases",
    "worlds/textworld.py moves_of": "the end of what the game prints, where digits are its count of moves",
    "worlds/worlds.py _spec_of_class": "the docstring of a class of the user's",
    "lab/evaluation/audit.py _PLACE": "a file of attacks, of ours or the user's",
    "lab/pipelines/expand.py _NAME": "the user's own file of commands",
    "lab/pipelines/expand.py _OPEN": "the user's own file of commands",
    "rewards/extract.py _NAME": "the tag in a reward's config",
    "client/server.py VARIABLE": "the name of a variable in the settings of a server",
    "rewards/rule_places.py regex": "RE2, which is linear: tests/rewards/test_rules.py tries the patterns of datasets",
    "data/prompts/file.py Prompts.tag": "a file of prompts, of ours or the user's",
    "data/prompts/file.py Prompts._consistent": "a file of prompts, of ours or the user's",
}
# What is compiled where the pattern is only known when the code runs. The patterns of users are theirs.
DYNAMIC = {
    "worlds/dialogue/user.py ScriptedUser._facts": [*user.FACTS.values()],
    "worlds/dialogue/user.py _is_done": [*user.VERBS.values()],
    "worlds/dialogue/user.py Heard.hear": [rf"\b{status}\b" for status in user.STATUSES],
    "tokens/harmless.py _of": [r"@(?=@END@@)|\](?=\~b\])"],
    "lab/evaluation/blind_spots.py _short_form": [rf"\b{form}\b" for pair in blind_spots._SHORT_FORMS for form in pair],
    "lab/evaluation/published_replies.py _last_block": [re.compile("<final_evaluation>", re.IGNORECASE)],
    "lab/evaluation/published_replies.py _last_block 2": [re.compile("</final_evaluation>", re.IGNORECASE)],
    "lab/evaluation/published_replies.py without_thoughts": [re.compile("<predicted_observation>", re.IGNORECASE)],
    "runtime/secrets.py hold": [re.compile("|".join(map(re.escape, ("sk-aa", "sk-ab", "sk\\-a"))), re.IGNORECASE)],
    "runtime/secrets.py _bare_forms": [re.compile(b"skaaaaaaaa|skaaaaaaab|c2thyw")],
    "data/filter.py _patterns": filters._patterns([*filters.FAILURES, *filters.INVALID]),
}


def patterns(use: Use) -> list[re.Pattern[str] | re.Pattern[bytes]]:
    if use.name in DYNAMIC:
        return [re.compile(pattern) for pattern in DYNAMIC[use.name]]
    pattern = use.pattern()
    assert pattern is not None, (
        f"{use.name}: the pattern is only known when the code runs; name examples of it in DYNAMIC"
    )
    return [pattern]


def test_each_pattern_is_in_one_table():
    assert not UNTRUSTED & OURS.keys()
    new = sorted(found().keys() - UNTRUSTED - OURS.keys())
    assert not new, (
        f"regular expressions in no table of tests/test_patterns.py: {new}. Does it see what a policy, a dataset, a server or "
        "a file says? Then add it to UNTRUSTED, where hostile texts are tried; otherwise to OURS, with whose text it sees"
    )
    gone = sorted((UNTRUSTED | OURS.keys() | DYNAMIC.keys()) - found().keys())
    assert not gone, f"in a table of tests/test_patterns.py, but no regular expression of the package: {gone}"


@pytest.mark.parametrize("name", sorted(UNTRUSTED))
def test_time_is_linear(name):
    use = found()[name]
    for pattern in patterns(use):
        shapes = hostile(pattern)
        if len(shapes) > MOST:
            shapes = random.Random(str(pattern.pattern)).sample(shapes, MOST)
        for function in sorted(use.functions):
            for before, unit, after in shapes:
                slow = too_slow(run(pattern, function), repeated(unit, before, after), largest=8000)
                assert slow is None, (
                    f"{name}: {slow}; {function} of {pattern.pattern!r} on {before!r} + n * {unit!r} + {after!r}"
                )


SLOW = [
    r"\s+$",
    r"<a>.*?</a>",
    r"\[[^]]*\]",
    r"(\d+)\s*$",
    r"x\s*\s*y",
    r"(?:a|b)*c",
    r"<call>\s*(.*?)\s*</call>",
    r"^(\w+\s?)*$",
    r"(?:^|\n)user\n(?:<r>.*?</r>\s*)+$",
    r"(?i)error:\s*(\S+\s*)*!",
    rb'"(?:[^"\\]|\\.)*"x',
    r"(?<=a)[ab]+c",
]
QUICK = [r"\s++", r"<a>[^<]{0,80}>", r"\d", r"(?:a|b)c", r"^\w+", r"(?m)^[^\n]*\n"]


@pytest.mark.slow
@pytest.mark.parametrize("source", SLOW)
def test_the_texts_find_what_is_not_linear(source, monkeypatch):
    monkeypatch.setattr("support.timing.LONGEST", 0.2)
    pattern = re.compile(source)
    shapes = hostile(pattern)
    assert any(
        too_slow(run(pattern, "finditer"), repeated(unit, before, after), largest=8000)
        for before, unit, after in shapes
    )


@pytest.mark.parametrize("source", QUICK)
def test_and_pass_what_is(source):
    pattern = re.compile(source)
    for before, unit, after in hostile(pattern):
        assert too_slow(run(pattern, "finditer"), repeated(unit, before, after), largest=8000) is None


def test_patterns_are_found_however_they_are_written(tmp_path, monkeypatch):
    source = """
import re
import regex as other
from re import compile as make, search
FIRST = re.compile("a")
SECOND: object = make("b")
class Page(Model):
    third: str = Field("", pattern="^c$")
    fourth = re.compile("d").match
    def fifth(self, text):
        if other.sub("e", "", text):
            return search(pattern="f", string=text)
        def inner():
            return re.compile("g" + "h")
        return [re.split("i", part) for part in FIRST.findall(text)]
def tenth(text, names=(re.compile("j"),)):
    return SECOND.match(text)
re.purge()
"""
    path = tmp_path / "module.py"
    path.write_text(source)
    monkeypatch.setattr("support.patterns.PACKAGE", tmp_path)
    monkeypatch.setattr("support.patterns.trees", lambda: {path: ast.parse(source)})
    names = {
        "FIRST": "findall",
        "SECOND": "match",
        "Page.third": "search",
        "Page.fourth": "finditer",
        "Page.fifth": "sub",
        "Page.fifth 2": "search",
        "Page.fifth.inner": "finditer",
        "Page.fifth 3": "split",
        "tenth": "finditer",
    }
    assert {name: use.functions for name, use in uses().items()} == {
        f"module.py {name}": {names[name]} for name in names
    }


def test_a_pattern_without_end_is_interrupted(monkeypatch):
    monkeypatch.setattr("support.timing.LONGEST", 0.1)
    assert seconds(re.compile("(a|a)*b").match, "a" * 60) == float("inf")
