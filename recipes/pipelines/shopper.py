"""A careless shopper for `worlds.shop`: it shops like the expert, with a mistake in a share of its attempts.

After a refused purchase it returns to the search page and starts anew without memory. Each attempt at a task is therefore equally
likely to succeed, and any gain from refusals is due to whoever refuses.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.shop import PRODUCT, SEARCH, ShopEnvironment, expert
from wm_plugin.worlds.shop.goods import match

HESITATES = 1 / 3  # in training data, so that a world model learns what follows a refused purchase
SHARE = 0.75  # the share of attempts with a mistake
# buys without the options, with a wrong value of one, or without reading about the product
MISTAKES = ("no option", "wrong option", "unread")


@dataclass
class _Attempt:
    mistake: str  # one of MISTAKES, or empty
    shop: Chooser = field(default_factory=expert)
    bought: bool = False


def careless(rng: random.Random, share: float = SHARE, hesitates: float = 0.0) -> Chooser:
    """Make a shopper.

    Args:
        share: the share of attempts with a mistake, one of `MISTAKES`.
        hesitates: the share of purchases before which it starts anew, as if they had been refused.
    """
    attempts: WeakKeyDictionary[ShopEnvironment, _Attempt] = WeakKeyDictionary()

    def choose(environment: ShopEnvironment) -> ToolCall | None:
        attempt = attempts.get(environment)
        if attempt is not None and attempt.bought and environment._page != SEARCH and environment.turns:
            return "click", {"element": "back to search"}
        if attempt is None or attempt.bought or environment.turns == 0:
            mistake = rng.choice(MISTAKES) if rng.random() < share else ""
            attempt = attempts[environment] = _Attempt(mistake)
        call = _wrongly(environment, attempt.shop(environment), attempt.mistake, rng.choice)
        attempt.bought = call is not None and call[0] == "buy"
        if attempt.bought and hesitates and rng.random() < hesitates:
            return "click", {"element": "back to search"}
        return call

    return choose


def would_succeed(environment: ShopEnvironment) -> bool:
    """Return whether a purchase would succeed now."""
    goal, product = environment._goal, environment._product
    return goal is not None and product is not None and match(goal, product, environment._choices) == 1.0


def _wrongly(
    environment: ShopEnvironment, call: ToolCall | None, mistake: str, draw: Callable[[list[str]], str]
) -> ToolCall | None:
    """Return what the shopper does instead of an expert's call."""
    goal, product, chosen = environment._goal, environment._product, environment._choices
    if goal is None or product is None:
        return call
    if mistake == "unread" and environment._page == PRODUCT:
        wanted = [value for name, value in goal.options.items() if chosen.get(name) != value]
        possible = [value for value in wanted if value in environment._elements()]
        return ("click", {"element": possible[0]}) if possible else ("buy", {})
    picks = call is not None and call[0] == "click" and call[1]["element"] in goal.options.values()
    if picks and mistake == "no option":
        return "buy", {}
    if picks and mistake == "wrong option":
        name = next(name for name, value in goal.options.items() if call is not None and value == call[1]["element"])
        if name in chosen:
            return "buy", {}
        others = [value for value in product.options.get(name, {}) if value != goal.options[name]]
        return ("click", {"element": draw(others)}) if others else call
    return call
