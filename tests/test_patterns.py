"""The regular expressions of the package take linear time on hostile texts, but for those that see trusted text alone."""

import ast
import os
import random
import re

import pytest

from support import patterns
from support.patterns import PACKAGE, hostile, run, trees, uses
from support.timing import repeated, seconds, too_slow
from wm_plugin.data import filter as filters
from wm_plugin.lab.evaluation import blind_spots
from wm_plugin.worlds.dialogue import user

MOST = 100_000 if os.environ.get("WM_ALL_EXAMPLES") else 30  # texts for a pattern
FILES = sorted(
    path.relative_to(PACKAGE).as_posix() for path in trees() if re.search(r"\bre2?\.|pattern=", path.read_text())
)

# Patterns that only see what we or the user of this package wrote, and who that is. All others are tried.
TRUSTED = {
    "worlds/agents/typed.py arguments_of": "the docstrings of an environment's tools",
    "worlds/forth/machine.py DEFINITION": "the documentation that comes with gforth",
    "worlds/forth/machine.py PRIMITIVE": "the documentation that comes with gforth",
    "worlds/forth/machine.py MARKUP": "the documentation that comes with gforth",
    "worlds/forth/machine.py glossary": "the documentation that comes with gforth",
    "worlds/textworld.py moves_of": "the end of what the game prints, where digits are its count of moves",
    "worlds/worlds.py _spec_of_class": "the docstring of a class of the user's",
    "lab/evaluation/audit.py _PLACE": "a file of attacks, of ours or the user's",
    "lab/pipelines/expand.py _NAME": "the user's own file of commands",
    "rewards/extract.py _NAME": "the tag in a reward's config",
    "client/server.py VARIABLE": "the name of a variable in the settings of a server",
    "rewards/rule_places.py regex": "RE2, which is linear: tests/rewards/test_rules.py tries the patterns of datasets",
    "trl/train.py _raise_user_error": "the user's own config or flags",
    "verl/registration.py _check_command": "the user's own command",
    "verl/registration.py _check_command 2": "the user's own command",
    "verl/registration.py _check_command 3": "the user's own command",
    "data/prompts/file.py Prompts.tag": "a file of prompts, of ours or the user's",
    "data/prompts/file.py Prompts._consistent": "a file of prompts, of ours or the user's",
}
# Examples of patterns that are only known when the code runs. The patterns of users are theirs.
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
    "hosting/predictions.py _marks": [re.compile("</?(?:think|prediction)>")],
    "data/filter.py _patterns": filters._patterns([*filters.FAILURES, *filters.INVALID]),
}


@pytest.mark.parametrize("file", FILES)
def test_time_is_linear(file):
    for name, use in uses().items():
        if not name.startswith(f"{file} ") or name in TRUSTED:
            continue
        pattern = use.pattern()
        assert pattern is not None or name in DYNAMIC, f"{name}: name examples of this pattern in DYNAMIC"
        for each in map(re.compile, DYNAMIC.get(name, [pattern])):
            shapes = hostile(each)
            if len(shapes) > MOST:
                shapes = random.Random(str(each.pattern)).sample(shapes, MOST)
            for function in sorted(use.functions):
                for before, unit, after in shapes:
                    slow = too_slow(run(each, function), repeated(unit, before, after), largest=8000)
                    assert slow is None, (
                        f"{name}: {slow}; {function} of {each.pattern!r} on {before!r} + n * {unit!r} + {after!r}. If the "
                        "pattern sees no text of a policy, a dataset, a server or a world, name it in TRUSTED"
                    )


def test_the_tables_name_patterns_of_the_package():
    assert not (TRUSTED.keys() | DYNAMIC.keys()) - uses().keys()
    assert {name.split()[0] for name in uses()} <= set(FILES)


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
FIRST = re.compile("a")
SECOND: object = re.compile("b")
class Page(Model):
    third: str = Field("", pattern="^c$")
    fourth = re.compile("d").match
    def fifth(self, text):
        if re.sub("e", "", text):
            return re.search(pattern="f", string=text)
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
    uses = patterns.uses.__wrapped__
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


def test_no_function_of_re_is_imported_by_itself():
    """Patterns are found by the names of the modules."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            assert not isinstance(node, ast.ImportFrom) or node.module not in ("re", "re2", "regex"), path
            if isinstance(node, ast.Import):
                assert not [one for one in node.names if one.name in ("re", "re2", "regex") and one.asname], path
