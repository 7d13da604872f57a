"""The term where an agent's own process makes the rollouts: TRL's harness loop, OpenEnv's capture, real processes over HTTP."""

import inspect
import pickle
from collections import Counter, defaultdict

import pytest
import torch

pytest.importorskip("trl", minversion="1.16")
pytest.importorskip("openenv")

from accelerate import PartialState
from openenv.core.harness import MCPHarnessAdapter
from trl.experimental.async_grpo import AsyncGRPOTrainer, openenv_harness

from support.agents_on_trl import PLANS, agent_worker, by_plan, contents, policy, rows, sessions, tokenizer_of_agents
from support.async_on_trl import NoTransfer, config, on_a_cpu
from support.on_trl import Gradients, make_model
from support.serving import serving
from support.upstream import taken_from_host
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.tokens.spans import Ending, Origin
from wm_plugin.trl import WorldModelAsyncGRPOTrainer, support
from wm_plugin.trl.harness import WorldModelHarnessLoop, WorldModelHarnessMixin

COEFF = 0.37


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    on_a_cpu(monkeypatch)
    PartialState()


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of_agents()


@pytest.fixture(scope="module")
def url(tokenizer):
    with serving(policy(tokenizer_of_agents())) as base:
        yield base


def counted(sample):
    """(first token, token behind the last, tool) of the content that counts in a sample."""
    origins = [Origin.unpack(values) for values in sample.metrics.facts.origins]
    return [(span.start, span.end, span.tool) for span, *_ in origins if span.content]


def test_every_observation_counts_in_the_row_that_trains_what_follows(url, tokenizer):
    local = agent_worker(url, tokenizer, ours=True, plans=PLANS, ready=40, num_generations=1)
    local.start()
    found = contents(local.samples, tokenizer)
    assert sum(map(len, found)) > 20
    for sample, expected in zip(local.samples, found, strict=True):
        assert counted(sample) == [(start, end, tool) for start, end, tool, _ in expected]
    print(Counter(len(x) for x in found))
