"""A judge behind `vllm serve`, in the environment that `make test-vllm` makes: even a model of random weights gives verdicts."""

import importlib.util

import pytest

from support.vllm_server import vllm_server
from wm_plugin.rewards import JudgeReward, RubricReward

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"),
]
LONGEST = 8192  # tokens: a judge's prompt is some thousand, since the tiny tokenizer has one a character


@pytest.fixture(scope="module")
def base_url(tmp_path_factory):
    from wm_plugin.tiny.policy import make_model, make_tokenizer

    folder = tmp_path_factory.mktemp("vllm")
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0, heads=2)  # vLLM's attention on a CPU takes no heads of 16
    model.config.max_position_embeddings = LONGEST
    model.generation_config.eos_token_id = tokenizer.eos_token_id  # else every token ends the turn
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    flags = ["--served-model-name", "judge", "--max-model-len", str(LONGEST)]
    with vllm_server(folder / "model", folder / "log", *flags) as address:
        yield f"{address}/v1"


@pytest.mark.parametrize("temperature", [0.0, 1.0])  # at 1 a seed would end the server
def test_every_row_has_a_verdict(base_url, temperature):
    server = {"base_url": base_url, "model": "judge", "max_tokens": 160, "max_retries": 0, "timeout": 300}
    server["temperature"] = temperature
    rows = ["It is shut.", "row 1: Alice, 30", "Nothing happens."]
    real, binary, rubric = (
        judge(server, structured=True, **settings)
        for judge, settings in ((JudgeReward, {}), (JudgeReward, {"binary": True}), (RubricReward, {}))
    )
    assert all(0 <= score <= 1 for score in real(rows, ["It is open."] * 3))
    assert set(binary(rows, ["It is open."] * 3)) <= {0.0, 1.0}
    assert all(5 <= score <= 25 for score in rubric(rows, ["It is open."] * 3))
    assert [judge.figures["failure_share"] for judge in (real, binary, rubric)] == [0, 0, 0]


def test_without_the_form_a_random_model_gives_none(base_url):
    server = {"base_url": base_url, "model": "judge", "max_tokens": 160, "max_retries": 0, "timeout": 300}
    judge = JudgeReward(server)
    assert judge(["It is shut."], ["It is open."]) == [0.0]
    assert judge.figures["failures/no_verdict"] + judge.figures["failures/cut"] == 1
