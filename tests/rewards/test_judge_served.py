"""A judge and a predictor behind `transformers serve`: a real server, a real model that was taught one verdict."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

MISSING = [
    name for name in ("transformers", "aiohttp", "fastapi", "uvicorn", "openai") if not importlib.util.find_spec(name)
]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"needs transformers[serving]: {MISSING}")]

VERDICT = '<final_evaluation>{"score": 1}</final_evaluation>'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that answers VERDICT, which is one token, to everything: without attention, each follows from the one before."""
    import torch

    from wm_plugin.lab.tiny.policy import HEADER, make_model, make_tokenizer

    tokenizer = make_tokenizer()
    tokenizer.add_tokens([VERDICT])
    made = make_model(tokenizer, seed=0)
    for name, parameter in made.named_parameters():
        if "o_proj" in name:
            parameter.requires_grad_(False).zero_()
    ids = torch.tensor([[*tokenizer(f"{HEADER}{VERDICT}").input_ids, tokenizer.eos_token_id]])
    optimizer = torch.optim.Adam([p for p in made.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        made(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    made.generation_config.eos_token_id = tokenizer.eos_token_id
    folder = tmp_path_factory.mktemp("judge")
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def base_url(model):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [os.path.join(os.path.dirname(sys.executable), "transformers"), "serve", model]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    serving = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"], env=environment
    )
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            except OSError:
                assert serving.poll() is None
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        serving.terminate()
        serving.wait()


def test_a_judge_end_to_end(model, base_url, tmp_path):
    from wm_plugin.rewards import JudgeReward, RubricReward

    server = {"base_url": base_url, "model": model, "max_tokens": 32, "concurrency": 4}
    reward = JudgeReward(server, binary=True, cache=tmp_path / "cache.db")
    assert reward(["p", "q", None, "p"], ["t"] * 4, action=["ls"] * 4) == [1.0, 1.0, 0.0, 1.0]
    assert reward(["p", "r"], ["t"] * 2, action=["ls"] * 2) == [1.0, 1.0]
    figures = reward.figures
    assert (figures["server/calls"], figures["server/failures"], figures["cache_hit_share"]) == (3, 0, 0.5)
    assert figures["server/completion_tokens"] == 3 * len(["the verdict", "the end of the turn"])
    assert figures["server/prompt_tokens"] > 1000

    rubric = RubricReward(server | {"max_retries": 0})  # of which it says nothing
    assert rubric(["p"], ["t"]) == [0.0]
    assert rubric.figures["failures/no_verdict"] == 1.0


def test_a_server_that_gives_one_output_whatever_it_is_asked_for(model, base_url):
    from wm_plugin.client.predict import ServerPredictor
    from wm_plugin.client.server import Server

    predictor = ServerPredictor(Server(base_url, model, temperature=1.0, max_tokens=2))
    found = predictor([[{"role": "user", "content": text}] for text in "ab"], k=3, seed=0)
    assert [len(outputs) for outputs in found] == [3, 3]
    assert predictor.failed == 0
