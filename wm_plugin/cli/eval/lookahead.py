"""`wm eval lookahead`: what a policy gains by looking ahead, with itself, another model or the real world."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wm_plugin.cli import state
from wm_plugin.cli.data.support import progress
from wm_plugin.cli.env.support import MOST_ROWS, NAME, add_row_arguments, find, rows
from wm_plugin.cli.eval import model as flags
from wm_plugin.cli.eval.lines import print_rest
from wm_plugin.errors import UserError, nearest

if TYPE_CHECKING:
    from wm_plugin.client.answers import Answers
    from wm_plugin.lab.agents.branches import Imaginer
    from wm_plugin.lab.agents.lookahead import LookAhead
    from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
    from wm_plugin.lab.evaluation.lookahead import Played
    from wm_plugin.worlds.worlds import World
    from wm_plugin.worlds.wrappers.simulated_episode import Simulation

TASKS = 100
_UNCOUNTED = "the world model's tokens are not counted: equal compute is of the policy's own tokens"
SETTINGS, ANSWERS, EPISODES = "settings.json", "answers.jsonl", "episodes.jsonl"
_FLAGS = {
    "look_ahead.value": "--value",
    "marks.reward": "--reward-text",
    "marks.won": "--won-text",
    "marks.over": "--over-text",
}
_DESCRIPTION = """\
Plays the same tasks in several arms by one policy: as it acts (plain), by the majority of n samples of an action, by the
likeliest of n (best-of-n), by a coin's word on each sample (coin), and looking ahead: it imagines episodes and takes the first
action that is worth most. The policy is its own world model (it predicts the results of its calls, as the objective trained it
to); or another model is; or, with --oracle in an arm of its own, the real environment, which bounds what looking ahead can
bring. majority and best-of-n get as many samples as cost the tokens that look-ahead generates. Also: how often what was
imagined came.
"""
_EPILOG = """\
examples:
  wm eval lookahead grid --model out/policy --held-out --observation-tokens 20 --depth 6 --oracle --out out/ahead
  wm eval lookahead my.worlds:Shop --server http://localhost:8000/v1 --server-model NAME --tokenizer Qwen/Qwen3-8B \\
      --won-text "Order placed" --over-text "Bye." --out out/ahead
  wm eval lookahead sokoban --model out/policy --world-model out/world_model --prompts word2world
"""


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "lookahead",
        help="does a policy gain by looking ahead with itself as its world model, at equal compute",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="WORLD", help=NAME)
    policy = flags.add_arguments(parser, "the policy", max_new_tokens=512, at_once="requests and episodes at once")
    policy.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        help="temperature of the policy's actions, imagined ones included (default: 1)",
    )
    policy.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="with --server: the policy's tokenizer, to ask the policy itself for results at /v1/completions",
    )
    policy.add_argument(
        "--chat-template",
        metavar="FILE",
        help="the chat template of the policy's training, if it was not its tokenizer's own",
    )
    tasks = parser.add_argument_group("tasks")
    add_row_arguments(tasks)
    tasks.add_argument("--limit", type=int, default=TASKS, metavar="N", help=f"how many tasks (default: {TASKS})")
    tasks.add_argument(
        "--max-turns",
        type=int,
        default=64,
        metavar="N",
        help="longest episode, in turns (default: 64, or the world's own limit)",
    )
    tasks.add_argument(
        "--host",
        choices=("trl", "verl"),
        default="trl",
        help="which host's error messages the policy reads after a failed call",
    )
    ahead = parser.add_argument_group("looking ahead")
    ahead.add_argument(
        "--arms",
        metavar="A,B",
        help="some of plain, majority, best-of-n, coin, look-ahead (default: all; with --server without best-of-n, which needs "
        "logprobs)",
    )
    ahead.add_argument(
        "--oracle", action="store_true", help="add an arm in which the real environment gives the results"
    )
    ahead.add_argument(
        "--continuations", type=int, default=16, metavar="K", help="imagined episodes for each turn (default: 16)"
    )
    ahead.add_argument(
        "--depth", type=int, default=8, metavar="D", help="longest imagined episode, in turns (default: 8)"
    )
    ahead.add_argument(
        "--value",
        default="success",
        metavar="V",
        help="what an imagined episode is worth: success, reward or length (default: success)",
    )
    ahead.add_argument(
        "--discount",
        type=float,
        default=0.9,
        metavar="G",
        help="factor for each turn that an outcome comes later (default: 0.9)",
    )
    ahead.add_argument(
        "--penalty",
        type=float,
        default=0.0,
        metavar="L",
        help="standard deviations that are subtracted from an action's mean value (default: 0)",
    )
    ahead.add_argument(
        "--floor",
        type=float,
        default=0.0,
        metavar="V",
        help="if no action has a higher value, the policy acts as it would without look-ahead (default: 0)",
    )
    ahead.add_argument(
        "--observation-tokens",
        type=int,
        default=0,
        metavar="N",
        help="length of every result, in tokens, if all have the same (see docs/lookahead.md)",
    )
    ahead.add_argument(
        "--max-observation-tokens",
        type=int,
        default=512,
        metavar="N",
        help="where a result is cut that does not end, in tokens (default: 512)",
    )
    ahead.add_argument(
        "--observation-temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="temperature of the predicted results (default: 0)",
    )
    marks = parser.add_argument_group("how an observation says an outcome (grid, maze, taxi and sokoban are known)")
    marks.add_argument("--over-text", metavar="TEXT", help="an episode is over when an observation ends with this text")
    marks.add_argument("--won-text", metavar="TEXT", help="it is won if that observation contains this text")
    marks.add_argument(
        "--lacks", metavar="CHARS", help="it is not won if the observation contains one of these characters"
    )
    marks.add_argument("--reward-text", metavar="TEXT", help="the number after this text is the turn's reward")
    other = parser.add_argument_group("another model as the world model")
    other.add_argument(
        "--world-model", metavar="PATH", help="a model's folder, or its name on the Hub, to run in this process"
    )
    other.add_argument("--world-server", metavar="URL", help="or behind an OpenAI-compatible server")
    other.add_argument("--world-server-model", metavar="NAME", help="the name under which the server has it")
    other.add_argument(
        "--prompts", default="word2world", metavar="FAMILY", help="the prompts that the model was trained with"
    )
    state.add_arguments(other, "all, as wm data build --as word2world")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="folder for decisions, episodes, rows and measures; the same command continues from it",
    )
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The `Evaluation` as JSON: `measures` by arm, `failures`, `notes`."""
    from wm_plugin.data.hidden import as_json
    from wm_plugin.data.predictions import same_settings
    from wm_plugin.lab.evaluation import lookahead, measures

    arms = _arms(args)
    _check(args)
    world = find(args.name)
    config = config_of(args)
    played_rows = rows(world, args, args.limit)
    subject = args.server_model or str(args.model)
    part = args.split or ("held out" if args.held_out else "training")
    level = f", {args.level}" if args.level else ""
    data = f"{world.name}{level}, {len(played_rows)} {part} tasks of seed {args.seed}"
    folder = Path(args.out) if args.out else None
    imaginer = _imaginer(args, config, best="best-of-n" in arms)
    kept: list[Answers] = []  # of a world model
    ahead, oracle = _looking(args, config, imaginer, world, folder, kept)
    with ExitStack() as held:
        settings = {
            "policy": imaginer.settings,
            **imaginer.sampling,
            "look_ahead": ahead.settings,
            "arms": list(arms),
            "world_context": as_json(True if state.shown(args) is None else state.shown(args)),  # type: ignore[arg-type]
            "max_turns": args.max_turns,
            "host": args.host,
            "seed": args.seed,
        }
        if folder:
            measures.open_folder(folder, "lookahead", subject, data)
            same_settings(folder / SETTINGS, settings, "decisions")
        for answers in kept:
            held.enter_context(answers)
        setting = lookahead.Setting(
            world,
            played_rows,
            folder,
            seed=args.seed,
            max_turns=args.max_turns,
            host=args.host,
            at_once=args.concurrency if args.server else args.batch_size,
        )

        def watch(episodes: "Iterator[Played]", arm: str) -> "Iterator[Played]":
            return progress(episodes, f"episodes, {arm}")

        played = lookahead.play_all(setting, arms, ahead, oracle if args.oracle else None, watch)
    # what a world model of its own writes is no token of the policy's
    notes = [_UNCOUNTED] if config.world_model == "other" else []
    result = lookahead.evaluate(played, subject=subject, data=data, settings=settings, notes=notes, seed=args.seed)
    if folder:
        from wm_plugin.data.write import write

        measures.write_rows(lookahead.rows(played), folder)
        episodes = (_named(one) for of_arm in played.values() for one in of_arm if one.trajectory is not None)
        write(episodes, folder / EPISODES)
        measures.write_result(result, folder)
    ok = any(one.trajectory is not None for of_arm in played.values() for one in of_arm)
    return {**result.as_dict(), "out": args.out, "asked": setting.asked.total(), "ok": ok}


def _named(played: "Played") -> Any:
    """An episode that says its arm."""
    assert played.trajectory is not None
    return played.trajectory.model_copy(update={"metadata": {**played.trajectory.metadata, "arm": played.arm}})


def _arms(args: argparse.Namespace) -> tuple[str, ...]:
    """The arms that are asked for, in order.

    Raises:
        UserError: there is no such arm, or none of them looks ahead.
    """
    from wm_plugin.lab.evaluation.lookahead import AHEAD, ARMS, BEST, ORACLE

    known = [arm for arm in ARMS if arm != ORACLE]
    asked = [arm for arm in known if not (args.server and arm == BEST)]
    if args.arms is not None:
        asked = [one.strip() for one in args.arms.split(",") if one.strip()]
    for arm in asked:
        if arm not in known:
            hint = "; --oracle adds it" if arm == ORACLE else nearest(arm, known)
            raise UserError(f"--arms: there is no arm {arm!r}{hint}")
    if AHEAD not in asked and not args.oracle:
        raise UserError(f"--arms names no arm that looks ahead; add {AHEAD}, or --oracle")
    return tuple(arm for arm in ARMS if arm in asked or (arm == ORACLE and args.oracle))


def _check(args: argparse.Namespace) -> None:
    flags.check(args)
    for flag, value in (
        ("--max-turns", args.max_turns),
        ("--concurrency", args.concurrency),
        ("--batch-size", args.batch_size),
    ):
        if value < 1:
            raise UserError(f"{flag} is {value}; write a number >= 1")
    if args.limit > MOST_ROWS:
        raise UserError(f"--limit is {args.limit}; write a number up to {MOST_ROWS:,}")
    if args.tokenizer and not args.server:
        raise UserError("--tokenizer is for a policy behind a server; --model brings its own")
    if args.world_model and args.world_server:
        raise UserError("--world-model and --world-server are two world models; give one of them")
    if (args.world_server is None) is not (args.world_server_model is None):
        raise UserError("--world-server URL and --world-server-model NAME go together: give both or none")


def config_of(args: argparse.Namespace) -> "LookAheadConfig":
    """The config that the flags describe.

    Raises:
        UserError: a flag does not fit, or one is missing by which an outcome would be told.
    """
    from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
    from wm_plugin.worlds.agents.outcomes import MARKS, Marks

    known = MARKS.get(args.name, Marks())
    given = {"over": args.over_text, "won": args.won_text, "lacks": args.lacks, "reward": args.reward_text}
    marks = Marks(**{name: getattr(known, name) if value is None else value for name, value in given.items()})
    config = LookAheadConfig(
        continuations=args.continuations,
        depth=args.depth,
        temperature=args.temperature,
        value=args.value,
        discount=args.discount,
        penalty=args.penalty,
        floor=args.floor,
        world_model="other" if args.world_model or args.world_server else "own",
        observation_temperature=args.observation_temperature,
        observation_tokens=args.observation_tokens,
        max_observation_tokens=args.max_observation_tokens,
        max_new_tokens=args.max_new_tokens,
        marks=marks,
    )
    try:
        config.check_marks()
    except UserError as error:
        line = str(error)
        for name, flag in _FLAGS.items():
            line = line.replace(name, flag)
        raise UserError(line) from None
    return config


def _imaginer(args: argparse.Namespace, config: "LookAheadConfig", *, best: bool) -> "Imaginer":
    """The policy that the flags name."""
    from wm_plugin.cli.data.predictor import quiet
    from wm_plugin.tokens.tokenizer import load_tokenizer

    template = None
    if args.chat_template:
        try:
            template = Path(args.chat_template).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"--chat-template {args.chat_template}: cannot be read ({error})") from None
    if args.model:
        from wm_plugin.client.predict import LocalPredictor
        from wm_plugin.lab.agents.branches import LocalImaginer

        quiet()
        predictor = LocalPredictor(
            args.model,
            temperature=args.temperature,
            max_new_tokens=args.max_new_tokens,
            batch_size=args.batch_size,
        )
        return LocalImaginer(predictor, config, template)
    from wm_plugin.client.server import Server
    from wm_plugin.lab.agents.server_branches import NO_TOKENIZER, ServerImaginer

    if config.world_model == "own" and not args.tokenizer:
        raise UserError(f"--server: {NO_TOKENIZER}")
    server = Server(
        args.server,
        args.server_model,
        concurrency=args.concurrency,
        timeout=600.0,
        temperature=args.temperature,
        max_tokens=args.max_new_tokens,
    )
    tokenizer = load_tokenizer(args.tokenizer) if args.tokenizer else None
    return ServerImaginer(server, config, tokenizer, template, logprobs=best)


def _looking(
    args: argparse.Namespace,
    config: "LookAheadConfig",
    imaginer: "Imaginer",
    world: "World",
    folder: Path | None,
    kept: "list[Answers]",
) -> "tuple[LookAhead, LookAhead]":
    """The policy that looks ahead, with its world model, whose answers are added to `kept`, and with the real world."""
    from dataclasses import replace

    from wm_plugin.lab.agents.imagined_worlds import ImaginedWorld, OtherWorld, OwnWorld, RealWorld
    from wm_plugin.lab.agents.lookahead import LookAhead
    from wm_plugin.lab.evaluation.lookahead import turns_left

    left = turns_left(world, args.max_turns, args.host)
    if config.world_model == "other":
        answers, simulation, tokens = _other(args, world, folder)
        kept.append(answers)
        model: ImaginedWorld = OtherWorld(answers, simulation, config.marks, tokens)
    else:
        model = OwnWorld(imaginer, config.marks, world.observers)
    real = RealWorld(world, config.marks, host=args.host)
    return (
        LookAhead(imaginer, model, config, left=left),
        LookAhead(imaginer, real, replace(config, world_model="real"), left=left),
    )


def _other(
    args: argparse.Namespace, world: "World", folder: Path | None
) -> "tuple[Answers, Callable[[], Simulation], tuple[str, ...]]":
    """A world model's answers, what makes its episodes, and its control tokens."""
    from wm_plugin.cli.data.predictor import quiet
    from wm_plugin.client.answers import Answers, LocalModel, Model, ServerModel
    from wm_plugin.client.predict import LocalPredictor
    from wm_plugin.client.server import Server
    from wm_plugin.data.prompts import load
    from wm_plugin.tokens.harmless import control_tokens
    from wm_plugin.worlds.wrappers.simulated_episode import Simulation

    prompts = load(args.prompts)
    chosen = state.shown(args)
    if state.contexts(args) is not None:
        raise UserError("--context-file: look-ahead knows no hidden contexts by hand; leave it out")
    tokens: tuple[str, ...] = ()
    if args.world_model:
        quiet()
        predictor = LocalPredictor(
            args.world_model,
            temperature=0.0,
            max_new_tokens=args.max_observation_tokens,
            batch_size=args.batch_size,
        )
        model: Model = LocalModel(predictor)
        tokens = control_tokens(predictor.tokenizer)
    else:
        server = Server(
            args.world_server,
            args.world_server_model,
            concurrency=args.concurrency,
            timeout=600.0,
            temperature=0.0,
            max_tokens=args.max_observation_tokens,
        )
        model = ServerModel(server)
    answers = Answers(model, None if folder is None else folder / ANSWERS)

    def simulation() -> Simulation:
        return Simulation(
            prompts, observers=world.observers, world_context=True if chosen is None else chosen, seed=args.seed
        )

    simulation()  # which refuses prompts without a mark of success
    return answers, simulation, tokens


def show(result: dict[str, Any]) -> None:
    """Print the result of `run` as tables: a row for each arm, and what was imagined."""
    from rich.console import Console
    from rich.table import Column, Table

    console = Console(highlight=False, markup=False)
    found = {(one["by"], one["group"], one["name"]): one for one in result["measures"]}
    names = ("success", "tokens", "samples")
    columns = [Column(name, no_wrap=True) for name in ("arm", "success", "95%", "vs plain", "99%", "tokens", "n")]
    table = Table(*columns, title=f"{result['subject']} on {result['data']}", box=None, pad_edge=False)
    for arm in dict.fromkeys(group for by, group, _ in found if by == "arm"):
        of = {name: found.get(("arm", arm, name)) for name in names}
        against = found.get(("against plain", arm, "success_difference"))
        rest = [_number(of[name]) for name in names[1:]]
        table.add_row(
            arm, _share(of["success"]), _limits(of["success"]), _share(against, "+"), _limits(against, "+"), *rest
        )
    console.print(table)
    for arm in dict.fromkeys(group for by, group, _ in found if by == "imagined by"):
        of = {
            name: found.get(("imagined by", arm, name))
            for name in ("imagines_success", "imagined", "came", "brier", "next_observation")
        }
        console.print(
            f"{arm} imagined success in {_share(of['imagines_success'])} of its decisions. Where it chose by it: "
            f"{_share(of['imagined'])} imagined, {_share(of['came'])} came, Brier "
            f"{_number(of['brier'], '.3f')}; the next observation came as imagined in "
            f"{_share(of['next_observation'])}"
        )
    print_rest(result)


def _share(one: dict[str, Any] | None, sign: str = "") -> str:
    return "–" if one is None or one["value"] is None else f"{one['value']:{sign}.1%}"


def _number(one: dict[str, Any] | None, form: str = ",.1f") -> str:
    return "–" if one is None or one["value"] is None else format(one["value"], form)


def _limits(one: dict[str, Any] | None, sign: str = "") -> str:
    if one is None or one["low"] is None:
        return ""
    return f"{one['low']:{sign}.2f}{' to ' if sign else '–'}{one['high']:{sign}.2f}"
