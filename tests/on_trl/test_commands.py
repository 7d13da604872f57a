"""The flags of TRL's trainers in README, docs and recipes are taken by TRL's own parsers, with the recipe that they change."""

from pathlib import Path

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from trl.scripts import sft

from support.commands import PAGES, Command, commands, for_trl
from support.scripts import trl_words
from wm_plugin.trl import train

COMMANDS = list({(command.recipe, *command.words): command for command in for_trl() if command.words}.values())
HERE = {"--use_cpu": "true", "--bf16": "false", "--eval_strategy": "no"}  # one process without a GPU


def taken(command: Command, folder):
    here = [word for pair in HERE.items() for word in pair]
    words = [
        *trl_words(command.recipe or "echo_grpo_tiny", "--out", str(folder)),
        *command.words,
        *here,
    ]  # the last counts
    if "datasets" in yaml.safe_load(Path(words[1]).read_text()) and "--trainer" not in words:
        sft.make_parser().parse_args_and_config(words)
    else:
        train.parse(words)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_is_taken(command, tmp_path):
    taken(command, tmp_path)


def test_a_command_that_is_wrong_is_found(tmp_path):
    with pytest.raises((SystemExit, ValueError)):
        taken(Command("a page", "wmact_grpo", ["--turn_budgt", "30"]), tmp_path)


def test_the_commands_of_accelerate_are_taken():
    launched = [words[2:] for page in PAGES for words in commands(page) if words[:2] == ["accelerate", "launch"]]
    assert len(launched) >= 2
    for arguments in launched:
        options = launch_command_parser().parse_args(arguments)
        assert (options.module, options.training_script) == (True, "wm_plugin.trl.train")
