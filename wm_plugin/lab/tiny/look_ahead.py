"""The policy looks ahead with itself: the weights that choose a move also predict the board after it.

So it can play on in its imagination. Of each of the four moves it imagines some episodes to their end, predicting the boards and
sampling its own later moves, and takes the move whose episodes reach the goal. There is no second model, no search and no
training: how much this helps shows what its predictions are worth.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from wm_plugin.lab.tiny.policy import ACTIONS, HEADER, Adviser, Played, Tokenizer, play
from wm_plugin.lab.tiny.warm_start import OBSERVATION_TOKENS

EPISODES = 4  # imagined a move
DISCOUNT = 0.9  # a turn: the goal sooner is worth more
_CHUNK = 32  # boards whose imagined episodes are in memory at a time


def play_ahead(model: PreTrainedModel, tokenizer: Tokenizer, boards: Sequence[str], seed: int) -> list[Played]:
    """`play`, but the policy looks ahead before every move. Where it imagines no success, it moves as it would without."""
    return play(model, tokenizer, boards, seed, look_ahead(model, tokenizer, seed))


def look_ahead(model: PreTrainedModel, tokenizer: Tokenizer, seed: int) -> Adviser:
    """Advises the move of the highest value that `imagine` finds; none where all are 0."""
    generator = torch.Generator().manual_seed(seed)

    def advise(texts: list[str], turns: int) -> list[int | None]:
        values = torch.cat(
            [
                imagine(model, tokenizer, texts[first : first + _CHUNK], turns, generator)
                for first in range(0, len(texts), _CHUNK)
            ]
        )
        best, moves = values.max(1)
        return [move if value > 0 else None for value, move in zip(best.tolist(), moves.tolist(), strict=True)]

    return advise


@torch.no_grad()
def imagine(
    model: PreTrainedModel, tokenizer: Tokenizer, texts: Sequence[str], turns: int, generator: torch.Generator
) -> Tensor:
    """The value of each move, (texts, moves): the mean over imagined episodes of 1 at the goal, discounted by the turns to it.

    Args:
        model: The policy, in evaluation mode.
        tokenizer: Its tokenizer.
        texts: Episodes so far, of one length, which end at a turn of the policy.
        turns: How many turns are left; episodes are imagined no further.
        generator: Draws the moves after the first one.
    """
    moves, (goal, over) = tokenizer(ACTIONS).input_ids, tokenizer("P!").input_ids
    allowed = torch.tensor(moves)
    ids = torch.tensor(tokenizer(list(texts)).input_ids)
    cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(len(moves))
    values = torch.zeros(len(texts) * len(moves))
    first = torch.arange(len(values))  # the text and first move of each imagined episode
    chosen, weight = allowed.repeat(len(texts)), 1.0
    for turn in range(turns):
        boards, logits = _predict(model, tokenizer, cache, chosen)
        ended = boards[:, -1] == over
        reached = ended & (boards == goal).any(1)
        values.index_add_(0, first[reached], torch.full((int(reached.sum()),), weight * DISCOUNT**turn))
        going_on = (~ended).nonzero()[:, 0]
        if not len(going_on):
            break
        cache.batch_select_indices(going_on)
        first, odds = first[going_on], logits[going_on][:, allowed].float().softmax(-1)
        if turn == 0:  # predictions are greedy: what differs between episodes of one first move comes after it
            cache.batch_repeat_interleave(EPISODES)
            first, odds, weight = first.repeat_interleave(EPISODES), odds.repeat_interleave(EPISODES, 0), 1 / EPISODES
        chosen = allowed[torch.multinomial(odds, 1, generator=generator)[:, 0]]
    return values.view(len(texts), len(moves))


def _predict(model: PreTrainedModel, tokenizer: Tokenizer, cache: Cache, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The boards that follow moves, greedily, and the logits of the turn after them; `cache` then has both."""
    token, board = chosen, []
    for _ in range(OBSERVATION_TOKENS):
        token = _next(model, cache, token[:, None]).argmax(-1)
        board.append(token)
    header = torch.full_like(token, tokenizer(HEADER).input_ids[0])
    return torch.stack(board, 1), _next(model, cache, torch.stack([token, header], 1))


def _next(model: PreTrainedModel, cache: Cache, tokens: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    return logits
