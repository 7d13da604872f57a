"""`wm eval lookahead`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from wm_plugin.cli import measures
from wm_plugin.cli.flags import (
    AgentHost,
    Batching,
    Count,
    Named,
    PromptsName,
    RowCount,
    RowFlags,
    StateFlags,
    WorldName,
    default,
)
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import find, progress
from wm_plugin.errors import UserError, nearest
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
from wm_plugin.options import Options, option
from wm_plugin.runtime.texts import read_text
from wm_plugin.worlds.agents.outcomes import MARKS, Marks

if TYPE_CHECKING:
    from wm_plugin.client.answers import Answers
    from wm_plugin.lab.agents.branches import Imaginer
    from wm_plugin.lab.evaluation.lookahead import Played
    from wm_plugin.worlds.worlds import World
    from wm_plugin.worlds.wrappers.simulated_episode import Simulation

SETTINGS, EPISODES = "settings.json", "episodes.jsonl"
_UNCOUNTED = "the world model's tokens are not counted: equal compute is of the policy's own tokens"
_HIDDEN = Parameter(parse=False)


@Parameter(name="*", group=Group("The policy", sort_key=1))
class Policy(Batching, Named):
    """The policy that acts."""

    tokenizer: str | None = option(
        "With --server: the policy's tokenizer, to ask the policy itself for results at /v1/completions.", default=None
    )
    chat_template: str | None = option(
        "The chat template of the policy's training, if it was not its tokenizer's own.", default=None
    )


@Parameter(name="*", group=Group("Looking ahead", sort_key=2))
class Ahead(LookAheadConfig):
    """How the policy looks ahead. What follows from other flags is no flag."""

    world_model: Annotated[Literal["own", "other", "real"], _HIDDEN] = default(LookAheadConfig, "world_model", "own")
    marks: Annotated[Marks, _HIDDEN] = Marks()


@Parameter(
    name="*", group=Group("How an observation says an outcome (known for grid, maze, taxi and sokoban)", sort_key=3)
)
class MarkFlags(Options):
    """The texts of `Marks`."""

    over_text: str | None = default(Marks, "over", None)
    won_text: str | None = default(Marks, "won", None)
    lacks: str | None = default(Marks, "lacks", None)
    reward_text: str | None = default(Marks, "reward", None)


@Parameter(name="*", group=Group("Another model as the world model", sort_key=4))
class WorldModel(Options):
    """The world model, where it is not the policy itself."""

    world_model: str | None = default(Named, "model", None)
    world_server: str | None = default(Named, "server", None)
    world_server_model: str | None = default(Named, "server_model", None)
    prompts: PromptsName = "word2world"

    @property
    def is_named(self) -> bool:
        return bool(self.world_model or self.world_server)


@prints(measures.show)
def lookahead(
    name: WorldName,
    /,
    *,
    policy: Policy = Policy(),
    rows: RowFlags = RowFlags(),
    limit: RowCount = 100,
    max_turns: Count = 64,
    host: AgentHost = "trl",
    arms: str | None = None,
    oracle: bool = False,
    ahead: Ahead = Ahead(),
    marks: MarkFlags = MarkFlags(),
    world_model: WorldModel = WorldModel(),
    state: StateFlags = StateFlags(),
    out: str | None = None,
) -> dict[str, Any]:
    """Does a policy gain by looking ahead with itself as its world model, at equal compute?

    Plays the same tasks in several arms by one policy: as it acts (plain), by the majority of n samples of an action, by the
    likeliest of n (best-of-n), by a coin's word on each sample (coin), and looking ahead: it imagines episodes and takes the
    first action that is worth most. The policy is its own world model (it predicts the results of its calls, as the objective
    trained it to); or another model is; or, with --oracle in an arm of its own, the real environment, which bounds what looking
    ahead can bring. majority and best-of-n get as many samples as cost the tokens that look-ahead generates. Also measures how
    often what was imagined came.

    ```
    wm eval lookahead grid --model out/policy --held-out --observation-tokens 20 --depth 6 --oracle --out out/ahead
    wm eval lookahead my.worlds:Shop --server http://localhost:8000/v1 --server-model NAME --tokenizer Qwen/Qwen3-8B \\
        --won-text "Order placed" --over-text "Bye." --out out/ahead
    wm eval lookahead sokoban --model out/policy --world-model out/world_model --prompts word2world
    ```

    Args:
        limit: How many tasks.
        max_turns: Longest episode, in turns; a world may end it earlier.
        arms: Some of plain, majority, best-of-n, coin, look-ahead, as A,B (default: all; with --server without best-of-n, which
            needs logprobs).
        oracle: Add an arm in which the real environment gives the results.
        out: Folder for decisions, episodes, rows and measures; the same command continues from it.
    """
    from wm_plugin.data.hidden import as_json
    from wm_plugin.data.predictions import same_settings
    from wm_plugin.data.write import write
    from wm_plugin.lab.agents.imagined_worlds import ImaginedWorld, OtherWorld, OwnWorld, RealWorld
    from wm_plugin.lab.agents.lookahead import LookAhead
    from wm_plugin.lab.evaluation import lookahead
    from wm_plugin.lab.evaluation.measures import open_folder

    chosen = _arms(arms, policy, oracle)
    policy.check()
    _check(policy, world_model)
    world = find(name)
    config = _config(name, ahead, marks, world_model)
    tasks = rows.rows(world, limit, max_turns)
    part = rows.split or ("held out" if rows.held_out else "training")
    level = f", {rows.level}" if rows.level else ""
    data = f"{world.name}{level}, {len(tasks)} {part} tasks of seed {rows.seed}"
    folder = Path(out) if out else None
    imaginer = _imaginer(policy, config, best=lookahead.BEST in chosen)
    with ExitStack() as held:
        answers = None
        model: ImaginedWorld = OwnWorld(imaginer, config.marks, world.observers)
        if world_model.is_named:
            answers, simulation, tokens = _other(policy, world_model, state, world, config, rows.seed, folder)
            model = OtherWorld(answers, simulation, config.marks, tokens)
        left = lookahead.turns_left(world, max_turns, host)
        looking = LookAhead(imaginer, model, config, left=left)
        settings = {
            "policy": imaginer.settings,
            **imaginer.sampling,
            "look_ahead": looking.settings,
            "arms": list(chosen),
            "world_context": as_json(state.shown_or_all()),
            "max_turns": max_turns,
            "host": host,
            "seed": rows.seed,
        }
        if folder:
            open_folder(folder, "lookahead", policy.name, data)
            same_settings(folder / SETTINGS, settings, "decisions")
        if answers:
            held.enter_context(answers)
        at_once = policy.concurrency if policy.server else policy.batch_size
        setting = lookahead.Setting(
            world, tasks, folder, seed=rows.seed, max_turns=max_turns, host=host, at_once=at_once
        )
        real = None
        if oracle:
            real_config = config.replace(world_model="real")
            real = LookAhead(imaginer, RealWorld(world, config.marks, host=host), real_config, left=left)

        def watch(episodes: "Iterator[Played]", arm: str) -> "Iterator[Played]":
            return progress(episodes, f"episodes, {arm}")

        played = lookahead.play_all(setting, chosen, looking, real, watch)
    # what a world model of its own writes is no token of the policy's
    notes = [_UNCOUNTED] if world_model.is_named else []
    result = lookahead.evaluate(played, subject=policy.name, data=data, settings=settings, notes=notes, seed=rows.seed)
    measures.keep(result, lookahead.rows(played), folder)
    done = [one for of_arm in played.values() for one in of_arm if one.trajectory is not None]
    if folder:
        write(map(_named, done), folder / EPISODES)
    return {**result.as_dict(), "out": out, "asked": setting.asked.total(), "ok": bool(done)}


def _named(played: "Played") -> Any:
    """An episode that says its arm."""
    assert played.trajectory is not None
    return played.trajectory.model_copy(update={"metadata": {**played.trajectory.metadata, "arm": played.arm}})


def _arms(named: str | None, policy: Policy, oracle: bool) -> tuple[str, ...]:
    """The arms that are asked for, in order.

    Raises:
        UserError: there is no such arm, or none of them looks ahead.
    """
    from wm_plugin.lab.evaluation.lookahead import AHEAD, ARMS, BEST, ORACLE

    known = [arm for arm in ARMS if arm != ORACLE]
    asked = [arm for arm in known if not (policy.server and arm == BEST)]
    if named is not None:
        asked = [one.strip() for one in named.split(",") if one.strip()]
    for arm in asked:
        if arm not in known:
            hint = "; --oracle adds it" if arm == ORACLE else nearest(arm, known)
            raise UserError(f"--arms: there is no arm {arm!r}{hint}")
    if AHEAD not in asked and not oracle:
        raise UserError(f"--arms names no arm that looks ahead; add {AHEAD}, or --oracle")
    return tuple(arm for arm in ARMS if arm in asked or (arm == ORACLE and oracle))


def _check(policy: Policy, other: WorldModel) -> None:
    from wm_plugin.lab.agents.imaginers import NO_TOKENIZER

    if policy.tokenizer and not policy.server:
        raise UserError("--tokenizer is for a policy behind a server; --model brings its own")
    if other.world_model and other.world_server:
        raise UserError("--world-model and --world-server are two world models; give one of them")
    if (other.world_server is None) is not (other.world_server_model is None):
        raise UserError("--world-server URL and --world-server-model NAME go together: give both or none")
    if policy.server and not policy.tokenizer and not other.is_named:
        raise UserError(f"--server: {NO_TOKENIZER}")


def _config(name: str, ahead: Ahead, flags: MarkFlags, other: WorldModel) -> LookAheadConfig:
    """The config that the flags describe.

    Raises:
        UserError: a text is missing by which an outcome would be told.
    """
    given = {"over": flags.over_text, "won": flags.won_text, "lacks": flags.lacks, "reward": flags.reward_text}
    marks = MARKS.get(name, Marks()).replace(**{field: text for field, text in given.items() if text is not None})
    config = LookAheadConfig(
        **ahead.model_dump(exclude={"marks", "world_model"}),
        marks=marks,
        world_model="other" if other.is_named else "own",
    )
    try:
        config.check_marks()
    except UserError as error:
        line = str(error).replace("look_ahead.value", "--value")
        for field in ("reward", "won", "over"):
            line = line.replace(f"marks.{field}", f"--{field}-text")
        raise UserError(line) from None
    return config


def _imaginer(policy: Policy, config: LookAheadConfig, *, best: bool) -> "Imaginer":
    """The policy that the flags name."""
    from wm_plugin.lab.agents.imaginers import LocalImaginer, ServerImaginer
    from wm_plugin.tokens.tokenizer import load_tokenizer

    template = None
    if policy.chat_template:
        template = read_text(Path(policy.chat_template), "--chat-template")
    sampling = policy.sampling(config.temperature, config.max_new_tokens)
    if policy.server and policy.server_model:
        tokenizer = load_tokenizer(policy.tokenizer) if policy.tokenizer else None
        server = sampling.client(policy.server, policy.server_model)
        return ServerImaginer(server, config, tokenizer, template, logprobs=best)
    return LocalImaginer(sampling.load(policy.name), config, template)


def _other(
    policy: Policy,
    flags: WorldModel,
    state: StateFlags,
    world: "World",
    config: LookAheadConfig,
    seed: int,
    folder: Path | None,
) -> "tuple[Answers, Callable[[], Simulation], tuple[str, ...]]":
    """A world model's answers, what makes its episodes, and its control tokens."""
    from wm_plugin.client.answers import Answers, LocalModel, Model, ServerModel
    from wm_plugin.data.prompts import load
    from wm_plugin.tokens.harmless import control_tokens
    from wm_plugin.worlds.wrappers.simulated_episode import Simulation

    prompts, hidden = load(flags.prompts), state.shown_or_all()
    if state.contexts() is not None:
        raise UserError("--context-file: look-ahead knows no hidden contexts by hand; leave it out")
    sampling = policy.sampling(0.0, config.max_observation_tokens)
    tokens: tuple[str, ...] = ()
    if flags.world_server and flags.world_server_model:
        model: Model = ServerModel(sampling.client(flags.world_server, flags.world_server_model))
    else:
        predictor = sampling.load(flags.world_model or "")
        model, tokens = LocalModel(predictor), control_tokens(predictor.tokenizer)

    def simulation() -> Simulation:
        return Simulation(prompts, observers=world.observers, world_context=hidden, seed=seed)

    simulation()  # which refuses prompts without a mark of success
    return Answers(model, folder and folder / measures.ANSWERS), simulation, tokens
