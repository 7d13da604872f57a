"""The registered environments: one `EnvironmentSpec` each. Reading this table imports no environment.

To register an environment, add one entry to `ALL`. A user's own class needs none: `worlds.load` takes its dotted path.
"""

import importlib.util
import shutil
from dataclasses import dataclass

from wm_plugin.errors import install


@dataclass(frozen=True)
class Needs:
    """What an environment needs beside the core.

    Attributes:
        extra: the extra of this package that installs `modules`; None if no extra does.
        modules: Python modules that must be importable.
        programs: executables that must be on the PATH.
    """

    extra: str | None = None
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Return what is not installed, each with how to get it."""
        how = install(self.extra) if self.extra else "no extra brings it: docs/worlds.md says how to get it"
        modules = [f"{name} ({how})" for name in self.modules if not _exists(name)]
        return modules + [f"the program {name}" for name in self.programs if shutil.which(name) is None]


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@dataclass(frozen=True)
class EnvironmentSpec:
    """The description of an environment, without importing it. Objects are named by dotted paths (`package.module:name`).

    Attributes:
        name: the registered name, or the dotted path of a user's own class.
        path: of the class.
        summary: one line for `wm env list`.
        levels: names of its levels, the default first.
        tools: names of its tools, sorted.
        irreversible: tools whose effect nothing takes back, as the class's attribute `irreversible` says.
        needs: what must be installed.
        splits: what `dataset_rows(split=)` takes; empty where there are only training and held-out rows.
        dataset_rows: path of `dataset_rows(count, seed, held_out[, level][, split])`; None: rows are seeds.
        expert: path of `expert()`, which makes a policy that solves episodes; None: there is none.
        wanderer: path of `wanderer(rng)`, which makes a random policy; None: one that fills in arguments by their types.
    """

    name: str
    path: str
    summary: str
    levels: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    irreversible: tuple[str, ...] = ()
    needs: Needs = Needs()
    splits: tuple[str, ...] = ()
    dataset_rows: str | None = None
    expert: str | None = None
    wanderer: str | None = None


def _ours(
    name: str,
    summary: str,
    tools: tuple[str, ...],
    *,
    levels: tuple[str, ...] = ("standard",),
    irreversible: tuple[str, ...] = (),
    needs: Needs = Needs(),
    splits: tuple[str, ...] = (),
) -> EnvironmentSpec:
    """Return the spec of `wm_plugin.worlds.<name>`, which has `dataset_rows`, `expert` and `wanderer` beside the class."""
    module = f"wm_plugin.worlds.{name}"
    beside = {function: f"{module}:{function}" for function in ("dataset_rows", "expert", "wanderer")}
    path = f"{module}:{name.title()}Environment"
    return EnvironmentSpec(name, path, summary, levels, tools, irreversible, needs, splits, **beside)


_HARD = ("standard", "hard-1", "hard-2")
_SEEN = ("train", "seen", "unseen")
_DESK = ("cancel_order", "change_address", "exchange_item", "refund_item", "finish")

ALL = (
    _ours(
        "alfworld",
        "ALFWorld (Shridhar et al. 2021): household tasks in text, on PDDL",
        ("act",),
        levels=("standard", "hard", "data"),
        needs=Needs("alfworld", ("alfworld", "fast_downward")),
        splits=_SEEN,
    ),
    _ours(
        "deepdive",
        "deepdive (ECHO): questions that take several pages of a local web, to be searched and read",
        ("finish", "open_lines", "scan_page", "search_web"),
        levels=_HARD,
        irreversible=("finish",),
        needs=Needs("deepdive", ("bm25s", "re2")),
        splits=_SEEN,
    ),
    _ours(
        "dialogue",
        "A customer desk (after tau-bench and its successor): a policy, tools on a real SQLite, and a customer to talk to",
        tuple(sorted((*_DESK, "find_customer", "find_products", "get_order", "message_user"))),
        levels=("standard", "hard"),
        irreversible=_DESK,
    ),
    _ours(
        "docs",
        "Questions about Python's standard library, answered by searching and reading its documentation",
        ("finish", "open_lines", "scan_page", "search_docs"),
        levels=_HARD,
        irreversible=("finish",),
        needs=Needs("docs", ("bm25s",)),
        splits=_SEEN,
    ),
    _ours(
        "fictional",
        "Questions about invented worlds (Qwen-AgentWorld): search, open pages, and answer with a table; no model knows them",
        ("answer", "open_page", "search"),
        levels=_HARD,
        irreversible=("answer",),
        needs=Needs("search", ("bm25s",)),
    ),
    _ours(
        "forth",
        "forth-lang: define a word of Forth that passes hidden tests (ECHO: predictable but complex tools)",
        ("lookup_doc", "run_code", "submit_code"),
        levels=("standard", "0", "1", "2", "3", "4", "5", "6"),
        needs=Needs("forth", ("bm25s",), ("gforth", "bwrap")),
    ),
    _ours("grid", "A 4x4 grid with walls (#): walk from the agent (A) to the goal (G)", ("move",)),
    _ours(
        "maze",
        "A maze without loops (Prim's algorithm), 11x11 cells as a standard task and 15x15 as a hard one",
        ("move",),
        levels=("standard", "hard-1"),
        needs=Needs("maze", ("mazelib",)),
    ),
    _ours(
        "scienceworld",
        "ScienceWorld (Wang et al. 2022): elementary science in a simulated house, in text",
        ("act",),
        levels=("standard", "hard"),
        needs=Needs("scienceworld", ("scienceworld",), ("java",)),
        splits=_SEEN,
    ),
    _ours(
        "shop",
        "A web shop in text, with WebShop's protocol (Yao et al. 2022): search, click through pages, choose options, buy",
        ("buy", "click", "search"),
        levels=("standard", "hard"),
        irreversible=("buy",),
        needs=Needs("shop", ("bm25s",)),
        splits=_SEEN,
    ),
    _ours(
        "sokoban",
        "Sokoban: push every box onto a goal",
        ("act",),
        levels=_HARD,
        needs=Needs("sokoban", ("reasoning_gym",)),
    ),
    _ours(
        "sql",
        "Questions about databases and changes to them, by running SQL on a real in-memory SQLite",
        ("describe_table", "list_tables", "run_query", "submit_answer"),
        levels=_HARD,
        irreversible=("submit_answer",),
    ),
    _ours(
        "tau2",
        "tau2-bench itself (Barres et al. 2025), where the user has installed it from its repository",
        ("call_tool", "finish", "message_user"),
        levels=("retail", "airline", "telecom", "mock"),
        irreversible=("call_tool", "finish"),
        needs=Needs(None, ("tau2.gym.gym_agent",)),
    ),
    _ours(
        "taxi",
        "Gymnasium's Taxi-v4: fetch a passenger and bring them to their destination, on a 5x5 map with walls",
        ("act",),
        needs=Needs("taxi", ("gymnasium",)),
    ),
    _ours(
        "textworld",
        "TextWorld (Côté et al. 2018): text adventures made from a seed, played on a real Z-machine interpreter",
        ("act",),
        levels=(*_HARD, "cooking", "cooking-hard"),
        needs=Needs("textworld", ("textworld",)),
    ),
    _ours("wordle", "Wordle: find a hidden word of five letters in six guesses", ("act",), irreversible=("act",)),
)
SPECS = {spec.name: spec for spec in ALL}
