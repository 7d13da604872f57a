"""A tiny world of several moves a turn, in which moves that change nothing cost nothing: what WMAct's ablation is made in.

A board has 4x4 cells, some of them walls. A turn of the policy is a plan: up to 8 letters of U, D, L and R, one token each, and
the token that ends the turn. What an episode shows next is the board, its rows without line ends, and the status mark.
"""

import random
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, Qwen2ForCausalLM, Qwen2Tokenizer

from wm_plugin.hosting.world import report
from wm_plugin.lab.tiny import policy
from wm_plugin.lab.tiny.policy import EOS, HEADER, Tokenizer
from wm_plugin.lab.tiny.warm_start import OBSERVATION, POLICY, Progress, train
from wm_plugin.worlds.kit.rows import check_level
from wm_plugin.worlds.maze import MOVES, MazeEnvironment, distances, step

SIZE = 4  # cells a side; there is no border
WALLS = 0.2  # of the cells
LEVELS = {"standard": range(2, 5), "hard": range(5, 9)}  # moves of a shortest way
MAX_TURNS = 8
MAX_MOVES = 8  # a turn: the hard levels can be solved in one
OBSERVATION_TOKENS = SIZE * SIZE + 1
TURN_TOKENS = 1 + MAX_MOVES + 1 + OBSERVATION_TOKENS  # the header, the plan and its end, the board
BUMPS, STRAYS = 0.4, 0.1  # of a demonstration's moves: into a wall beside it, and anywhere

CHAT_TEMPLATE = policy.CHAT_TEMPLATE.replace(  # a turn of calls ends like one without
    "{%- endfor -%}{%- else -%}", "{%- endfor -%}{{- eos_token -}}{%- else -%}"
)


class PlanEnvironment(MazeEnvironment):
    """One episode: at most `max_turns` plans; reward 1 for reaching the goal, at whichever move of a plan."""

    _max_actions = MAX_MOVES

    def reset(self, board: str, max_turns: int | None = None, **_: Any) -> str:
        """Start at `board`, a column made by `make_boards`. `max_turns` is `MAX_TURNS` unless the row says otherwise."""
        return super().reset(board, max_turns or MAX_TURNS)

    def move(self, direction: str) -> str:
        """Move several cells. Walking into a wall changes nothing.

        Args:
            direction: Letters of U, D, L and R, e.g. "UUR".

        Returns:
            The new board.
        """
        return self._act("; ".join(direction) if isinstance(direction, str) else None)

    def _observation(self) -> str:
        return super()._observation().replace("\n", "")


def make_boards(count: int, seed: int, *, level: str = "standard", held_out: bool = False) -> list[str]:
    """`count` boards, each of its own walls. The walls decide the split: 1 layout in 10 is held out."""
    check_level(level, LEVELS, "world of plans")
    rng = random.Random(seed * 2 + held_out)
    boards: list[str] = []
    while len(boards) < count:
        rows = ["".join("#" if rng.random() < WALLS else "." for _ in range(SIZE)) for _ in range(SIZE)]
        walls = "\n".join(rows)
        if (zlib.crc32(walls.encode()) % 10 == 0) != held_out or "." not in walls:
            continue
        start = rng.choice([index for index, cell in enumerate(walls) if cell == "."])
        goals = [cell for cell, far in distances(walls, start).items() if far in LEVELS[level]]
        if goals:
            cells = list(walls)
            cells[start], cells[rng.choice(goals)] = "A", "G"
            boards.append("".join(cells))
    return boards


def dataset_rows(
    count: int, seed: int, *, level: str = "standard", held_out: bool = False, max_turns: int = MAX_TURNS
) -> list[dict[str, Any]]:
    """Rows for a trainer: the whole prompt is the first board, which `reset` supplies. It does not tell the turns."""
    boards = make_boards(count, seed, level=level, held_out=held_out)
    return [{"prompt": [{"role": "user", "content": ""}], "board": board, "max_turns": max_turns} for board in boards]


def demonstrate(board: str, rng: random.Random) -> list[str]:
    """[board, plan, board, ...]: a shortest way in plans of 1 to 5 moves, among moves that are wasted."""
    environment = PlanEnvironment()
    parts = [environment.reset(board)]
    distance = distances(environment._board, environment._goal)
    while not environment.over:
        plan, position = "", environment._agent
        for _ in range(rng.randint(1, 5)):
            ways = {move: step(environment._board, position, move) for move in MOVES}
            blocked = [move for move, to in ways.items() if to == position]
            luck = rng.random()
            if luck < BUMPS and blocked:
                move = rng.choice(blocked)
            elif BUMPS <= luck < BUMPS + STRAYS:
                move = rng.choice(MOVES)
            else:
                move = rng.choice([move for move, to in ways.items() if distance[to] < distance[position]])
            plan, position = plan + move, ways[move]
            if position == environment._goal:
                break
        parts += [plan, environment.move(plan)]
    return parts


def make_tokenizer() -> Qwen2Tokenizer:
    """The tokenizer of `wm_plugin.lab.tiny.policy`, with the template of turns of several moves. Needs transformers 5.13."""
    tokenizer = policy.make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    fields = policy.RESPONSES["policy"]["fields"]
    calls = {**fields["tool_calls"], "open_pattern": f"(?P<direction>[{MOVES}]+)"}
    tokenizer.response_template = {**policy.RESPONSES["policy"], "fields": {**fields, "tool_calls": calls}}
    return tokenizer


def make_model(tokenizer: Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """The model of `wm_plugin.lab.tiny.policy`. Its generation config ends a turn after any token that is no move."""
    model = policy.make_model(tokenizer, seed)
    moves = tokenizer(MOVES).input_ids
    model.generation_config.eos_token_id = [token for token in range(model.config.vocab_size) if token not in moves]
    return model


def encode(tokenizer: Tokenizer, episodes: Sequence[Sequence[str]]) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids and kinds of episodes [board, plan, board, ...] as the chat template writes them, each with its end."""
    texts, kinds = [], []
    for first, *parts in episodes:
        text, kind = first, [0] * len(first)
        for index, part in enumerate(parts):
            text += part if index % 2 else HEADER + part + EOS
            kind += [OBSERVATION] * len(part) if index % 2 else [0] + [POLICY] * (len(part) + 1)
        texts.append(text + HEADER + EOS)
        kinds.append([*kind, 0, POLICY])
    return [list(ids) for ids in tokenizer(texts).input_ids], kinds


def warm_start(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    seed: int,
    *,
    steps: int = 200,
    demonstrations: int = 3000,
    environment_weight: float = 0.5,
    progress: Progress | None = None,
) -> None:
    """Clone demonstrations into `model` (in place), plus `environment_weight` times the loss on the boards between.

    Each loss is the mean over its own tokens.
    """
    rng = random.Random(seed)
    ids, kinds = encode(tokenizer, [demonstrate(board, rng) for board in make_boards(demonstrations, seed)])

    def loss(tokens: Tensor, kind: Tensor) -> Tensor:
        logits, targets, kind = model(input_ids=tokens[:, :-1]).logits, tokens[:, 1:], kind[:, 1:]
        plans, boards = kind == POLICY, kind == OBSERVATION
        cloning = cross_entropy(logits[plans], targets[plans])
        return cloning + environment_weight * cross_entropy(logits[boards], targets[boards])

    for done in train(model, ids, kinds, loss, steps=steps, batch=32, rate=2e-3, seed=seed):
        if progress:
            progress(done, steps)


def play(
    model: PreTrainedModel, tokenizer: Tokenizer, boards: Sequence[str], seed: int, *, max_turns: int = MAX_TURNS
) -> list[dict[str, float]]:
    """Sample one episode of each board at temperature 1, as TRL does, and return the figures of each.

    A turn without a move gives the episode up. The global generator is kept. As boards do not tell how many turns are left, the
    first turn of an episode is the whole of one with `max_turns` 1.
    """
    environments = [PlanEnvironment() for _ in boards]
    texts = [environment.reset(board, max_turns) for environment, board in zip(environments, boards, strict=True)]
    training = model.training
    model.eval()
    alive = list(range(len(boards)))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        while alive:
            for index in alive:
                texts[index] += HEADER
            prompt = tokenizer([texts[index] for index in alive], padding=True, return_tensors="pt")
            generated = model.generate(
                input_ids=prompt.input_ids,
                attention_mask=prompt.attention_mask,
                do_sample=True,
                top_k=0,
                max_new_tokens=MAX_MOVES,
            )[:, prompt.input_ids.shape[1] :]
            for index, plan in zip(alive, map(_moves, map(tokenizer.decode, generated)), strict=True):
                texts[index] += plan + EOS * (len(plan) < MAX_MOVES)
                texts[index] += environments[index].move(plan) if plan else ""
            alive = [index for index in alive if not environments[index].over and not texts[index].endswith(EOS)]
    model.train(training)
    return [report(environment) for environment in environments]


def _moves(text: str) -> str:
    """The letters before the first token that is no move."""
    return text[: next((index for index, letter in enumerate(text) if letter not in MOVES), len(text))]
