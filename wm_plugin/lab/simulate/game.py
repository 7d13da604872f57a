"""Plays an episode in a world model with the lines that a person types."""

import json
from collections.abc import Callable
from typing import Any

from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import tool_methods
from wm_plugin.lab.simulate.beside import print_beside, same
from wm_plugin.lab.simulate.session import Session
from wm_plugin.runtime.terminal import read_line, replace_bad_input, say
from wm_plugin.worlds.agents.typed import explained, overview, parse
from wm_plugin.worlds.worlds import World

COMMANDS = """\
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


class Game:
    """A person's lines as turns of a session, and what the person sees of it. `settings` are kept with saved trajectories."""

    def __init__(self, session: Session, world: World, settings: dict[str, Any], *, beside: bool) -> None:
        self._session, self._world, self._settings, self._is_beside = session, world, settings, beside
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
        """Read lines to the end; return the file that was saved last."""
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
                    self._call(*parse(line, self._tools))
            except UserError as error:
                say(str(error))
        return self._saved

    def _call(self, name: str, arguments: dict[str, Any]) -> None:
        self._act(Action(calls=(Call(name=name, arguments=arguments),)))

    def _act(self, action: Action) -> None:
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
        if self._is_beside:
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
        predicted, real = self._session.compare()
        if real is None:
            why = self._session.real.trouble or "it was over before"
            say(f"{predicted}\n(The real world says nothing: {why}.)")
            return
        print_beside(predicted, real)
        if same(predicted, real):
            say("(The same.)")

    def _help(self, _: str) -> None:
        say(explained(self._tools, COMMANDS))

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
        self._saved = str(self._session.save(name, self._settings))
        say(f"Written to {self._saved}.")
