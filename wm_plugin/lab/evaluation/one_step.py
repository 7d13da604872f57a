"""How well a causal language model predicts the next observation of real episodes.

Teacher-forced: every token is predicted from the real tokens before it, on token ids and masks (1 = the token counts). An
observation is a maximal run of tokens that count. Greedy decoding would reproduce it exactly if the model's first choice is right
for each of its tokens, so the exact match needs no generation. It compares tokens, without the token that ends the turn;
`fidelity` generates and compares texts, as Word2World does.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Episodes = Sequence[Sequence[int]]  # token ids, or masks, one sequence an episode
BINS = 10  # of confidence, equally wide
_AT_ONCE = 256  # tokens whose probabilities over the whole vocabulary are in memory at once


@dataclass(frozen=True)
class OneStep:
    """Sums of each episode; every field has shape (episodes,), float64."""

    nll: Tensor  # sum of the counted tokens' negative log-likelihoods, in nats
    tokens: Tensor  # how many tokens count
    exact: Tensor  # how many observations are predicted without an error
    observations: Tensor  # how many observations there are

    @property
    def mean_nll(self) -> float:
        """Nats a counted token, over all episodes' tokens alike."""
        return float(self.nll.sum() / self.tokens.sum())

    @property
    def exact_share(self) -> float:
        """The share of all observations that are predicted without an error."""
        return float(self.exact.sum() / self.observations.sum())


@dataclass(frozen=True)
class Prediction:
    """A predicted and the real observation as text; `context` is everything before them."""

    context: str
    real: str
    predicted: str


@dataclass(frozen=True)
class TokenScores:
    """The counted tokens of one observation; every field has shape (tokens,), float64."""

    nll: Tensor  # their negative log-likelihoods, in nats
    confidence: Tensor  # the probability of the model's first choice
    right: Tensor  # 1 where the first choice is the real token

    def bins(self) -> Tensor:
        """Sum the tokens in each of `BINS` intervals of confidence, each with its upper limit: (bins, 3).

        The columns are the number of tokens, their confidence, and how many are right.
        """
        sums = torch.zeros(BINS, 3, dtype=torch.float64)
        index = (self.confidence * BINS).ceil().long().clamp(1, BINS) - 1
        return sums.index_add_(0, index, torch.stack([torch.ones_like(self.nll), self.confidence, self.right], 1))


def calibration_error(bins: Tensor) -> float:
    """Return the expected calibration error: |confidence − accuracy| of each interval, weighted by its tokens."""
    return float((bins[:, 1] - bins[:, 2]).abs().sum() / bins[:, 0].sum())


def evaluate(model: torch.nn.Module, ids: Episodes, mask: Episodes, *, batch_size: int = 8) -> OneStep:
    """Score the next observations of `ids`.

    Args:
        model: a causal language model: `model(input_ids=(batch, length)).logits` is (batch, length, vocabulary).
        ids: token ids, one sequence an episode.
        mask: the same shape; 1 = the token counts. A first token cannot count, because nothing comes before it.
    """
    _check(ids, mask)
    rows: list[tuple[float, int, int, int]] = []
    with _evaluating(model):
        for start in range(0, len(ids), batch_size):
            for found in _scores(model, ids[start : start + batch_size], mask[start : start + batch_size]):
                nll, tokens = sum(float(one.nll.sum()) for one in found), sum(len(one.nll) for one in found)
                rows.append((nll, tokens, sum(bool(one.right.all()) for one in found), len(found)))
    return OneStep(*torch.tensor(rows, dtype=torch.float64).T)


def token_scores(model: torch.nn.Module, ids: Sequence[int], mask: Sequence[int]) -> list[TokenScores]:
    """Score each observation of one episode, in order. Arguments and errors are those of `evaluate`."""
    _check([ids], [mask])
    with _evaluating(model):
        return _scores(model, [ids], [mask])[0]


def _scores(model: torch.nn.Module, ids: Episodes, mask: Episodes) -> list[list[TokenScores]]:
    """Score a batch, padded on the right: a causal model does not see that."""
    device = next(model.parameters()).device
    tokens, counts = (pad_sequence([torch.tensor(row) for row in rows], True).to(device) for rows in (ids, mask))
    counts = counts == 1
    logits, targets = model(input_ids=tokens[:, :-1]).logits[counts[:, 1:]], tokens[counts]
    parts = [torch.zeros(3, 0, dtype=torch.float64)]
    for start in range(0, len(targets), _AT_ONCE):
        logps = logits[start : start + _AT_ONCE].float().log_softmax(-1)
        real = targets[start : start + _AT_ONCE]
        best, choice = logps.max(-1)
        nll = -logps.gather(-1, real[:, None])[:, 0]
        parts.append(torch.stack([nll, best.exp(), (choice == real).float()]).double().cpu())
    lengths = [[end - start for start, end in _runs(row)] for row in mask]
    runs = iter(torch.split(torch.cat(parts, 1), [length for row in lengths for length in row], 1))
    return [[TokenScores(*next(runs)) for _ in row] for row in lengths]


def predict(
    model: torch.nn.Module, ids: Episodes, mask: Episodes, decode: Callable[[list[int]], str], *, observation: int = 0
) -> list[Prediction]:
    """Predict one observation of each episode by greedy decoding, with as many tokens as the real observation.

    Args:
        model: also takes `past_key_values` and `use_cache`, as transformers' models do.
        ids, mask: as in `evaluate`, and so are the errors.
        observation: the observation's number, from 0. Episodes with fewer observations are left out.
    """
    _check(ids, mask)
    device = next(model.parameters()).device
    predictions = []
    with _evaluating(model):
        for row, counts in zip(ids, mask, strict=True):
            for start, end in list(_runs(counts))[observation : observation + 1]:
                tokens = greedy(model, torch.tensor([row[:start]], device=device), end - start)
                texts = (decode(list(part)) for part in (row[:start], row[start:end], tokens))
                predictions.append(Prediction(*texts))
    return predictions


def greedy(model: torch.nn.Module, context: Tensor, count: int) -> list[int]:
    """Decode `count` tokens greedily after `context` (1, length). No token ends the decoding."""
    tokens: list[int] = []
    step: Any = context
    cache = None
    for _ in range(count):
        output = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        step = output.logits[:, -1:].argmax(-1)
        tokens.append(int(step))
    return tokens


def _runs(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = None
    for position, counts in enumerate([*mask, 0]):
        if counts == 1 and start is None:
            start = position
        elif counts != 1 and start is not None:
            yield start, position
            start = None


def _check(ids: Episodes, mask: Episodes) -> None:
    if [len(row) for row in ids] != [len(row) for row in mask]:
        raise ValueError("ids and mask differ in shape")
    if any(row and row[0] == 1 for row in mask):
        raise ValueError("the first token of an episode counts, but nothing predicts it; its mask must be 0")
    if not any(1 in row for row in mask):
        raise ValueError("no token counts: every mask is 0")


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode without gradients, and back to its previous mode."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
