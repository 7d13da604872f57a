"""`wm eval consistency`."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from wm_plugin.cli import measures
from wm_plugin.cli.flags import (
    AgentHost,
    ModelFlags,
    Output,
    PromptsName,
    RowFlags,
    StateFlags,
    WorldName,
    is_url,
    prefixed,
)
from wm_plugin.cli.numbers import MAX_ROWS, NotNegative
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import find, progress
from wm_plugin.client.answers import Answers
from wm_plugin.data.hidden import as_json
from wm_plugin.data.predictions import same_settings
from wm_plugin.data.prompts import load
from wm_plugin.errors import UserError, nearest
from wm_plugin.lab.evaluation.consistency import SPLITS, Anchor, Episode, check
from wm_plugin.lab.evaluation.consistency import consistency as play
from wm_plugin.options import Options, Whole, default, names, option
from wm_plugin.worlds.agents.acting import Agent, ModelAgent, ScriptedAgent
from wm_plugin.worlds.agents.players import SCRIPTED, ScriptedPlayer
from wm_plugin.worlds.worlds import World

TASKS = 100
ACTIONS, EPISODES, SETTINGS = "actions.jsonl", "w2r.jsonl", "settings.json"


@Parameter(name="*", group=Group("Tasks", sort_key=3))
class Tasks(Options):
    """Which tasks of a world."""

    level: str | None = default(RowFlags, "level", None)
    split: tuple[str, ...] = option(
        "seen, unseen, or another one of the world (repeatable; default: seen and unseen). A world without splits has its "
        "training rows as seen, and those held out as unseen.",
        default=(),
    )
    limit: Whole | None = option(
        "Tasks of each split (default: 100, or what the world has).", default=None, ge=1, le=MAX_ROWS
    )
    seed: Whole = option("Seed of the tasks, the prompts' variants and the agents' sampling.", default=0)
    max_turns: Whole = option("Longest episode, in turns; 50 is the paper's.", default=50, ge=1)

    def rows(self, world: World) -> dict[str, list[dict[str, Any]]]:
        """The rows of each split."""
        known = world.splits or SPLITS
        tasks = {}
        for split in dict.fromkeys(self.split or SPLITS):
            if split not in known:
                raise UserError(f"--split: {world.name} has no split {split!r}{nearest(split, known)}")
            part: dict[str, Any] = {"split": split} if world.splits else {"held_out": split == "unseen"}
            part |= {"seed": self.seed, "level": self.level, "max_turns": self.max_turns}
            tasks[split] = world.some_rows(TASKS, **part) if self.limit is None else world.rows(self.limit, **part)
        return tasks


@Parameter(name="*", group=Group("Agents", sort_key=2))
class Agents(Options):
    """Who plays."""

    agent: tuple[str, ...] = option(
        "random, expert, a folder with a model, or the URL of an OpenAI-compatible server (repeatable)."
    )
    agent_model: tuple[str, ...] = option(
        "The name under which the server has the model; one for each URL, in their order.", default=()
    )
    output: Annotated[Output, prefixed("agent")] = Output()
    host: AgentHost = "trl"

    def make(self, world: World, model: ModelFlags, tasks: Tasks, path: Path | None) -> list[Agent]:
        """The agents, which are asked as the world model is."""
        urls = sum(map(is_url, self.agent))
        if urls != len(self.agent_model):
            raise UserError(
                f"--agent has {urls} URLs and --agent-model {len(self.agent_model)} names; name the model of each"
            )
        of_urls, sampling = iter(self.agent_model), model.replace(**self.output.model_dump())
        common: dict[str, Any] = {"seed": tasks.seed, "max_turns": tasks.max_turns, "host": self.host}
        agents: list[Agent] = []
        for agent in self.agent:
            if agent in SCRIPTED:
                agents.append(ScriptedAgent(agent, ScriptedPlayer(world, agent, **common)))
                continue
            name = next(of_urls) if is_url(agent) else agent
            actor = sampling.actor(agent, name, "--agent", SCRIPTED)
            agents.append(ModelAgent(name, actor, world, path, at_once=model.concurrency, **common))
        used = [agent.name for agent in agents]
        if twice := next((name for name in used if used.count(name) > 1), None):
            raise UserError(f"--agent: two agents have the name {twice!r}; measure them in two runs")
        return agents


@prints(measures.show)
def consistency(
    name: WorldName,
    /,
    *,
    agents: Agents,
    model: ModelFlags = ModelFlags(),
    prompts: PromptsName = "word2world",
    state: StateFlags = StateFlags(),
    tasks: Tasks = Tasks(),
    anchor_turns: NotNegative = 0,
    anchor_tools: str = "",
    out: measures.Out = None,
) -> dict[str, Any]:
    """Do episodes in a world model hold in the real world (CR = W2R / Real)?

    Plays the same tasks in the real world (Real), in the world model (WM: at temperature 0, to its success mark or --max-turns),
    and the actions of every episode in the world model in the real world (W2R). CR is W2R / Real: 1 says that what is won in
    the world model is won outside, too. Also the first turn where the two worlds part, and everything by agent, split and
    horizon.

    A scripted agent (random, expert) looks into its environment, so that in the world model it takes the actions of its real
    episode.

    Args:
        anchor_turns: The real world answers in the first K turns.
        anchor_tools: The real world answers in turns that call one of these tools, as A,B.
    """
    from wm_plugin.lab.evaluation.consistency_measures import evaluate, turn_rows, w2r_rows  # imports torch
    from wm_plugin.lab.evaluation.measures import write_lines

    model.check()
    hidden, contexts, family = state.shown_or_all(), state.contexts(), load(prompts)
    world = find(name)
    rows = tasks.rows(world)
    anchor = Anchor(anchor_turns, names(anchor_tools))
    counts = " and ".join(f"{len(of_split)} {split}" for split, of_split in rows.items())
    data = f"{world.name}{f', {tasks.level}' if tasks.level else ''}, {counts} tasks of seed {tasks.seed}"
    folder = Path(out) if out else None
    players = agents.make(world, model, tasks, folder and folder / ACTIONS)
    answers = Answers(model.asked(), folder and folder / measures.ANSWERS)
    check(world, answers, family, anchor)
    settings = {
        "model": answers.settings,
        "agents": {agent.name: agent.settings for agent in players},
        "prompts": prompts,
        "world_context": as_json(hidden),
        **({} if contexts is None else {"contexts": contexts.digest}),
        "max_turns": tasks.max_turns,
        "anchor_turns": anchor.turns,
        "anchor_tools": list(anchor.tools),
        "host": agents.host,
        "seed": tasks.seed,
    }
    if folder:
        measures.open_folder(out, "consistency", model.name, data)
        same_settings(folder / SETTINGS, settings, "episodes")
    episodes: list[Episode] = []
    for agent in players:
        played = play(
            world,
            rows,
            agent,
            answers,
            family,
            anchor=anchor,
            max_turns=tasks.max_turns,
            world_context=hidden,
            contexts=contexts,
            seed=tasks.seed,
            host=agents.host,
            at_once=model.concurrency,
        )
        episodes += progress(played, f"episodes of {agent.name}")
    notes = [
        f"{agent.name} looks into its environment: in the world model it takes the actions of its real episode."
        for agent in players
        if isinstance(agent, ScriptedAgent)
    ]
    result = evaluate(episodes, subject=model.name, data=data, settings=settings, notes=notes, seed=tasks.seed)
    if folder:
        write_lines(w2r_rows(episodes), folder / EPISODES)
    ok = any(not one.failure for one in episodes)
    return measures.kept(result, turn_rows(episodes), folder, ok=ok, out=out, asked=answers.asked)
