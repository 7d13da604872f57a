"""A careless shopper for `environments.shop`: it shops like the expert, makes a mistake in a share of its purchases, and tries
again where a purchase did not go out. Ours.
"""

import random
from weakref import WeakKeyDictionary

from wm_plugin.environments.kit.protocol import Chooser, ToolCall
from wm_plugin.environments.shop import PRODUCT, ShopEnvironment, expert
from wm_plugin.environments.shop.goods import match

SHARE = 0.75  # of purchases with a mistake
# buys without the options, with another value of one, or without a look at what the product is
MISTAKES = ("no option", "wrong option", "unread")


def careless(rng: random.Random, share: float = SHARE) -> Chooser:
    """A new shopper. Each attempt to buy has a mistake with this probability, one of `MISTAKES`; another attempt draws anew."""
    shop = expert()
    mistakes: WeakKeyDictionary[ShopEnvironment, str] = WeakKeyDictionary()  # of the attempt that is being made

    def choose(environment: ShopEnvironment) -> ToolCall | None:
        if environment not in mistakes or environment.turns == 0:
            mistakes[environment] = rng.choice(MISTAKES) if rng.random() < share else ""
        call = _wrongly(environment, shop(environment), mistakes[environment], rng)
        if call is not None and call[0] == "buy":
            del mistakes[environment]
        return call

    return choose


def would_succeed(environment: ShopEnvironment) -> bool:
    """Whether a purchase would be a success now."""
    goal, product = environment._goal, environment._product
    return goal is not None and product is not None and match(goal, product, environment._choices) == 1.0


def _wrongly(environment: ShopEnvironment, call: ToolCall | None, mistake: str, rng: random.Random) -> ToolCall | None:
    """What is done in the place of an expert's call."""
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
        return ("click", {"element": rng.choice(others)}) if others else call
    return call
