"""The adapter with a stand-in, because no package index has tau2-bench; and with tau2-bench itself where it is installed."""

import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from support.openai_server import OpenAIServer
from support.rows import BAD
from wm_plugin.cli.main import main
from wm_plugin.client.server import MAX_REPLY
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Action, Call, Trajectory
from wm_plugin.data.write import write
from wm_plugin.errors import UserError
from wm_plugin.runtime import secrets
from wm_plugin.worlds import tau2
from wm_plugin.worlds.agents import play
from wm_plugin.worlds.check import HOSTILE, texts
from wm_plugin.worlds.tau2 import Tau2Environment, dataset_rows, expert, wanderer


def test_without_tau2_bench_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tau2", "tau2.gym", "tau2.gym.gym_agent", "loguru"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    for call in (lambda: dataset_rows(1), lambda: Tau2Environment().reset("retail", "0")):
        with pytest.raises(UserError, match=r"git clone https://github.com/sierra-research/tau2-bench && pip install"):
            call()


class Gym:
    """A simulation of two tools; `break` fails as an evaluator would, and `crash` ends without a run."""

    actions: ClassVar[list[str]] = []

    def __init__(self, domain: str, task_id: str, max_steps: int, **user: Any) -> None:
        self.user, self.ended, self.run = user, False, "{}"

    def reset(self) -> tuple[str, dict[str, Any]]:
        tools = [SimpleNamespace(name=name) for name in ("look", "break", "done")]
        return "user: Hello.", {"tools": tools, "task": None}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        Gym.actions.append(action)
        if self.ended:
            return "", 0.0, True, False, {"simulation_run": self.run}
        self.ended = "done" in action or "break" in action or "crash" in action
        self.run = "{}" if "crash" in action else '{"id": 1}'
        if "break" in action:
            raise ValueError("no such thing")
        role = "tool" if action.startswith("{") else "user"
        text = "tool: Error: no" if "wrong" in action else f"{role}: {action}"
        return text, 1.0 if self.ended else 0.0, self.ended, False, {"simulation_run": self.run}


class Registry:
    def get_domains(self) -> list[str]:
        return ["retail"]

    def get_tasks_loader(self, domain: str) -> Any:
        return lambda: [SimpleNamespace(id=name) for name in ("1", "2", "3")]

    def get_task_splits_loader(self, domain: str) -> Any:
        return lambda: {"train": ["1", "2"], "test": ["3"]}

    def get_env_constructor(self, domain: str) -> Any:
        tools = [SimpleNamespace(openai_schema={"type": "function", "function": {"name": "look"}})]
        return lambda solo_mode: SimpleNamespace(get_tools=lambda: tools, get_policy=lambda: "Be kind.")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Tau2Environment:
    monkeypatch.setattr(tau2, "_library", lambda: (Gym, Registry()))
    Gym.actions = []
    environment = Tau2Environment()
    assert environment.reset("retail", "1") == "user: Hello."
    return environment


def test_an_episode(environment: Tau2Environment) -> None:
    assert environment.message_user(" Hi! ") == "Hi!"
    assert environment.call_tool("look", '{"x": 1}') == '{"name": "look", "arguments": {"x": 1}}'
    assert environment.call_tool("look", '{"x": "wrong"}') == "Error: no"
    assert environment.message_user("Hi!") == "Hi!"
    assert environment.metrics == {"actions": 4, "effective": 2, "invalid": 1, "lost": 0}
    assert environment.finish().endswith("The case is closed. It was handled as it should be. The episode is over.")
    assert (environment.over, environment.success, environment.get_reward()) == (True, True, 1.0)
    with pytest.raises(ValueError, match="over"):
        environment.message_user("a")
    assert environment.reset("retail", "2") == "user: Hello."
    assert (environment.over, environment.success, environment.turns) == (False, False, 0)


NO_CALLS = [*HOSTILE, *BAD, "{", "[]", "null", "[" * 9000]


@pytest.mark.parametrize("value", NO_CALLS, ids=range(len(NO_CALLS)))
def test_what_is_no_call_is_invalid_and_never_reaches_tau2(environment: Tau2Environment, value: Any) -> None:
    assert environment.call_tool("look", value) == "Error: the arguments are no JSON object."
    assert environment.call_tool(value, "{}") == "Error: the tools are break, look."
    assert environment.call_tool("done", "{}") == "Error: the tools are break, look."
    assert environment.metrics == {"actions": 3, "effective": 0, "invalid": 3, "lost": 0}
    assert environment.message_user(value).encode()
    told = isinstance(value, str) and bool(value.strip(" \0")) and len(value) <= tau2.MAX_CHARACTERS
    assert len(Gym.actions) == told


def test_an_end_that_nobody_can_judge_is_a_failure_and_one_without_a_run_is_lost(environment: Tau2Environment) -> None:
    assert "not handled" in environment.call_tool("break", "{}")
    assert (environment.over, environment.get_reward(), environment.metrics["lost"]) == (True, 0.0, 0)
    environment.reset("retail", "1")
    assert environment.message_user("crash") == "The simulation is lost. The episode is over."
    assert (environment.over, environment.get_reward(), environment.metrics["lost"]) == (True, 0.0, 1)


def test_turns_end_an_episode_and_a_reset_ends_its_simulation(environment: Tau2Environment) -> None:
    environment.reset("retail", "1", max_turns=1)
    assert environment.message_user("Hi").endswith("\nNo calls are left. The episode is over.")
    assert environment.over
    environment.reset("retail", "1")
    assert Gym.actions[-1] == tau2.DONE


def test_rows(environment: Tau2Environment) -> None:
    rows = dataset_rows(2, user_url="http://localhost:1/v1", user_model="m")
    assert {row["task_id"] for row in rows} == {"1", "2"}
    assert [row["task_id"] for row in dataset_rows(1, held_out=True)] == ["3"]
    assert rows[0]["prompt"][0]["content"].endswith('The policy:\nBe kind.\n\nThe tools:\n{"name": "look"}\n\n')
    environment.reset(**rows[0])
    assert environment._gym.user["user_llm"] == "openai/m"
    assert environment._gym.user["user_llm_args"]["api_base"] == "http://localhost:1/v1"
    with pytest.raises(UserError, match="1 held-out tasks of retail; write a count up to that, not 2"):
        dataset_rows(2, held_out=True)
    with pytest.raises(UserError, match="did you mean 'retail'"):
        dataset_rows(1, level="retial")
    with pytest.raises(UserError, match="has no task '9'"):
        environment.reset("retail", "9")
    with pytest.raises(UserError, match="column `user_model`"):
        environment.reset("retail", "1", user_url="http://localhost:1/v1")


@pytest.mark.host
def test_own_rollouts_have_what_rwml_needs_of_tau2(environment: Tau2Environment, tmp_path: Path) -> None:
    """Who is observed, JSON that is masked (the last one too), the profile without the intent, one task id for all customers."""
    pytest.importorskip("transformers")
    scenario = SimpleNamespace(
        persona="Patient.",
        instructions=SimpleNamespace(known_info="You are Jo Doe.", reason_for_call="Return the kettle."),
    )
    row, other = (dataset_rows(2, user_url="http://localhost:1/v1", user_model=model)[0] for model in ("a", "b"))

    def policy(trajectory: Trajectory, world: Tau2Environment) -> Action:
        if not trajectory.turns:
            return Action(calls=(Call(name="message_user", arguments={"text": "Your name?"}),))
        arguments = ("", '{"order": 7}', '{"x": "wrong"}', '{"order": 8}')[len(trajectory.turns)]
        return Action(calls=(Call(name="call_tool", arguments={"name": "look", "arguments": arguments}),))

    def reset(self: Any) -> tuple[str, dict[str, Any]]:
        task = SimpleNamespace(user_scenario=scenario)
        return "user: Hello.", {"tools": [SimpleNamespace(name="look")], "task": task}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gym, "reset", reset)
        played = play(environment, {**row, "max_turns": 4}, policy, max_turns=9)
        again = play(environment, {**other, "max_turns": 4}, policy, max_turns=9)
    assert played.task_id == again.task_id == f"retail/{row['task_id']}"
    assert [one.kind for _, _, one in played.observed()] == ["user", "tool", "tool", "tool"]
    assert [one.data["invalid"] for _, _, one in played.observed()] == [0, 0, 1, 0]
    out, filtered = tmp_path / "x.jsonl", tmp_path / "y.jsonl"
    write([played], out)
    assert main(["data", "filter", str(out), "--out", str(filtered), "--mask-values", "--profile"]) == 0
    (left,) = read(filtered)
    spoken, result, last = [one.text for _, _, one in left.observed()]
    schema = '{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object","properties":'
    assert spoken == "Your name?"
    assert result == schema + '{"order":{"type":"integer"}}}}}'
    assert last == result + "\nNo calls are left. The episode is over."
    assert left.context.simulation_instruction == "What the user was told about themselves:\nYou are Jo Doe."
    assert "kettle" not in left.to_bytes().decode()


KEY = "sk-tau2-0123456789"


class Echo(Gym):
    """A server that quotes the request's header: at the start, or at each step."""

    def reset(self) -> tuple[str, dict[str, Any]]:
        if self.user["user_llm"].endswith("refuses"):
            raise RuntimeError(f"401: Authorization: Bearer {KEY}\n" + "x" * 9999)
        opening, info = super().reset()
        return f"{opening} {KEY}", info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if "break" in action or action == tau2.DONE:
            raise RuntimeError(f"no answer to {KEY.upper()}")
        return f"user: {KEY}", 0.0, False, False, {"simulation_run": "{}"}


def test_no_key_reaches_an_observation_or_a_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tau2, "_library", lambda: (Echo, Registry()))
    monkeypatch.setenv("HF_TOKEN", KEY)
    environment = Tau2Environment()
    row = {"domain": "retail", "task_id": "1", "user_url": "http://localhost:1/v1"}
    assert environment.reset(**row, user_model="refuses") == "The simulation is lost. The episode is over."
    assert (environment.over, environment.get_reward(), environment.metrics["lost"]) == (True, 0.0, 1)
    texts = [
        environment.reset(**row, user_model="m"),
        environment.message_user("Hi"),
        environment.call_tool("break", "{}"),
    ]
    assert environment.metrics["lost"] == 1
    assert all(KEY not in text for text in texts)
    assert texts[1] == "[key]"
    assert "a simulation is lost: RuntimeError: 401: Authorization: Bearer [key] x" in caplog.messages[0]
    assert "no answer to [key]" in caplog.messages[-1]
    assert KEY not in caplog.text
    assert KEY.upper() not in caplog.text
    assert max(map(len, caplog.messages)) < 400
    assert environment.reset(**row, user_model="m").startswith("user: Hello.")


def test_what_other_libraries_log_is_redacted(caplog: pytest.LogCaptureFixture) -> None:
    secrets.hold(KEY)
    logger = logging.getLogger("some.library")
    for error in (ValueError(KEY), ValueError("other")):
        secrets.guard_logs("some.library")
        try:
            raise error
        except ValueError:
            logger.exception("refused %s", error)
    assert caplog.messages[0].startswith("refused [key]\nTraceback")
    assert KEY not in caplog.text
    assert len(logger.filters) == 1
    assert (str(caplog.records[1].args[0]), caplog.records[1].exc_info is None) == ("other", False)  # as it was


class Endless(Gym):
    """A customer's server that sends a book."""

    def reset(self) -> tuple[str, dict[str, Any]]:
        return "user: " + "a" * 10**6, super().reset()[1]

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, *rest = super().step(action)
        return (text + "b" * 10**6, *rest)


def test_what_a_customer_says_is_cut_and_what_a_tool_returns_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tau2, "_library", lambda: (Endless, Registry()))
    environment = Tau2Environment()
    assert len(environment.reset("retail", "1")) == tau2.MAX_CHARACTERS + 3
    assert len(environment.message_user("Hi")) == tau2.MAX_CHARACTERS + 3
    assert len(environment.call_tool("look", "{}")) > 10**6


def test_the_answer_of_a_customers_server_is_bounded() -> None:
    """What litellm's client reads of it, as of any other server of ours; the client keeps what else it was set up with."""
    httpx = pytest.importorskip("httpx")
    sent, given = [0], {}

    def pieces() -> Iterator[bytes]:
        for _ in range(given["pieces"]):
            sent[0] += 1 << 20
            yield bytes(1 << 20)

    def serve(request: Any) -> Any:
        given["asked"] = request.headers["Accept-Encoding"]
        return httpx.Response(200, headers=given["headers"], content=pieces())

    seen: list[int] = []
    client = httpx.Client(
        transport=httpx.MockTransport(serve), event_hooks={"response": [lambda r: seen.append(r.status_code)]}
    )
    litellm = SimpleNamespace(client_session=client)
    for _ in range(3):  # every environment asks for it
        tau2.bound_replies(litellm)
    assert litellm.client_session is client
    assert len(client.event_hooks["response"]) == 2
    given |= {"pieces": 2, "headers": {}}
    assert len(client.post("http://x/v1").content) == 2 << 20
    assert given["asked"] == "identity"
    given |= {"pieces": 10**6}
    with pytest.raises(httpx.ReadError, match="an answer over 16,777,216 bytes"):
        client.post("http://x/v1")
    assert sent[0] <= (2 << 20) + MAX_REPLY + (1 << 20)
    given |= {"pieces": 1, "headers": {"Content-Encoding": "gzip"}}
    with pytest.raises(httpx.DecodingError, match="encoded as 'gzip', which was not asked for"):
        client.post("http://x/v1")
    assert seen == [200] * 3
    bare = SimpleNamespace(client_session=None)
    tau2.bound_replies(bare)
    assert len(bare.client_session.event_hooks["response"]) == 1


@pytest.mark.parametrize("value", BAD, ids=range(len(BAD)))
def test_a_bad_row_is_one_line(environment: Tau2Environment, value: Any) -> None:
    row = {"domain": "retail", "task_id": "1", "user_url": "http://localhost:1/v1", "user_model": "m", "max_turns": 3}
    for column in row:
        try:
            environment.reset(**row | {column: value})
        except UserError as error:
            text = str(error)
            assert "\n" not in text, column
            assert 0 < len(text) < 300, column


@pytest.mark.parametrize(
    "column",
    [{"user_url": "http://u:p@localhost/v1"}, {"user_url": "ftp://x/v1"}, {"user_model": "huggingface/https://x.com"}],
)
def test_a_row_cannot_name_odd_servers(environment: Tau2Environment, column: dict[str, str]) -> None:
    with pytest.raises(UserError, match="A tau2 row's column `user_(url|model)`") as error:
        environment.reset("retail", "1", **{"user_url": "http://localhost:1/v1", "user_model": "m"} | column)
    assert "u:p" not in str(error.value)


@pytest.mark.slow
def test_tau2_bench_itself() -> None:
    """Its smallest domain, with a customer of our own."""
    pytest.importorskip("tau2.gym", reason="needs tau2-bench from its repository")

    def reply(body: dict[str, Any]) -> str:
        return "Please do it." if len(body["messages"]) < 4 else "Thanks. ###STOP###"

    with OpenAIServer(reply) as server:
        rows = dataset_rows(9, level="mock", user_url=server.base_url, user_model="m")
        environment, solved = Tau2Environment(), 0
        for row in rows:
            assert "user: Please do it." in texts(environment, row, expert())[0]
            solved += environment.success
            assert environment.metrics["lost"] == 0
            assert environment.metrics["invalid"] == 0
        assert solved >= 6  # two tasks need what a customer does, or have no reference actions
        choose = wanderer(random.Random(0))
        for row in rows:
            texts(environment, row, choose)
            assert environment.metrics["lost"] == 0
    assert environment.reset(**rows[0]) == "The simulation is lost. The episode is over."  # the server is gone
