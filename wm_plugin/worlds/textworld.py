"""TextWorld (Côté et al. 2018): text adventures made from a seed, played on a real Z-machine interpreter.

Two kinds of games: custom ones (rooms, objects and a quest of so many actions) and cooking ones (find the kitchen, read the
recipe, prepare a meal). A game is made when it is first played, in a second or two, and kept in a cache folder.

The interpreter is C code with global state, and a few inputs hang it for good: it runs in its own process, only the verbs of the
game reach it, and a call has a time limit. Its hash seed is fixed, so cooking games are reproducible.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError
from wm_plugin.worlds.kit.commands import CommandEnvironment, expert, reply, tidy, wanderer
from wm_plugin.worlds.kit.described import described
from wm_plugin.worlds.kit.rows import Rows, check_level, distinct, draws, row_number, rows_of, turn_limit, world_seed
from wm_plugin.worlds.specs import SPECS, described_as

MAX_TURNS = 50
_TABLES = described("textworld.yaml")
LEVELS: dict[str, dict[str, Any]] = _TABLES["levels"]
MAX_SEED = 10**9
NOT_UNDERSTOOD = "The game does not understand that."
WINNING, LOSING = "*** The End ***", "*** You lost! ***"
INSTRUCTION = SPECS["textworld"].instruction

__all__ = ["INSTRUCTION", "LEVELS", "TextworldEnvironment", "dataset_rows", "expert", "wanderer"]


@described_as("textworld")
class TextworldEnvironment(CommandEnvironment):
    """One episode: at most `max_turns` commands; the reward is the share of the game's points, and success is winning it.

    A command is effective when the game's facts change, and invalid when the game does not understand it.
    """

    refusals = (*CommandEnvironment.refusals, NOT_UNDERSTOOD, *_TABLES["parser"])
    _engine = "wm_plugin.worlds.textworld:Engine"
    _timeout = 30.0

    def reset(self, level: str, seed: int, max_turns: int | None = None, **_: Any) -> str:
        """Start the game of a level (see `LEVELS`) and a seed, and return its goal and the first room."""
        return self._start(turn_limit(max_turns, MAX_TURNS), level, seed)

    def act(self, command: str) -> str:
        return self._act(command)


def dataset_rows(
    count: int, seed: int = 0, held_out: bool = False, level: str = "standard", max_turns: int = MAX_TURNS
) -> Rows:
    """Make rows for a trainer; `reset` appends the first observation to the prompt. Held-out games have other seeds."""
    settings_of(level)
    rng = draws(seed, held_out)
    tasks = ({"level": level, "seed": number} for number in distinct(count, lambda: world_seed(rng, held_out)))
    return rows_of(INSTRUCTION, tasks, max_turns, MAX_TURNS, "command")


def settings_of(level: str) -> dict[str, Any]:
    """Return the generator's settings of a level."""
    check_level(level, LEVELS, "TextWorld")
    return LEVELS[level]


def cache_folder() -> Path:
    """Return the folder of generated games, in WM_PLUGIN_CACHE, or in wm_plugin in XDG_CACHE_HOME or ~/.cache."""
    ours = os.environ.get("WM_PLUGIN_CACHE")
    base = Path(ours) if ours else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wm_plugin"
    return base / "textworld"


class Engine:
    """The engine (see `kit/commands.py`): runs in a process of its own, with one game at a time."""

    def __init__(self) -> None:
        try:
            import textworld
        except ImportError:
            raise MissingExtraError("This environment", "textworld", "textworld") from None
        self._library = textworld
        self._env: Any = None
        self._path = ""

    def start(self, level: str, seed: int) -> str:
        game = str(make_game(settings_of(level), row_number(seed, "seed", "TextWorld", MAX_SEED - 1)))
        if game != self._path:
            if self._env is not None:
                self._env.close()
            self._env, self._path = self._library.start(game, self._library.EnvInfos(facts=True)), game
        state = self._env.reset()
        self._game = state["game"]
        self._verbs = {*self._game.verbs, *_TABLES["short"]}
        opening, self._facts = state.feedback, set(state["_facts"])
        self._moves = moves_of(opening) or 0  # it is 1 before the first move
        start = opening.find(state["objective"][:40])
        return _tidy(opening[start:] if start >= 0 else opening)

    def step(self, command: str) -> dict[str, Any]:
        words = command.lower().split()
        # dots, commas and the word `then` would start a second command
        if words[0] not in self._verbs or "then" in words or re.search(r"[^a-z0-9' -]", " ".join(words)):
            return reply(NOT_UNDERSTOOD, self._score, valid=False)
        state, _, _ = self._env.step(" ".join(words))
        before, self._facts = self._facts, set(state["_facts"])
        won, lost = WINNING in state.feedback, LOSING in state.feedback
        moves = moves_of(state.feedback)
        moves_before, self._moves = self._moves, self._moves if moves is None else moves
        valid = self._moves > moves_before or won or lost or words[0] in _TABLES["free"]
        score = 1.0 if won else self._score
        return reply(_tidy(state.feedback), score, won, won or lost, valid, self._facts != before)

    def context(self) -> str:
        """The game's facts, one a line: rooms and doors, where things lie, what is open, closed or locked."""
        ours = _TABLES["names"]
        names = {name: info.name or ours.get(name, name) for name, info in self._game.infos.items()} | ours
        facts = ((fact.name, [names.get(one.name, one.name) for one in fact.arguments]) for fact in self._facts)
        # a way is free where it has no closed door
        return "\n".join(sorted({in_words(name, arguments) for name, arguments in facts if name != "free"}))

    def plan(self) -> list[str]:
        return list(self._game.metadata["walkthrough"])

    def commands(self) -> list[str]:
        actions = self._env.state["_valid_actions"]
        return sorted(set(self._env._wrapped_env._inform7.gen_commands_from_actions(actions)))

    @property
    def _score(self) -> float:
        share: float = (self._env.state["score"] or 0) / max(1, self._game.max_score)
        return share


def in_words(name: str, arguments: list[str]) -> str:
    """Write a fact in words: `north_of(a, b)` as "a is north of b", `closed(box)` as "box is closed"."""
    verb = _TABLES["verbs"].get(name) or ("" if name.startswith("needs") else "is ") + name.replace("_", " ")
    if name == "link" and len(arguments) == 3:
        return f"{arguments[1]} is between {' and '.join(sorted(arguments[::2]))}"
    if len(arguments) > 2:
        return f"{name.replace('_', ' ')}: {', '.join(arguments)}"
    return f"{arguments[0]} {verb} {' '.join(arguments[1:])}".rstrip() if arguments else verb


def make_game(settings: dict[str, Any], seed: int) -> Path:
    """Return the game's file, from the cache or newly made; its description lies beside it with the ending .json."""
    about = json.dumps([settings, seed, version("textworld")], sort_keys=True)
    folder = cache_folder() / hashlib.sha256(about.encode()).hexdigest()[:20]
    if not folder.is_dir():
        from textworld.generator import QuestGenerationError
        from textworld.generator.world import NoFreeExitError

        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix="making-"))
        try:
            # not every seed has so long a quest; the last digit, which decides the split, stays
            for attempt in range(4):
                try:
                    _generate(settings, seed + attempt * MAX_SEED, temporary / "game.z8")
                    break
                except (QuestGenerationError, NoFreeExitError):
                    if attempt == 3:
                        raise
            (temporary / "game.ni").unlink(missing_ok=True)
            temporary.rename(folder)  # atomic, so that no process reads half a game
        except OSError:
            if not folder.is_dir():  # another process has made it meanwhile
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder / "game.z8"


def _generate(settings: dict[str, Any], seed: int, path: Path) -> None:
    import textworld

    options = textworld.GameOptions()
    options.seeds = seed
    options.path = str(path)
    if "recipe" in settings:
        from textworld.challenges import CHALLENGES

        skills = dict.fromkeys(("recipe", "take", "go", "open", "cook", "cut", "drop"), False) | {"take": 0, "go": 1}
        _, make, _ = CHALLENGES["tw-cooking"]
        game = make(skills | settings | {"recipe_seed": seed, "split": None}, options)
    else:
        options.nb_rooms, options.nb_objects = settings["rooms"], settings["objects"]
        options.quest_length = settings["quest"]
        options.grammar.only_last_action = True  # the text states the goal, not the way there
        game = textworld.generator.make_game(options)
    textworld.generator.compile_game(game, options)


def moves_of(text: str) -> int | None:
    """Return the count of moves with which the status line ends, or None."""
    moves = re.search(r"(\d+)\s*$", text)
    return int(moves[1]) if moves else None


def _tidy(text: str) -> str:
    """Remove the prompt, the status line and empty lines of a reply."""
    text = re.sub(r"\n>[^\n]*$", "", text)
    for end in (WINNING, LOSING):
        before, ending, _ = text.partition(end)
        text = before + ending
    return tidy(text, lambda line: " ".join(line.split()))
