"""Scripted agents at the customer desk: an expert that solves every case, and a wanderer."""

import random
from typing import TYPE_CHECKING

from wm_plugin.worlds.dialogue.world import LEVELS, PRODUCTS, WRITES, Case, Request, case, money
from wm_plugin.worlds.kit.described import described
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall

if TYPE_CHECKING:
    from wm_plugin.worlds.dialogue import DialogueEnvironment


def expert() -> Chooser:
    """Return a policy that asks, looks up, does what is allowed, and tells the customer. It knows the case from the start."""

    def choose(environment: "DialogueEnvironment") -> ToolCall | None:
        steps = _script(environment._case) if environment._case else []
        return steps[environment.turns] if environment.turns < len(steps) else None

    return choose


def _script(of: Case) -> list[ToolCall]:
    steps = [_say("Could you give me your email and your postcode, please?"), ("find_customer", {"email": of.email})]
    insistent = any(request.trap for request in of.requests)  # as in all hard cases, whose customers ask twice
    for request in of.requests:
        steps += _handle(request, of, insistent)
    return steps


def _handle(request: Request, of: Case, insistent: bool) -> list[ToolCall]:
    refusal = [_say("I am sorry, but our policy does not allow that: it is not possible.")] * (1 + insistent)
    if request.trap == "postcode":
        return refusal
    order, item = str(request.order), request.item
    detail = " And which item is it?" if item else " And what is the new address?" if request.address else ""
    steps: list[ToolCall] = [_say(f"What is the order number?{detail}")]
    if request.trap == "stranger":  # find_customer has shown the customer's own orders
        return steps + refusal
    steps.append(("get_order", {"order_id": order}))
    if request.product:
        kind = next(kind for _, name, kind, *_ in of.tables["products"] if name == request.product)
        steps.append(("find_products", {"kind": kind}))
    if request.trap:
        return steps + refusal
    arguments = {"address": request.address, "item": item, "product": request.product}
    call = {"order_id": order} | {name: value for name, value in arguments.items() if value}
    tool = {"address": "change_address"}.get(request.kind, f"{request.kind}_{'item' if item else 'order'}")
    fact = money(abs(request.fact)) if isinstance(request.fact, int) else request.fact
    told = described("dialogue/nursery.yaml")["done"][request.kind].format(item=item, fact=fact)
    return [*steps, *([(tool, call)] if request.kind in WRITES else []), _say(told)]


def _say(text: str) -> ToolCall:
    return "message_user", {"text": text}


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that says and does what a desk might, in any order, with names and numbers of the case."""

    def choose(environment: "DialogueEnvironment") -> ToolCall:
        of = environment._case or case(0, LEVELS[0])
        order = {"order_id": str(rng.choice([of.requests[0].order, rng.choice(of.tables["orders"])[0]]))}
        names = [row[1] for row in of.tables["products"]]
        item = {"item": rng.choice([of.requests[0].item or names[0], rng.choice(names)])}
        return rng.choice(
            [
                *[_say(rng.choice(described("dialogue/nursery.yaml")["sentences"]))] * 6,
                ("find_customer", {"email": rng.choice([of.email, rng.choice(of.tables["customers"])[2]])}),
                *[("get_order", order)] * 2,
                ("find_products", {"kind": rng.choice(list(PRODUCTS))}),
                ("cancel_order", order),
                ("change_address", {**order, "address": of.requests[0].address or "1 Mill Lane, Turku"}),
                ("exchange_item", {**order, **item, "product": rng.choice(names)}),
                ("refund_item", {**order, **item}),
            ]
        )

    return choose
