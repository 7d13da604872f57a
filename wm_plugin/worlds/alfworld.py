"""ALFWorld (Shridhar et al. 2021): household tasks in text, on PDDL.

The games come from the user's own data, or are built here from the package's PDDL domain, its grammar and the receptacles and
kinds of objects of ALFRED's 120 rooms. Fast Downward, C++ code with global state, runs the domain, so a game has its own process.
The expert follows the walkthrough of the game, or a plan of Fast Downward if the game has none.
"""

import functools
import os
import random
import tempfile
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.untrusted import loads
from wm_plugin.worlds.kit.commands import CommandEnvironment, expert, wanderer
from wm_plugin.worlds.kit.rows import (
    SPLITS,
    check_count,
    check_level,
    draws,
    prompt_and_budget,
    row_number,
    split_of,
    turn_limit,
)

MAX_TURNS = 50
# The kinds of tasks of each level; "data" has the user's own games.
LEVELS: dict[str, tuple[str, ...]] = {
    "standard": ("put", "light"),
    "hard": ("clean", "heat", "cool", "two"),
    "data": (),
}
SCENES = [floor + room for floor in (0, 200, 300, 400) for room in range(1, 31)]
ROOMS = {"put": SCENES, "two": SCENES, "light": SCENES[30:90], "clean": SCENES[:30] + SCENES[90:]}
ROOMS |= {"heat": SCENES[:30], "cool": SCENES[:30]}  # kitchens
TOOLS = {"clean": ("Cleanable", "SinkBasin"), "heat": ("Heatable", "Microwave"), "cool": ("Coolable", "Fridge")}
LAMPS = ("DeskLamp", "FloorLamp")
STANDS = ("Desk", "Dresser", "SideTable", "CoffeeTable", "DiningTable", "Shelf")  # places for a lamp
# ALFWorld's own splits: the rooms of valid_seen are those of train games, the rooms of valid_unseen are in none.
DATA = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}
NOTHING = "Nothing happens."  # in answer to what is no command now
UNCHANGED = ("checked", "examined")  # facts that mere looking adds

INSTRUCTION = """You are in a room of a household and have a task to do there, with {turns}. You carry one
thing at a time.
Call act with one command: look, inventory, go to <place>, open <place>, close <place>, take <thing> from <place>,
move <thing> to <place>, examine <thing or place>, use <thing>, heat | clean | cool <thing> with <place>,
slice <thing> with <thing>. Names have numbers, e.g. go to countertop 1, take mug 2 from shelf 1, clean mug 2 with sinkbasin 1.
Things inside a closed place are seen after you open it.

"""

# RWML's agents think before each action; how they are asked to is ours.
THINK = "\n\nBefore each call, think about the task between <think> and </think>."

__all__ = ["INSTRUCTION", "LEVELS", "SPLITS", "THINK", "AlfworldEnvironment", "dataset_rows", "expert", "wanderer"]


class AlfworldEnvironment(CommandEnvironment):
    """One episode: at most `max_turns` commands; reward 1 for the task.

    A command is effective when it changes the room, and invalid when nothing happens.
    """

    refusals = (*CommandEnvironment.refusals, NOTHING)
    _engine = "wm_plugin.worlds.alfworld:Engine"
    _timeout = 60.0

    def reset(
        self, level: str, seed: int = 0, game: str = "", max_turns: int | None = None, think: Any = None, **_: Any
    ) -> str:
        """Start the built game of a level (see `LEVELS`) and a seed, or `game`, a file's path in ALFWORLD_DATA.

        `think`: if it is true, the first observation ends in `THINK`.
        """
        first = self._start(turn_limit(max_turns, MAX_TURNS), level, seed, game)
        return f"{first}{THINK}" if think in (True, "true") else first

    def act(self, command: str) -> str:
        """Do something in the room.

        Args:
            command: One command, e.g. "take mug 1 from shelf 2".

        Returns:
            What happens and what you see.
        """
        return self._act(command)


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = "standard",
    split: str | None = None,
    max_turns: int = MAX_TURNS,
    think: bool = False,
) -> list[dict[str, Any]]:
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
    prompt, more = prompt_and_budget(INSTRUCTION, max_turns, MAX_TURNS, "command")
    columns = more | ({"think": True} if think else {})
    if level == "data":
        games = _own_games(count, rng, DATA[part])
        return [{"prompt": prompt, "level": level, "game": game, **columns} for game in games]
    seeds: dict[int, None] = {}
    while len(seeds) < count:
        digit = rng.randint(1, 8) if part == "train" else 9 * (part == "seen")
        seeds[rng.randrange(10**7) * 10 + digit] = None
    return [{"prompt": prompt, "level": level, "seed": number, **columns} for number in seeds]


def _data_folder() -> Path:
    folder = os.environ.get("ALFWORLD_DATA")
    if not folder or not Path(folder).is_dir():
        needs = "needs the folder of its games in ALFWORLD_DATA"
        raise UserError(f"ALFWorld's level 'data' {needs}; level 'standard' builds games itself")
    return Path(folder)


def _own_games(count: int, rng: random.Random, part: str) -> list[str]:
    folder = _data_folder()
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.glob(f"**/{part}/**/game.tw-pddl"))
    rng.shuffle(paths)
    games: list[str] = []
    for game in paths:
        if len(games) < count and _game(folder / game).get("solvable") is not False:
            games.append(game)
    check_count(count, len(games), f"ALFWORLD_DATA has {{}} solvable games of {part}")
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

    def start(self, level: str, seed: int, game: str) -> dict[str, Any]:
        data = _own_game(game) if game or level == "data" else build(level, seed)
        self._env.load(data)
        demangler = self._demangler(game_infos=self._env._entity_infos)
        for info in self._env._entity_infos.values():
            info.name = demangler.demangle_alfred_name(info.id)
        names = {info.id: info.name for info in self._env._entity_infos.values()}
        steps = data.get("walkthrough") or []
        self._walkthrough = [" ".join(names.get(word.lower(), word) for word in step.split()) for step in steps]
        state = self._env.reset()
        self._facts = _lasting(state)
        return {"text": _tidy(state.feedback)}

    def step(self, command: str) -> dict[str, Any]:
        if command.lower() not in self._env.state["_valid_commands"]:  # without listing all actions again
            return {"text": NOTHING, "score": 0, **dict.fromkeys(("won", "over", "valid", "changed"), False)}
        state, _, _ = self._env.step(command.lower())
        before, self._facts = self._facts, _lasting(state)
        won = bool(state["won"])
        return {
            "text": _tidy(state.feedback),
            "score": float(won),
            "won": won,
            "over": won,
            "valid": True,
            "changed": self._facts != before,
        }

    def context(self) -> str:
        """Where every thing lies, and which places are closed."""
        names = {info.id: info.name for info in self._env._entity_infos.values()}
        return places(
            [(fact.name.lower(), [names.get(one.name, one.name) for one in fact.arguments]) for fact in self._facts]
        )

    def plan(self) -> list[str]:
        return self._walkthrough or self.planned()

    def planned(self) -> list[str]:
        """A plan by Fast Downward; it takes from a second to minutes."""
        return list(self._env._pddl_state.replan(self._env._entity_infos))

    def commands(self) -> list[str]:
        return [command for command in self._env.state["admissible_commands"] if command != "help"]


def places(facts: list[tuple[str, list[str]]]) -> str:
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
    text = text.replace("-= Welcome to TextWorld, ALFRED! =-", "")
    return "\n".join(line.strip() for line in text.split("\n") if line.strip())


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
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    rng = random.Random(seed)
    while True:  # not every room can have every task
        task = rng.choice(LEVELS[level])
        scene = rng.choice([scene for scene in ROOMS[task] if (scene % 10 == 0) == (seed % 10 == 0)])
        parts = _problem(task, scene, rng)
        if parts is not None:
            goal, problem, steps = parts
            return {
                "walkthrough": steps,
                "pddl_domain": _read(ALFRED_PDDL_PATH),
                "grammar": _read(ALFRED_TWL2_PATH).replace("UNKNOWN GOAL", goal),
                "pddl_problem": problem,
            }


@functools.lru_cache
def _read(path: str) -> str:
    return Path(path).read_text()


def _problem(task: str, scene: int, rng: random.Random) -> tuple[str, str, list[str]] | None:
    """Return the goal in words, a PDDL problem and a solution with identifiers as names; None if the room has no such task."""
    import alfworld.gen.constants as alfred

    holds, can = alfred.VAL_RECEPTACLE_OBJECTS, alfred.VAL_ACTION_OBJECTS
    plan = Path(alfred.__file__).parent / "layouts" / f"FloorPlan{scene}"
    places = [(_identifier(name), kind) for name in sorted(loads(_read(f"{plan}-openable.json")))
              if (kind := _kind(name)) in holds]  # fmt: skip
    kinds = sorted({kind for _, kind in places})
    things = [
        kind
        for kind in sorted(loads(_read(f"{plan}-objects.json")))
        if kind in LAMPS
        or (kind in alfred.OBJECTS and kind not in alfred.RECEPTACLES and any(kind in holds[place] for place in kinds))
    ]
    if not any(kind in STANDS for kind in kinds):
        things = [kind for kind in things if kind not in LAMPS]
    lamps = [kind for kind in things if kind in LAMPS]
    # Pairs of an object and the kind of place that it goes to; it starts at a place of another kind.
    property_, tool = TOOLS.get(task, (None, None))
    pairs = [
        (thing, place)
        for thing in things
        for place in kinds
        if thing in holds[place]
        and thing not in LAMPS
        and place != tool
        and (property_ is None or thing in can[property_])
        and any(thing in holds[other] for other in kinds if other != place)
    ]
    if not pairs or (tool and tool not in kinds) or (task == "light" and not lamps):
        return None
    thing, target = rng.choice(pairs)

    objects = []  # identifier, kind, place
    for kind in things:
        is_task_object = kind == thing and task != "light"
        spots = [place for place, of in places if kind in holds[of] and not (is_task_object and of == target)]
        if kind in LAMPS:
            spots = [place for place, of in places if of in STANDS]
        copies = 1 if kind in LAMPS else rng.randint(2, 3) if kind == thing else rng.randint(1, 2)
        objects += [(f"{kind}_bar_{number}", kind, rng.choice(spots)) for number in range(copies)]
    where = {place: f"loc_{number}" for number, (place, _) in enumerate(places)}
    facts = ["(atLocation agent1 loc_init)"]
    for place, kind in places:
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
    words, goal = _goal(task, thing, target, lamps)
    destination = lamps[0] if task == "light" else target
    steps = _solve(task, thing, objects, places, destination, tool, alfred.OPENABLE_CLASS_LIST)
    lines = ["(define (problem built)", "(:domain alfred)", "(:objects", *declarations, ")", "(:init", *facts, ")"]
    return words, "\n".join([*lines, f"(:goal {goal})", ")"]), steps


def _goal(task: str, thing: str, target: str, lamps: list[str]) -> tuple[str, str]:
    """Return the goal in words and in PDDL."""
    a, place = _a(thing.lower()), target.lower()
    of_kind = f"(objectType ?o {thing}Type)"
    in_place = f"(receptacleType ?r {target}Type) (inReceptacle ?o ?r)"
    if task == "light":
        lamp_is_on = "(isToggled ?t) (inReceptacle ?t ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)"
        light = f"(exists (?t - object ?r - receptacle ?a - agent ?l - location) (and (toggleable ?t) {lamp_is_on}))"
        holding = f"(exists (?o - object ?a - agent) (and {of_kind} (holds ?a ?o)))"
        return f"look at {a} under the {lamps[0].lower()}", f"(and {light} {holding})"
    if task == "two":
        second = f"(objectType ?p {thing}Type) (inReceptacle ?p ?r) (not (= ?o ?p))"
        goal = f"(exists (?r - receptacle ?o - object ?p - object) (and {of_kind} {in_place} {second}))"
        return f"put two of the kind {thing.lower()} in the same {place}", goal
    treatment = {"clean": "clean", "heat": "hot", "cool": "cool"}.get(task, "")
    state = f"(is{treatment.title()} ?o)" if treatment else ""
    a = f"a {treatment} {thing.lower()}" if treatment else a
    return f"put {a} in {_a(place)}", f"(exists (?r - receptacle ?o - object) (and {of_kind} {in_place} {state}))"


def _solve(
    task: str,
    thing: str,
    objects: list[tuple[str, str, str]],
    places: list[tuple[str, str]],
    target: str,
    tool: str | None,
    openable: list[str],
) -> list[str]:
    """Return commands that solve the task; `target` is a kind of place, or of lamp."""
    kinds, position, open_places = dict(places), "", set()
    steps: list[str] = []

    def go(place: str) -> None:
        nonlocal position
        steps.extend([f"go to {place}"] if place != position else [])
        steps.extend([f"open {place}"] if kinds[place] in openable and place not in open_places else [])
        open_places.add(place)
        position = place

    goal = next((place for place, kind in places if kind == target), "")
    for name, _, place in [entry for entry in objects if entry[1] == thing][: 2 if task == "two" else 1]:
        go(place)
        steps.append(f"take {name} from {place}")
        if tool is not None:
            go(next(place for place, kind in places if kind == tool))
            steps.append(f"{task} {name} with {position}")
        if task == "light":
            lamp, _, place = next(entry for entry in objects if entry[1] == target)
            go(place)
            steps.append(f"use {lamp}")
        else:
            go(goal)
            steps.append(f"move {name} to {goal}")
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
