"""`wm lab simulate`."""

from typing import Any

from wm_plugin.cli.flags import ModelFlags, PromptsName, RowFlags, StateFlags, WorldName
from wm_plugin.cli.numbers import Count, RowNumber
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import find, read_block
from wm_plugin.client.answers import Answers
from wm_plugin.data.prompts import load
from wm_plugin.lab.agents.real import RealEpisode
from wm_plugin.lab.simulate.game import Game
from wm_plugin.lab.simulate.session import ControlledSimulation, Session
from wm_plugin.worlds.wrappers.control import ControlConfig, ControlEpisode


def show(result: dict[str, Any]) -> None:
    ended = "done, says the world model" if result["success"] else "over" if result["over"] else "not played to its end"
    line = f"{result['turns']} turns, {ended}"
    if result["compared"]:
        line += f"; the same as the real world in {result['agreement']:.0%} of {result['compared']} compared turns"
        line += f", apart from turn {result['parted']} on" if result["parted"] else ""
    print(line)


@prints(show)
def simulate(
    name: WorldName,
    /,
    *,
    model: ModelFlags = ModelFlags(),
    prompts: PromptsName = "word2world",
    state: StateFlags = StateFlags(),
    beside: bool = False,
    row: RowNumber = 0,
    rows: RowFlags = RowFlags(),
    max_turns: Count = 50,
    instruction: str | None = None,
    control: str | None = None,
) -> dict[str, Any]:
    """Play a world in a world model, beside the real one if you like.

    A world model answers in the world's place. Reads a line a turn, as wm env play does. Unless a tool has the name, a line may
    also be context, state, instruction TEXT, undo, again, real, expert, save FILE or quit; `help` says what they do.

    As JSON: `agreement` is the share of the compared turns in which the world model and the real world say the same; `parted` is
    the first one, from 1, in which they do not; `success` is predicted, and `real_success` real.

    ```
    wm lab simulate sql --server http://localhost:8000/v1 --server-model my-world-model --beside
    wm lab simulate wordle --model runs/wm_sft_word2world --hidden none
    ```

    Args:
        beside: Show the real world's answer beside every predicted one.
        row: Number of the row, among those of --seed.
        max_turns: Longest episode, in turns.
        instruction: What the simulation is told to do; no agent sees it.
        control: Perturbations that it is told of, by a file as for wm lab control --config.
    """
    model.check()
    contexts, hidden = state.contexts(), state.shown_or_all()
    world, family = find(name), load(prompts)
    controls = read_block(control, "--control", "control", ControlConfig) if control else None
    simulation = ControlledSimulation(family, observers=world.observers, world_context=hidden, seed=rows.seed)
    columns = rows.rows(world, row + 1)[row]
    real = RealEpisode(world.make(), columns)
    start = real.start if contexts is None else contexts.filled(real.start)
    if contexts is not None:
        contexts.check_used()
    own = getattr(real.environment, "max_turns", None)
    simulation.max_turns = min(max_turns, own) if isinstance(own, int) and own > 0 else max_turns
    simulation.reset(start)
    with Answers(model.asked()) as answers:
        session = Session(simulation, answers, real)
        told = [] if instruction is None else [instruction]
        if controls is not None:
            simulation.control = ControlEpisode(
                controls, start.task_id, columns=columns, irreversible=world.irreversible
            )
            told.insert(0, simulation.control.instruction)
        if told:
            session.instruct("\n\n".join(filter(None, told)))
        saved = Game(session, world, {"model": model.name, "prompts": prompts}, beside=beside).play()
    figures = session.figures()
    return {
        "environment": world.name,
        "task_id": start.task_id,
        **figures,
        "saved": saved,
        "ok": figures["turns"] > 0 or not figures["failures"],
    }
