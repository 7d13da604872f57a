"""The tiny policy looks ahead with itself: the weights that choose a move also predict the board after it.

For each of the four moves it imagines some episodes to their end, predicting boards and sampling its own later moves, and takes
the move whose episodes reach the goal. There is no second model, no search and no training: the gain shows what its predictions
are worth.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from wm_plugin.lab.tiny.policy import ACTIONS, HEADER, Adviser, Played, Tokenizer, play
from wm_plugin.lab.tiny.warm_start import OBSERVATION_TOKENS

EPISODES = 4  # imagined episodes for each move
DISCOUNT = 0.9  # for each turn
_CHUNK = 32  # boards at once, to bound memory


def play_ahead(model: PreTrainedModel, tokenizer: Tokenizer, boards: Sequence[str], seed: int) -> list[Played]:
    """Play like `play`, looking ahead before every move; where the policy imagines no success, it moves as usual."""
    return play(model, tokenizer, boards, seed, look_ahead(model, tokenizer, seed))


def look_ahead(model: PreTrainedModel, tokenizer: Tokenizer, seed: int) -> Adviser:
    """Make an adviser that chooses the move with the highest value from `imagine`, or none if all are 0."""
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
    """Return each move's value, (texts, moves): the mean over imagined episodes of 1 at the goal, discounted by the turns to it.

    Args:
        model: in evaluation mode.
        texts: episodes so far, all of one length, up to where the policy's turn begins.
        turns: how many turns are left; episodes are imagined no further.
        generator: draws the moves after the first one.
    """
    moves, (goal, over) = tokenizer(ACTIONS).input_ids, tokenizer("P!").input_ids
    allowed = torch.tensor(moves)
    ids = torch.tensor(tokenizer(list(texts)).input_ids)
    cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(len(moves))
    values = torch.zeros(len(texts) * len(moves))
    first = torch.arange(len(values))  # each imagined episode's text and first move
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
        if turn == 0:  # predictions are greedy: episodes with the same first move differ only after it
            cache.batch_repeat_interleave(EPISODES)
            first, odds, weight = first.repeat_interleave(EPISODES), odds.repeat_interleave(EPISODES, 0), 1 / EPISODES
        chosen = allowed[torch.multinomial(odds, 1, generator=generator)[:, 0]]
    return values.view(len(texts), len(moves))


def _predict(model: PreTrainedModel, tokenizer: Tokenizer, cache: Cache, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Predict the boards after moves, greedily, and the next turn's logits; `cache` then has both."""
    token, board = chosen, []
    for _ in range(OBSERVATION_TOKENS):
        token = _next(model, cache, token[:, None]).argmax(-1)
        board.append(token)
    header = torch.full_like(token, tokenizer(HEADER).input_ids[0])
    return torch.stack(board, 1), _next(model, cache, torch.stack([token, header], 1))


def _next(model: PreTrainedModel, cache: Cache, tokens: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    return logits
