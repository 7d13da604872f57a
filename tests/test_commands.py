"""Every command of README and docs is taken by what it is for: here by `wm`; those of a host in on_trl and on_verl."""

import re

import pytest

from support.commands import INSTALLED, PAGES, ROOT, SCRIPT, commands, for_trl, for_verl, in_text, verbs
from support.scripts import listed
from wm_plugin.cli.main import VERBS, parse
from wm_plugin.lab.pipelines.shipped import shipped
from wm_plugin.lab.tiny import __main__ as tiny

OF_HOSTS = ("verl.trainer.main_ppo", "wm_plugin.trl.train")
# Programs of others, and flags of theirs, of benchmarks and of recipes' scripts, that the text names.
OTHERS = ("pip", "mkdir", "(cd", "vllm")
OTHER_MODULES = ("venv", "pytest")
OTHER_FLAGS = {
    *("--cfg", "--cpu", "--multi_gpu", "--launcher", "--reasoning-parser", "--quick", "--random", "--words", "--pairs"),
    *("--kwargs", "--weights", "--prefix", "--vllm", "--world", "--seeds", "--steps", "--published", "--config_file"),
}
MAKE = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@PAGE
def test_the_commands_of_wm_are_taken(page):
    """In a block of shell. The flags of `wm train` are read by TRL's parser: see on_trl/test_commands.py."""
    for command in [words[1:] for words in commands(page) if words[0] == "wm"]:
        if command[0] != "train":
            words = [argument for argument in command if argument not in ("...", "--json")]
            parse(words)


@PAGE
def test_the_commands_and_flags_in_the_text_exist(page):
    known = OTHER_FLAGS.union(*verbs().values())
    for words in in_text(page):
        if words[0] == "wm" and len(words) > 1 and re.fullmatch("[a-z]+", words[1]):
            verb = (words[1],)
            if VERBS[words[1]] and words[2:] and re.fullmatch("[a-z][a-z-]+", words[2]):
                verb = (words[1], words[2])
            # a step that stands for all of them, and flags that TRL's parser reads
            if "STEP" not in words and words[1] != "train":
                assert {word for word in words if word.startswith("--")} <= verbs()[verb], words
        elif words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= MAKE, words
        elif re.fullmatch("--[a-z-]+", words[0]) and words[0] != "--dtype":  # those of TRL have "_"
            assert words[0] in known, words


@PAGE
def test_every_command_is_looked_at(page):
    """By a test of this file, or by one with a host."""
    for words in commands(page):
        for word in words:
            if word.startswith(("recipes/", "benchmarks/")):
                assert (ROOT / word).is_file(), word
        module = words[words.index("-m") + 1] if "-m" in words else None
        if words[: len(INSTALLED)] == INSTALLED:
            assert words[4] in listed(words[3]), words
        elif module is not None and module.startswith("wm_plugin."):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
        known = (
            words[0] in ("wm", *OTHERS)
            or SCRIPT.fullmatch(words[0])
            or module == INSTALLED[-1]
            or words[0].startswith("data.")  # further overrides
            or module in (*OF_HOSTS, *OTHER_MODULES, "wm_plugin.verl.data", "wm_plugin.lab.tiny")
            or (words[0] == "python" and words[1].startswith("benchmarks/"))
        )
        assert known, f"no test looks at {' '.join(words)}"


def test_the_commands_that_make_models_are_taken():
    runs = [words for page in PAGES for words in commands(page) if "wm_plugin.lab.tiny" in words]
    assert runs
    for words in runs:
        tiny.read(words[words.index("wm_plugin.lab.tiny") + 1 :])


def test_the_commands_of_recipes_comments_are_read():
    """They are among those that the tests with a host parse."""
    for host, found in (("verl", list(for_verl())), ("trl", list(for_trl()))):
        assert sum(command.where.startswith("recipes/") for command in found) >= 3
        for command in found:
            assert command.recipe is None or command.recipe in listed(host), command


@PAGE
def test_pages_name_recipes_and_pipelines_that_there_are(page):
    text = page.read_text()
    for host, name in re.findall(r"recipes/(trl|verl)/run\.sh ([a-z]\w+)", text):
        assert name in listed(host), name
    for name in re.findall(r"wm lab pipeline (\w+_\w+)", text):
        assert name in shipped(), name
    for path in re.findall(r"\brecipes/[\w./]+\w", text):
        assert "HOST" in path or (ROOT / path).exists(), path
