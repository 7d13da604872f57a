"""Transitions of the grid, a tiny model that can be asked, and a chat server of the tests' own."""

import json
import random
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from types import SimpleNamespace

from support.serving import Handler, serving
from wm_plugin.data import Trajectory, Turn, expand
from wm_plugin.data.schema import Action, Context, Observation, Source
from wm_plugin.worlds.grid import make_boards, walk, wanderer

PROMPTS = """\
tag: next_state
think: "<think> <next_state>"
direct: "<next_state>"
variants:
  v0:
    user: |
      $context

      $history

      $action

      $answer
"""


def grid_trajectories(count=12, seed=0, turns=3):
    """Random walks, each a task of its own."""
    luck = random.Random(seed)
    made = []
    for row, board in enumerate(make_boards(count, seed)):
        first, *rest = walk(board, wanderer(luck), turns)
        steps = [
            Turn(action=Action(text=action), observations=(Observation(kind="environment", text=seen),))
            for action, seen in zip(rest[::2], rest[1::2], strict=True)
        ]
        source = Source(format="grid", file="grid.jsonl", row=row)
        made.append(Trajectory(turns=steps, context=Context(initial_state=first), task_id=f"board{row}", source=source))
    return made


def grid_transitions(count=12, seed=0, turns=3):
    return list(expand(grid_trajectories(count, seed, turns), history=0))


def save_tiny(folder, seed=0):
    """A tiny model on disk, whose turns end at the end-of-sequence token."""
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def cells(predictions, targets, **_):
    """A similarity of boards: the share of equal characters."""
    pairs = zip(predictions, targets, strict=True)
    return [sum(a == b for a, b in zip(*pair, strict=False)) / max(map(len, pair)) for pair in pairs]


class Scripted:
    """A predictor without a model: outputs are drawn by the seed alone."""

    def __init__(self, name="scripted", answer=None):
        self.settings = {"model": name}
        self.answer = answer or (lambda messages, luck: f"<next_state>\n{luck.random()}\n</next_state>")
        self.asked = []

    def __call__(self, conversations, *, k, seed):
        self.asked.append(len(conversations))
        luck = random.Random(seed)
        return [[self.answer(messages, luck) for _ in range(k)] for messages in conversations]


@contextmanager
def chat_server(answer):
    """A server at `url`. `answer(body, count)` gives (status, JSON value or bytes); count is of the same messages so far."""
    seen = []
    counts = Counter()
    lock = threading.Lock()

    class Chat(Handler):
        def do_POST(self):
            body = self.body()
            with lock:
                key = json.dumps(body["messages"])
                counts[key] += 1
                seen.append({**body, "path": self.path, "key": self.headers["Authorization"]})
                status, value = answer(body, counts[key])
            with suppress(ConnectionError):  # the client was told to wait no longer
                self.reply(value, status)

    with serving(Chat) as url:
        yield SimpleNamespace(url=url, seen=seen)


def choices(*texts, **more):
    return 200, {"choices": [{"message": {"role": "assistant", "content": text, **more}} for text in texts]}
