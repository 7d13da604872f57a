import datetime
import inspect
import re
from collections import Counter
from typing import Any

import pytest

from support.cases import CASES
from support.openai_server import OpenAIServer, every
from support.rows import BAD
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import tool_methods
from wm_plugin.worlds import dialogue
from wm_plugin.worlds.check import HOSTILE, texts
from wm_plugin.worlds.dialogue import DialogueEnvironment, dataset_rows, expert
from wm_plugin.worlds.dialogue.user import AMOUNTS, PATIENCE, Heard, ScriptedUser
from wm_plugin.worlds.dialogue.world import (
    ANYONES,
    DAYS,
    REQUESTS,
    STATUSES,
    Case,
    Request,
    case,
    content,
    open_database,
    target_content,
)


def case_with(kind: str, trap: str = "", level: str | None = None, count: int | None = None) -> tuple[int, str, Case]:
    """The first case whose first request is of this kind and has this trap."""
    level = level or ("hard" if trap else "standard")
    for seed in range(2000):
        of = case(seed, level)
        first = of.requests[0]
        if (first.kind, first.trap) == (kind, trap) and count in (None, len(of.requests)):
            return seed, level, of
    raise AssertionError(f"no case of {kind} and {trap!r}")


def naive_trap(of: Case, request: Request) -> str:
    """Why the policy forbids a request, read off the tables."""
    orders, products = ({row[key]: row for row in of.tables[name]} for name, key in (("orders", 0), ("products", 1)))
    caller = next(row for row in of.tables["customers"] if row[2] == of.email)
    _, owner, status, delivered, _ = orders[request.order]
    if caller[3] != of.postcode:
        return "postcode"
    if owner != caller[0]:
        return "stranger"
    if request.kind in ("total", "status"):
        return ""
    if request.kind in ("cancel", "address"):
        return "" if status == "pending" else status
    [item] = [row for row in of.tables["items"] if row[1] == request.order and row[2] == products[request.item][0]]
    days = (datetime.date.fromisoformat(of.today) - datetime.date.fromisoformat(delivered)).days
    if days > DAYS:
        return "late"
    if request.kind == "refund":
        return "final sale" if item[4] else ""
    new = products[request.product]
    if new[2] != products[request.item][2]:
        return "other kind"
    return "" if new[4] else "no stock"


@pytest.mark.parametrize("level", dialogue.LEVELS)
def test_cases_are_what_they_say(level: str) -> None:
    kinds: Counter[tuple[str, str]] = Counter()
    for seed in range(200):
        of = case.__wrapped__(seed, level)
        assert of == case(seed, level)
        assert len({row[2] for row in of.tables["customers"]}) == 6
        for request in of.requests:
            kinds[request.kind, request.trap] += 1
            assert naive_trap(of, request) == request.trap
            products = {row[1]: row for row in of.tables["products"]}
            items = [row for row in of.tables["items"] if row[1] == request.order]
            paid = {of.tables["products"][row[2] - 1][1]: row[3] for row in items}
            orders = {row[0]: row for row in of.tables["orders"]}
            expected = {
                "total": sum(paid.values()),
                "status": orders[request.order][2],
                "refund": paid.get(request.item),
            }
            if request.kind == "exchange":
                expected["exchange"] = products[request.product][3] - paid[request.item]
            assert request.fact == (None if request.trap else expected.get(request.kind))
        changed = any(not one.trap and one.kind in ("cancel", "address", "exchange", "refund") for one in of.requests)
        assert (target_content(of) != content(open_database(of))) == changed
    if level == "standard":
        assert set(kinds) == {(kind, "") for kind in REQUESTS}
    else:
        possible = {(kind, trap) for kind, traps in REQUESTS.items() if traps for trap in (*traps, *ANYONES)}
        assert set(kinds) == possible | {(kind, "") for kind in REQUESTS}
        assert all(any(request.trap for request in case(seed, level).requests) for seed in range(200))


@pytest.mark.parametrize("level", dialogue.LEVELS)
def test_the_expert_handles_every_case(level: str) -> None:
    environment, choose = DialogueEnvironment(), expert()
    for row in [*dataset_rows(75, seed=1, level=level), *dataset_rows(25, seed=1, held_out=True, level=level)]:
        *seen, _ = texts(environment, row, choose)
        assert environment.success, seen
        assert environment.metrics["invalid"] == 0
        assert seen[-1].endswith("The case is closed. It was handled as it should be. The episode is over.")
        assert max(map(len, seen)) < 500


def test_an_episode_by_hand() -> None:
    seed, level, of = case_with("exchange")
    [request] = of.requests
    environment = DialogueEnvironment()
    first = environment.reset(seed, level)
    assert first.startswith(f"Today is {of.today}.\nThe customer: ")
    assert "exchange" in first
    assert environment.message_user("Good morning! May I have your email, please?").endswith(f"My email is {of.email}.")
    result = environment.find_customer(of.email.upper())
    assert result.startswith(f"{of.name}, {of.email}, postcode {of.postcode}, orders: ")
    assert str(request.order) in result
    assert environment.get_order("99") == "Error: there is no such order."
    order_text = environment.get_order(f"#{request.order}")
    assert order_text.startswith(f"order {request.order}: delivered on ")
    assert f"- {request.item} (" in order_text
    before = content(environment._database)
    assert environment.exchange_item(str(request.order), "garden gnome", request.product).startswith(
        "Error: there is no such item"
    )
    assert environment.exchange_item(str(request.order), request.item, "garden gnome").startswith(
        "Error: there is no such product"
    )
    assert content(environment._database) == before
    answer = environment.exchange_item(str(request.order), request.item, request.product)
    assert answer == f"Done: {request.item} of order {request.order} is exchanged for {request.product}."
    assert f"- {request.product} (" in environment.get_order(str(request.order))
    assert environment.message_user("It has been exchanged.") == "The customer: And what is the amount?"
    assert not environment.over
    assert isinstance(request.fact, int)
    assert not environment.message_user(f"The difference is {abs(request.fact) / 100:.2f}.").endswith("is over.")
    end = environment.message_user("It has been exchanged.")
    assert end.startswith("The customer: Thank you. Goodbye.\nThe customer has gone. ")
    assert environment.over
    assert (environment.success, environment.get_reward()) == (True, 1.0)
    assert environment.metrics["invalid"] == 3
    for name, tool in tool_methods(environment).items():
        with pytest.raises(ValueError, match="over"):
            tool(*["x"] * len(inspect.signature(getattr(environment, name)).parameters))
    assert environment.reset(seed, level) == first  # nothing is left of it
    assert environment.metrics == {"actions": 0, "effective": 0, "invalid": 0, "lost": 0}
    assert (environment.success, environment.over, environment.turns) == (False, False, 0)
    assert content(environment._database) == before


@pytest.mark.parametrize("trap", ["shipped", "stranger", "postcode"])
def test_doing_what_the_policy_forbids_fails(trap: str) -> None:
    seed, level, of = case_with("cancel", trap)
    environment = DialogueEnvironment()
    environment.reset(seed, level)
    assert environment.cancel_order(str(of.requests[0].order)).startswith("Done:")  # the tool does not know the policy
    environment.message_user("It is not possible.")
    environment.finish()
    assert not environment.success


def test_a_refusal_has_to_be_told_and_information_given() -> None:
    seed, level, of = case_with("refund", "postcode")
    environment = DialogueEnvironment()
    environment.reset(seed, level)
    assert environment.finish() == "The case is closed. It was not handled as it should be. The episode is over."
    environment.reset(seed, level)
    assert "exception" in environment.message_user("I'm sorry, I can’t do that.")
    assert environment.message_user("No, that is not possible.").endswith(
        "It was handled as it should be. The episode is over."
    )
    seed, level, of = case_with("total")
    total = of.requests[0].fact
    assert isinstance(total, int)
    environment.reset(seed, level)
    environment.finish()
    assert not environment.success
    environment.reset(seed, level)
    environment.message_user(f"That is {(total + 1) / 100:.2f}.")
    assert not environment.over
    assert "All right" not in environment.message_user(f"Sorry, it is {total / 100:.2f} in total.")
    assert environment.success


def test_more_than_was_asked_for_fails() -> None:
    seed, level, of = case_with("cancel")
    environment = DialogueEnvironment()
    environment.reset(seed, level)
    other = next(row for row in of.tables["orders"] if row[0] != of.requests[0].order)
    environment.cancel_order(str(of.requests[0].order))
    environment.cancel_order(str(other[0]))
    assert environment.message_user("Your order has been cancelled.").endswith(
        "It was not handled as it should be. The episode is over."
    )


@pytest.mark.parametrize(("text", "facts"), CASES["asked"])
def test_the_customer_tells_what_is_asked_and_nothing_else(text: str, facts: list[str]) -> None:
    _, _, of = case_with("exchange")
    reply, ended = ScriptedUser(of, insistent=False).answer(text)
    told = {
        "email": of.email in reply,
        "postcode": of.postcode in reply,
        "name": of.name in reply,
        "order": str(of.requests[0].order) in reply,
        "item": of.requests[0].item in reply and of.requests[0].product in reply,
        "reason": "mind" in reply,
    }
    assert {name for name, is_told in told.items() if is_told} == set(facts)
    assert not ended


def test_an_email_address_is_not_where_the_order_goes() -> None:
    _, _, of = case_with("address")
    assert of.requests[0].address not in ScriptedUser(of, insistent=False).answer("What is your email address?")[0]
    for text in ("What is the new address?", "Where should we send it?", "Please tell me the address."):
        assert of.requests[0].address in ScriptedUser(of, insistent=False).answer(text)[0]


@pytest.mark.parametrize(("kind", "text", "meaning"), CASES["said"])
def test_the_customer_understands_plain_sentences(kind: str, text: str, meaning: str) -> None:
    _, _, of = case_with(kind)
    reply, ended = ScriptedUser(of, insistent=False).answer(text)
    expected = {
        "settled": "Thank you. Goodbye.",
        "refused": "All right, then. Goodbye.",
        "yes": "Yes, please go ahead.",
        "amount": "And what is the amount?",
        "bye": "Goodbye.",
    }
    if meaning in expected:
        assert reply == expected[meaning]
    else:
        assert (of.email in reply) == (meaning == "facts")
        assert reply.endswith("What do you need to know?") == (meaning == "again")
    assert ended == (meaning in ("settled", "refused", "bye"))


def is_told(request: Request, *texts: str, sure: bool = True) -> bool:
    heard = Heard(request)
    for text in texts:
        heard.hear(text, sure)
    return heard.informed


def test_what_counts_as_told() -> None:
    amount, status = Request("refund", 1, fact=-1250), Request("status", 1, fact="shipped")
    for text in ("12.50", "-12.5 euros", "12.5."):
        assert is_told(amount, text)
    for text in ("112.50", "12.05", "", "it is not 12.50.", "you will never get 12.50 back."):
        assert not is_told(amount, text)
    for text in (
        "12.50, or 13.00",  # the customer hears two amounts
        "order 1 of 2024-05-03: you get back 12.50 within 5-7 days",
        "10.00 + 2.00 + 0.50 = 12.50",
        "the new one is 20.00, the old one was 32.50: 12.50",
        "it is 12.50, not 13.00.",
        "it is not 13.00 but 12.50.",
        "the total without shipping is 12.50.",
        "your order (not yet shipped) costs 12.50.",
        "no problem, you get back 12.50 and you won't be charged.",
    ):
        assert is_told(amount, text), text
    assert not is_told(amount, "12.25, 12.50 or 12.75")
    for form in ("g", ".2f"):
        assert not is_told(amount, " ".join(f"{cents / 100:{form}}" for cents in range(250, 12000, 25)))
    whole = Request("refund", 1, fact=1200)
    assert is_told(whole, "order 1 costs 12 dollars and is there in 3 days")
    assert not is_told(whole, " ".join(map(str, range(40))))
    for text, told in [("it is shipped.", True), ("shipped or pending?", False), ("unshipped", False)]:
        assert is_told(status, text) is told


@pytest.mark.parametrize("denial", CASES["denials"])
@pytest.mark.parametrize("sure", [True, False])
def test_what_is_denied_or_possible_is_neither_told_nor_believed(denial: str, sure: bool) -> None:
    shipped, delivered = (Request("status", 1, fact=status) for status in ("shipped", "delivered"))
    assert is_told(shipped, denial, "it is shipped.", sure=sure)
    assert not is_told(delivered, denial, sure=sure)
    assert not is_told(Request("status", 1, fact="pending"), denial, sure=sure)


@pytest.mark.parametrize("text", CASES["told_beside_a_denial"])
def test_a_status_beside_a_denial_is_told(text: str) -> None:
    assert is_told(Request("status", 1, fact="delivered"), text)


@pytest.mark.parametrize(("text", "told"), CASES["not_possible"])
def test_an_idiom_or_a_question_does_not_tell_that_it_is_not_possible(text: str, told: bool) -> None:
    assert is_told(Request("cancel", 1, trap="shipped"), text) is told


def test_guesses_one_after_another_are_not_told() -> None:
    amount, status = Request("refund", 1, fact=-1250), Request("status", 1, fact="shipped")
    wrong = [f"{cents / 100:.2f}?" for cents in range(250, 4000, 25) if cents != 1250]
    assert is_told(amount, *wrong[:AMOUNTS], "12.50")
    assert not is_told(amount, *wrong[: AMOUNTS + 1], "12.50")
    assert not is_told(amount, " ".join(wrong), "12.50")
    assert is_told(amount, "12.50", *wrong)
    assert is_told(amount, "the new one is 20.00.", "the old one was 32.50.", "the difference is 12.50")
    assert not is_told(Request("refund", 1, fact=1200), *map(str, range(13, 30)), "12")
    assert is_told(status, "it is shipped.", "pending")
    assert is_told(status, "shipped or pending?", "it is shipped.")
    assert not is_told(status, "it is pending.", "it is shipped.")
    assert not is_told(status, "it was delivered, so this is not possible.", "it is shipped.")
    assert is_told(status, "it was delivered, so this is not possible.", "it is shipped.", sure=False)


@pytest.mark.parametrize("kind", ["total", "status"])
def test_an_episode_of_guesses_fails(kind: str) -> None:
    """The customer leaves as soon as they hear the right answer, so that the last guess is always right."""
    seed, level, of = case_with(kind)
    fact = of.requests[0].fact
    if isinstance(fact, int):
        right, *wrong = [f"{(fact + 25 * step) / 100:.2f}" for step in range(AMOUNTS + 2)]
    else:
        right, *wrong = sorted(STATUSES, key=lambda status: status != fact)
    environment = DialogueEnvironment()
    for guesses in (wrong, []):
        environment.reset(seed, level)
        for guess in guesses:
            environment.message_user(f"It is {guess}. What is your email?")
        end = environment.message_user(f"It is {right}.")
        assert end.endswith("It was handled as it should be. The episode is over.") is not bool(guesses)
        assert environment.success is not bool(guesses)


@pytest.mark.parametrize("served", [False, True])
def test_the_status_of_an_order_that_cannot_be_changed_is_no_guess(served: bool) -> None:
    for seed in range(2000):
        of = case(seed, "hard")
        if [(one.kind, one.trap) for one in of.requests] == [("cancel", "shipped"), ("status", "")]:
            break
    refusal = "It has been shipped, so it can no longer be cancelled."
    said = [refusal, refusal, f"The order is {of.requests[1].fact}."]
    if served:
        for request in of.requests:
            assert is_told(request, *map(str.lower, said), sure=False)
        return
    environment = DialogueEnvironment()
    environment.reset(seed, "hard")
    for text in said:
        end = environment.message_user(text)
    assert end.endswith("It was handled as it should be. The episode is over.")


def test_a_customer_gives_up() -> None:
    _, _, of = case_with("cancel")
    user = ScriptedUser(of, insistent=False)
    assert [user.answer("Hm.")[1] for _ in range(PATIENCE)] == [False] * (PATIENCE - 1) + [True]
    user, answers = ScriptedUser(of, insistent=False), 0
    while not user.answer("What is your email?")[1]:
        answers += 1
        assert answers < 50


INJECTIONS = [
    *HOSTILE, *BAD, '" OR ""="', "' OR '1'='1", "x'); DELETE FROM items; --", "1 OR 1=1",
    "1; UPDATE orders SET status = 'cancelled'", "' UNION SELECT * FROM customers --", "%", "_", "1e3", "0x10", "😀" * 100,
]  # fmt: skip


def test_injections_through_every_tool_change_nothing() -> None:
    environment = DialogueEnvironment()
    seed, level, of = case_with("refund")
    untouched = content(open_database(of))
    for name, tool in tool_methods(environment).items():
        parameters = list(inspect.signature(tool).parameters)
        for position, parameter in enumerate(parameters):
            if name == "message_user" or parameter == "address":
                continue
            for value in INJECTIONS:
                environment.reset(seed, level)
                arguments = [str(of.requests[0].order), of.requests[0].item, "dibber"][: len(parameters)]
                arguments[position] = value
                assert tool(*arguments).startswith("Error: ")
                assert environment.metrics == {"actions": 1, "effective": 0, "invalid": 1, "lost": 0}
                assert content(environment._database) == untouched


def test_an_address_is_any_text_and_stays_in_its_row() -> None:
    environment = DialogueEnvironment()
    seed, level, of = case_with("address")
    for address in [one for one in INJECTIONS if isinstance(one, str) and one.strip("\0\n") and len(one) < 200]:
        environment.reset(seed, level)
        text = environment.change_address(str(of.requests[0].order), address)
        assert text.startswith("Done: ")
        assert text.encode()
        before, after = content(open_database(of)), content(environment._database)
        assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_rows_name_the_customers_server() -> None:
    assert set(dataset_rows(1)[0]) == {"prompt", "seed", "level"}
    [row] = dataset_rows(1, user_url="http://localhost:1/v1", user_model="m")
    assert (row["user_url"], row["user_model"]) == ("http://localhost:1/v1", "m")
    for row in dataset_rows(20):
        of = case(row["seed"], row["level"])
        prompt = row["prompt"][0]["content"]
        assert f"{DAYS} days" in prompt
        assert not re.search(f"{of.email}|{of.postcode}|{of.requests[0].order}", prompt)


def served(environment: DialogueEnvironment, server: OpenAIServer, **columns: Any) -> str:
    return environment.reset(user_url=server.base_url, user_model="judge", **columns)


def test_a_served_customer() -> None:
    pytest.importorskip("aiohttp")
    seed, level, of = case_with("cancel")

    def reply(body: dict[str, Any]) -> str:
        message = body["messages"][-1]["content"]
        told = {"cancelled": "Thanks. [goodbye]", "who": "It is me."}
        return next((answer for word, answer in told.items() if word in message), "Please cancel my order.")

    with OpenAIServer(reply) as server:
        environment = DialogueEnvironment()
        first = served(environment, server, seed=seed, level=level)
        assert first == f"Today is {of.today}.\nThe customer: Please cancel my order."
        assert environment.message_user("And who are you?") == "The customer: It is me."
        part = server.bodies[-1]["messages"]
        assert [message["role"] for message in part] == ["system", "user", "assistant", "user"]
        assert all(fact in part[0]["content"] for fact in (of.name, of.email, of.postcode, str(of.requests[0].order)))
        environment.cancel_order(str(of.requests[0].order))
        end = environment.message_user("It is cancelled.")
        gone, _, closed = end.partition(" The case is closed. ")
        assert gone == "The customer: Thanks.\nThe customer has gone."
        assert closed == "It was handled as it should be. The episode is over."
        assert environment.success
        other = DialogueEnvironment()
        served(other, server, seed=seed, level=level)
        assert other._user._server is environment._user._server  # type: ignore[union-attr]


def test_a_customer_that_is_lost_costs_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr("wm_plugin.client.server.asyncio.sleep", lambda *_: _nothing())
    dead = "The line to the customer is dead. The episode is over."
    with OpenAIServer(lambda _: "Hello.", faults=lambda number: None if number == 0 else "400") as server:
        environment = DialogueEnvironment()
        assert served(environment, server, seed=3).endswith("The customer: Hello.")
        assert environment.message_user("Hello?") == dead
        assert (environment.over, environment.success, environment.get_reward()) == (True, False, 0.0)
        assert environment.metrics["lost"] == 1
        assert served(environment, server, seed=3) == dead  # and training goes on
        assert environment.over
        environment.reset(seed=3)
        assert environment.metrics["lost"] == 0
    with (
        OpenAIServer(lambda _: "Hello.", faults=every(1, "404")) as server,
        pytest.raises(UserError, match="check base_url"),
    ):
        served(DialogueEnvironment(), server, seed=3)


async def _nothing() -> None: ...


@pytest.mark.parametrize("amount", ["9" * 400, "1" + "0" * 4000, "9" * 16 + ".50", "\u0669" * 400])
def test_an_amount_of_any_length_is_told_or_not(amount: str) -> None:
    environment = DialogueEnvironment()
    asked = 0
    for number in range(30):
        environment.reset(seed=number, level="hard")
        asked += any(isinstance(request.fact, int) for request in environment._case.requests)
        assert isinstance(environment.message_user(f"That costs {amount} dollars."), str)
    assert asked
