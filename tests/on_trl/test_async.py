"""The term inside TRL's asynchronous trainer: real trainer, real rollout loop, against plain transformers sample by sample."""

import pytest
import torch

asynchronous = pytest.importorskip("trl.experimental.async_grpo")
pytest.importorskip("trl", minversion="1.16")

from support.async_on_trl import on_a_cpu, run  # noqa: E402
from support.on_trl import make_model  # noqa: E402
from support.reference import selected  # noqa: E402
from wm_plugin import EchoConfig  # noqa: E402
from wm_plugin.trl import WorldModelAsyncGRPOTrainer  # noqa: E402

COEFF = 0.37
Stock = asynchronous.AsyncGRPOTrainer


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    on_a_cpu(monkeypatch)


def naive_term(samples, tokenizer, *, tools=None, errors=False, count_all=False):
    """Gradient of Σ weight·NLL / N over samples, by plain transformers, and N."""
    model = make_model(tokenizer, dtype=torch.float64)
    total, tokens = 0.0, 0
    for sample in samples:
        ids, sampled = sample.input_ids.tolist(), sample.completion_mask.tolist()
        completion = [int(index >= sampled.index(1)) for index in range(len(ids))]
        found = selected(ids, completion, sampled, tokenizer, content_only=True, errors=errors)
        logps = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, :-1], -1)
        for index, tool in found:
            weight = 1.0 if tools is None else tools.get(tool, 0.0)
            total = total - weight * logps[index - 1, ids[index]]
            tokens += weight != 0
    (total / tokens).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]), tokens


@pytest.mark.parametrize("echo", [EchoConfig(COEFF), EchoConfig(1.0, {"run_code": 0.3, "lookup_doc": 0.07})])
def test_the_gradient_is_the_hosts_and_the_terms(echo, tmp_path):
    _, before, stock_samples = run(Stock, tmp_path)
    trainer, after, samples = run(WorldModelAsyncGRPOTrainer, tmp_path, world_model=echo)
    assert len(before) == len(after) == 2
    for step in range(2):
        own = samples[8 * step : 8 * step + 8]  # two micro-batches of four
        for one, other in zip(own, stock_samples[8 * step :], strict=False):
            assert one.input_ids.tolist() == other.input_ids.tolist()
        expected, tokens = naive_term(own, trainer.processing_class, tools=echo.tools)
        assert tokens > 30
        assert trainer.state.log_history[step]["echo/tokens"] == tokens
        difference = after[step].double() - before[step].double()
        assert (difference - echo.coeff * expected).norm() <= 1e-4 * (echo.coeff * expected).norm()
