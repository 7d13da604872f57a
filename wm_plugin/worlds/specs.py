"""The registered environments: one `EnvironmentSpec` each. Reading this table imports no environment.

To register an environment, add one entry to `SPECS`. A user's own class needs none: `worlds.load` takes its dotted path.
"""

import importlib.util
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from wm_plugin.errors import UserError, install


@dataclass(frozen=True)
class Needs:
    """What an environment needs beside the core.

    Args:
        extra: the extra of this package that installs `modules`; None if no extra does.
        modules: Python modules that must be importable.
        programs: executables that must be on the PATH.
    """

    extra: str | None = None
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """What is not installed, each with how to get it. Empty if the environment can run here."""
        how = install(self.extra) if self.extra else "no extra brings it: docs/environments.md says how to get it"
        modules = [f"{name} ({how})" for name in self.modules if not _exists(name)]
        return modules + [f"the program {name}" for name in self.programs if shutil.which(name) is None]


@dataclass(frozen=True)
class EnvironmentSpec:
    """The description of an environment, without importing it. Objects are named by dotted paths (`package.module:name`).

    Args:
        name: the registered name, or the dotted path of a user's own class.
        path: of the class.
        summary: one line for `wm env list`.
        levels: names of its levels, the default first.
        tools: names of its tools, sorted.
        irreversible: the tools whose effect nothing takes back, as the class's attribute `irreversible` says.
        needs: what must be installed.
        splits: the names that `dataset_rows(split=)` takes; none where the world has training and held-out rows and no more.
        dataset_rows: path of `dataset_rows(count, seed, held_out[, level][, split])`, which makes rows of a dataset; None: rows
            are seeds.
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


SEEN_AND_UNSEEN = ("train", "seen", "unseen")


def _ours(
    name: str,
    class_name: str,
    summary: str,
    *,
    levels: tuple[str, ...],
    tools: tuple[str, ...],
    irreversible: tuple[str, ...] = (),
    needs: Needs = Needs(),
    splits: tuple[str, ...] = (),
) -> EnvironmentSpec:
    """The spec of `wm_plugin.worlds.<name>`, which has `dataset_rows`, `expert` and `wanderer` beside the class."""
    module = f"wm_plugin.worlds.{name}"
    return EnvironmentSpec(
        name,
        f"{module}:{class_name}",
        summary,
        levels,
        tools,
        irreversible,
        needs,
        splits,
        dataset_rows=f"{module}:dataset_rows",
        expert=f"{module}:expert",
        wanderer=f"{module}:wanderer",
    )


def by_name(specs: Iterable[EnvironmentSpec]) -> dict[str, EnvironmentSpec]:
    """The specs by their names.

    Raises:
        UserError: two have the same name.
    """
    table: dict[str, EnvironmentSpec] = {}
    for spec in specs:
        if spec.name in table:
            raise UserError(f"environment {spec.name!r} is registered twice: {table[spec.name].path} and {spec.path}")
        table[spec.name] = spec
    return table


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


SPECS = by_name(
    [
        _ours(
            "alfworld",
            "AlfworldEnvironment",
            "ALFWorld (Shridhar et al. 2021): household tasks in text, on PDDL",
            levels=("standard", "hard", "data"),
            tools=("act",),
            needs=Needs("alfworld", ("alfworld", "fast_downward")),
            splits=SEEN_AND_UNSEEN,
        ),
        _ours(
            "deepdive",
            "DeepdiveEnvironment",
            "deepdive (ECHO): questions that take several pages of a local web, to be searched and read",
            levels=("standard", "hard-1", "hard-2"),
            tools=("finish", "open_lines", "scan_page", "search_web"),
            irreversible=("finish",),
            needs=Needs("deepdive", ("bm25s", "re2")),
            splits=SEEN_AND_UNSEEN,
        ),
        _ours(
            "dialogue",
            "DialogueEnvironment",
            "A customer desk (after tau-bench and its successor): a policy, tools on a real SQLite, and a customer to talk to",
            levels=("standard", "hard"),
            tools=(
                "cancel_order",
                "change_address",
                "exchange_item",
                "find_customer",
                "find_products",
                "finish",
                "get_order",
                "message_user",
                "refund_item",
            ),
            irreversible=("cancel_order", "change_address", "exchange_item", "refund_item", "finish"),
        ),
        _ours(
            "docs",
            "DocsEnvironment",
            "Questions about Python's standard library, answered by searching and reading its documentation",
            levels=("standard", "hard-1", "hard-2"),
            tools=("finish", "open_lines", "scan_page", "search_docs"),
            irreversible=("finish",),
            needs=Needs("docs", ("bm25s",)),
            splits=SEEN_AND_UNSEEN,
        ),
        _ours(
            "fictional",
            "FictionalEnvironment",
            "Questions about invented worlds (Qwen-AgentWorld): search, open pages, and answer with a table; no model knows them",
            levels=("standard", "hard-1", "hard-2"),
            tools=("answer", "open_page", "search"),
            irreversible=("answer",),
            needs=Needs("search", ("bm25s",)),
        ),
        _ours(
            "forth",
            "ForthEnvironment",
            "forth-lang: define a word of Forth that passes hidden tests (ECHO: predictable but complex tools)",
            levels=("standard", "0", "1", "2", "3", "4", "5", "6"),
            tools=("lookup_doc", "run_code", "submit_code"),
            needs=Needs("forth", ("bm25s",), ("gforth", "bwrap")),
        ),
        _ours(
            "grid",
            "GridEnvironment",
            "A 4x4 grid with walls (#): walk from the agent (A) to the goal (G)",
            levels=("standard",),
            tools=("move",),
        ),
        _ours(
            "maze",
            "MazeEnvironment",
            "A maze without loops (Prim's algorithm), 11x11 cells as a standard task and 15x15 as a hard one",
            levels=("standard", "hard-1"),
            tools=("move",),
            needs=Needs("maze", ("mazelib",)),
        ),
        _ours(
            "scienceworld",
            "ScienceworldEnvironment",
            "ScienceWorld (Wang et al. 2022): elementary science in a simulated house, in text",
            levels=("standard", "hard"),
            tools=("act",),
            needs=Needs("scienceworld", ("scienceworld",), ("java",)),
            splits=SEEN_AND_UNSEEN,
        ),
        _ours(
            "shop",
            "ShopEnvironment",
            "A web shop in text, with WebShop's protocol (Yao et al. 2022): search, click through pages, choose options, buy",
            levels=("standard", "hard"),
            tools=("buy", "click", "search"),
            irreversible=("buy",),
            needs=Needs("shop", ("bm25s",)),
            splits=SEEN_AND_UNSEEN,
        ),
        _ours(
            "sokoban",
            "SokobanEnvironment",
            "Sokoban: push every box onto a goal",
            levels=("standard", "hard-1", "hard-2"),
            tools=("act",),
            needs=Needs("sokoban", ("reasoning_gym",)),
        ),
        _ours(
            "sql",
            "SqlEnvironment",
            "Questions about databases and changes to them, by running SQL on a real in-memory SQLite",
            levels=("standard", "hard-1", "hard-2"),
            tools=("describe_table", "list_tables", "run_query", "submit_answer"),
            irreversible=("submit_answer",),
        ),
        _ours(
            "tau2",
            "Tau2Environment",
            "tau2-bench itself (Barres et al. 2025), where the user has installed it from its repository",
            levels=("retail", "airline", "telecom", "mock"),
            tools=("call_tool", "finish", "message_user"),
            irreversible=("call_tool", "finish"),
            needs=Needs(None, ("tau2.gym.gym_agent",)),
        ),
        _ours(
            "taxi",
            "TaxiEnvironment",
            "Gymnasium's Taxi-v4: fetch a passenger and bring them to their destination, on a 5x5 map with walls",
            levels=("standard",),
            tools=("act",),
            needs=Needs("taxi", ("gymnasium",)),
        ),
        _ours(
            "textworld",
            "TextworldEnvironment",
            "TextWorld (Côté et al. 2018): text adventures made from a seed, played on a real Z-machine interpreter",
            levels=("standard", "hard-1", "hard-2", "cooking", "cooking-hard"),
            tools=("act",),
            needs=Needs("textworld", ("textworld",)),
        ),
        _ours(
            "wordle",
            "WordleEnvironment",
            "Wordle: find a hidden word of five letters in six guesses",
            levels=("standard",),
            tools=("act",),
            irreversible=("act",),
        ),
    ]
)
