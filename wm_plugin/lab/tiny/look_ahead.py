"""The tiny policy looks ahead with itself: the weights that choose a move also predict the board after it.

For each of the four moves it imagines some episodes to their end, predicting boards and sampling its own later moves, and takes
the move whose episodes reach the goal. There is no second model, no search and no training: the gain shows what its predictions
are worth, between two controls: a coin, which says of each imagined episode whether it reaches the goal, and an oracle, by which
boards are the real ones and only the moves are imagined.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from wm_plugin.lab.tiny.policy import ACTIONS, HEADER, Adviser, Tokenizer
from wm_plugin.lab.tiny.warm_start import OBSERVATION_TOKENS
from wm_plugin.worlds.grid import GridEnvironment

EPISODES = 4  # imagined episodes for each move
DISCOUNT = 0.9  # for each turn
_CHUNK = 32  # boards at once, to bound memory


def look_ahead(model: PreTrainedModel, tokenizer: Tokenizer, seed: int, *, oracle: bool = False) -> Adviser:
    """Make an adviser that chooses the move with the highest value from `imagine`, or none if all are 0."""
    generator = torch.Generator().manual_seed(seed)

    def advise(texts: list[str], turns: int) -> list[int | None]:
        values = [
            imagine(model, tokenizer, texts[first : first + _CHUNK], turns, generator, oracle=oracle)
            for first in range(0, len(texts), _CHUNK)
        ]
        return _best(torch.cat(values))

    return advise


def coin(seed: int) -> Adviser:
    """Make an adviser that chooses like `look_ahead`, by a coin's word on each imagined episode."""
    generator = torch.Generator().manual_seed(seed)

    def advise(texts: list[str], turns: int) -> list[int | None]:  # noqa: ARG001 - a coin reads nothing
        return _best(torch.randint(2, (len(texts), len(ACTIONS), EPISODES), generator=generator).float().mean(-1))

    return advise


def _best(values: Tensor) -> list[int | None]:
    best, moves = values.max(1)
    return [move if value > 0 else None for value, move in zip(best.tolist(), moves.tolist(), strict=True)]


@torch.no_grad()
def imagine(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    turns: int,
    generator: torch.Generator,
    *,
    oracle: bool = False,
) -> Tensor:
    """Return each move's value, (texts, moves): the mean over imagined episodes of 1 at the goal, discounted by the turns to it.

    Args:
        model: in evaluation mode.
        texts: episodes so far, all of one length, up to where the policy's turn begins.
        turns: how many turns are left; episodes are imagined no further.
        generator: draws the moves after the first one.
        oracle: take the real boards instead of predicted ones.
    """
    moves, (goal, over) = tokenizer(ACTIONS).input_ids, tokenizer("P!").input_ids
    allowed = torch.tensor(moves)
    ids = torch.tensor(tokenizer(list(texts)).input_ids)
    cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(len(moves))
    values = torch.zeros(len(texts) * len(moves))
    first = torch.arange(len(values))  # each imagined episode's text and first move
    chosen, weight = allowed.repeat(len(texts)), 1.0
    header = torch.tensor(tokenizer(HEADER).input_ids)
    worlds = [_real(text, turns) for text in texts for _ in moves] if oracle else None
    for turn in range(turns):
        if worlds:
            chars = [world.move(tokenizer.decode(move)) for world, move in zip(worlds, chosen, strict=True)]
            boards = torch.tensor(tokenizer(chars).input_ids)
            logits = _next(model, cache, torch.cat([chosen[:, None], boards, header.expand(len(boards), 1)], 1))
        else:
            boards, logits = _predict(model, cache, chosen, header)
        ended = boards[:, -1] == over
        reached = ended & (boards == goal).any(1)
        values.index_add_(0, first[reached], torch.full((int(reached.sum()),), weight * DISCOUNT**turn))
        going_on = (~ended).nonzero()[:, 0]
        if not len(going_on):
            break
        cache.batch_select_indices(going_on)
        first, odds = first[going_on], logits[going_on][:, allowed].float().softmax(-1)
        if turn == 0:  # predictions are greedy: episodes with the same first move differ only after it
            cache.batch_repeat_interleave(EPISODES)
            first, odds, weight = first.repeat_interleave(EPISODES), odds.repeat_interleave(EPISODES, 0), 1 / EPISODES
        if worlds:
            kept = [worlds[index] for index in going_on.tolist()]
            worlds = [copy.deepcopy(world) for world in kept for _ in range(EPISODES if turn == 0 else 1)]
        chosen = allowed[torch.multinomial(odds, 1, generator=generator)[:, 0]]
    return values.view(len(texts), len(moves))


def _real(text: str, turns: int) -> GridEnvironment:
    """Return the world where an episode is."""
    world = GridEnvironment()
    world.reset(text[-OBSERVATION_TOKENS - len(HEADER) :][: OBSERVATION_TOKENS - 1], turns)
    return world


def _predict(model: PreTrainedModel, cache: Cache, chosen: Tensor, header: Tensor) -> tuple[Tensor, Tensor]:
    """Predict the boards after moves, greedily, and the next turn's logits; `cache` then has both."""
    token, board = chosen, []
    for _ in range(OBSERVATION_TOKENS):
        token = _next(model, cache, token[:, None]).argmax(-1)
        board.append(token)
    return torch.stack(board, 1), _next(model, cache, torch.stack([token, header.expand_as(token)], 1))


def _next(model: PreTrainedModel, cache: Cache, tokens: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    return logits
