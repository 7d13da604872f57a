"""Two gloo ranks with FSDP2: N counts both, and averaging over ranks does not halve the term."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")

import torch

from support import on_verl
from support import reference as trl_reference
from support.on_verl import make_batch, make_rollouts, naive_weights, padded, policy_loss, with_term
from wm_plugin import EchoConfig

TESTS = Path(__file__).parents[1]
COEFF = 0.37


def case(rollouts=None, echo=None, actor=None, **settings):
    return {
        "rollouts": {"count": 8, **(rollouts or {})},
        "echo": {"coeff": COEFF, **(echo or {})},
        "actor": actor or {},
        "settings": settings,
    }


CASES = {
    "unequal ranks": case(),
    "turn information": case(echo={"turn_information": True}, micro_batch_size_per_gpu=1),
    "a rank without environment tokens": case({"silent": [4, 5, 6, 7]}, actor={"loss_agg_mode": "seq-mean-token-mean"}),
    "two updates, each with a count of its own": case(actor={"loss_mode": "gspo"}, mini=4, micro_batch_size_per_gpu=1),
    "padding on one rank": case({"count": 5, "padding": 3}, {"tools": {"run_code": 0.3, "admin": 0.07}}),
    "every environment token, dynamic batch size": case(
        echo={"normalization": "observation_tokens", "tools": ["lookup_max"]},
        use_dynamic_bsz=True,
        max_token_len_per_gpu=110,
    ),
    "a mean a trajectory": case(
        {"count": 5, "padding": 3}, {"normalization": "per_trajectory"}, micro_batch_size_per_gpu=1
    ),
    "coefficient 0": case(echo={"coeff": 0.0}),
}


@pytest.fixture(scope="module")
def two_ranks(model, tmp_path_factory):
    """What came out of every case on two ranks: one start of the processes costs more than all of them."""
    out = tmp_path_factory.mktemp("ranks") / "result.pt"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        str(TESTS / "support" / "distributed_on_verl.py"),
        str(model),
        str(out),
        json.dumps([*CASES.values()]),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(CASES, torch.load(out), strict=True))


def count_observed(batch):
    return int((1 - batch["tool_mask"]).sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks(two_ranks, worker, name):
    found, options = two_ranks[name], CASES[name]
    rollouts, echo = make_rollouts(**options["rollouts"]), EchoConfig(**options["echo"])
    first, second = found["ranks"]
    updates = [a + b for a, b in zip(first["rows"], second["rows"], strict=True)]
    assert first["sums"] == second["sums"]
    assert first["losses"] == second["losses"]

    # one rank
    order = [row for rows in updates for row in rows]
    settings = {**options["settings"], "mini": len(updates[0])}
    base = policy_loss(**options["actor"])
    one = on_verl.update(worker, with_term(base, echo), make_batch([rollouts[row] for row in order], echo, **settings))
    for gradient, expected in zip(found["ours"], one.gradients, strict=True):
        assert (gradient - expected).norm() <= 1e-6 * expected.norm()
    assert first["sums"] == pytest.approx(one.sums, rel=1e-6)
    assert first["losses"] == pytest.approx(one.losses, rel=1e-6)

    # plain transformers
    tools = echo.tools if isinstance(echo.tools, dict) or echo.tools is None else dict.fromkeys(echo.tools, 1.0)
    if echo.turn_information:
        tools = {tool: echo.turn_information[category] for tool, category in on_verl.CATEGORIES.items()}
    model = on_verl.plain_model(worker)
    for before, after, rows in zip(found["stock"], found["ours"], updates, strict=True):
        mine = [rollouts[row] for row in rows if not rollouts[row].padding]
        weights = [naive_weights(rollout, tools) for rollout in mine]
        expected, _ = trl_reference.term_gradient(
            model,
            [padded(rollout) for rollout in mine],
            weights,
            count=count_observed if echo.normalization == "observation_tokens" else None,
            normalization=echo.normalization,
        )
        if echo.coeff == 0:
            assert torch.equal(after, before)
        else:
            assert (after - before - echo.coeff * expected).norm() <= 1e-6 * echo.coeff * expected.norm()


@pytest.mark.slow
def test_the_cases_are_what_they_are_called(two_ranks):
    def tokens(name):
        rollouts = make_rollouts(**CASES[name]["rollouts"])
        return [
            [sum(int((naive_weights(rollouts[row]) != 0).sum()) for row in rows) for rows in rank["rows"]]
            for rank in two_ranks[name]["ranks"]
        ]

    (first,), (second,) = tokens("unequal ranks")
    assert first != second
    (first,), (second,) = tokens("a rank without environment tokens")
    assert (first > 0, second) == (True, 0)
    (a, b), (c, d) = tokens("two updates, each with a count of its own")
    assert a + c != b + d
