"""What README, docs and recipes tell a user to type: in blocks of shell, in the text, and in the comments of recipes."""

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import NamedTuple

from recipes import read

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, *DOCS]
RECIPES = ROOT / "recipes"

# Pages whose text is about recipes.
ABOUT = {"verl": {"wmact.md": ("wmact_ppo", "wmact_grpo")}, "trl": {"wmact.md": ("wmact_grpo",)}}
ROOTS = "wm|data|trainer|algorithm|actor_rollout_ref|critic|reward|hydra|optim|model"  # of verl's configs
OVERRIDE = re.compile(rf"(?:\+{{0,2}}|~)(?:{ROOTS})\b[\w.@]*=.*", re.S)
SCRIPT = re.compile(r"(?:\.\./)*recipes/(?P<host>trl|verl)/run\.sh")
INSTALLED = ["python", "-m", "wm_plugin.recipes"]  # the same without a checkout
PLACEHOLDER = re.compile(r"^<|>$|\.\.\.|…")


class Command(NamedTuple):
    where: str
    recipe: str | None  # None: the host's own config, or a file of the user's
    words: list[str]

    def __str__(self) -> str:
        return f"{self.where}: {' '.join(self.words)}"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def commands(page: Path) -> list[list[str]]:
    """The words of each command in the page's blocks of shell. A variable holds for the lines below it."""
    found = []
    for block in blocks(page, "bash"):
        variables = {}
        for line in (
            re.sub(r"^for .*?; do$|^\s*for .*?; do (?=\w)|; done$|^done$", "", block, flags=re.M)
            .replace("\\\n", " ")
            .splitlines()
        ):
            words = shlex.split(Template(line).safe_substitute(variables), comments=True)
            while words and (variable := re.fullmatch(r"(\w+)=(.*)", words[0])):
                variables[variable[1]] = variable[2]
                words.pop(0)
            found.append(words)
    return [words for words in found if words]


def in_text(page: Path) -> list[list[str]]:
    """The words of each piece of code in the page's text."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    found = []
    for code in re.findall(r"`([^`]+)`", text):
        try:
            found.append(shlex.split(code))
        except ValueError:  # a quotation mark alone
            continue
    return [words for words in found if words]


def launched(words: list[str]) -> tuple[str, list[str]]:
    """The host whose launcher this is, and what it is told; no host: it is another command."""
    if words[:3] == INSTALLED:
        return words[3], words[4:]
    found = SCRIPT.fullmatch(words[0])
    return (found["host"], words[1:]) if found else ("", [])


def in_comments(host: str) -> Iterator[tuple[str, str]]:
    """(recipe, text): the comments of each recipe of a host, as one line."""
    for path in sorted((RECIPES / host).glob("*.yaml")):
        lines = re.findall(r"(?:^|\s)#(?!:) ?(.*)", path.read_text())
        if found := next((one.name for one in read() if one.config == path), None):
            yield found, " ".join(lines)


def shared(words: list[str]) -> list[str]:
    """Without the flags that both launchers take, which tests/test_recipes.py has."""
    kept, skip = [], False
    for word in words:
        if not skip and word not in SHARED:
            kept.append(word)
        skip = word in SHARED
    return kept


SHARED = {"--model", "--out", "--seed", "--steps", "--rows", "--batch", "--data", "--coeff"}


def for_verl() -> Iterator[Command]:
    """Every command with overrides of verl's config, whole or in part."""
    for page in PAGES:
        for words in commands(page):
            host, told = launched(words)
            if host == "verl":
                yield Command(page.name, told[0], shared(told[1:]))
            elif "verl.trainer.main_ppo" in words or OVERRIDE.fullmatch(words[0]):
                start = words.index("verl.trainer.main_ppo") + 1 if "verl.trainer.main_ppo" in words else 0
                yield Command(page.name, None, [word for word in words[start:] if not PLACEHOLDER.search(word)])
        for words in in_text(page):
            if all(map(OVERRIDE.fullmatch, words)) and not any(map(PLACEHOLDER.search, words)):
                of_group = any(re.match(r"\+?wm=|hydra", word) for word in words)
                for recipe in (None,) if of_group else ABOUT["verl"].get(page.name, (None,)):
                    yield Command(page.name, recipe, [re.sub("^wm=", "+wm=", word) for word in words])
    for recipe, text in in_comments("verl"):
        for words in re.findall(r"(?<![\w.])wm\.[\w.]+=\S+(?: wm\.[\w.]+=\S+)*", text):
            yield Command(f"recipes/verl/{recipe}", recipe, [word.rstrip(";,.:") for word in words.split()])


def for_trl() -> Iterator[Command]:
    """Every command with flags of TRL's trainers, whole or in part."""
    for page in PAGES:
        for words in commands(page):
            host, told = launched(words)
            if host == "trl":
                yield Command(page.name, told[0], shared(told[1:]))
            elif words[:2] == ["wm", "train"]:
                yield Command(page.name, None, trainer_flags(words[2:]))
            elif "wm_plugin.trl.train" in words:
                yield Command(page.name, None, trainer_flags(words[words.index("wm_plugin.trl.train") + 1 :]))
        for words in in_text(page):
            if words[0].startswith("--") and len(words) > 1 and any(re.match(r"--\w+_", word) for word in words):
                yield Command(page.name, (*ABOUT["trl"].get(page.name, ()), None)[0], words)
    for recipe, text in in_comments("trl"):
        for flags in re.findall(r"(?<![\w=])(--[a-z]+_\w+ (?!-)[^\s;,]+)", text):
            yield Command(f"recipes/trl/{recipe}", recipe, flags.rstrip(".:").split())


def trainer_flags(words: list[str]) -> list[str]:
    """Without the config, which is the user's."""
    kept, skip = [], 0
    for word in words:
        if skip:
            skip -= 1
        elif word == "--config":
            skip = 1
        elif (kept or word.startswith("--")) and not PLACEHOLDER.search(word):
            kept.append(word)
    return kept


@functools.cache
def verbs() -> dict[tuple[str, ...], frozenset[str]]:
    """The flags of each verb of `wm`, by its words; those of groups of verbs, too."""
    from wm_plugin.cli.main import VERBS, make_app

    found = {}
    for verb, steps in VERBS.items():
        found[verb,] = frozenset(["--help"])
        for words in [(verb, step) for step in steps] or [(verb,)]:
            app = make_app(words)
            for word in words:
                app = app[word]
            names = (name for argument in app.assemble_argument_collection() for name in argument.names)
            found[words] = frozenset(["--help", "--json", *(name for name in names if name.startswith("--"))])
    return found
