"""Train the tiny policy before reinforcement learning: next-observation prediction, then cloning of shortest ways.

Both stages are deterministic: equal starts and seeds give equal weights on one machine. They run in float32, which is three times
as fast as autocast on CPUs without bfloat16 units.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from wm_plugin.lab.evaluation.one_step import evaluate
from wm_plugin.lab.tiny.policy import HEADER, Tokenizer
from wm_plugin.worlds.grid import MAX_TURNS, SIZE, GridEnvironment, expert, make_boards, walk, wanderer

POLICY, OBSERVATION, PREDICTION = 1, 2, 3  # kinds of tokens; 0: the first board, a header, or padding
TAG = "p"  # of a policy that predicts: a turn is <p>the next board</p> and a move
# The next board's cell depends on the same cell and its four neighbours (16 to 26 tokens back) and on the move (up to 20 tokens
# back), and a head attends to each. With 2 heads a layer, training succeeds with some seeds only.
HEADS = 4
STOP_AT = 0.95  # the exact match at which world-model training stops
WEAK = 0.85  # below it, a start knows too little of its world for RL to forget much of it
WALK_TURNS = 4
SFT_STEPS, CLONING_STEPS = 600, 120  # at most, and exactly
OBSERVATION_TOKENS = SIZE * (SIZE + 1)  # a board and its status mark
TURN_TOKENS = OBSERVATION_TOKENS + 2  # with the header and the move before it
_BATCH_OF_WALKS, _BATCH_OF_DEMONSTRATIONS = 24, 32
_VALIDATION_SEED = 7_000_003  # its boards are in no training and no report

World = type[GridEnvironment]  # its law of motion may be another
Progress = Callable[[int, int], None]  # steps done, steps planned


def encode(
    tokenizer: Tokenizer, episodes: Sequence[Sequence[str]], *, end: bool = False, predicts: bool = False
) -> tuple[list[list[int]], ...]:
    """Return token ids and kinds of episodes [observation, action, observation, ...], as the chat template writes them.

    With `end`, a last policy turn, the end-of-sequence token alone, closes each episode. With `predicts`, the policy writes the
    next observation before each action.
    """
    texts, all_kinds = [], []
    for first, *parts in episodes:
        text, kinds = first, [0] * len(first)
        for index, part in enumerate(parts):  # one token a character
            if index % 2:
                text, kinds = text + part, kinds + [OBSERVATION] * len(part)
                continue
            said = f"<{TAG}>{parts[index + 1]}</{TAG}>" if predicts else ""
            text, kinds = f"{text}{HEADER}{said}{part}", [*kinds, 0, *[PREDICTION] * len(said), POLICY]
        texts.append(text + HEADER * end)
        all_kinds.append(kinds + [0, POLICY] * end)
    all_ids = [list(ids) + [tokenizer.eos_token_id] * end for ids in tokenizer(texts).input_ids]
    return all_ids, all_kinds


def walks(
    tokenizer: Tokenizer, boards: Sequence[str], seed: int, world: World = GridEnvironment
) -> tuple[list[list[int]], list[list[int]]]:
    """Walk at random, at most 4 moves; return token ids, and masks (1 = a next observation's token)."""
    rng = random.Random(seed)
    ids, kinds = encode(tokenizer, [walk(board, wanderer(rng), WALK_TURNS, world) for board in boards])
    return ids, [[int(kind == OBSERVATION) for kind in row] for row in kinds]


def boards_of(world: World, count: int, seed: int, *, held_out: bool = False) -> list[str]:
    """Make boards whose goal is 1 to 6 moves away in `world`; a tenth of the wall layouts is held out."""
    return make_boards(count, seed, held_out=held_out, moved=world._step)


def world_model_sft(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    seed: int,
    *,
    max_steps: int = SFT_STEPS,
    stop_at: float = STOP_AT,
    check_every: int = 50,
    changed_weight: float = 5.0,
    rate: float = 3e-3,
    progress: Progress | None = None,
    world: World = GridEnvironment,
) -> float:
    """Train `model` in place to predict the next observation on random walks; return its last exact match share.

    A token that differs from the previous board's cell weighs `changed_weight` times as much: few cells change, and those are
    hard. Training ends when the exact match on held-out boards reaches `stop_at`, or after `max_steps` steps, over which the
    learning rate decays in any case.
    """
    boards = boards_of(world, min(20_000, max_steps * _BATCH_OF_WALKS), seed)
    rng = random.Random(seed + 1)
    ids, kinds = encode(tokenizer, [walk(board, wanderer(rng), WALK_TURNS, world) for board in boards])
    held_out = boards_of(world, 128, _VALIDATION_SEED, held_out=True)
    validation = walks(tokenizer, held_out, _VALIDATION_SEED, world)
    exact = 0.0

    def loss(tokens: Tensor, kind: Tensor) -> Tensor:
        lag = TURN_TOKENS  # to the same cell of the previous board
        weight = torch.ones(tokens.shape, device=tokens.device)
        weight[:, lag:] += (changed_weight - 1) * (tokens[:, lag:] != tokens[:, :-lag])
        counts = kind[:, 1:] == OBSERVATION
        logits = model(input_ids=tokens[:, :-1]).logits[counts]
        nll = cross_entropy(logits, tokens[:, 1:][counts], reduction="none")
        weight = weight[:, 1:][counts]
        return (nll * weight).sum() / weight.sum()

    steps = train(model, ids, kinds, loss, steps=max_steps, batch=_BATCH_OF_WALKS, rate=rate, seed=seed)
    for step in steps:
        if progress:
            progress(step, max_steps)
        if step % check_every == 0 or step == max_steps:
            exact = evaluate(model, *validation, batch_size=64).exact_share
            if exact >= stop_at:
                break
    if progress:
        progress(max_steps, max_steps)
    return exact


def behaviour_cloning(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    seed: int,
    *,
    steps: int = CLONING_STEPS,
    demonstrations: int = 2000,
    environment_weight: float = 0.5,
    predicts: bool = False,
    rate: float = 2e-3,
    progress: Progress | None = None,
    world: World = GridEnvironment,
) -> None:
    """Clone shortest ways into `model` in place, plus `environment_weight` times the loss on the observations between.

    Each loss is the mean over its own tokens. One mean over both would drown the actions, which are 1 token in 20. With
    `predicts`, the predictions that the policy writes before its actions have a loss of their own.
    """
    boards = boards_of(world, demonstrations, seed)
    rng = random.Random(seed)
    shown = [walk(board, expert(rng), MAX_TURNS, world) for board in boards]
    ids, kinds = encode(tokenizer, shown, end=True, predicts=predicts)

    def loss(tokens: Tensor, kind: Tensor) -> Tensor:
        logits, targets, kind = model(input_ids=tokens[:, :-1]).logits, tokens[:, 1:], kind[:, 1:]
        policy, observation = kind == POLICY, kind == OBSERVATION
        cloning = cross_entropy(logits[policy], targets[policy])
        if predicts:
            cloning = cloning + cross_entropy(logits[kind == PREDICTION], targets[kind == PREDICTION])
        return cloning + environment_weight * cross_entropy(logits[observation], targets[observation])

    for step in train(model, ids, kinds, loss, steps=steps, batch=_BATCH_OF_DEMONSTRATIONS, rate=rate, seed=seed):
        if progress:
            progress(step, steps)


def train(
    model: PreTrainedModel,
    ids: list[list[int]],
    kinds: list[list[int]],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
) -> Iterator[int]:
    """Train, and yield after every optimizer step. `loss` takes ids and kinds, (batch, length), right-padded with 0."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for step in range(1, steps + 1):
        if len(order) < batch:
            order = torch.randperm(len(ids), generator=generator).tolist()
        indices, order = order[:batch], order[batch:]
        decay = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 1) / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, step / 20) * decay
        model.train()
        loss(_batch(ids, indices).to(device), _batch(kinds, indices).to(device)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield step
    model.eval()


def _batch(rows: list[list[int]], indices: list[int]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(rows[index]) for index in indices], batch_first=True)
