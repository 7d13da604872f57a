"""ALFWorld (Shridhar et al. 2021): household tasks in text, on PDDL.

The games come from the user's own data, or are built here from the package's PDDL domain, its grammar and the receptacles and
kinds of objects of ALFRED's 120 rooms. Fast Downward, C++ code with global state, runs the domain, so a game has its own process.
The expert follows the walkthrough of the game, or a plan of Fast Downward if the game has none.
"""

import functools
import os
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.untrusted import loads
from wm_plugin.worlds.kit.commands import CommandEnvironment, expert, reply, tidy, wanderer
from wm_plugin.worlds.kit.described import described
from wm_plugin.worlds.kit.rows import (
    SPLITS,
    Rows,
    check_count,
    check_level,
    distinct,
    draws,
    row_number,
    rows_of,
    split_of,
    turn_limit,
)
from wm_plugin.worlds.specs import SPECS, described_as

MAX_TURNS = 50
TASKS = described("alfworld.yaml")
# The kinds of tasks of each level; "data" has the user's own games.
LEVELS = {level: [task for task, of in TASKS.items() if of["level"] == level] for level in ("standard", "hard", "data")}
LAMPS = ("DeskLamp", "FloorLamp")
STANDS = ("Desk", "Dresser", "SideTable", "CoffeeTable", "DiningTable", "Shelf")  # places for a lamp
# ALFWorld's own splits: the rooms of valid_seen are those of train games, the rooms of valid_unseen are in none.
DATA = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}
NOTHING = "Nothing happens."  # in answer to what is no command now
UNCHANGED = ("checked", "examined")  # facts that mere looking adds
INSTRUCTION = SPECS["alfworld"].instruction
# RWML's agents think before each action; how they are asked to is ours.
THINK = "\n\nBefore each call, think about the task between <think> and </think>."

__all__ = ["INSTRUCTION", "LEVELS", "SPLITS", "THINK", "AlfworldEnvironment", "dataset_rows", "expert", "wanderer"]


@described_as("alfworld")
class AlfworldEnvironment(CommandEnvironment):
    """One episode: at most `max_turns` commands; reward 1 for the task.

    A command is effective when it changes the room, and invalid when nothing happens.
    """

    refusals = (*CommandEnvironment.refusals, NOTHING)
    _engine = "wm_plugin.worlds.alfworld:Engine"

    def reset(
        self, level: str, seed: int = 0, game: str = "", max_turns: int | None = None, think: Any = None, **_: Any
    ) -> str:
        """Start the built game of a level (see `LEVELS`) and a seed, or `game`, a file's path in ALFWORLD_DATA.

        `think`: if it is true, the first observation ends in `THINK`.
        """
        first = self._start(turn_limit(max_turns, MAX_TURNS), level, seed, game)
        return f"{first}{THINK}" if think in (True, "true") else first

    def act(self, command: str) -> str:
        return self._act(command)


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = "standard",
    split: str | None = None,
    max_turns: int = MAX_TURNS,
    think: bool = False,
) -> Rows:
    """Make rows for a trainer; `reset` appends the first observation, with the task, to the prompt.

    Args:
        held_out: the same as the split unseen.
        split: train; seen, other games in rooms of train; or unseen, games in other rooms. The user's own games (level "data")
            are ALFWorld's train, valid_seen and valid_unseen. Of the games built here every tenth room is unseen. The last digit
            of a seed says which: 0 is unseen, 9 is seen, and the others are train.
        think: whether `reset` asks for reasoning before each command.
    """
    check_level(level, LEVELS, "ALFWorld")
    part = split_of(split, held_out, "ALFWorld")
    rng = draws(seed, part)

    def draw() -> int:
        digit = rng.randint(1, 8) if part == "train" else 9 * (part == "seen")
        return rng.randrange(10**7) * 10 + digit

    column, values = ("game", _own_games(count, rng, part)) if level == "data" else ("seed", distinct(count, draw))
    rows = rows_of(INSTRUCTION, ({"level": level, column: value} for value in values), max_turns, MAX_TURNS, "command")
    return [row | {"think": True} for row in rows] if think else rows


def _data_folder() -> Path:
    folder = os.environ.get("ALFWORLD_DATA")
    if not folder or not Path(folder).is_dir():
        needs = "needs the folder of its games in ALFWORLD_DATA"
        raise UserError(f"ALFWorld's level 'data' {needs}; level 'standard' builds games itself")
    return Path(folder)


def _own_games(count: int, rng: random.Random, part: str) -> list[str]:
    folder = _data_folder()
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.glob(f"**/{DATA[part]}/**/game.tw-pddl"))
    rng.shuffle(paths)
    games: list[str] = []
    for game in paths:
        if len(games) < count and _game(folder / game).get("solvable") is not False:
            games.append(game)
    check_count(count, len(games), f"ALFWORLD_DATA has {{}} solvable games of {DATA[part]}")
    return games


class Engine:
    """The engine (see `kit/commands.py`): runs in a process of its own, with one game at a time."""

    def __init__(self) -> None:
        os.environ.setdefault("ALFWORLD_DATA", tempfile.gettempdir())  # else the package makes a folder in the home
        try:
            import textworld
            from alfworld.agents.utils.misc import Demangler
            from textworld.envs import PddlEnv
        except ImportError:
            raise MissingExtraError("This environment", "alfworld", "alfworld") from None
        self._demangler = Demangler
        self._env: Any = PddlEnv(textworld.EnvInfos())
        self._walkthrough: list[str] = []

    def start(self, level: str, seed: int, game: str) -> str:
        data = _own_game(game) if game or level == "data" else build(level, seed)
        self._env.load(data)
        demangler = self._demangler(game_infos=self._env._entity_infos)
        for info in self._env._entity_infos.values():
            info.name = demangler.demangle_alfred_name(info.id)
        names = self._names()
        steps = data.get("walkthrough") or []
        self._walkthrough = [" ".join(names.get(word.lower(), word) for word in step.split()) for step in steps]
        state = self._env.reset()
        self._facts = _lasting(state)
        return _tidy(state.feedback)

    def step(self, command: str) -> dict[str, Any]:
        if command.lower() not in self._env.state["_valid_commands"]:  # without listing all actions again
            return reply(NOTHING, valid=False)
        state, _, _ = self._env.step(command.lower())
        before, self._facts = self._facts, _lasting(state)
        won = bool(state["won"])
        return reply(_tidy(state.feedback), float(won), won, changed=self._facts != before)

    def context(self) -> str:
        """Where every thing lies, and which places are closed."""
        names = self._names()
        return places(
            (fact.name.lower(), [names.get(one.name, one.name) for one in fact.arguments]) for fact in self._facts
        )

    def plan(self) -> list[str]:
        return self._walkthrough or self.planned()

    def planned(self) -> list[str]:
        """A plan by Fast Downward; it takes from a second to minutes."""
        return list(self._env._pddl_state.replan(self._env._entity_infos))

    def commands(self) -> list[str]:
        return [command for command in self._env.state["admissible_commands"] if command != "help"]

    def _names(self) -> dict[str, str]:
        return {info.id: info.name for info in self._env._entity_infos.values()}


def places(facts: Iterable[tuple[str, list[str]]]) -> str:
    """Describe the places of a game, one a line: whether they are open or closed, and what lies there.

    `facts` are names of PDDL's predicates in lower case, with the names of their arguments.
    """
    told: dict[str, list[list[str]]] = {}
    for name, arguments in facts:
        told.setdefault(name, []).append(arguments)
    openable, opened = ({place for (place,) in told.get(name, [])} for name in ("openable", "opened"))
    inside: dict[str, list[str]] = {place: [] for place, _ in told.get("receptacletype", [])}
    for thing, place in told.get("inreceptacle", []):
        inside.setdefault(place, []).append(thing)
    lines = []
    for place in sorted(inside, key=_in_order):
        door = f" ({'open' if place in opened else 'closed'})" if place in openable else ""
        lines.append(f"{place}{door}: {', '.join(sorted(inside[place], key=_in_order)) or 'nothing'}")
    return "\n".join(lines)


def _in_order(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition(" ")
    return (kind, int(number)) if number.isdecimal() else (name, 0)


def _lasting(state: Any) -> set[Any]:
    return {fact for fact in state["_facts"] if fact.name not in UNCHANGED}


def _tidy(text: str) -> str:
    return tidy(text.replace("-= Welcome to TextWorld, ALFRED! =-", ""))


def _own_game(game: str) -> dict[str, Any]:
    folder = _data_folder().resolve()
    try:
        path = (folder / str(game)).resolve()
        inside = isinstance(game, str) and folder in path.parents and path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        inside = False
    if not inside:
        raise UserError(f"ALFWORLD_DATA has no game {shown(game)}; write a path inside it that ends in game.tw-pddl")
    return _game(path)


def _game(path: Path) -> dict[str, Any]:
    try:
        data = loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no game of ALFWorld: {error}") from None
    texts = ("pddl_domain", "grammar", "pddl_problem")
    if not isinstance(data, dict) or not all(isinstance(data.get(name), str) for name in texts):
        raise UserError(f"{path} is no game of ALFWorld: it has no {', '.join(texts)}")
    return data


def build(level: str, seed: int) -> dict[str, Any]:
    """Build a game of a level; the kind of task, the room, the positions of objects and the goal depend on the seed."""
    check_level(level, LEVELS, "ALFWorld")
    seed = row_number(seed, "seed", "ALFWorld")
    rng = random.Random(seed)
    while True:  # not every room can have every task
        task = rng.choice(LEVELS[level])
        scenes = [floor + room for floor in TASKS[task]["rooms"] for room in range(1, 31)]
        scene = rng.choice([scene for scene in scenes if (scene % 10 == 0) == (seed % 10 == 0)])
        if (game := _built(task, scene, rng)) is not None:
            return game


@functools.lru_cache
def _read(path: str) -> str:
    return Path(path).read_text()


def _built(task: str, scene: int, rng: random.Random) -> dict[str, Any] | None:
    """Return a game whose walkthrough has identifiers as names; None if the room has no such task."""
    import alfworld.gen.constants as alfred
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    of = TASKS[task]
    holds, can = alfred.VAL_RECEPTACLE_OBJECTS, alfred.VAL_ACTION_OBJECTS
    plan = Path(alfred.__file__).parent / "layouts" / f"FloorPlan{scene}"
    names = sorted(loads(_read(f"{plan}-openable.json")))
    spots = {_identifier(name): kind for name in names if (kind := _kind(name)) in holds}  # kinds of places by place
    kinds = sorted(set(spots.values()))
    things = [
        kind
        for kind in sorted(loads(_read(f"{plan}-objects.json")))
        if (kind in LAMPS and not set(kinds).isdisjoint(STANDS))
        or (kind in alfred.OBJECTS and kind not in alfred.RECEPTACLES and any(kind in holds[place] for place in kinds))
    ]
    lamps = [kind for kind in things if kind in LAMPS]
    # Pairs of an object and the kind of place that it goes to; it starts at a place of another kind.
    tool = of.get("tool")
    pairs = [
        (thing, place)
        for thing in things
        for place in kinds
        if thing in holds[place]
        and thing not in LAMPS
        and place != tool
        and (tool is None or thing in can[of["property"]])
        and any(thing in holds[other] for other in kinds if other != place)
    ]
    if not pairs or (tool and tool not in kinds) or (task == "light" and not lamps):
        return None
    thing, target = rng.choice(pairs)

    objects = []  # identifier, kind, place
    for kind in things:
        elsewhere = target if kind == thing and task != "light" else None
        fitting = STANDS if kind in LAMPS else [place for place in kinds if kind in holds[place] and place != elsewhere]
        free = [place for place, its_kind in spots.items() if its_kind in fitting]
        copies = 1 if kind in LAMPS else rng.randint(2, 3) if kind == thing else rng.randint(1, 2)
        objects += [(f"{kind}_bar_{number}", kind, rng.choice(free)) for number in range(copies)]
    where = {place: f"loc_{number}" for number, place in enumerate(spots)}
    facts = ["(atLocation agent1 loc_init)"]
    for place, kind in spots.items():
        facts += [f"(receptacleType {place} {kind}Type)", f"(receptacleAtLocation {place} {where[place]})"]
        facts += [f"(openable {place})"] if kind in alfred.OPENABLE_CLASS_LIST else []
    for kind in kinds:
        facts += [f"(canContain {kind}Type {other}Type)" for other in sorted(holds[kind])]
    for name, kind, place in objects:
        facts += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {place})"]
        facts += [f"(objectAtLocation {name} {where[place]})", *([] if kind in LAMPS else [f"(pickupable {name})"])]
        facts += [f"({what.lower()} {name})" for what in sorted(can) if kind in can[what]]
    other_types = sorted({kind for _, kind, _ in objects} | {other for kind in kinds for other in holds[kind]})
    declarations = [
        "agent1 - agent",
        "loc_init - location",
        *(f"{location} - location" for location in where.values()),
        *(f"{place} - receptacle" for place in where),
        *(f"{name} - object" for name, _, _ in objects),
        *(f"{kind}Type - otype" for kind in other_types),
        *(f"{kind}Type - rtype" for kind in kinds if kind not in other_types),
    ]
    words = {"Thing": thing, "thing": thing.lower(), "a_thing": _a(thing.lower()), "lamp": "".join(lamps[:1]).lower()}
    words |= {"Place": target, "place": target.lower(), "a_place": _a(target.lower())}
    lines = ["(define (problem built)", "(:domain alfred)", "(:objects", *declarations, ")", "(:init", *facts, ")"]
    goal = of["goal"].format(**words)
    return {
        "walkthrough": _solve(task, thing, objects, spots, lamps[0] if task == "light" else target, tool),
        "pddl_domain": _read(ALFRED_PDDL_PATH),
        "grammar": _read(ALFRED_TWL2_PATH).replace("UNKNOWN GOAL", of["words"].format(**words)),
        "pddl_problem": "\n".join([*lines, f"(:goal {goal})", ")"]),
    }


def _solve(
    task: str, thing: str, objects: list[tuple[str, str, str]], kinds: dict[str, str], target: str, tool: str | None
) -> list[str]:
    """Return commands that solve the task; `target` is a kind of place, or of lamp."""
    from alfworld.gen.constants import OPENABLE_CLASS_LIST

    position, opened = "", set()
    steps: list[str] = []

    def go(place: str) -> None:
        nonlocal position
        steps.extend([f"go to {place}"] if place != position else [])
        steps.extend([f"open {place}"] if kinds[place] in OPENABLE_CLASS_LIST and place not in opened else [])
        opened.add(place)
        position = place

    def first(kind: str | None) -> str:
        return next(place for place, its_kind in kinds.items() if its_kind == kind)

    for name, _, place in [entry for entry in objects if entry[1] == thing][: 2 if task == "two" else 1]:
        go(place)
        steps.append(f"take {name} from {place}")
        if tool is not None:
            go(first(tool))
            steps.append(f"{task} {name} with {position}")
        if task == "light":
            lamp, _, place = next(entry for entry in objects if entry[1] == target)
            go(place)
            steps.append(f"use {lamp}")
        else:
            go(first(target))
            steps.append(f"move {name} to {position}")
    return steps


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _identifier(name: str) -> str:
    """Write Unity's name of an object as ALFWorld does in PDDL."""
    for sign, word in (("|", "_bar_"), ("+", "_plus_"), ("-", "_minus_"), (".", "_dot_")):
        name = name.replace(sign, word)
    return name


def _kind(name: str) -> str:
    first, last = name.split("|")[0], name.split("|")[-1]
    return last if last.isalpha() else first
