"""A client for OpenAI-compatible servers: bounded concurrency, retries, timeouts, figures.

Requests run in the background event loop, so that any thread and code inside a running event loop of the host can use a server.
Needs the extra `server`: aiohttp. The `openai` client takes about ten times as much CPU time per call, and cannot sustain 32
concurrent calls of 20 ms (benchmarks/rewards_judges.py).
"""

import asyncio
import codecs
import contextlib
import email.utils
import json
import os
import random
import re
import time
import urllib.parse
import urllib.request
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import orjson
from pydantic import Field, field_validator

from wm_plugin import untrusted
from wm_plugin.client import replies
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.options import Number, Options, Parsed, Whole, option
from wm_plugin.runtime import background, secrets
from wm_plugin.tokens.message import Message

T = TypeVar("T")
KINDS = ("timeout", "connection", "rate limit", "server error", "refused", "malformed", "too large")  # of failures
MAX_REPLY = 1 << 24  # bytes
_TRANSIENT = {408, 409, 425, 429}  # and every 5xx
_MISCONFIGURED = {401, 403, 404}  # before any success: wrong key, address or model
_MAX_EXCERPT = 1 << 16  # bytes to read of an error's body
_MAX_WORDS = 1 << 10  # of a text, for a line of 200 characters
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
# The form of environment variables' names, which hardly any key has.
VARIABLE = re.compile(r"_?[A-Z][A-Z0-9]{0,14}(?:_[A-Z0-9]{1,15}){0,9}")
_RECENT = 10_000  # number of latencies for mean and p95


@dataclass(frozen=True)
class Failure:
    """A call without an answer after its retries.

    Attributes:
        kind: one of `KINDS`. "refused" is a 4xx status other than the rate limit, "malformed" an answer that breaks the protocol,
            "too large" one over `max_reply`.
    """

    kind: str
    message: str


@dataclass(frozen=True)
class Completion:
    """An answer's text, whether it ended at `max_tokens`, and the tokens of prompt and answer, 0 if unknown."""

    text: str
    cut: bool = False
    tokens: int = field(default=0, compare=False)


class ServerOptions(Options):
    """How to reach a model behind an OpenAI-compatible server, and how to sample from it."""

    aliases: ClassVar[Mapping[str, str]] = {"url": "base_url"}

    base_url: str = option(
        "The address with the version, without user, password and query.", write="http://host:port/v1"
    )
    model: str = option("The model's name on the server.")
    api_key_env: str | None = option(
        "The environment variable that holds the key; configs must not contain keys. OPENAI_API_KEY is optional, any other one "
        "must be set; null sends no key.",
        default="OPENAI_API_KEY",
    )
    concurrency: Whole = option("Maximum number of concurrent calls, over all threads of a process.", default=32, ge=1)
    timeout: float = option("Seconds per attempt.", default=60.0, gt=0)
    max_retries: Whole = option("Number of further attempts after the first.", default=4, ge=0)
    backoff: float = option(
        "Seconds before the first retry, doubled for each further one, times a random factor in [0.5, 1]. A longer "
        "`Retry-After` is honoured.",
        default=0.5,
        ge=0,
    )
    longest_wait: float = option(
        "The longest wait before a retry, in seconds, `Retry-After` included.", default=30.0, ge=0
    )
    max_reply: Whole = option(
        "The largest answer, in bytes. Up to `concurrency` answers may be in memory at once.", default=MAX_REPLY, ge=1
    )
    temperature: Annotated[Whole | Number, Field(ge=0)] | None = option(
        "Temperature of completions; null omits it.", default=0.0, write="a number >= 0, or null"
    )
    max_tokens: Whole | None = option("Maximum number of a completion's tokens; null omits it.", default=4096, ge=1)
    seed: Whole | Literal["auto"] | None = option(
        "'auto' sends 0 at temperature 0, and otherwise only a call's own seed, since vLLM on a CPU crashes on seeds there; null "
        "sends no seed, not even a call's.",
        default="auto",
    )
    parameters: Annotated[Mapping[str, Any] | None, Parsed] = option(
        "Further fields of a request's body, e.g. {chat_template_kwargs: {enable_thinking: false}}.", default=None
    )
    prices: tuple[float, float] = option("Dollars per million (prompt, completion) tokens.", default=(0.0, 0.0))

    @field_validator("base_url", mode="before")
    @classmethod
    def _check_base_url(cls, address: Any) -> Any:
        check_address(address)
        return address.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _check_key_variable(cls, variable: str | None) -> str | None:
        if variable is not None and variable != "OPENAI_API_KEY" and not os.environ.get(variable):
            if not VARIABLE.fullmatch(variable):
                raise UserError(
                    "api_key_env does not name an environment variable that is set; write its name, not the key"
                )
            raise UserError(f"api_key_env: the environment variable {variable} is not set")
        _key(variable)
        return variable


class Server:
    """A model behind an OpenAI-compatible server (vLLM, SGLang, llama.cpp, `transformers serve`, OpenAI, ...).

    A failed call is a `Failure` in the result, not an exception. Timeouts, lost connections, the statuses 408, 409, 425, 429 and
    5xx, and malformed answers are retried; other statuses and answers that are too large are not. A call takes at most
    `(max_retries + 1) * timeout` seconds plus the waits between attempts. The key is removed from what a server sends back.

    Raises:
        UserError: a setting is invalid; from a call: the server refuses the key, the address or the model before its first
            answer.
        MissingExtraError: aiohttp is not installed; from the first call.
    """

    def __init__(self, base_url: str | ServerOptions, model: str | None = None, **settings: Any) -> None:
        if isinstance(base_url, ServerOptions):
            options = base_url
        else:
            settings |= {} if model is None else {"model": model}
            options = ServerOptions(base_url=base_url, **settings)
        self.options = options
        self.base_url, self.model, self.concurrency = options.base_url, options.model, options.concurrency
        given, seed = dict(options.parameters or {}), options.seed
        if seed == "auto":
            seed = 0 if given.get("temperature", options.temperature) == 0 else None
        sampling = {"temperature": options.temperature, "max_tokens": options.max_tokens, "seed": seed}
        self.parameters = {name: value for name, value in sampling.items() if value is not None} | given
        self.calls = self.failures = self.retries = self.answered = self.prompt_tokens = self.completion_tokens = 0
        self._latencies: deque[float] = deque(maxlen=_RECENT)
        self._jitter = random.Random()  # not the global one, whose stream belongs to the training
        self._connection: _Connection | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that an answer depends on except its conversation and seed."""
        return {"model": self.model, **{name: value for name, value in self.parameters.items() if name != "seed"}}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the connection: a copy in another process opens its own."""
        return self.__dict__ | {"_connection": None}

    def body(
        self, conversation: Sequence[Message], seed: int | None = None, fields: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the request's body for a conversation: everything that its completion depends on."""
        own = dict(fields or {}) | ({"seed": seed} if self.options.seed is not None and seed is not None else {})
        return {"model": self.model, "messages": [dict(message) for message in conversation], **self.parameters, **own}

    def complete(
        self,
        conversations: Iterable[Sequence[Message]],
        *,
        seeds: Iterable[int] | None = None,
        fields: Mapping[str, Any] | None = None,
        each: Callable[[int, Completion | Failure], None] | None = None,
    ) -> list[Completion | Failure]:
        """Complete each conversation, in order.

        Args:
            conversations: iterated in the background loop as slots become free, so that they are made while others wait.
            seeds: one per conversation, instead of the server's `seed`.
            fields: further fields of each request's body, which override `parameters`.
            each: called in the background loop with a conversation's index and completion as soon as it arrives.
        """
        bodies = self._bodies(conversations, seeds, fields)
        return background.wait_for(self._post_all("/chat/completions", bodies, _completion, each))

    async def complete_async(
        self,
        conversations: Iterable[Sequence[Message]],
        *,
        seeds: Iterable[int] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> list[Completion | Failure]:
        """Do what `complete` does, inside an event loop."""
        bodies = self._bodies(conversations, seeds, fields)
        return await background.run(self._post_all("/chat/completions", bodies, _completion))

    def post(
        self,
        path: str,
        bodies: Iterable[Any],
        read: Callable[[Any], T],
        *,
        each: Callable[[int, T | Failure], None] | None = None,
    ) -> list[T | Failure]:
        """Post each body to `path` as JSON, and convert the JSON answers with `read`.

        If `read` raises KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError or RecursionError, the answer
        counts as malformed; a ValueError's message becomes a part of the failure's.
        """
        return background.wait_for(self._post_all(path, bodies, read, each))

    async def post_async(self, path: str, bodies: Iterable[Any], read: Callable[[Any], T]) -> list[T | Failure]:
        """Do what `post` does, inside an event loop."""
        return await background.run(self._post_all(path, bodies, read))

    @property
    def figures(self) -> dict[str, float]:
        """Return numbers of calls, failures, retries and tokens, the cost in dollars, and the latency of the last 10,000
        answered calls in seconds, including retries.
        """
        recent = sorted(self._latencies)
        dollars = (self.prompt_tokens * self.options.prices[0] + self.completion_tokens * self.options.prices[1]) / 1e6
        return {
            "calls": self.calls,
            "failures": self.failures,
            "retries": self.retries,
            "latency_mean": sum(recent) / len(recent) if recent else 0.0,
            "latency_p95": recent[int(0.95 * (len(recent) - 1) + 0.5)] if recent else 0.0,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": dollars,
        }

    def _bodies(
        self, conversations: Iterable[Sequence[Message]], seeds: Iterable[int] | None, fields: Mapping[str, Any] | None
    ) -> Iterator[dict[str, Any]]:
        if seeds is None:
            return (self.body(messages, fields=fields) for messages in conversations)
        return (self.body(messages, seed, fields) for messages, seed in zip(conversations, seeds, strict=True))

    async def _post_all(
        self,
        path: str,
        bodies: Iterable[Any],
        read: Callable[[Any], T],
        each: Callable[[int, T | Failure], None] | None = None,
    ) -> list[T | Failure]:
        found: dict[int, T | Failure] = {}
        numbered = enumerate(bodies)

        async def work(number: int, body: Any) -> None:
            found[number] = await self._post_one(path, body, read)
            if each:
                each(number, found[number])

        async def slot(number: int, body: Any) -> None:  # one task per slot, not per body
            await work(number, body)
            for number, body in numbered:
                await work(number, body)

        try:
            async with asyncio.TaskGroup() as group:
                for number, body in islice(numbered, self.concurrency):
                    group.create_task(slot(number, body))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return [found[number] for number in range(len(found))]

    async def _post_one(self, path: str, body: Any, read: Callable[[Any], T]) -> T | Failure:
        if self._connection is None or self._connection.process != os.getpid():
            self._connection = _Connection(self.base_url, self.concurrency)
            weakref.finalize(self, self._connection.close)
        data = _encoded(body)
        async with self._connection.slots:
            self.calls += 1
            start = time.monotonic()
            for attempt in range(self.options.max_retries + 1):
                found, again, at_least = await self._attempt(self._connection, path, data, read)
                if not isinstance(found, Failure):
                    self.answered += 1
                    self._latencies.append(time.monotonic() - start)
                    return found
                if not again or attempt == self.options.max_retries:
                    break
                self.retries += 1
                # The slot stays occupied, so that an overloaded server gets fewer calls.
                wait = self.options.backoff * 2 ** min(attempt, 60) * self._jitter.uniform(0.5, 1)
                await asyncio.sleep(min(max(wait, at_least), self.options.longest_wait))
            self.failures += 1
            return found

    async def _attempt(
        self, connection: "_Connection", path: str, data: bytes, read: Callable[[Any], T]
    ) -> tuple[T | Failure, bool, float]:
        """Return the converted answer or a failure, whether to retry, and the seconds that the server asks to wait."""
        import aiohttp

        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key := _key(self.options.api_key_env):
            headers["Authorization"] = f"Bearer {key}"
        try:
            async with connection.session.post(
                self.base_url + path,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self.options.timeout),
                allow_redirects=False,  # the key must not go to another address
                proxy=connection.proxy,
            ) as response:
                status, at_least = response.status, _seconds(response.headers.get("Retry-After"))
                encoding = response.headers.get("Content-Encoding", "identity")
                most = self.options.max_reply if status == 200 else _MAX_EXCERPT
                body = await replies.read(response, most)
        except TimeoutError:
            return Failure("timeout", f"no answer within {self.options.timeout:g} s"), True, 0.0
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a host or proxy that cannot be one
            return Failure("connection", _line(str(error) or type(error).__name__)), True, 0.0
        if status != 200:
            excerpt = f"an answer of over {most:,} bytes" if body is None else _line(body)
            if status in _MISCONFIGURED and not self.answered:
                raise UserError(
                    f"{self.base_url}{path}: status {status} for the model {self.model!r} ({excerpt}); "
                    "check base_url, model and api_key_env"
                )
            again = status in _TRANSIENT or status >= 500
            kind = "rate limit" if status == 429 else "server error" if status >= 500 else "refused"
            return Failure(kind, f"status {status}: {excerpt}"), again, at_least
        if body is None:
            return Failure("too large", f"an answer of over {most:,} bytes"), False, 0.0
        try:
            if encoding.strip().lower() not in ("", "identity"):
                raise ValueError(f"encoded as {_line(encoding)[:20]!r}")
            value = untrusted.loads(body.removeprefix(codecs.BOM_UTF8), largest=most)
            if secrets.may_hold(body):
                value = secrets.redact_json(value)
            found = read(value)
        except _MALFORMED as error:
            reason = f" ({error})" if type(error) in (ValueError, untrusted.BoundsError) else ""
            return Failure("malformed", f"not what was asked for{reason}: {_line(body)}"), True, 0.0
        self._count(value.get("usage") if isinstance(value, dict) else None)
        return found, False, 0.0

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.prompt_tokens += replies.count(usage.get("prompt_tokens"))
            self.completion_tokens += replies.count(usage.get("completion_tokens"))


class _Connection:
    """The session of one process and its event loop."""

    def __init__(self, base_url: str, concurrency: int) -> None:
        try:
            import aiohttp
        except ModuleNotFoundError:
            raise MissingExtraError("asking a server", "aiohttp", "server") from None
        self.process = os.getpid()
        self.slots = asyncio.Semaphore(concurrency)
        # The semaphore limits connections. Compressed answers are not requested: aiohttp would decompress them to any size.
        # aiohttp logs unreadable cookies, and asyncio logs open connections with a proxy's password.
        secrets.guard_logs("aiohttp.client", "aiohttp.internal", "asyncio")
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        # aiohttp would look up the environment's proxies in every call.
        address = urllib.parse.urlsplit(base_url)
        bypassed = urllib.request.proxy_bypass(address.hostname or "")
        self.proxy = None if bypassed else urllib.request.getproxies().get(address.scheme)
        if self.proxy:
            _hold_password(self.proxy)

    def close(self) -> None:
        if self.process == os.getpid():
            background.finish(self.session.close())


def check_address(base_url: Any, name: str = "base_url") -> None:
    """Raise a UserError if requests cannot go to this address, or if it holds a user or password."""
    try:
        address = urllib.parse.urlsplit(base_url)
        if address.username is not None or address.password is not None:
            raise UserError(
                f"{name} has a user or a password; leave them out, and put the key into its environment variable"
            )
        host = (address.hostname or "").encode("idna")  # it refuses empty and long parts
        usable = bool(host) and address.scheme in ("http", "https") and address.port != 0
        usable = usable and base_url.isprintable() and " " not in base_url
    except UserError:
        raise
    except (ValueError, TypeError, AttributeError):  # a port that is not a number, a broken IPv6 address, not a text
        usable = False
    if not usable:
        written = repr(base_url)[:100]
        raise UserError(f"{name} is {'not an address' if '@' in written else written}; write http://host:port/v1")
    if address.query or address.fragment:
        raise UserError(f"{name} has a part after '?' or '#'; leave it out")


def _key(variable: str | None) -> str:
    """Return the key in an environment variable, or "", and keep it out of messages from then on."""
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UserError(
            f"api_key_env: the key in {variable} has a line break or a letter that no header can hold; set it again"
        )
    secrets.hold(key)
    return key


def _hold_password(proxy: str) -> None:
    """Keep a proxy's password out of messages: as it was set, as it is shown, and as it is sent."""
    with contextlib.suppress(ValueError):
        password = urllib.parse.urlsplit(proxy if "://" in proxy else f"//{proxy}").password or ""
        plain = urllib.parse.unquote(password)
        secrets.hold(password, plain, urllib.parse.quote(plain, safe="!$&'()*+,;="))  # the last as errors quote it


def _encoded(body: Any) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # lone surrogates, integers of more than 64 bits
        return json.dumps(body).encode()


def _completion(value: Any) -> Completion:
    choice = value["choices"][0]
    text = choice["message"]["content"]
    if text is None:  # a tool call, or a reasoning model that was cut before its answer
        text = ""
    if not isinstance(text, str):
        raise TypeError("the content is not text")
    usage = value.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    tokens = replies.count(counts.get("prompt_tokens")) + replies.count(counts.get("completion_tokens"))
    return Completion(text, cut=choice.get("finish_reason") == "length", tokens=tokens)


def _seconds(retry_after: str | None) -> float:
    """Return the seconds in a `Retry-After` header, or until its date; 0 if it is unreadable."""
    if not retry_after:
        return 0.0
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError, TypeError, IndexError, OSError):
            return 0.0
    return seconds if 0 < seconds < float("inf") else 0.0


def _line(text: str | bytes) -> str:
    """Return the beginning of a text on one line. Keys are removed before it is cut."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    kept = secrets.redact_escaped(" ".join(text.split(maxsplit=_MAX_WORDS))[:_MAX_EXCERPT])
    return " ".join(kept.split())[:200]
