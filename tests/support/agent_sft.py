"""An agent's dialogues for the tests of SFT with the term, on both hosts, and the term by plain transformers."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from wm_plugin.data import Trajectory, Turn
from wm_plugin.data.schema import Action, Call, Context, Observation, Source
from wm_plugin.data.write import write

ROWS = 8
SCHEMAS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "x",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        },
    }
    for name in ("look", "take")
)


def trajectories(rows: int = ROWS) -> list[Trajectory]:
    """Dialogues with two tools, a user's replies, and one without an observation."""
    return [_trajectory(number) for number in range(rows)]


def _trajectory(number: int) -> Trajectory:
    luck, turns = random.Random(number), []
    for _ in range(0 if number == 3 else luck.randint(1, 3)):
        if luck.random() < 0.3:
            action, seen = (
                Action(text=f"which {luck.randrange(9)}?"),
                (Observation(kind="user", text=f"any {luck.randrange(9)}"),),
            )
        else:
            names = [luck.choice(("look", "take")) for _ in range(luck.randint(1, 2))]
            calls = tuple(Call(name=name, arguments={"key": str(luck.randrange(99))}) for name in names)
            action = Action(text="so", calls=calls)
            seen = tuple(
                Observation(kind="tool", tool=name, call=place, text=f"a door {luck.randrange(999)}")
                for place, name in enumerate(names)
            )
        turns.append(Turn(action=action, observations=seen))
    turns.append(Turn(action=Action(text=f"done {number}")))
    return Trajectory(
        turns=tuple(turns),
        context=Context(task="a task", initial_state=f"begin {number}" + " on" * number, action_space=SCHEMAS),
        task_id=str(number),
        success=number % 2 == 0,
        reward=float(number % 2 == 0),
        source=Source(format="wm", file="f", row=number),
    )


def write_rollouts(path: Path) -> Path:
    write(trajectories(), path)
    return path


def naive(
    model: Any,
    rows: list[dict[str, Any]],
    weights: Callable[[dict[str, Any]], list[float]],
    *,
    coeff: float,
    mask: str = "assistant_masks",
    policy: bool = True,
    divide: Callable[[list[list[float]]], float] | None = None,
) -> tuple[float, float, torch.Tensor]:
    """The agent's mean loss, the environment's, and the gradient of their weighted sum, each row by itself.

    Args:
        weights: a row -> the weight of each token. divide: all weights -> N; None: how many are not 0.
    """
    agent, environment, own, every = [], [], 0, []
    for row in rows:
        ids = torch.tensor(row["input_ids"])
        logps = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        trained = torch.tensor(row[mask], dtype=logps.dtype)[1:]
        agent.append(-(logps * trained).sum())
        own += int(trained.sum())
        every.append(weights(row)[1:])
        environment.append(-(logps * torch.tensor(every[-1], dtype=logps.dtype)).sum())
    number = sum(weight != 0 for one in every for weight in one) if divide is None else divide(every)
    first, second = sum(agent) / own, sum(environment) / max(number, 1)
    model.zero_grad()
    (policy * first + coeff * second).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()
    model.zero_grad()
    return first.item(), second.item(), gradient


def of_spans(
    choose: Callable[[dict[str, Any]], float] = lambda span: float(span["content"]),
) -> Callable[[dict[str, Any]], list[float]]:
    """Weights of a row of tokens by its spans."""

    def weights(row: dict[str, Any]) -> list[float]:
        found = [0.0] * len(row["input_ids"])
        for span in row["env_spans"]:
            for place in range(span["start"], min(span["end"], len(found))):
                found[place] = choose(span)
        return found

    return weights


# The agent's and the environment's mean loss of these rows under the model of `support.agreement`, which both hosts must find.
AGREED = (5.798717, 5.778479)
