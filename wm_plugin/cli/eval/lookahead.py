"""`wm eval lookahead`."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from wm_plugin.cli import measures
from wm_plugin.cli.flags import AgentHost, ModelFlags, Named, PromptsName, RowFlags, StateFlags, WorldName, prefixed
from wm_plugin.cli.numbers import Count, RowCount
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import find, progress
from wm_plugin.client.answers import Answers, LocalModel
from wm_plugin.data.hidden import as_json
from wm_plugin.data.predictions import same_settings
from wm_plugin.data.prompts import load
from wm_plugin.data.write import write
from wm_plugin.errors import UserError, nearest
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
from wm_plugin.options import Number, Whole, default, names, option
from wm_plugin.runtime.texts import read_text
from wm_plugin.tokens.harmless import control_tokens
from wm_plugin.tokens.tokenizer import load_tokenizer
from wm_plugin.worlds.agents.outcomes import MARKS, Marks
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.simulated_episode import Simulation

if TYPE_CHECKING:  # these import torch
    from wm_plugin.lab.agents.branches import Imaginer
    from wm_plugin.lab.agents.imagined_worlds import OtherWorld
    from wm_plugin.lab.evaluation.lookahead import Played

SETTINGS, EPISODES = "settings.json", "episodes.jsonl"
_UNCOUNTED = "the world model's tokens are not counted: equal compute is of the policy's own tokens"
_HIDDEN = Parameter(parse=False)
_OTHER = Parameter(group=Group("Another model as the world model", sort_key=4))
_MARKS = Parameter(
    name="*",
    name_transform=lambda name: name if name == "lacks" else f"{name}-text",
    group=Group("How an observation says an outcome (known for grid, maze, taxi and sokoban)", sort_key=3),
)


class Policy(ModelFlags):
    """The policy that acts."""

    tokenizer: str | None = option(
        "With --server: the policy's tokenizer, to ask the policy itself for results at /v1/completions.", default=None
    )
    chat_template: str | None = option(
        "The chat template of the policy's training, if it was not its tokenizer's own.", default=None
    )

    def imaginer(self, config: LookAheadConfig, *, logprobs: bool) -> "Imaginer":
        """The policy as one that imagines."""
        from wm_plugin.lab.agents.imaginers import LocalImaginer, ServerImaginer

        template = read_text(Path(self.chat_template), "--chat-template") if self.chat_template else None
        if not self.server or not self.server_model:
            return LocalImaginer(self.load(self.name), config, template)
        tokenizer = load_tokenizer(self.tokenizer) if self.tokenizer else None
        server = self.client(self.server, self.server_model)
        return ServerImaginer(server, config, tokenizer, template, logprobs=logprobs)


@Parameter(name="*", group=Group("Looking ahead", sort_key=2))
class Ahead(LookAheadConfig):
    """How the policy looks ahead. What follows from other flags is no flag."""

    temperature: Annotated[Number, _HIDDEN] = default(LookAheadConfig, "temperature", 1.0)
    max_new_tokens: Annotated[Whole, _HIDDEN] = default(LookAheadConfig, "max_new_tokens", 512)
    world_model: Annotated[Literal["own", "other", "real"], _HIDDEN] = default(LookAheadConfig, "world_model", "own")
    marks: Annotated[Marks, _HIDDEN] = Marks()


@prints(measures.show)
def lookahead(
    name: WorldName,
    /,
    *,
    policy: Policy = Policy(temperature=1.0, max_new_tokens=512),
    rows: RowFlags = RowFlags(),
    limit: RowCount = 100,
    max_turns: Count = 64,
    host: AgentHost = "trl",
    arms: str | None = None,
    oracle: bool = False,
    ahead: Ahead = Ahead(),
    marks: Annotated[Marks, _MARKS] = Marks(),
    other: Annotated[Named, prefixed("world"), _OTHER] = Named(),
    prompts: Annotated[PromptsName, _OTHER] = "word2world",
    state: StateFlags = StateFlags(),
    out: measures.Out = None,
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
    """
    from wm_plugin.lab.agents.imagined_worlds import ImaginedWorld, OwnWorld, RealWorld
    from wm_plugin.lab.agents.imaginers import NO_TOKENIZER
    from wm_plugin.lab.agents.lookahead import LookAhead
    from wm_plugin.lab.evaluation import lookahead

    chosen = _arms(arms, policy, oracle)
    policy.check()
    if policy.tokenizer and not policy.server:
        raise UserError("--tokenizer is for a policy behind a server; --model brings its own")
    if is_other := other != Named():
        other.check(prefix="--world-")
    elif policy.server and not policy.tokenizer:
        raise UserError(f"--server: {NO_TOKENIZER}")
    if is_other and state.context_file:
        raise UserError("--context-file: look-ahead knows no hidden contexts by hand; leave it out")
    world, hidden = find(name), state.shown_or_all()
    config = _config(name, policy, ahead, marks, "other" if is_other else "own")
    tasks = rows.rows(world, limit, max_turns)
    part = rows.split or ("held out" if rows.held_out else "training")
    level = f", {rows.level}" if rows.level else ""
    data = f"{world.name}{level}, {len(tasks)} {part} tasks of seed {rows.seed}"
    folder = Path(out) if out else None
    imaginer = policy.imaginer(config, logprobs=lookahead.BEST in chosen)
    with ExitStack() as held:
        answers = None
        model: ImaginedWorld = OwnWorld(imaginer, config.marks, world.observers)
        if is_other:
            values = {**policy.model_dump(include=set(ModelFlags.model_fields)), **other.model_dump()}
            values |= {"temperature": 0.0, "max_new_tokens": config.max_observation_tokens}
            answers = Answers(ModelFlags(**values).asked(), folder and folder / measures.ANSWERS)
            model = _other(answers, prompts, world, config, world_context=hidden, seed=rows.seed)
        left = lookahead.turns_left(world, max_turns, host)
        looking = LookAhead(imaginer, model, config, left=left)
        settings = {
            "policy": imaginer.settings,
            **imaginer.sampling,
            "look_ahead": looking.settings,
            "arms": list(chosen),
            "world_context": as_json(hidden),
            "max_turns": max_turns,
            "host": host,
            "seed": rows.seed,
        }
        if folder:
            measures.open_folder(out, "lookahead", policy.name, data)
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
    notes = [_UNCOUNTED] if is_other else []
    result = lookahead.evaluate(played, subject=policy.name, data=data, settings=settings, notes=notes, seed=rows.seed)
    done = [_named(one) for of_arm in played.values() for one in of_arm if one.trajectory is not None]
    if folder:
        write(done, folder / EPISODES)
    asked = setting.asked.total()
    return measures.kept(result, lookahead.rows(played), folder, ok=bool(done), out=out, asked=asked)


def _named(played: "Played") -> Any:
    """An episode that says its arm."""
    assert played.trajectory is not None
    return played.trajectory.model_copy(update={"metadata": {**played.trajectory.metadata, "arm": played.arm}})


def _arms(named: str | None, policy: Policy, oracle: bool) -> tuple[str, ...]:
    """The arms that are asked for, in order."""
    from wm_plugin.lab.evaluation.lookahead import AHEAD, ARMS, BEST, ORACLE

    known = [arm for arm in ARMS if arm != ORACLE]
    asked = [arm for arm in known if not (policy.server and arm == BEST)] if named is None else names(named)
    for arm in asked:
        if arm not in known:
            hint = "; --oracle adds it" if arm == ORACLE else nearest(arm, known)
            raise UserError(f"--arms: there is no arm {arm!r}{hint}")
    if AHEAD not in asked and not oracle:
        raise UserError(f"--arms names no arm that looks ahead; add {AHEAD}, or --oracle")
    return tuple(arm for arm in ARMS if arm in asked or (arm == ORACLE and oracle))


def _config(name: str, policy: Policy, ahead: Ahead, marks: Marks, world_model: str) -> LookAheadConfig:
    """The config that the flags describe."""
    own = {
        "temperature": policy.temperature,
        "max_new_tokens": policy.max_new_tokens,
        "world_model": world_model,
        "marks": MARKS.get(name, Marks()).replace(**marks.model_dump(exclude_unset=True)),
    }
    config = LookAheadConfig(**{**ahead.model_dump(), **own})
    try:
        config.check_marks()
    except UserError as error:
        line = str(error).replace("look_ahead.value", "--value")
        for field in ("reward", "won", "over"):
            line = line.replace(f"marks.{field}", f"--{field}-text")
        raise UserError(line) from None
    return config


def _other(answers: Answers, prompts: str, world: World, config: LookAheadConfig, **own: Any) -> "OtherWorld":
    """Another model as the world model."""
    from wm_plugin.lab.agents.imagined_worlds import OtherWorld

    family, model = load(prompts), answers.model
    tokens = control_tokens(model.predictor.tokenizer) if isinstance(model, LocalModel) else ()

    def simulation() -> Simulation:
        return Simulation(family, observers=world.observers, **own)

    simulation()  # which refuses prompts without a mark of success
    return OtherWorld(answers, simulation, config.marks, tokens)
