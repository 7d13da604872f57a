"""Each regular expression of the package is in a table here. Those that see untrusted text take linear time on hostile texts."""

import ast
import os
import random
import re
from functools import cache

import pytest

from support.patterns import Use, hostile, run, uses
from support.timing import repeated, seconds, too_slow
from wm_plugin.environments.dialogue import user
from wm_plugin.evaluation import blind_spots
from wm_plugin.trajectories import filter as filters

MOST = 100_000 if os.environ.get("WM_ALL_EXAMPLES") else 30  # texts for a pattern

found = cache(uses)  # by the process that runs these tests, not by each that collects them

# Patterns that see what a policy, a dataset, a server or a file says.
UNTRUSTED = {
    "cli/terminal.py harmless",
    "environments/control/items.py _ITEM",
    "environments/counting.py _INVALID",
    "environments/dialogue/user.py ASKS",
    "environments/dialogue/user.py REFUSES",
    "environments/dialogue/user.py IDIOMS",
    "environments/dialogue/user.py CLAUSES",
    "environments/dialogue/user.py IF",
    "environments/dialogue/user.py CONDITION",
    "environments/dialogue/user.py DENIED",
    "environments/dialogue/user.py UNSURE",
    "environments/dialogue/user.py ANSWERED_NO",
    "environments/dialogue/user.py FAILED",
    "environments/dialogue/user.py LOST",
    "environments/dialogue/user.py DONE",
    "environments/dialogue/user.py LATER",
    "environments/dialogue/user.py GENERIC",
    "environments/dialogue/user.py CONFIRMS",
    "environments/dialogue/user.py PROPOSES",
    "environments/dialogue/user.py BYE",
    "environments/dialogue/user.py NUMBER",
    "environments/dialogue/user.py DATE",
    "environments/dialogue/user.py _sentences",
    "environments/dialogue/user.py Heard.hear",
    "environments/dialogue/user.py ScriptedUser._facts",
    "environments/dialogue/user.py _is_done",
    "environments/deepdive/web.py Web._address",
    "environments/forth/machine.py execute",
    "environments/harmless.py _TOKEN",
    "environments/harmless.py _of",
    "environments/kit/customer.py _PLAIN",
    "environments/kit/reading.py ReadingEnvironment._open",
    "environments/kit/search.py TOKEN",
    "environments/kit/sqlite_guard.py CONVERSION",
    "environments/kit/sqlite_guard.py LEADING",
    "environments/kit/sqlite_guard.py PRECISION",
    "environments/kit/sqlite_guard.py TOKEN",
    "environments/kit/sqlite_guard.py cell",
    "environments/sql/__init__.py SqlEnvironment._call",
    "environments/sql/__init__.py NUMERAL",
    "environments/sql/state.py state_after",
    "environments/tags.py _TAG",
    "environments/textworld.py Engine.step",
    "environments/textworld.py tidy",
    "evaluation/blind_spots.py _ARTICLE",
    "evaluation/blind_spots.py _DENIED",
    "evaluation/blind_spots.py _NUMBER",
    "evaluation/blind_spots.py _OPPOSITE",
    "evaluation/blind_spots.py _VERB",
    "evaluation/blind_spots.py _WORD",
    "evaluation/blind_spots.py _layout",
    "evaluation/blind_spots.py _short_form",
    "trajectories/host_failures.py _ERROR",
    "evaluation/published_replies.py _BARE_KEY",
    "evaluation/published_replies.py _BRACE_OR_QUOTE",
    "evaluation/published_replies.py _COMMA_TOO_MANY",
    "evaluation/published_replies.py _QUOTED_KEY",
    "evaluation/published_replies.py _SCORES",
    "evaluation/published_replies.py _SIGN",
    "evaluation/published_replies.py _THOUGHT",
    "evaluation/published_replies.py _last_block",
    "evaluation/published_replies.py _last_block 2",
    "evaluation/published_replies.py without_thoughts",
    "evaluation/report/arms.py _SEED",
    "evaluation/report/picture.py _HEIGHT",
    "evaluation/rule_form.py WORD",
    "evaluation/rule_form.py _KEY",
    "evaluation/rule_form.py _PART",
    "evaluation/rule_form.py _PROMPT",
    "evaluation/rule_form.py _paths",
    "evaluation/rule_commands.py _LITERAL",
    "evaluation/rule_commands.py _NAME",
    "evaluation/rule_commands.py _SELECT",
    "evaluation/rule_commands.py _TABLE",
    "evaluation/rule_commands.py _VARIABLE",
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
    "samples/prompts/__init__.py _fill",
    "trajectories/failures.py _FAILED",
    "trajectories/failures.py _GARBAGE",
    "trajectories/failures.py _UNKNOWN",
    "trajectories/filter.py SOME",
    "trajectories/filter.py _patterns",
    "trajectories/readers/agentworldbench.py _ACTION",
    "trajectories/readers/chatml.py _FUNCTION",
    "trajectories/readers/chatml.py _NAME",
    "trajectories/readers/verl.py _USER",
    "trajectories/readers/verl.py _CLOSE",
    "trajectories/readers/verl.py _ROLE",
    "trajectories/turn_texts.py _ESCAPE",
    "trajectories/values.py _IDENTITY",
    "untrusted.py _LONG_REFERENCE",
    "untrusted.py _STRUCTURE",
}
# Patterns that only see what we or the user of this package wrote, and who that is.
OURS = {
    "cli/env/play.py _arguments": "the docstrings of an environment's tools",
    "environments/forth/machine.py DEFINITION": "the documentation that comes with gforth",
    "environments/forth/machine.py PRIMITIVE": "the documentation that comes with gforth",
    "environments/forth/machine.py MARKUP": "the documentation that comes with gforth",
    "environments/forth/machine.py glossary": "the documentation that comes with gforth",
    "environments/sql/state.py tables": "the schemas of our databases",
    "environments/textworld.py moves_of": "the end of what the game prints, where digits are its count of moves",
    "environments/worlds.py _spec_of_class": "the docstring of a class of the user's",
    "evaluation/audit.py _PLACE": "a file of attacks, of ours or the user's",
    "pipelines/expand.py _NAME": "the user's own file of commands",
    "pipelines/expand.py _OPEN": "the user's own file of commands",
    "rewards/extract.py _NAME": "the tag in a reward's config",
    "runtime/server.py VARIABLE": "the name of a variable in the settings of a server",
    "rewards/rule_places.py regex": "RE2, which is linear: tests/rewards/test_rules.py tries the patterns of datasets",
    "samples/prompts/file.py Prompts.tag": "a file of prompts, of ours or the user's",
    "samples/prompts/file.py Prompts._consistent": "a file of prompts, of ours or the user's",
}
# What is compiled where the pattern is only known when the code runs. The patterns of users are theirs.
DYNAMIC = {
    "environments/dialogue/user.py ScriptedUser._facts": [*user.FACTS.values()],
    "environments/dialogue/user.py _is_done": [*user.VERBS.values()],
    "environments/dialogue/user.py Heard.hear": [rf"\b{status}\b" for status in user.STATUSES],
    "environments/harmless.py _of": [r"@(?=@END@@)|\](?=\~b\])"],
    "evaluation/blind_spots.py _short_form": [rf"\b{form}\b" for pair in blind_spots._SHORT_FORMS for form in pair],
    "evaluation/published_replies.py _last_block": [re.compile("<final_evaluation>", re.IGNORECASE)],
    "evaluation/published_replies.py _last_block 2": [re.compile("</final_evaluation>", re.IGNORECASE)],
    "evaluation/published_replies.py without_thoughts": [re.compile("<predicted_observation>", re.IGNORECASE)],
    "runtime/secrets.py hold": [re.compile("|".join(map(re.escape, ("sk-aa", "sk-ab", "sk\\-a"))), re.IGNORECASE)],
    "runtime/secrets.py _bare_forms": [re.compile(b"skaaaaaaaa|skaaaaaaab|c2thyw")],
    "trajectories/filter.py _patterns": filters._patterns([*filters.FAILURES, *filters.INVALID]),
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
