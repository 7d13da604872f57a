"""A server's client, against a real server on localhost that goes wrong in every way."""

import asyncio
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from email.utils import formatdate
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from support.openai_server import FAULTS, OpenAIServer, completion, every
from wm_plugin.client.server import Completion, Failure, Server, ServerOptions
from wm_plugin.errors import MissingExtraError, UserError

QUICK = {"backoff": 0.001, "timeout": 10, "max_retries": 3}


def ask(text):
    return [{"role": "user", "content": text}]


def echo(body):
    return body["messages"][-1]["content"]


def kinds(answers):
    return [answer.kind if isinstance(answer, Failure) else "answered" for answer in answers]


@pytest.mark.parametrize(("text", "number"), [("é \u2028 🎉\x00\x7f", 0.25), ("half a pair \ud83d", 2**70)])
def test_requests_arrive_unchanged(text, number):
    with OpenAIServer(echo) as server:
        (answer,) = Server(server.base_url, "judge", parameters={"x": number}).complete([ask(text)])
        (body,) = server.bodies
    assert answer == Completion(text)
    assert body["x"] == number


def test_answers_come_in_order_and_figures_add_up():
    with OpenAIServer(echo) as server:
        settings = {"max_tokens": 5, "seed": 3, "prices": (1.0, 2.0), "parameters": {"top_p": 0.5}}
        client = Server(server.base_url + "/", "judge", **settings)
        assert client.complete([ask(str(n)) for n in range(50)]) == [Completion(str(n)) for n in range(50)]
        figures = client.figures
    assert {key: figures[key] for key in ("calls", "failures", "retries")} == {"calls": 50, "failures": 0, "retries": 0}
    assert (figures["prompt_tokens"], figures["completion_tokens"]) == (350, 150)
    assert figures["cost"] == pytest.approx((350 + 2 * 150) / 1e6)
    assert 0 < figures["latency_mean"] < 1
    expected = {"temperature": 0.0, "max_tokens": 5, "seed": 3, "top_p": 0.5, "model": "judge"}
    assert server.bodies[0].items() >= expected.items()
    assert client.settings == {"model": "judge", "temperature": 0.0, "max_tokens": 5, "top_p": 0.5}


@pytest.mark.parametrize("fault", [*FAULTS, "closed", "503", "408"])
def test_one_call_in_three_goes_wrong_and_is_made_again(fault):
    with OpenAIServer(echo, faults=every(3, fault)) as server:
        client = Server(server.base_url, "judge", **QUICK | {"timeout": 0.5 if fault == "timeout" else 10})
        assert client.complete([ask(str(n)) for n in range(12)]) == [Completion(str(n)) for n in range(12)]
    assert client.figures["retries"] >= 4
    assert client.figures["failures"] == 0


KINDS = {"timeout": "timeout", "closed": "connection", "429": "rate limit", "500": "server error", "400": "refused"}
KINDS |= dict.fromkeys(("garbage", "partial", "types", "empty"), "malformed")


@pytest.mark.parametrize(("fault", "kind"), KINDS.items())
def test_what_stays_wrong_is_a_failure_of_its_kind(fault, kind):
    with OpenAIServer(echo, faults=every(1, fault)) as server:
        settings = QUICK | {"max_retries": 1, "timeout": 0.5 if fault == "timeout" else 10}
        client = Server(server.base_url, "judge", **settings)
        answers = client.complete([ask("a"), ask("b")])
    assert kinds(answers) == [kind, kind]
    assert len(server.bodies) == (2 if kind == "refused" else 4)  # what is refused is not asked again
    assert client.figures["failures"] == 2
    if kind == "refused":
        assert answers[0].message == 'status 400: {"error": {"message": "fault 400"}}'
    assert kinds(Server(server.base_url, "judge", **QUICK).complete([ask("a")])) == ["connection"]  # it is gone now


@pytest.mark.parametrize("status", ["401", "403", "404"])
def test_a_wrong_key_address_or_model_stops_at_once_but_not_later(status):
    said = f"status {status} for the model 'juge' .*; check base_url, model and api_key_env"
    with OpenAIServer(echo, faults=every(1, status)) as server, pytest.raises(UserError, match=said):
        Server(server.base_url, "juge", **QUICK).complete([ask("a")] * 5)
    with OpenAIServer(echo, faults=lambda number: status if number else None) as server:
        client = Server(server.base_url, "judge", **QUICK)
        assert kinds([*client.complete([ask("a")]), *client.complete([ask("b")])]) == ["answered", "refused"]


@pytest.mark.parametrize("header", ["0.3", lambda: formatdate(time.time() + 60, usegmt=True)])
def test_retry_after_is_honoured_within_the_longest_wait(header):
    after = header if isinstance(header, str) else header()
    with OpenAIServer(echo, faults=lambda number: "429" if number == 0 else None, retry_after=after) as server:
        start = time.monotonic()
        assert kinds(Server(server.base_url, "judge", longest_wait=0.4, **QUICK).complete([ask("a")])) == ["answered"]
    assert 0.25 < time.monotonic() - start < 20


def test_concurrency_is_bounded_over_threads():
    with OpenAIServer(echo, latency=0.01) as server:
        client = Server(server.base_url, "judge", concurrency=4)
        threads = [threading.Thread(target=client.complete, args=([ask(str(n))] * 10,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(server.bodies) == 50
    assert server.most_at_once == 4


def test_inside_a_running_loop_waiting_and_not():
    with OpenAIServer(echo, latency=0.05) as server:
        client = Server(server.base_url, "judge")

        async def host():
            assert client.complete([ask("waits")]) == [Completion("waits")]
            ticks, asked = 0, asyncio.ensure_future(client.complete_async([ask("goes on")]))
            while not asked.done():
                ticks += 1
                await asyncio.sleep(0.005)
            assert await asked == [Completion("goes on")]
            return ticks

        assert asyncio.run(host()) > 2


def test_a_copy_in_another_process_opens_its_own_connections(tmp_path):
    code = """
        import multiprocessing, pickle, sys
        from wm_plugin.client.server import Server
        def work(client): print(client.complete([[{"role": "user", "content": "a copy"}]])[0].text, flush=True)
        if __name__ == "__main__":
            client = pickle.loads(bytes.fromhex(sys.argv[1]))
            work(client)
            for method in ("fork", "spawn"):
                process = multiprocessing.get_context(method).Process(target=work, args=(client,))
                process.start(); process.join(); assert process.exitcode == 0
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    with OpenAIServer(echo) as server:
        client = Server(server.base_url, "judge")
        client.complete([ask("before")])
        done = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", script, pickle.dumps(client).hex()],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
    assert done.stdout.splitlines() == ["a copy"] * 3, done.stderr
    assert "Unclosed" not in done.stderr


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with OpenAIServer(echo) as server:
        Server(server.base_url, "judge").complete([ask("a")])
        monkeypatch.setenv("JUDGE_KEY", "sesame")
        client = Server(server.base_url, "judge", api_key_env="JUDGE_KEY")
        client.complete([ask("a")])
    assert [headers.get("authorization") for headers in server.headers] == [None, "bearer sesame"]
    assert b"sesame" not in pickle.dumps(client)


def test_seeds_and_what_is_read_of_a_completion():
    with OpenAIServer(lambda body: str(body["seed"])) as server:
        answers = Server(server.base_url, "judge", seed=9).complete([ask("a")] * 3, seeds=[4, 5, 6])
        assert [answer.text for answer in answers] == ["4", "5", "6"]
        client = Server(server.base_url, "judge")
        assert client.post("/chat/completions", [client.body(ask("a"))], lambda value: value["model"]) == ["judge"]
    with OpenAIServer(lambda body: None) as server:
        assert Server(server.base_url, "judge").complete([ask("a")]) == [Completion("")]
    assert completion("x", "length")["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("settings", "sent", "sent_of_a_call"),
    [
        ({}, 0, 5),
        ({"temperature": 0.7}, None, 5),  # vLLM on a CPU dies of a seed there
        ({"temperature": None}, None, 5),  # the server's own may be above 0
        ({"parameters": {"temperature": 0.7}}, None, 5),
        ({"temperature": 0.7, "seed": 3}, 3, 5),
        ({"seed": None}, None, None),
    ],
)
def test_a_seed_above_temperature_0_is_only_sent_where_one_is_given(settings, sent, sent_of_a_call):
    client = Server("http://localhost:8000/v1", "judge", **settings)
    assert client.body(ask("a")).get("seed") == sent
    assert client.body(ask("a"), 5).get("seed") == sent_of_a_call
    assert None not in client.body(ask("a")).values()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url is 'localhost:8000'; write http://host:port/v1"),
        ({"concurrency": 0}, "concurrency is 0; write a whole number >= 1"),
        ({"seed": "none"}, "seed is 'none'"),
        ({"timeout": float("nan")}, "timeout is nan; write a number > 0"),
        ({"temperature": -1}, "temperature is -1; write a number >= 0"),
        ({"timout": 1}, "no field 'timout'; did you mean 'timeout'"),
        ({"api_key_env": "NOT_THERE"}, "the environment variable NOT_THERE is not set"),
    ],
)
def test_invalid_settings(settings, message):
    values = {"base_url": "http://localhost/v1", "model": "judge"} | settings
    with pytest.raises(UserError, match=message):
        Server(**values)


def test_options_are_a_config_s_too():
    options = ServerOptions.read({"url": "http://localhost/v1/", "model": "judge", "max_tokens": None}, "server")
    assert Server(options).body(ask("a")) == Server("http://localhost/v1", "judge", max_tokens=None).body(ask("a"))
    with pytest.raises(UserError, match="model is missing"):
        Server("http://localhost/v1")


def test_without_aiohttp_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtraError, match=r"asking a server needs aiohttp: pip install .*\[server\]'"):
        Server("http://localhost/v1", "judge").complete([ask("a")])
