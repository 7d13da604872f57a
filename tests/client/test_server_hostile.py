"""Hostile replies: too much, compressed without end, with keys, with impossible numbers. At worst a call fails."""

import base64
import gzip
import json
import pickle
import resource
import urllib.parse
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from support.openai_server import completion
from support.serving import Handler, serving
from wm_plugin.client import replies
from wm_plugin.client.cache import ReplyCache
from wm_plugin.client.predict import ServerPredictor
from wm_plugin.client.server import KINDS, Completion, Failure, Server
from wm_plugin.errors import UserError
from wm_plugin.rewards.embedding import EmbeddingReward

QUICK: dict[str, Any] = {"backoff": 0.001, "timeout": 10, "max_retries": 0}
QUESTION = [{"role": "user", "content": "a"}]
KEY = "sk-Abc/D\"1'23\\4_x"


@contextmanager
def answering(answer):
    """A server that answers with (status, headers, pieces of a body): `answer(request's headers, body)`."""

    class Sending(Handler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, pieces = answer(dict(self.headers), body)
            try:
                self.send_response(status)
                for name, value in {"Connection": "close", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(piece)
            except OSError:  # the client has read enough
                pass
            self.close_connection = True

    with serving(Sending) as url:
        yield url


def good(text="yes", **more):
    return json.dumps(completion(text) | more).encode()


ENDLESS = [b"x" * (1 << 20)] * 300
LARGE = {
    "long": ({}, ENDLESS),
    "told": ({"Content-Length": str(300 << 20)}, ENDLESS),
    "chunks": ({"Transfer-Encoding": "chunked"}, [b"100000\r\n" + piece + b"\r\n" for piece in ENDLESS]),
}


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("shape", LARGE)
def test_replies_have_a_limit(shape: str, status: int) -> None:
    asked = []
    with answering(lambda *request: asked.append(request) or (status, *LARGE[shape])) as url:
        client = Server(url, "judge", **QUICK | {"max_reply": 1 << 20, "max_retries": 1})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (answer,) = client.complete([QUESTION])
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # KiB
    assert isinstance(answer, Failure)
    too_large = Failure("too large", "an answer of over 1,048,576 bytes")
    assert answer == (
        too_large if status == 200 else Failure("server error", "status 500: an answer of over 65,536 bytes")
    )
    assert answer.kind in KINDS
    assert client.figures["failures"] == 1
    assert len(asked) == (1 if status == 200 else 2)  # what is too large is not asked for again


@pytest.mark.parametrize(
    ("headers", "body", "answer"),
    [
        ({}, good(), Completion("yes")),
        ({"Content-Encoding": "identity"}, good(), Completion("yes")),
        ({}, b"\xef\xbb\xbf" + good(), Completion("yes")),
        ({"Content-Encoding": "gzip"}, gzip.compress(good()), "malformed: not what was asked for (encoded as 'gzip')"),
        ({"Content-Length": "999"}, good(), "connection"),
        ({}, b"[" * 100_000, "malformed"),
        ({}, b'{"choices":' * 5000, "malformed"),
        ({}, b"9" * 100_000, "malformed"),
        ({}, b"[" + b"0," * 100_000, "malformed"),
        ({}, b'"\xff"', "malformed"),
    ],
)
def test_bodies(headers, body, answer) -> None:
    with answering(lambda *_: (200, headers, [body])) as url:
        (reply,) = Server(url, "judge", **QUICK).complete([QUESTION])
    assert f"{reply.kind}: {reply.message}".startswith(answer) if isinstance(reply, Failure) else reply == answer


ECHOES = {
    "header": lambda key: f"You sent Authorization: Bearer {key}".encode(),
    "cut": lambda key: (" " * 500 + "x" * 190 + key).encode(),
    "case": lambda key: key.upper().encode(),
    "json": lambda key: json.dumps({"error": {"headers": {"Authorization": f"Bearer {key}"}}}).encode(),
    "escaped": lambda key: json.dumps(good(key).decode()).encode(),
    "answer": lambda key: good(f"the key is {key}, {key.lower()}"),
    "name": lambda key: good(**{key: 1}),
    "thought": lambda key: good({"role": "assistant", "content": "yes", "reasoning_content": f"hm, {key}"}),
}
PIECES = [KEY[3:9], json.dumps(KEY)[1:-1], KEY]


@pytest.mark.parametrize("status", [200, 400, 401, 500])
@pytest.mark.parametrize("echo", ECHOES)
def test_keys_are_nowhere(echo: str, status: int, tmp_path, monkeypatch) -> None:
    """A server sends back what it was sent: no message, result, pickle or cache has the key."""
    monkeypatch.setenv("JUDGE_KEY", KEY)
    received = []

    def answer(headers, _):
        received.append(headers["Authorization"])
        return status, {}, [ECHOES[echo](headers["Authorization"].removeprefix("Bearer "))]

    texts = []
    with answering(answer) as url:
        client = Server(url, "judge", api_key_env="JUDGE_KEY", **QUICK)
        (reply,) = client.complete([QUESTION]) if status != 401 else (None,)
        if isinstance(reply, Completion):
            cache = ReplyCache(tmp_path / "cache.db")
            cache.put({"a": reply.text})
            texts += [str(cache.get(["a"]))]
        predictor = ServerPredictor(client, thinking=True)
        reward = EmbeddingReward("letters", base_url=url, server={**QUICK, "api_key_env": "JUDGE_KEY"})
        for call in (lambda: predictor([QUESTION], k=1, seed=0), lambda: reward(["a"], ["b"])):
            try:
                texts.append(str(call()))
            except UserError as error:
                texts.append(str(error))
        texts += [str(reply), str(predictor.settings), str(pickle.dumps(client))]
    assert received[0] == f"Bearer {KEY}"
    for text in texts:
        assert not any(piece.lower() in text.lower() for piece in PIECES), text


def test_escapes_that_hide_a_key(monkeypatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    hidden = "".join(f"\\u{ord(letter):04x}" for letter in KEY).join(['{"a": "', '"}']).encode()
    with answering(lambda *_: (200, {}, [hidden])) as url:
        client = Server(url, "judge", api_key_env="JUDGE_KEY", **QUICK)
        assert client.post("/chat/completions", [{}], dict) == [{"a": "[key]"}]


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(
    "body",
    [
        KEY.replace("/", "\\/").encode(),
        KEY.replace("/", "&#x2F;").encode(),
        KEY.replace("/", "\\u002F").encode(),
        KEY.encode("utf-16"),
        KEY.encode().hex().encode(),
    ],
)
def test_escapes_of_other_servers_in_a_failure(body, status, monkeypatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with answering(lambda *_: (status, {}, [b"no: ", body])) as url:
        (reply,) = Server(url, "judge", api_key_env="JUDGE_KEY", **QUICK).complete([QUESTION])
    assert isinstance(reply, Failure)
    assert reply.message.endswith("[key]")


def test_placeholders_are_no_keys_and_a_line_break_at_the_end_does_not_matter(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")
    with answering(lambda *_: (200, {}, [good("An EMPTY room.")])) as url:
        assert Server(url, "judge", **QUICK).complete([QUESTION]) == [Completion("An EMPTY room.")]
    monkeypatch.setenv("JUDGE_KEY", " sesame-key\n")
    with answering(lambda headers, _: (200, {}, [good(str("sesame-key" in headers["Authorization"]))])) as url:
        assert Server(url, "judge", api_key_env="JUDGE_KEY", **QUICK).complete([QUESTION]) == [Completion("True")]


@pytest.mark.parametrize("key", ["line\nbreak-key", "non-ascii-ключ"])
def test_keys_that_no_header_can_hold(key: str, monkeypatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    with pytest.raises(UserError, match="the key in JUDGE_KEY has a line break or a letter") as error:
        Server("http://localhost/v1", "judge", api_key_env="JUDGE_KEY")
    assert key not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        None, "", "https:///v1", "http://[::1/v1", "http://a:b/v1", "http://a\nb/v1", "file:///etc/passwd",
        "http://user:pass-word@host/v1", "http://u:pass-word@[::1", "http://host/v1?key=pass-word", "http://host/v1#x",
    ],
)  # fmt: skip
def test_invalid_addresses(url: Any) -> None:
    with pytest.raises(UserError, match="base_url") as error:
        Server(url, "judge")
    assert "\n" not in str(error.value)
    assert "pass-word" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "url", ["http://my_service:8000", "https://bücher.example/v1", "http://[::1]:80/v1/", "HTTP://A/"]
)
def test_valid_addresses(url: str) -> None:
    assert Server(url, "judge").base_url == url.rstrip("/")


@pytest.mark.parametrize(
    "password", ["p%40ss%21word%2399", "S%C3%A9cret-99x", "se~cr'et99(x)", "a%2fb%2Fc+d%20e", "no%zz%"]
)
def test_a_password_of_a_proxy_in_any_form_is_hidden(monkeypatch, password: str) -> None:
    """In the address that an error quotes, and in the header that a proxy sends back; also of a proxy that cannot be one."""
    plain = urllib.parse.unquote(password)
    headers: list[str] = []

    def refuse(*_: Any) -> tuple[int, dict[str, str], list[bytes]]:
        return 500, {}, [" ".join(headers).encode()]

    with answering(refuse) as url:
        for scheme in ("http", "https"):
            monkeypatch.setenv(f"{scheme}_proxy", url.removesuffix("/v1").replace("//", f"//user:{password}@"))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for encoding in ("latin-1", "utf-8"):
            headers.append(base64.b64encode(f"user:{plain}".encode(encoding)).decode())
        for scheme in ("http", "https"):
            (answer,) = Server(f"{scheme}://example.invalid/v1", "judge", **QUICK).complete([QUESTION])
            assert isinstance(answer, Failure)
            shown = urllib.parse.unquote(answer.message)
            assert plain not in shown
            assert not any(header in answer.message for header in headers)
    monkeypatch.setenv("http_proxy", f"http://me:{password}@" + "a" * 70)
    (answer,) = Server("http://example.invalid/v1", "judge", **QUICK).complete([QUESTION])
    assert isinstance(answer, Failure)
    assert (answer.kind, plain in urllib.parse.unquote(answer.message)) == ("connection", False)


@pytest.mark.parametrize("key", ["sk-proj-abcDEF123456", "hf_aBcDeFgHiJkLmN", "AKIAIOSFODNN7EXAMPLE"])
def test_a_key_in_the_place_of_its_variable_is_not_shown(key: str) -> None:
    with pytest.raises(UserError, match="write its name, not the key") as error:
        Server("http://a/v1", "judge", api_key_env=key)
    assert key not in str(error.value)


@pytest.mark.parametrize("number", [2**70, -1, True, None, "7", 1.5, [], {}])
def test_invalid_token_counts(number: Any) -> None:
    body = good(usage={"prompt_tokens": number, "completion_tokens": 3})
    with answering(lambda *_: (200, {}, [body])) as url:
        client = Server(url, "judge", prices=(1.0, 1.0), **QUICK)
        assert client.complete([QUESTION]) == [Completion("yes")]
        figures = client.figures
    assert (figures["prompt_tokens"], figures["completion_tokens"], figures["cost"]) == (0, 3, 3e-6)


@pytest.mark.parametrize("number", [10**400, "7", float("nan"), [], 1e39])
def test_invalid_embeddings(number: Any) -> None:
    def answer(_, body):
        data = [{"index": place, "embedding": [0.5, number]} for place in range(len(body["input"]))]
        return 200, {}, [json.dumps({"data": data}).encode()]

    with answering(answer) as url, pytest.raises(UserError, match="no embeddings of 'letters'.*malformed") as error:
        EmbeddingReward("letters", base_url=url, server=QUICK)(["a"], ["b"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("where", ["in a batch", "between batches", "between calls", "none at all"])
def test_dimensions_that_change(where: str) -> None:
    calls = []

    def answer(_, body):
        calls.append(body)
        lengths = {
            "in a batch": lambda place: 2 + place % 2,
            "between batches": lambda place: 1 + len(calls),
            "between calls": lambda place: 2 + ("c" in body["input"]),
            "none at all": lambda place: 0,
        }[where]
        data = [{"index": place, "embedding": [0.5] * lengths(place)} for place in range(len(body["input"]))]
        return 200, {}, [json.dumps({"data": data}).encode()]

    with answering(answer) as url:
        size = 1 if where == "between batches" else 8
        reward = EmbeddingReward("letters", base_url=url, batch_size=size, server=QUICK | {"concurrency": 1})
        if where == "between calls":
            assert reward(["a"], ["b"]) == [pytest.approx(1)]
        with pytest.raises(UserError, match=r"not what was asked for \(embeddings of"):
            reward(["a"], ["c"])


@pytest.mark.parametrize("after", [";", "Mon, 99 Foo", "Thu, 01 Jan 99999 00:00:00 GMT", "1e999", "9" * 5000])
def test_invalid_retry_after(after: str) -> None:
    with answering(lambda *_: (503, {"Retry-After": after}, [b"later"])) as url:
        (answer,) = Server(url, "judge", **QUICK | {"max_retries": 1}).complete([QUESTION])
    assert isinstance(answer, Failure)
    assert answer.kind in ("server error", "connection")


@settings(max_examples=examples(100), deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3), st.lists))
def test_vectors_are_numbers_or_an_error(value: Any) -> None:
    try:
        assert all(isinstance(number, float) for number in replies.vector(value))
        assert isinstance(value, list)
    except (TypeError, ValueError):
        assert not isinstance(value, list) or not all(type(item) is float for item in value)
    assert isinstance(replies.count(value), int)
