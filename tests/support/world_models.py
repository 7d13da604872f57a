"""World models without weights: the real world itself, which a test may make lie, and agents without a process of their own."""

import json

import wm_plugin.worlds.agents.rollout as rollout
from wm_plugin.client.answers import Answer
from wm_plugin.data.readers.word2world import SUCCESS
from wm_plugin.data.render import sides
from wm_plugin.data.schema import Action, Call
from wm_plugin.worlds.agents.acting import ModelAgent, ScriptedAgent
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.grid import GridEnvironment


def board_after(board, move):
    """The board of the grid after a move, without the limit of turns."""
    environment = GridEnvironment()
    if board[-1] == "!":
        return board
    environment.reset(board[:-1])
    return environment.move(move)


def action_of(text):
    """The action that a message of a dialogue was made of; a call a line. Other lines are the agent's words."""
    calls = []
    for line in text.splitlines():
        name, bracket, arguments = line.partition("(")
        if not bracket:
            continue
        calls.append(Call(name=name, arguments=json.loads(arguments[:-1] or "null")))
    return Action(calls=tuple(calls))


class RealWorld:
    """Answers with what the real world says: a perfect world model.

    Args:
        lie: (the answer, the turn from 1, the row) -> another text, or an `Answer`.
        last: dies before it is asked this question, counted from 0.
    """

    batched = False

    def __init__(self, world, rows, lie=lambda text, turn, row: text, last=None, settings=None):
        self.settings = {"model": "real", "temperature": 0.0, **(settings or {})}
        self.lie, self.last, self.questions, self._environment = lie, last, [], world.make()
        self._rows = {self._start(row): row for row in rows}

    def _start(self, row):
        return rollout.replay(self._environment, row, []).context.initial_state

    def ask(self, conversations, seeds, keep):
        for index, messages in enumerate(conversations):
            if len(self.questions) == self.last:
                raise KeyboardInterrupt
            self.questions.append(messages)
            keep(index, self.answer(messages))

    def answer(self, messages):
        start = max((one for one in self._rows if one in messages[0]["content"]), key=len)
        actions = [action_of(message["content"]) for message in messages if message["role"] == "user"]
        played = rollout.replay(self._environment, self._rows[start], actions)
        text = "Nothing."
        if len(played.turns) == len(actions):
            last = played.turns[-1]
            _, (_, text) = sides([last], [[seen.text for seen in last.observations]])
        won = played.success and len(played.turns) == len(actions)
        told = self.lie(text + SUCCESS if won else text, len(actions), self._rows[start])
        return told if isinstance(told, Answer) else Answer(told)


class Player:
    """A scripted policy in this process. Episodes of the numbers in `lost` are lost."""

    def __init__(self, world, choose, max_turns=50, lost=None):
        self.settings = {"policy": "expert"}
        self._environment, self._choose, self._max_turns, self._lost = world.make(), choose, max_turns, lost or {}

    def __call__(self, tasks):
        return [
            self._lost.get(number)
            or rollout.play(self._environment, row, scripted(self._choose()), max_turns=self._max_turns)
            for number, row in tasks
        ]

    def close(self):
        pass


def expert(world, **options):
    return ScriptedAgent("expert", Player(world, world.expert, **options))


class Walker:
    """A model that acts in the grid by the last board that it sees."""

    batched = False
    settings = {"agent": "walker", "temperature": 1.0}  # noqa: RUF012

    def __init__(self, last=None, fails=()):
        self.last, self.fails, self.questions = last, fails, []

    def ask(self, conversations, seeds, keep):
        from wm_plugin.worlds.grid import GridEnvironment
        from wm_plugin.worlds.grid import expert as grid_expert

        for index, situation in enumerate(conversations):
            if len(self.questions) == self.last:
                raise KeyboardInterrupt
            board = [message["content"] for message in situation if message["role"] in ("user", "tool")][-1]
            self.questions.append((board, seeds[index]))
            if board in self.fails:
                keep(index, Answer("", failure="timeout"))
                continue
            environment = GridEnvironment()
            environment.reset(board.rstrip(">!"))
            chosen = grid_expert()(environment)
            calls = () if chosen is None else (Call(name=chosen[0], arguments=chosen[1]),)
            keep(index, Answer(Action(text="" if calls else "I give up.", calls=calls).to_bytes().decode()))


def walker(world, path=None, **options):
    model = Walker(**options)
    return ModelAgent("walker", model, world, path, at_once=8), model


def always(answer, columns):
    """A rule of `simulated` that everything satisfies."""
    return 1.0


def is_answer(answer, columns):
    """A rule of simulated worlds: whether the answer is the row's."""
    return float(answer == columns["answer"])
