"""Where the user's key goes when a row of a dataset names the server."""

import logging

import pytest

from support.cases import CASES
from support.openai_server import OpenAIServer
from wm_plugin.worlds.dialogue import DialogueEnvironment
from wm_plugin.worlds.dialogue.user import _server
from wm_plugin.worlds.kit import customer
from wm_plugin.worlds.kit.customer import key_variable

KEY = "sk-customer-0123456789"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "WM_PLUGIN_KEY_URLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    customer._warn.cache_clear()


@pytest.mark.parametrize(("url", "base", "others", "goes"), CASES["keys"])
def test_the_key_goes_to_the_servers_that_the_user_named(
    monkeypatch: pytest.MonkeyPatch, url: str, base: str | None, others: str | None, goes: bool
) -> None:
    for name, value in (("OPENAI_BASE_URL", base), ("WM_PLUGIN_KEY_URLS", others)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert key_variable(url) == ("OPENAI_API_KEY" if goes else None)


def test_it_says_so_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        key_variable("http://user:secret@localhost:8000/v1")
        key_variable("http://localhost:8000/v1")
    assert len(caplog.messages) == 2
    assert "add its address to WM_PLUGIN_KEY_URLS" in caplog.messages[1]
    assert "secret" not in caplog.text
    monkeypatch.delenv("OPENAI_API_KEY")
    caplog.clear()
    key_variable("http://localhost:8002/v1")
    assert not caplog.messages


@pytest.mark.parametrize("allowed", [False, True])
def test_the_dialogues_server(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, allowed: bool) -> None:
    with caplog.at_level(logging.ERROR), OpenAIServer(lambda body: "Hello.") as server:
        if allowed:
            monkeypatch.setenv("WM_PLUGIN_KEY_URLS", server.base_url)
        _server.cache_clear()
        DialogueEnvironment().reset(seed=1, user_url=server.base_url, user_model="m")
        _server.cache_clear()
        assert [headers.get("authorization") for headers in server.headers] == [f"bearer {KEY}" if allowed else None]
