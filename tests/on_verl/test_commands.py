"""The commands of README, docs and recipes for verl are taken by Hydra, as main_ppo composes its config, and by our reader."""

import inspect
import re

import pytest

pytest.importorskip("verl")

from hydra import compose, initialize_config_module
from hydra.errors import ConfigCompositionException

from support.commands import PAGES, ROOT, Command, commands, for_verl
from support.environments import new_world
from support.verl_recipes import of_recipe
from wm_plugin.options import mapping
from wm_plugin.registry import import_object
from wm_plugin.verl.config import read_config
from wm_plugin.verl.data import _parser
from wm_plugin.verl.names import SEARCH_PATH

# what a part of a command, in the text of a page, goes on with
AROUND = [f"hydra.searchpath=[{SEARCH_PATH}]", "+wm=echo", "wm.environment=grid"]
COMMANDS = list({(command.recipe, *command.words): command for command in for_verl() if command.words}.values())


def taken(command: Command):
    if command.recipe is not None:
        config = of_recipe(command.recipe, *command.words)
    else:
        named = {word.partition("=")[0] for word in command.words}
        around = AROUND[:1] if "+wm" in named else AROUND
        given = [word for word in around if word.partition("=")[0] not in named]
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", [*given, *command.words])
    if config.get("wm") is not None:
        read_config(config)


@pytest.fixture(autouse=True)
def made(tmp_path, monkeypatch):
    """What pages name and their reader has: a file, a world, an objective."""
    new_world(tmp_path, monkeypatch)
    (tmp_path / "my_module.py").write_text("from wm_plugin import EchoConfig\n\n\nclass Mine(EchoConfig):\n    pass\n")
    page = (ROOT / "docs" / "agentworld.md").read_text()
    (text,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.S) if block.startswith("# desk.yaml")]
    (tmp_path / "desk.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_is_taken(command):
    taken(command)


@pytest.mark.parametrize(
    ("recipe", "word"),
    [("wmact_ppo", "wm.episode_reward.turn_penaltie=0.1"), (None, "wm.turn_budget.every=50"), (None, "wm.coef=1")],
)
def test_a_command_that_is_wrong_is_found(recipe, word):
    with pytest.raises(ConfigCompositionException, match=re.escape(word)):
        taken(Command("a page", recipe, [word]))


def test_the_commands_that_write_rows_are_taken():
    """By the parser of rows, whose function takes the arguments."""
    runs = [words for page in PAGES for words in commands(page) if "wm_plugin.verl.data" in words]
    assert len(runs) >= 5
    for words in runs:
        options = _parser().parse_args(words[words.index("wm_plugin.verl.data") + 1 :])
        inspect.signature(import_object(options.rows, field="--rows")).bind(**mapping(options.kwargs, "--kwargs"))
