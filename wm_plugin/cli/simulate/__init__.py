"""`wm simulate NAME`: play a world of ours in a world model, as an agent would, alone or beside the real world."""

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from wm_plugin.cli import state
from wm_plugin.cli.block import read_block
from wm_plugin.cli.env.support import MOST_ROWS, NAME, add_row_arguments, find, rows
from wm_plugin.cli.eval import model as flags
from wm_plugin.cli.terminal import read_line, replace_bad_input, say
from wm_plugin.errors import UserError

if TYPE_CHECKING:
    from wm_plugin.cli.simulate.session import Session
    from wm_plugin.data.schema import Action

_COMMANDS = """\
help              this, and what the world's tools take
context           all that the world model is shown before the first turn
state             the state by its parts, and which of them the world model is shown
instruction TEXT  what the simulation is told to do from the next turn on; without TEXT: what it is told now
undo              take the last turn back
again             ask once more, after a server that did not answer
real              what the real world answers to the same actions
expert            the next action of the world's expert, which looks into the real world
save FILE         write the trajectory to a new file, .jsonl or .parquet
quit              end; so does the end of the input"""
_DESCRIPTION = f"""\
A world model answers in the world's place. Reads a line a turn, as wm env play: the argument, where a world has one tool with one
argument, or `tool argument`, or `tool {{"name": "value"}}`. A line may also be one of these, unless a tool has the name:

{_COMMANDS}

Lines may come from a file: wm simulate NAME ... < lines.txt
"""
_EPILOG = """\
examples:
  wm simulate sql --server http://localhost:8000/v1 --server-model my-world-model --beside
  wm simulate wordle --model runs/wm_sft_word2world --hidden none
  wm simulate grid --server URL --server-model NAME --instruction "Every third move fails with an error."
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "simulate",
        help="play a world in a world model, beside the real one if you like",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help=NAME)
    parser.add_argument("--beside", action="store_true", help="show the real world's answer beside every predicted one")
    parser.add_argument(
        "--row", type=int, default=0, metavar="N", help="number of the row, among those of --seed (default: 0)"
    )
    add_row_arguments(parser)
    parser.add_argument(
        "--max-turns", type=int, default=50, metavar="N", help="longest episode, in turns (default: 50)"
    )
    model = flags.add_arguments(parser)
    model.add_argument(
        "--prompts", default="word2world", metavar="FAMILY", help="the prompts that the model was trained with"
    )
    state.add_arguments(model, "all, as wm data build --as word2world")
    model.add_argument("--instruction", metavar="TEXT", help="what the simulation is told to do; no agent sees it")
    model.add_argument(
        "--control", metavar="FILE", help="perturbations that it is told of, by a file as for wm data control --config"
    )
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The episode's figures as JSON (`Session.figures`), `environment`, `task_id`, `saved`, and `ok`.

    `agreement` is the share of the compared turns in which the world model and the real world say the same; `parted` is the first
    one, from 1, in which they do not; `success` is predicted, and `real_success` real.
    """
    from wm_plugin.cli.simulate.session import ControlledSimulation, RealWorld, Session
    from wm_plugin.client.answers import Answers
    from wm_plugin.data.prompts import load
    from wm_plugin.worlds.wrappers.control import ControlConfig, ControlEpisode

    flags.check(args)
    if not 0 <= args.row < MOST_ROWS:
        raise UserError(f"--row is {args.row}; write a number >= 0, below {MOST_ROWS:,}")
    if args.max_turns < 1:
        raise UserError(f"--max-turns is {args.max_turns}; write a number >= 1")
    chosen, contexts = state.shown(args), state.contexts(args)
    world, prompts = find(args.name), load(args.prompts)
    control = None
    if args.control is not None:
        control = read_block(args.control, "--control", "control", partial(ControlConfig.read, where="control"))
    simulation = ControlledSimulation(
        prompts,
        observers=world.observers,
        world_context=True if chosen is None else chosen,
        seed=args.seed,
    )
    row = rows(world, args, args.row + 1)[args.row]
    real = RealWorld(world, row)
    start = real.start if contexts is None else contexts.filled(real.start)
    if contexts is not None:
        contexts.check_used()
    own = getattr(real.environment, "max_turns", None)
    simulation.max_turns = min(args.max_turns, own) if isinstance(own, int) and own > 0 else args.max_turns
    simulation.reset(start)
    with Answers(flags.make(args)) as answers:
        session = Session(simulation, answers, real)
        told = [] if args.instruction is None else [args.instruction]
        if control is not None:
            simulation.control = ControlEpisode(control, start.task_id, columns=row, irreversible=world.irreversible)
            told.insert(0, simulation.control.instruction)
        if told:
            session.instruct("\n\n".join(filter(None, told)))
        saved = _Game(session, world, args).play()
    figures = session.figures()
    return {
        "environment": world.name,
        "task_id": start.task_id,
        **figures,
        "saved": saved,
        "ok": figures["turns"] > 0 or not figures["failures"],
    }


class _Game:
    """Lines of a person to turns of a session, and what they see of it."""

    def __init__(self, session: "Session", world: Any, args: argparse.Namespace) -> None:
        from wm_plugin.worlds.kit.protocol import tool_methods

        self._session, self._args, self._world = session, args, world
        self._tools, self._expert = tool_methods(session.real.environment), world.expert()
        self._unanswered: Action | None = None
        self._saved: str | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "context": lambda _: say(session.shown()),
            "state": self._state,
            "instruction": self._instruction,
            "undo": self._undo,
            "again": self._again,
            "real": self._real,
            "expert": self._of_expert,
            "save": self._save,
        }

    def play(self) -> str | None:
        """Read lines to the end. Returns the file that was saved last."""
        from wm_plugin.cli.env.play import overview

        replace_bad_input()
        context = self._session.simulation.trajectory.context
        known = ", ".join(self._commands)
        say(f"{self._world.summary}\nIn a world model: what follows an action is predicted.\n{overview(self._tools)}")
        say(f"Also: {known}, quit; help says what they do.\n")
        say("\n\n".join(filter(None, (context.task, context.initial_state))))
        while (line := read_line()) is not None:
            word, _, rest = line.partition(" ")
            if word == "quit" and word not in self._tools:
                break
            try:
                if word in self._commands and word not in self._tools:
                    self._commands[word](rest.strip())
                else:
                    self._typed(line)
            except UserError as error:
                say(str(error))
        return self._saved

    def _typed(self, line: str) -> None:
        from wm_plugin.cli.env.play import parse

        self._call(*parse(line, self._tools))

    def _call(self, name: str, arguments: dict[str, Any]) -> None:
        from wm_plugin.data.schema import Action, Call

        self._act(Action(calls=(Call(name=name, arguments=arguments),)))

    def _act(self, action: "Action") -> None:
        session = self._session
        if session.simulation.over:
            say("The episode is over: undo takes its last turn back, save FILE keeps it, quit ends.")
            return
        self._unanswered = None
        try:
            failure = session.act(action)
        except UserError:
            self._unanswered = action
            raise
        if failure:
            self._unanswered = action
            say(f"The world model did not answer ({failure}); nothing has happened. Write again, or another action.")
            return
        if self._args.beside:
            self._beside()
        else:
            say("\n\n".join(one.text for one in session.simulation.trajectory.turns[-1].observations))
        if trouble := session.simulation.trouble:
            say(f"(The world model's answer is not to be trusted: {trouble}.)")
        if session.simulation.over:
            say(
                "The world model says that the task is done."
                if session.simulation.success
                else "The turns are used up."
            )

    def _beside(self) -> None:
        from wm_plugin.cli.simulate.beside import print_beside, same

        predicted, real = self._session.compare()
        if real is None:
            why = self._session.real.trouble or "it was over before"
            say(f"{predicted}\n(The real world says nothing: {why}.)")
            return
        print_beside(predicted, real)
        if same(predicted, real):
            say("(The same.)")

    def _help(self, _: str) -> None:
        from wm_plugin.cli.env.play import explained

        say(explained(self._tools, _COMMANDS))

    def _state(self, _: str) -> None:
        parts = self._session.state()
        for heading, text, told in parts:
            say(f"# {heading}{'' if told else ', and the world model is not shown it'}\n{text}\n")
        if not parts:
            say("This world tells nothing of its state.")

    def _instruction(self, text: str) -> None:
        if text:
            self._session.instruct(text)
        told = self._session.simulation.trajectory.context.simulation_instruction
        say(f"The simulation is told: {told}" if told else "The simulation has no instruction.")

    def _undo(self, _: str) -> None:
        if not self._session.undo():
            say("There is no turn to take back.")
            return
        turns = self._session.simulation.trajectory.turns
        say(f"Back after turn {len(turns)}." if turns else "Back at the start.")

    def _again(self, _: str) -> None:
        if self._unanswered is None:
            say("There is no action without an answer.")
        else:
            self._act(self._unanswered)

    def _real(self, _: str) -> None:
        if not self._session.simulation.turns:
            say("There is no turn yet; the start is the real world's.")
        else:
            self._beside()

    def _of_expert(self, _: str) -> None:
        session = self._session
        session.real.after(session.actions)
        call = self._expert(session.real.environment) if self._expert and not session.real.over else None
        if call is None:
            say(
                "This world has no expert."
                if not self._expert
                else "The expert has no further action in the real world."
            )
            return
        say(f"(expert) {call[0]} {json.dumps(call[1], ensure_ascii=False)}")
        self._call(*call)

    def _save(self, name: str) -> None:
        if not name:
            raise UserError("save needs a name: save FILE, .jsonl or .parquet")
        settings = {"model": self._args.server_model or self._args.model, "prompts": self._args.prompts}
        self._saved = str(self._session.save(name, settings))
        say(f"Written to {self._saved}.")


def show(result: dict[str, Any]) -> None:
    ended = "done, says the world model" if result["success"] else "over" if result["over"] else "not played to its end"
    line = f"{result['turns']} turns, {ended}"
    if result["compared"]:
        line += f"; the same as the real world in {result['agreement']:.0%} of {result['compared']} compared turns"
        line += f", apart from turn {result['parted']} on" if result["parted"] else ""
    print(line)
