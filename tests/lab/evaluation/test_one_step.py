import random
from types import SimpleNamespace

import pytest
import torch

from wm_plugin.lab.evaluation.one_step import calibration_error, evaluate, predict, token_scores

VOCABULARY = 11


class Recurrent(torch.nn.Module):
    """A causal model without padding or position tricks; its cache is the hidden state."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = torch.nn.Embedding(VOCABULARY, 16)
            self.cell = torch.nn.GRU(16, 16, batch_first=True)
            self.head = torch.nn.Linear(16, VOCABULARY)
        with torch.no_grad():
            self.head.weight.mul_(5)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        states, last = self.cell(self.embed(input_ids), past_key_values)
        return SimpleNamespace(logits=self.head(states), past_key_values=last if use_cache else None)


def naive(model, ids, mask):
    """One token and one forward pass at a time: (nll sum, tokens, exact, observations) of one episode."""
    total, tokens, exact, observations, right = 0.0, 0, 0, 0, True
    for position in range(len(ids)):
        if mask[position]:
            logits = model(torch.tensor([ids[:position]])).logits[0, -1].double()
            total -= logits.log_softmax(-1)[ids[position]].item()
            tokens += 1
            right &= logits.argmax().item() == ids[position]
            if position + 1 == len(ids) or not mask[position + 1]:
                exact, observations, right = exact + right, observations + 1, True
    return total, tokens, exact, observations


def episodes(model, count=9, seed=0):
    """Random episodes, in which about half of the observations are what the model would say."""
    rng = random.Random(seed)
    all_ids, all_masks = [], []
    for _ in range(count):
        ids, mask = [rng.randrange(VOCABULARY)], [0]
        for _ in range(rng.randint(1, 4)):
            ids.append(rng.randrange(VOCABULARY))
            mask.append(0)
            faithful = rng.random() < 0.5
            for _ in range(rng.randint(1, 5)):
                said = model(torch.tensor([ids])).logits[0, -1].argmax().item()
                ids.append(said if faithful else rng.randrange(VOCABULARY))
                mask.append(1)
        if rng.random() < 0.5:
            ids.append(0)
            mask.append(0)
        all_ids.append(ids)
        all_masks.append(mask)
    return all_ids, all_masks


@pytest.mark.parametrize("batch_size", [1, 4, 64])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_a_token_by_token_reference(seed: int, batch_size: int) -> None:
    model = Recurrent(seed)
    ids, mask = episodes(model, seed=seed)
    expected = [naive(model, *pair) for pair in zip(ids, mask, strict=True)]
    assert 0 < sum(row[2] for row in expected) < sum(row[3] for row in expected)
    result = evaluate(model, ids, mask, batch_size=batch_size)
    columns = list(zip(*expected, strict=True))
    torch.testing.assert_close(result.nll, torch.tensor(columns[0], dtype=torch.float64), rtol=1e-5, atol=1e-6)
    for found, column in zip((result.tokens, result.exact, result.observations), columns[1:], strict=True):
        assert found.tolist() == list(column)
    assert result.mean_nll == pytest.approx(sum(columns[0]) / sum(columns[1]), rel=1e-5)
    assert result.exact_share == pytest.approx(sum(columns[2]) / sum(columns[3]))


def test_exact_means_that_greedy_decoding_says_the_same() -> None:
    model = Recurrent(2)
    ids, mask = episodes(model, count=20, seed=2)
    for row, counts in zip(ids, mask, strict=True):
        result = evaluate(model, [row], [counts])
        pairs = [
            predict(model, [row], [counts], lambda tokens: repr(tokens), observation=index)[0]
            for index in range(int(result.observations))
        ]
        assert result.exact.item() == sum(pair.real == pair.predicted for pair in pairs)


def test_predict_returns_the_chosen_observation_and_skips_short_episodes() -> None:
    model = Recurrent(3)
    ids, mask = [[1, 2, 3, 4, 5, 6], [1, 2, 3]], [[0, 0, 1, 0, 1, 1], [0, 0, 1]]
    (only,) = predict(model, ids, mask, lambda tokens: " ".join(map(str, tokens)), observation=1)
    assert only.context == "1 2 3 4"
    assert only.real == "5 6"
    assert len(only.predicted.split()) == 2


@pytest.mark.parametrize("training", [True, False])
def test_the_model_keeps_its_mode_and_gets_no_gradient(training: bool) -> None:
    model = Recurrent(4).train(training)
    evaluate(model, [[1, 2]], [[0, 1]])
    predict(model, [[1, 2]], [[0, 1]], str)
    assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        ([[1, 2]], [[0]], "differ in shape"),
        ([[1, 2]], [[1, 0]], "first token"),
        ([[1, 2]], [[0, 0]], "no token counts"),
        ([], [], "no token counts"),
    ],
)
def test_what_cannot_be_scored_is_refused(ids: list[list[int]], mask: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(Recurrent(0), ids, mask)


class Fixed(torch.nn.Module):
    """Gives each token of three the same probabilities, whatever comes before."""

    def __init__(self, *probabilities: float) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(probabilities).log())

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


def test_scores_of_tokens_by_hand() -> None:
    first, second = token_scores(Fixed(0.7, 0.2, 0.1), [2, 0, 0, 1, 2, 0], [0, 1, 1, 1, 0, 1])
    assert first.nll.exp().tolist() == pytest.approx([1 / 0.7, 1 / 0.7, 1 / 0.2])
    assert first.confidence.tolist() == pytest.approx([0.7] * 3)
    assert (first.right.tolist(), second.right.tolist()) == ([1, 1, 0], [1])
    bins = first.bins() + second.bins()
    assert bins[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 4, 0, 0, 0]
    assert calibration_error(bins) == pytest.approx(abs(3 / 4 - 0.7))
    sure = token_scores(Fixed(1.0, 0.0, 0.0), [2, 0, 1], [0, 1, 1])[0].bins()
    assert sure[9].tolist() == [2, 2, 1]  # of probability 1 is in the last interval
    assert calibration_error(bins + sure) == pytest.approx((4 * 0.05 + 2 * 0.5) / 6)
