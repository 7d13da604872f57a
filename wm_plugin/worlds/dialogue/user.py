"""The customer of the desk: scripted, or a model behind an OpenAI-compatible server.

Both know a `Case`: who they are and what they want. The scripted customer is a state machine over sentences. It tells a fact when
a sentence asks for it, considers a request settled when a sentence says that it was done or is not possible, and says goodbye
after the last one. It never looks at the database: it believes an agent that says that something is done. A sentence that denies,
asks or supposes something does not say it ("It is not delivered yet"), and idioms are no refusals ("I can't wait").
"""

import re
from functools import lru_cache
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.worlds.dialogue.world import STATUSES, Case, Request
from wm_plugin.worlds.kit.customer import key_variable
from wm_plugin.worlds.kit.described import described

PATIENCE = 5  # messages in a row that lead nowhere; then a scripted customer gives up
AMOUNTS = 7  # beside the right one: an order has up to 3 items, and a kind 4 products
GOODBYE = "[goodbye]"  # how a served customer ends the talk

_SAID: dict[str, Any] = described("dialogue/customer.yaml")
OPENINGS: dict[str, str] = _SAID["openings"]
FACTS = {name: pattern.replace("\n", "") for name, pattern in _SAID["facts"].items()}
VERBS: dict[str, str] = _SAID["verbs"]


def _pattern(name: str) -> str:
    pattern: str = _SAID["patterns"][name].replace("<denied>", _SAID["patterns"]["denied"])
    return pattern.replace("<no>", _SAID["negated"]).replace("\n", "").replace("<status>", "|".join(STATUSES))


ASKS = re.compile(_pattern("asks"))
REFUSES = re.compile(_pattern("refuses"))
IDIOMS = re.compile(_pattern("idioms"))
CLAUSES = re.compile(_pattern("clauses"))
IF = re.compile(_pattern("if"))
CONDITION = re.compile(_pattern("condition"))
DENIED = re.compile(_pattern("denied"))
UNSURE = re.compile(_pattern("unsure"))
ANSWERED_NO = re.compile(_pattern("answered_no"))
FAILED = re.compile(_pattern("failed"))
LOST = re.compile(_pattern("lost"))
DONE = re.compile(_pattern("done"))
LATER = re.compile(_pattern("later"))
GENERIC = re.compile(_pattern("generic"))
CONFIRMS = re.compile(_pattern("confirms"))
PROPOSES = re.compile(_pattern("proposes"))
BYE = re.compile(_pattern("bye"))
_APOSTROPHES = dict.fromkeys(map(ord, "\u2018\u2019\u02bc\uff07\u00b4`"), "'")
NUMBER = re.compile(r"(?<![0-9])[0-9]{1,15}(?![0-9])(?:\.[0-9]{1,2})?")  # a longer one is no amount of money

DATE = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}\b")


class Heard:
    """What a customer has heard about a request, over all messages since it came up.

    `informed` says whether they know what they need: the amount, with any sign; the status; or that it is not possible, if the
    policy forbids it. Guesses do not inform: the customer believes the first status that is named alone; an amount counts neither
    in a list nor after `AMOUNTS` others.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._amounts: tuple[set[int], set[int]] = (set(), set())  # with cents and without
        self._status = ""
        self.informed = request.fact is None and not request.trap

    def hear(self, text: str, sure: bool = True) -> None:
        """Hear a plain text. If it is not `sure` to be about this request, a refusal names the status of another order."""
        request = self._request
        if request.trap:
            self.informed = self.informed or refuses(text)
        elif isinstance(request.fact, int):
            told = _without(DENIED, text)
            for amounts, heard in zip(_amounts(told, str(request.order)), self._amounts, strict=True):
                heard.update(amounts)
                few = len(heard - {abs(request.fact)}) <= AMOUNTS
                self.informed = self.informed or (few and _is_told(abs(request.fact), amounts))
        elif request.fact is not None:
            told = _without(UNSURE, ANSWERED_NO.sub(" ", text))
            statuses = [status for status in STATUSES if re.search(rf"\b{status}\b", told)]
            if len(statuses) == 1 and (sure or not refuses(text)):
                self._status = self._status or statuses[0]
            self.informed = self._status == request.fact


def _amounts(text: str, order: str) -> tuple[list[int], list[int]]:
    """Return the amounts of cents in a text, those with cents and those without; dates and the order's number are no amounts."""
    numbers = [number for number in NUMBER.findall(DATE.sub(" ", text)) if number != order]
    with_cents, whole = (
        [round(float(number) * 100) for number in numbers if ("." in number) == has_cents]
        for has_cents in (True, False)
    )
    return with_cents, whole


def _is_told(amount: int, amounts: list[int]) -> bool:
    """Return whether an amount is among others: beside one at most, or as the sum or the difference of the others."""
    others = [other for other in amounts if other != amount]
    return len(others) < len(amounts) and (
        len(set(others)) <= 1 or sum(others) == amount or (len(others) == 2 and abs(others[0] - others[1]) == amount)
    )


class UserLostError(Exception):
    """The customer's server does not answer."""


class ScriptedUser:
    """Gives the same answers to the same sentences. If `insistent`, it asks once for an exception when it is refused."""

    def __init__(self, of: Case, insistent: bool) -> None:
        self._case, self._insistent = of, insistent
        self.heard = [Heard(request) for request in of.requests]
        self._current, self._insisted, self._amount_question = 0, False, False
        self._idle = self._replies = 0
        self._begin(0)

    def opening(self) -> str:
        return str(_SAID["greetings"][self._case.manner]) + OPENINGS[self._request.kind]

    def answer(self, text: str) -> tuple[str, bool]:
        text = plain(text)
        sentences = _sentences(text)
        asking = [part for part in sentences if ASKS.search(part) and (part[-1] == "?" or not refuses(part))]
        stating = [part for part in sentences if part[-1] != "?"]
        request = self._request
        for heard in self.heard[: self._current + 1]:
            heard.hear(text)
        informed = request.fact is None or self.heard[self._current].informed
        done = informed if request.kind not in VERBS else any(_is_done(part, request) for part in stating)
        if not done and (facts := self._facts(asking)):
            yes = "Yes, please. " if any(CONFIRMS.search(part) for part in asking) else ""
            return self._progress(yes + facts)
        if done:
            if informed or self._amount_question:
                return self._settle("Thank you.")
            self._amount_question = True
            return self._progress("And what is the amount?")
        if any(LOST.search(_without(IF, part)) for part in stating):
            return self._progress(f"It is order {request.order}. {self._fact('email')} {self._fact('postcode')}")
        if any(refuses(part) for part in stating):
            if self._insistent and not self._insisted:
                self._insisted = True
                return self._progress("That is a pity. Can you not make an exception for me?")
            return self._settle("All right, then.")
        if request.kind in VERBS and any(CONFIRMS.search(part) or PROPOSES.search(part) for part in sentences):
            return self._progress("Yes, please go ahead.")
        if BYE.search(text):
            return "Goodbye.", True
        if facts := self._facts([part for part in sentences if len(part.split()) < 6]):  # "Email and postcode."
            return self._progress(facts)
        self._idle += 1
        if self._idle >= PATIENCE:
            return "This leads nowhere. Goodbye.", True
        return f"{OPENINGS[request.kind]} What do you need to know?", False

    @property
    def _request(self) -> Request:
        return self._case.requests[self._current]

    def _progress(self, reply: str) -> tuple[str, bool]:
        """Answer a question, also a repeated one, but not for ever."""
        self._replies += 1
        if self._replies > 3 * PATIENCE:
            return "I have no more time. Goodbye.", True
        return reply, False

    def _settle(self, reply: str) -> tuple[str, bool]:
        if self._current + 1 == len(self._case.requests):
            return f"{reply} Goodbye.", True
        self._begin(self._current + 1)
        return f"{reply} There is something else. {OPENINGS[self._request.kind]}", False

    def _begin(self, number: int) -> None:
        """Go on to the request of this number."""
        self._current, self._insisted, self._amount_question, self._idle, self._replies = number, False, False, 0, 0

    def _facts(self, sentences: list[str]) -> str:
        """Return the facts that these sentences ask for."""
        names = [name for name, pattern in FACTS.items() if any(re.search(pattern, sentence) for sentence in sentences)]
        return " ".join(filter(None, map(self._fact, names)))

    def _fact(self, name: str) -> str:
        request = self._request
        if name == "item" and request.item:
            instead = f" I'd like the {request.product} instead." if request.product else ""
            return f"It is the {request.item}.{instead}"
        if name == "address" and request.address:
            return f"Please send it to {request.address}."
        return {
            "email": f"My email is {self._case.email}.",
            "postcode": f"My postcode is {self._case.postcode}.",
            "name": f"My name is {self._case.name}.",
            "order": f"It is order {request.order}.",
            "reason": "I have changed my mind.",
        }.get(name, "")


def _is_done(sentence: str, request: Request) -> bool:
    return any(
        (done := DONE.search(part))
        and not DENIED.search(part[: done.end()])
        and not any(pattern.search(part) for pattern in (LATER, REFUSES, FAILED))
        and (re.search(VERBS[request.kind], part) or GENERIC.search(part))
        for part in CLAUSES.split(IDIOMS.sub(" ", sentence))
    )


def refuses(text: str) -> bool:
    """Return whether a plain text says that something is not possible; a question or a condition does not."""
    for sentence in _sentences(text):
        clauses = CLAUSES.split(IDIOMS.sub(" ", sentence.rstrip("?")))
        if sentence.endswith("?"):
            clauses.pop()
        told = " | ".join(IF.split(clause, maxsplit=1)[0] for clause in clauses)
        if REFUSES.search(told) and not CONDITION.search(sentence):
            return True
    return False


def _without(unsaid: re.Pattern[str], text: str) -> str:
    """Cut each clause of a plain text where it stops claiming what follows."""
    return " | ".join(unsaid.split(clause, maxsplit=1)[0] for clause in CLAUSES.split(IDIOMS.sub(" ", text)))


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?;])\s+", text) if part]


def plain(text: str) -> str:
    """Write a message as the patterns expect it: lower case, one line, straight apostrophes."""
    return " ".join(text.translate(_APOSTROPHES).lower().split())


class ServedUser:
    """A model that plays the customer. A server that does not answer raises `UserLostError`."""

    def __init__(self, of: Case, url: str, model: str) -> None:
        self._server = _server(url, model)
        self.heard = [Heard(request) for request in of.requests]
        self._messages = [
            {"role": "system", "content": _part(of)},
            {"role": "user", "content": "Hello. How can I help you?"},
        ]

    def opening(self) -> str:
        return self._say()[0]

    def answer(self, text: str) -> tuple[str, bool]:
        for heard in self.heard:  # which of their requests they have come to is not known
            heard.hear(plain(text), sure=False)
        self._messages.append({"role": "user", "content": text})
        try:
            return self._say()
        except UserError as error:  # a wrong setup stops the run at the first call; later ones cost an episode
            raise UserLostError(str(error)) from None

    def _say(self) -> tuple[str, bool]:
        [completion] = self._server.complete([self._messages])
        if not hasattr(completion, "text"):
            raise UserLostError(completion.message)
        reply = completion.text.encode(errors="replace").decode()[:2000]
        self._messages.append({"role": "assistant", "content": reply})
        return reply.replace(GOODBYE, "").strip() or "Goodbye.", GOODBYE in reply


User = ScriptedUser | ServedUser


@lru_cache(maxsize=8)
def _server(url: str, model: str) -> Any:
    """Return one client for the process, so that its limit on concurrent calls holds for all environments together."""
    from wm_plugin.client.server import Server

    return Server(url, model, max_tokens=512, api_key_env=key_variable(url))


def _part(of: Case) -> str:
    """Return the system prompt of a served customer."""
    wishes = "\n".join(f"- {_in_words(request)}" for request in of.requests)
    return str(_SAID["part"].format(name=of.name, email=of.email, postcode=of.postcode, wishes=wishes))


def _in_words(request: Request) -> str:
    item = f", the {request.item}" if request.item else ""
    product = f", for the {request.product}" if request.product else ""
    address = f", new address {request.address}" if request.address else ""
    return f"{_SAID['wishes'][request.kind]} (order {request.order}{item}{product}{address})"
