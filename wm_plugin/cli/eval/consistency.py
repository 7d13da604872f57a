"""`wm eval consistency`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from wm_plugin.cli import measures
from wm_plugin.cli.flags import (
    MAX_ROWS,
    AgentHost,
    Batching,
    ModelFlags,
    PromptsName,
    RowFlags,
    Sampling,
    StateFlags,
    WorldName,
    bounds,
    check_folder,
    default,
    is_url,
)
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import find, progress
from wm_plugin.errors import UserError, nearest
from wm_plugin.options import Number, Options, Whole, option

if TYPE_CHECKING:
    from wm_plugin.lab.evaluation.consistency import Episode
    from wm_plugin.worlds.agents.acting import Agent
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

    def rows(self, world: "World") -> dict[str, list[dict[str, Any]]]:
        """The rows of each split."""
        from wm_plugin.lab.evaluation.consistency import SPLITS

        names = world.splits or SPLITS
        tasks = {}
        for split in dict.fromkeys(self.split or SPLITS):
            if split not in names:
                raise UserError(f"--split: {world.name} has no split {split!r}{nearest(split, names)}")
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
    agent_temperature: Number = default(Sampling, "temperature", 1.0)
    agent_max_new_tokens: Whole = default(Sampling, "max_new_tokens", 1024)
    host: AgentHost = "trl"

    def make(self, world: "World", batching: Batching, tasks: Tasks, path: Path | None) -> "list[Agent]":
        """The agents.

        Raises:
            UserError: one is no agent, two have the same name, or a URL has no model.
        """
        from wm_plugin.client.answers import Model
        from wm_plugin.worlds.agents.acting import LocalActor, ModelAgent, ScriptedAgent, ServerActor
        from wm_plugin.worlds.agents.players import SCRIPTED, ScriptedPlayer

        urls = sum(map(is_url, self.agent))
        if urls != len(self.agent_model):
            raise UserError(
                f"--agent has {urls} URLs and --agent-model {len(self.agent_model)} names; name the model of each"
            )
        names = iter(self.agent_model)
        sampling = batching.sampling(self.agent_temperature, self.agent_max_new_tokens)
        common: dict[str, Any] = {"seed": tasks.seed, "max_turns": tasks.max_turns, "host": self.host}
        agents: list[Agent] = []
        for agent in self.agent:
            if agent in SCRIPTED:
                agents.append(ScriptedAgent(agent, ScriptedPlayer(world, agent, **common)))
                continue
            name = agent
            if is_url(agent):
                name = next(names)
                actor: Model = ServerActor(sampling.client(agent, name))
            else:
                check_folder(agent, "--agent", SCRIPTED)
                actor = LocalActor(sampling.load(agent))
            agents.append(ModelAgent(name, actor, world, path, at_once=batching.concurrency, **common))
        used = [agent.name for agent in agents]
        for name in used:
            if used.count(name) > 1:
                raise UserError(f"--agent: two agents have the name {name!r}; measure them in two runs")
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
    anchor_turns: Annotated[int, bounds(0)] = 0,
    anchor_tools: str = "",
    out: str | None = None,
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
        out: Folder that keeps answers, rows, W2R episodes and measures, to go on from.
    """
    from wm_plugin.client.answers import Answers
    from wm_plugin.data.hidden import as_json
    from wm_plugin.data.predictions import same_settings
    from wm_plugin.data.prompts import load
    from wm_plugin.lab.evaluation import consistency
    from wm_plugin.lab.evaluation.consistency_measures import evaluate, turn_rows, w2r_rows
    from wm_plugin.lab.evaluation.measures import open_folder, write_lines
    from wm_plugin.worlds.agents.acting import ScriptedAgent

    model.check()
    hidden, contexts, family = state.shown_or_all(), state.contexts(), load(prompts)
    world = find(name)
    rows = tasks.rows(world)
    anchor = consistency.Anchor(anchor_turns, tuple(filter(None, map(str.strip, anchor_tools.split(",")))))
    counts = " and ".join(f"{len(of_split)} {split}" for split, of_split in rows.items())
    data = f"{world.name}{f', {tasks.level}' if tasks.level else ''}, {counts} tasks of seed {tasks.seed}"
    folder = Path(out) if out else None
    players = agents.make(world, model, tasks, folder and folder / ACTIONS)
    answers = Answers(model.asked(), folder and folder / measures.ANSWERS)
    consistency.check(world, answers, family, anchor)
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
        open_folder(folder, "consistency", model.name, data)
        same_settings(folder / SETTINGS, settings, "episodes")
    episodes: list[Episode] = []
    for agent in players:
        played = consistency.consistency(
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
    measures.keep(result, turn_rows(episodes), folder)
    if folder:
        write_lines(w2r_rows(episodes), folder / EPISODES)
    ok = any(not one.failure for one in episodes)
    return {**result.as_dict(), "out": out, "asked": answers.asked, "ok": ok}
