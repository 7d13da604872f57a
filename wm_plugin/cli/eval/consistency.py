"""`wm eval consistency`: do episodes in a world model hold in the real world."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wm_plugin.cli import state
from wm_plugin.cli.data.support import progress
from wm_plugin.cli.env.support import MOST_ROWS, NAME, find
from wm_plugin.cli.eval import model as flags
from wm_plugin.errors import UserError, nearest

if TYPE_CHECKING:
    from wm_plugin.client.answers import Model
    from wm_plugin.lab.evaluation.consistency import Episode
    from wm_plugin.worlds.agents.acting import Agent
    from wm_plugin.worlds.worlds import World

TASKS = 100
_WIDEST = 24  # characters of a group's name in the terminal
ANSWERS, ACTIONS, EPISODES, SETTINGS = "answers.jsonl", "actions.jsonl", "w2r.jsonl", "settings.json"
_DESCRIPTION = """\
Plays the same tasks in the real world (Real), in the world model (WM: at temperature 0, to its success mark or --max-turns), and
the actions of every episode in the world model in the real world (W2R). CR is W2R / Real: 1 says that what is won in the world
model is won outside, too. Also the first turn where the two worlds part, and everything by agent, split and horizon.

A scripted agent (random, expert) looks into its environment, so that in the world model it takes the actions of its real episode.
"""


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "consistency",
        help="do episodes in a world model hold in the real world (CR = W2R / Real)",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="WORLD", help=NAME)
    model = flags.add_arguments(parser, at_once="requests and episodes at once")
    model.add_argument(
        "--prompts", default="word2world", metavar="FAMILY", help="the prompts that the model was trained with"
    )
    state.add_arguments(model, "all, as wm data build --as word2world")
    tasks = parser.add_argument_group("tasks")
    tasks.add_argument(
        "--level", metavar="NAME", help="a level of the world (wm env list names them; default: the first)"
    )
    tasks.add_argument(
        "--split",
        action="append",
        metavar="NAME",
        help="seen, unseen, or another one of the world (repeatable; default: seen and unseen). A world without splits has its "
        "training rows as seen, and those held out as unseen",
    )
    tasks.add_argument(
        "--limit", type=int, metavar="N", help=f"tasks of each split (default: {TASKS}, or what the world has)"
    )
    tasks.add_argument(
        "--seed", type=int, default=0, help="seed of the tasks, the prompts' variants and the agents' sampling"
    )
    tasks.add_argument(
        "--max-turns",
        type=int,
        default=50,
        metavar="N",
        help="longest episode, in turns (default: 50, as in the paper)",
    )
    agents = parser.add_argument_group("agents")
    agents.add_argument(
        "--agent",
        action="append",
        required=True,
        metavar="A",
        help="random, expert, a folder with a model, or the URL of an OpenAI-compatible server (repeatable)",
    )
    agents.add_argument(
        "--agent-model",
        action="append",
        default=[],
        metavar="NAME",
        help="the name under which the server has it; one for each URL, in their order",
    )
    agents.add_argument("--agent-temperature", type=float, default=1.0, metavar="T", help="(default: 1)")
    agents.add_argument(
        "--agent-max-new-tokens",
        type=int,
        default=1024,
        metavar="N",
        help="longest turn of an agent, in tokens (default: 1024)",
    )
    agents.add_argument(
        "--host",
        choices=("trl", "verl"),
        default="trl",
        help="which host's error messages the agent reads after a failed call",
    )
    anchor = parser.add_argument_group("anchoring with real observations")
    anchor.add_argument(
        "--anchor-turns", type=int, default=0, metavar="K", help="the real world answers in the first K turns"
    )
    anchor.add_argument(
        "--anchor-tools", default="", metavar="A,B", help="the real world answers in turns that call one of these tools"
    )
    parser.add_argument("--out", metavar="DIR", help="keeps answers, rows, W2R episodes and measures, to go on from")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The `Evaluation` as JSON: `measures` by agent, split and horizon, `failures`, `notes`."""
    from wm_plugin.client.answers import Answers
    from wm_plugin.data.hidden import as_json
    from wm_plugin.data.predictions import same_settings
    from wm_plugin.data.prompts import load
    from wm_plugin.lab.evaluation import consistency, measures
    from wm_plugin.lab.evaluation.consistency_measures import evaluate
    from wm_plugin.lab.evaluation.consistency_rows import turn_rows, write_w2r
    from wm_plugin.worlds.agents.acting import ScriptedAgent

    flags.check(args)
    for flag, value, least in (
        ("--max-turns", args.max_turns, 1),
        ("--agent-max-new-tokens", args.agent_max_new_tokens, 1),
        ("--concurrency", args.concurrency, 1),
        ("--anchor-turns", args.anchor_turns, 0),
    ):
        if value < least:
            raise UserError(f"{flag} is {value}; write a number >= {least}")
    chosen, contexts = state.shown(args), state.contexts(args)
    hidden = True if chosen is None else chosen
    prompts = load(args.prompts)
    world = find(args.name)
    tasks = _tasks(world, args)
    anchor = consistency.Anchor(args.anchor_turns, tuple(filter(None, map(str.strip, args.anchor_tools.split(",")))))
    subject = args.server_model or str(args.model)
    counts = " and ".join(f"{len(rows)} {split}" for split, rows in tasks.items())
    data = f"{world.name}{f', {args.level}' if args.level else ''}, {counts} tasks of seed {args.seed}"
    folder = Path(args.out) if args.out else None
    agents = _agents(args, world, folder and folder / ACTIONS)
    answers = Answers(flags.make(args), folder and folder / ANSWERS)
    consistency.check(world, answers, prompts, anchor)
    settings = {
        "model": answers.settings,
        "agents": {agent.name: agent.settings for agent in agents},
        "prompts": args.prompts,
        "world_context": as_json(hidden),
        **({} if contexts is None else {"contexts": contexts.digest}),
        "max_turns": args.max_turns,
        "anchor_turns": anchor.turns,
        "anchor_tools": list(anchor.tools),
        "host": args.host,
        "seed": args.seed,
    }
    if folder:
        measures.open_folder(folder, "consistency", subject, data)
        same_settings(folder / SETTINGS, settings, "episodes")
    episodes: list[Episode] = []
    for agent in agents:
        played = consistency.consistency(
            world,
            tasks,
            agent,
            answers,
            prompts,
            anchor=anchor,
            max_turns=args.max_turns,
            world_context=hidden,
            contexts=contexts,
            seed=args.seed,
            host=args.host,
            at_once=args.concurrency,
        )
        episodes += progress(played, f"episodes of {agent.name}")
    notes = [
        f"{agent.name} looks into its environment: in the world model it takes the actions of its real episode."
        for agent in agents
        if isinstance(agent, ScriptedAgent)
    ]
    result = evaluate(episodes, subject=subject, data=data, settings=settings, notes=notes, seed=args.seed)
    if folder:
        measures.write_rows(turn_rows(episodes), folder)
        write_w2r(episodes, folder / EPISODES)
        measures.write_result(result, folder)
    ok = any(not one.failure for one in episodes)
    return {**result.as_dict(), "out": args.out, "asked": answers.asked, "ok": ok}


def _tasks(world: "World", args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """The rows of each split."""
    from wm_plugin.lab.evaluation.consistency import SPLITS

    names = world.splits or SPLITS
    tasks = {}
    for split in dict.fromkeys(args.split or SPLITS):
        if split not in names:
            raise UserError(f"--split: {world.name} has no split {split!r}{nearest(split, names)}")
        part = {"split": split} if world.splits else {"held_out": split == "unseen"}
        options: dict[str, Any] = {"seed": args.seed, "level": args.level, "max_turns": args.max_turns, **part}
        if args.limit is not None and args.limit > MOST_ROWS:
            raise UserError(f"--limit is {args.limit}; write a number up to {MOST_ROWS:,}")
        tasks[split] = world.some_rows(TASKS, **options) if args.limit is None else world.rows(args.limit, **options)
    return tasks


def _agents(args: argparse.Namespace, world: "World", path: Path | None) -> "list[Agent]":
    """The agents of `--agent`.

    Raises:
        UserError: one is no agent, two have the same name, or a URL has no model.
    """
    from wm_plugin.cli.data.predictor import quiet
    from wm_plugin.client.predict import LocalPredictor
    from wm_plugin.client.server import Server
    from wm_plugin.worlds.agents.acting import LocalActor, ModelAgent, ScriptedAgent, ServerActor
    from wm_plugin.worlds.agents.players import SCRIPTED, ScriptedPlayer

    urls = [agent for agent in args.agent if agent.startswith(("http://", "https://"))]
    if len(urls) != len(args.agent_model):
        raise UserError(
            f"--agent has {len(urls)} URLs and --agent-model {len(args.agent_model)} names; name the model of each"
        )
    names = iter(args.agent_model)
    agents: list[Agent] = []
    common = {"seed": args.seed, "max_turns": args.max_turns, "host": args.host}
    sampling = {"temperature": args.agent_temperature}
    for agent in args.agent:
        if agent in SCRIPTED:
            agents.append(ScriptedAgent(agent, ScriptedPlayer(world, agent, **common)))
            continue
        if agent in urls:
            name = next(names)
            server = Server(
                agent,
                name,
                concurrency=args.concurrency,
                timeout=600.0,
                max_tokens=args.agent_max_new_tokens,
                **sampling,
            )
            actor: Model = ServerActor(server)
        elif "/" not in agent and not os.path.exists(agent):
            raise UserError(f"--agent {agent!r} is no folder with a model, and no URL{nearest(agent, SCRIPTED)}")
        else:
            quiet()
            predictor = LocalPredictor(
                agent, max_new_tokens=args.agent_max_new_tokens, batch_size=args.batch_size, **sampling
            )
            name, actor = agent, LocalActor(predictor)
        agents.append(ModelAgent(name, actor, world, path, at_once=args.concurrency, **common))
    used = [agent.name for agent in agents]
    for name in used:
        if used.count(name) > 1:
            raise UserError(f"--agent: two agents have the name {name!r}; measure them in two runs")
    return agents


def show(result: dict[str, Any]) -> None:
    """Print the result of `run` as a table: a row for each group."""
    from rich.console import Console
    from rich.table import Column, Table

    from wm_plugin.lab.evaluation.consistency_measures import CUT_TAKEN

    console = Console(highlight=False, markup=False)
    groups = list(_groups(result["measures"]))
    names = Column("", no_wrap=True, overflow="ellipsis", max_width=_WIDEST)
    columns = [Column(name, no_wrap=True) for name in ("Real", "WM", "W2R", "CR", "95%", "together", "parts at")]
    table = Table(names, *columns, title=f"{result['subject']} as {result['data']}", box=None, pad_edge=False)
    for group, of_group in groups:
        cr = of_group["cr"]
        limits = "" if cr["low"] is None else f"{cr['low']:.2f}–{cr['high']:.2f}"
        parting = of_group.get("parting_turn", {"value": None})["value"]
        table.add_row(
            group,
            *(_share(of_group[arm]["value"]) for arm in ("real", "wm", "w2r")),
            _ratio(cr["value"]),
            limits,
            _share(of_group["together"]["value"]),
            "" if parting is None else f"{parting:g}",
        )
    console.print(table)
    whole = groups[0][1]
    mean = whole["cr_mean_of_ratios"]
    note = f" ({mean['note']})" if mean["note"] else ""
    console.print(
        f"CR as the ratio of means {_ratio(whole['cr']['value'])}, as the mean of the agents' ratios "
        f"{_ratio(mean['value'])}{note}. –: undefined, since Real is 0"
    )
    console.print(f"{whole['cr']['count']} episodes without a failure; parts at: the median turn")
    if result["failures"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in result["failures"].items())
        console.print(
            f"{whole['cr']['failed']} episodes failed ({reasons}); counted as not won: Real "
            f"{_share(whole['real']['with_failed'])}, WM {_share(whole['wm']['with_failed'])}, "
            f"W2R {_share(whole['w2r']['with_failed'])}, CR {_ratio(whole['cr']['with_failed'])}"
        )
    if f"cr{CUT_TAKEN}" in whole:
        taken = {name: whole[name + CUT_TAKEN] for name in ("real", "wm", "w2r", "cr")}
        console.print(
            f"A cut answer taken as it is, as in Word2World's own script: Real {_share(taken['real']['value'])}, WM "
            f"{_share(taken['wm']['value'])}, W2R {_share(taken['w2r']['value'])}, CR {_ratio(taken['cr']['value'])} over "
            f"{taken['cr']['count']} episodes"
        )
    for note in result["notes"]:
        console.print(note)


def _groups(rows: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """The name of each group, and its measures by name."""
    groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["by"], row["group"]), {})[row["name"]] = row
    for (by, group), of_group in groups.items():
        yield f"within {group} turns" if by == "horizon" else group or "all", of_group


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
