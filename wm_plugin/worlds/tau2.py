"""tau2-bench itself (Barres et al. 2025), if the user has installed it from its repository; PyPI's `tau2` is something else.

An adapter of its gym environment. Each domain has its own tools, so they stand behind one, `call_tool`, and the row's prompt
lists them with the policy. The customer is tau2-bench's own simulator, a model behind an OpenAI-compatible server. The reward is
its evaluator's. Tested with version 1.0.1.
"""

import contextlib
import importlib
import json
import logging
import os
import random
from collections.abc import Iterator
from typing import Any, ClassVar

from wm_plugin.client.server import MAX_REPLY, check_address
from wm_plugin.errors import UserError, shown
from wm_plugin.runtime import secrets
from wm_plugin.untrusted import loads, number
from wm_plugin.worlds.kit.counted import CountedEnvironment
from wm_plugin.worlds.kit.customer import NAMELESS, key_variable
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall, script
from wm_plugin.worlds.kit.rows import Rows, check_count, draws, row_texts, rows_of, turn_limit, unknown
from wm_plugin.worlds.specs import SPECS, described_as

logger = logging.getLogger(__name__)

MAX_TURNS = 30
MAX_CHARACTERS = 10_000  # of an argument; a longer one is invalid. And of what the customer says, which is cut
LEVELS = ("retail", "airline", "telecom", "mock")  # domains
HELD_OUT = "test"  # the name of tau2-bench's own split; training has "train"
USER = "user: "
ROLES = (USER, "tool: ")  # with which the gym begins what the agent observes
DONE = '{"name": "done", "arguments": {}}'  # the gym's own tool that ends a simulation
INSTALL = (
    "tau2-bench is not installed (the package tau2 of PyPI is another one): with Python 3.12 or newer, "
    "git clone https://github.com/sierra-research/tau2-bench && pip install -e './tau2-bench[gym]'"
)

# The tools and these words are ours. tau2-bench's official agent has the tools of the desk itself, and reaches the customer by
# plain text, which would end an episode of TRL and verl.
INSTRUCTION = SPECS["tau2"].instruction


@described_as("tau2")
class Tau2Environment(CountedEnvironment):
    """One simulation: at most `max_turns` calls; the reward is that of tau2-bench's evaluator, and success is a reward of 1.

    A call is effective when it shows something new. Which tools change something depends on the domain, so `irreversible` names
    `call_tool` as a whole.
    """

    observer: ClassVar = {"message_user": "user"}
    refusals = ("Error: ", "Invalid action")
    _last_line = "No calls are left. The episode is over."
    _gym: Any = None
    _task: Any = None
    _tools: frozenset[str] = frozenset()
    _lost = 0

    def reset(
        self,
        domain: str,
        task_id: str,
        user_url: str = "",
        user_model: str = "",
        max_turns: int | None = None,
        **_: Any,
    ) -> str:
        """Start a task of a domain; returns the customer's first sentence.

        Args:
            domain: a name that tau2-bench has registered.
            user_url: of the OpenAI-compatible server with the customer's model; empty: tau2-bench's default, by litellm. It gets
                the key in OPENAI_API_KEY only if `kit.customer.key_variable` says so.
            user_model: the model's name there.
        """
        limit = turn_limit(max_turns, MAX_TURNS)
        name, *customer = row_texts("tau2", task_id=task_id, user_url=user_url, user_model=user_model)
        arguments = _customer(*customer)
        gym, registry = _library()
        _tasks(registry, domain, name)
        self._stop()
        self._task = None
        self.max_turns = limit
        self._begin()
        try:
            self._gym = gym(domain, name, max_steps=4 * limit, **arguments)
            opening, info = self._gym.reset()
            self._task = info["task"]
            self._tools = frozenset(tool.name for tool in info["tools"]) - {"done"}
        except Exception as error:  # such as of the customer's server: it costs the episode, not the training run
            return self._give_up(error)
        return _cut(secrets.redact(str(opening))) if opening else self._give_up()

    def message_user(self, text: str) -> str:
        message = self._start_action(text)
        return self._step(message) if message else self._refuse("there is nothing to say, or too much")

    def call_tool(self, name: str, arguments: str) -> str:
        json_text = self._start_action(arguments)
        if not isinstance(name, str) or name not in self._tools:
            return self._refuse(f"the tools are {', '.join(sorted(self._tools))}")
        try:
            fields = loads(json_text)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            return self._refuse("the arguments are no JSON object")
        return self._step(json.dumps({"name": name, "arguments": fields}))

    def finish(self) -> str:
        self._start_action("")
        return self._step(DONE)

    @property
    def user_profile(self) -> dict[str, str]:
        """What the task tells the customer about themselves, without the reason for the call (see `data.values`)."""
        scenario = getattr(self._task, "user_scenario", None)
        known = getattr(getattr(scenario, "instructions", None), "known_info", None)
        facts = {"known_info": known, "persona": getattr(scenario, "persona", None)}
        return {name: secrets.redact(text) for name, text in facts.items() if isinstance(text, str) and text.strip()}

    def _start_action(self, text: Any) -> str:
        self._take_turn()
        if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
            return ""
        return text.encode(errors="replace").decode().replace("\0", "").strip()

    def _step(self, action: str) -> str:
        """Run an action in the simulation. tau2-bench waits for its customer up to the server's timeout."""
        try:
            try:
                reply, reward, terminated, _, info = self._gym.step(action)
            except Exception:  # its evaluator raises for some failures; another step then reports the end
                reply, reward, terminated, _, info = self._gym.step(DONE)
            outcome = number(reward) or 0.0
            lost = terminated and loads(info["simulation_run"]) == {}
        except Exception as error:  # any other error costs the episode, not the training run
            return self._give_up(error)
        if lost:
            return self._give_up()
        reply = secrets.redact(str(reply))
        role = next((role for role in ROLES if reply.startswith(role)), "")
        reply = _cut(reply.removeprefix(role)) if role == USER else reply.removeprefix(role)
        failed = role != USER and reply.startswith(("Error", "Invalid action"))
        if terminated:
            self._ended, self._reward = True, min(max(outcome, 0.0), 1.0)
            self._effective += 1
            verdict = "It was handled as it should be." if self.success else "It was not handled as it should be."
            return f"{reply}\nThe case is closed. {verdict} The episode is over.".strip()
        self._invalid += failed
        self._note(not failed, action, reply)
        return self._observe(reply)

    def _give_up(self, error: Exception | None = None) -> str:
        self._lose()
        if error is not None:
            reason = " ".join(secrets.redact(f"{type(error).__name__}: {error}").split())
            logger.warning("tau2: a simulation is lost: %s", reason if len(reason) <= 300 else f"{reason[:300]}...")
        return "The simulation is lost. The episode is over."

    def _stop(self) -> None:
        """End a simulation that is still running: its thread waits for the agent."""
        if self._gym is not None and not self._ended:
            with contextlib.suppress(Exception):
                self._gym.step(DONE)
        self._gym = None


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = LEVELS[0],
    user_url: str = "",
    user_model: str = "",
    max_turns: int = MAX_TURNS,
) -> Rows:
    """Make rows for a trainer: the prompt has the policy and the tools of the domain `level`, and `reset` appends a sentence.

    The splits are tau2-bench's own, "train" and "test"; a domain without them has no held-out tasks.
    """
    _, registry = _library()
    tasks = _tasks(registry, level)
    try:
        splits = dict(registry.get_task_splits_loader(level)())
    except (TypeError, KeyError):
        splits = {}
    task_names = splits.get(HELD_OUT if held_out else "train", [] if held_out else list(tasks))
    numbers = sorted(str(name) for name in task_names if str(name) in tasks)
    check_count(count, len(numbers), f"tau2-bench has {{}} {'held-out' if held_out else 'training'} tasks of {level}")
    desk = registry.get_env_constructor(level)(solo_mode=False)
    tools = "\n".join(json.dumps(tool.openai_schema["function"]) for tool in desk.get_tools())
    about = f"The policy:\n{desk.get_policy()}\n\nThe tools:\n{tools}"
    user = {"user_url": user_url, "user_model": user_model} if user_model else {}
    made = {"words": {"task": about}, "domain": level}
    names = draws(seed, held_out).sample(numbers, count)
    rows = ({**made, "task_id": name, "level": level, **user} for name in names)
    return rows_of(INSTRUCTION, rows, max_turns, MAX_TURNS, "tool call")


def expert() -> Chooser:
    """Return a policy that takes the task's reference actions, then tells the customer what they have to know."""

    def calls(environment: Tau2Environment) -> list[ToolCall]:
        criteria = environment._task.evaluation_criteria
        made = [_call(action) for action in _actions(environment) if action.requestor == "assistant"]
        if criteria and criteria.communicate_info:
            made.append(("message_user", {"text": " ".join(criteria.communicate_info)}))
        return [*made, ("finish", {})]

    return script(calls)


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that says something, or calls a tool, with arguments of one of the task's reference actions or none."""

    def choose(environment: Tau2Environment) -> ToolCall:
        if rng.random() < 0.5 or not environment._tools:
            text = rng.choice(["How can I help you?", "Could you tell me more?", "It is done."])
            return "message_user", {"text": text}
        actions = _actions(environment)
        if actions and rng.random() < 0.5:
            return _call(rng.choice(actions))
        return "call_tool", {"name": rng.choice(sorted(environment._tools)), "arguments": "{}"}

    return choose


def _actions(environment: Tau2Environment) -> list[Any]:
    criteria = environment._task.evaluation_criteria
    return list(criteria.actions or []) if criteria else []


def _call(action: Any) -> ToolCall:
    return "call_tool", {"name": action.name, "arguments": json.dumps(action.arguments)}


def _library() -> tuple[Any, Any]:
    """Import tau2-bench's gym class and registry. Its log, of several messages a step, is switched off."""
    try:
        from loguru import logger as log
        from tau2.gym.gym_agent import AgentGymEnv
        from tau2.registry import registry

        litellm = importlib.import_module("litellm")
    except ImportError:
        raise UserError(INSTALL) from None
    log.disable("tau2")
    secrets.guard_logs("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "openai._base_client", "httpx")
    secrets.guard_logs("httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy")
    bound_replies(litellm)
    return AgentGymEnv, registry


def bound_replies(litellm: Any) -> None:
    """Let litellm read no more than `MAX_REPLY` bytes of a server's answer, uncompressed; a larger one costs the episode."""
    import httpx

    class Bounded(httpx.SyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for piece in self._stream:
                size += len(piece)
                if size > MAX_REPLY:
                    raise httpx.ReadError(f"an answer over {MAX_REPLY:,} bytes")
                yield piece

        def close(self) -> None:
            self._stream.close()

    def ask_for_plain(request: Any) -> None:
        request.headers["Accept-Encoding"] = "identity"  # a few bytes can unpack to gigabytes

    def bound(response: Any) -> None:
        if (encoding := response.headers.get("Content-Encoding", "identity").strip().lower()) not in ("", "identity"):
            response.close()
            raise httpx.DecodingError(f"encoded as {encoding[:20]!r}, which was not asked for")
        response.stream = Bounded(response.stream)

    if litellm.client_session is None:
        litellm.client_session = httpx.Client()
    hooks = litellm.client_session.event_hooks
    if not any(getattr(hook, "__module__", "") == __name__ for hook in hooks["response"]):
        litellm.client_session.event_hooks = {
            "request": [*hooks["request"], ask_for_plain],
            "response": [*hooks["response"], bound],
        }


def _cut(text: str) -> str:
    """Cut what a customer says to a length that an agent can read."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def _tasks(registry: Any, domain: str, task_id: str | None = None) -> dict[str, Any]:
    """Return the tasks of a domain by name. Raise a UserError if there is no such domain, or no task `task_id` in it."""
    domains = [str(name) for name in registry.get_domains()]
    if not isinstance(domain, str) or domain not in domains:
        raise UserError(f"tau2-bench has no domain {unknown(domain, domains)}")
    tasks = {str(task.id): task for task in registry.get_tasks_loader(domain)()}
    if task_id is not None and task_id not in tasks:
        raise UserError(f"tau2-bench's domain {domain!r} has no task {unknown(task_id, tasks)}")
    return tasks


def _customer(url: str, model: str) -> dict[str, Any]:
    """Return the arguments by which tau2-bench, through litellm, reaches the customer's model."""
    secrets.hold_environment()  # litellm sends what it finds there
    if not model.isprintable() or "://" in model:  # litellm takes some names for the addresses of other servers
        raise UserError(f"A tau2 row's column `user_model` is {shown(model)}; write the model's name")
    if not url:
        return {"user_llm": model} if model else {}
    if not model:
        raise UserError(f"A tau2 row's column `user_model` is empty; {NAMELESS}")
    check_address(url, "A tau2 row's column `user_url`")
    variable = key_variable(url)
    key = (os.environ.get(variable) if variable else None) or "none"  # litellm requires one, or takes OPENAI_API_KEY
    arguments = {"api_base": url, "api_key": key, "temperature": 0.0, "timeout": 60}
    return {"user_llm": f"openai/{model}", "user_llm_args": arguments}
