"""A web shop in text, with WebShop's protocol (Yao et al. 2022): search, click through pages, choose options, buy.

`search[...]` and `click[...]` are the tools `search` and `click`. Buying has a tool of its own, `buy`, because it cannot be
undone: code that checks irreversible actions can tell it by its name. So `click("buy now")` is refused.

Everything depends only on the row: products and requests are made from numbers (`goods.py`).
"""

import math
import random
from typing import Any
from weakref import WeakKeyDictionary

from wm_plugin.worlds.kit.counted import CountedEnvironment, one_line
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.kit.rows import (
    KINDS,
    SPLITS,
    Rows,
    check_count,
    check_level,
    draws,
    row_number,
    rows_of,
    split_of,
    turn_limit,
)
from wm_plugin.worlds.kit.sqlite_guard import cut
from wm_plugin.worlds.shop.goods import GOALS, LEVELS, Catalogue, Goal, Product, catalogue, match, money
from wm_plugin.worlds.specs import SPECS, described_as

__all__ = ["INSTRUCTION", "LEVELS", "SPLITS", "ShopEnvironment", "dataset_rows", "expert", "wanderer"]

MAX_TURNS = 30
PER_PAGE, MAX_PAGES = 8, 5
MAX_CHARACTERS = 200  # of an argument; a longer one is invalid
SEARCH, RESULTS, PRODUCT = "search", "results", "product"  # pages; a product's subpages have their own name
SUBPAGES = ("description", "features")

INSTRUCTION = SPECS["shop"].instruction


@described_as("shop")
class ShopEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` calls; the reward is `goods.match` for the purchase, and 0 before it.

    `success` is a reward of 1. An action is effective when it changes the page or a choice of an option.
    """

    observer = "environment"
    _catalogue: Catalogue | None = None
    _goal: Goal | None = None

    def _begin(self) -> None:
        super()._begin()
        self._page, self._query, self._number = SEARCH, "", 1
        self._results: list[int] = []
        self._open: int | None = None
        self._choices: dict[str, str] = {}

    def reset(
        self, catalogue_seed: int, goal: int, level: str = LEVELS[0], max_turns: int | None = None, **_: Any
    ) -> str:
        """Open the shop for a request and return the search page.

        Args:
            catalogue_seed: number of the catalogue; it is built once a process.
            goal: number of the request, below `GOALS`.
        """
        check_level(level, LEVELS, "shop")
        number = row_number(goal, "goal", "shop")
        self._catalogue = catalogue(row_number(catalogue_seed, "catalogue_seed", "shop"))
        self._goal = self._catalogue.goal(number, level)
        self.max_turns = turn_limit(max_turns, MAX_TURNS)
        self._begin()
        return f"Wanted: {self._goal.text}\n{self._observation()}"

    def search(self, query: str) -> str:
        words = self._start_action(query)
        if words and self._page == SEARCH and self._catalogue is not None:
            results = self._catalogue.index.search(words, PER_PAGE * MAX_PAGES)
            return self._move(RESULTS, query=words, results=results, number=1)
        return self._refuse(
            "search needs the search page: click back to search first" if words else "no words to search"
        )

    def click(self, element: str) -> str:
        name = self._start_action(element).strip("[] ").lower()
        if name == "back to search" and self._page != SEARCH:
            return self._move(SEARCH, query="", results=[], number=1, open=None, choices={})
        if self._page == RESULTS:
            if name in self._elements():
                if name[0] == "p":
                    return self._move(PRODUCT, open=int(name[1:]), choices={})
                return self._move(RESULTS, number=self._number + (1 if name == "next >" else -1))
        elif self._product is not None and name in self._elements():
            if name == "< prev":
                return self._move(PRODUCT) if self._page in SUBPAGES else self._move(RESULTS, open=None, choices={})
            if name in SUBPAGES:
                return self._move(name)
            option = next(option for option, values in self._product.options.items() if name in values)
            return self._move(PRODUCT, choices={**self._choices, option: name})
        if name in ("buy", "buy now"):
            return self._refuse("buying is the tool buy")
        return self._refuse("nothing on this page is called that")

    def buy(self) -> str:
        self._start_action("buy")
        product = self._product
        if product is None or self._goal is None:
            return self._refuse("no product is open")
        self._effective += 1
        self._reward, self._ended = match(self._goal, product, self._choices), True
        options = "".join(f", {name} {value}" for name, value in self._choices.items())
        fits = "It is what was wanted" if self.success else f"It is not quite what was wanted ({self._reward:.2f} of 1)"
        bought = f"{product.title}{options}, for {money(product.cost(self._choices))}"
        return f"Bought: {bought}. {fits}. The episode is over."

    @property
    def _product(self) -> Product | None:
        return None if self._open is None or self._catalogue is None else self._catalogue.products[self._open]

    def _start_action(self, text: Any) -> str:
        """Count a call and return its argument, which the page may show."""
        self._take_turn()
        return one_line(text, MAX_CHARACTERS)

    def _move(self, page: str, **changes: Any) -> str:
        """Go to a page, set these attributes (without their underscore), and return the observation."""
        before = self._state()
        self._page = page
        for name, value in changes.items():
            setattr(self, f"_{name}", value)
        self._effective += self._state() != before
        return self._observation()

    def _refuse(self, why: str) -> str:
        self._invalid += 1
        return f"Invalid: {why}.\n{self._observation()}"

    def _state(self) -> tuple[Any, ...]:
        return self._page, self._query, self._number, self._open, tuple(sorted(self._choices.items()))

    def _elements(self) -> list[str]:
        """The elements that can be clicked, besides `back to search`."""
        if self._page == RESULTS:
            pages = math.ceil(len(self._results) / PER_PAGE)
            turn = ["< prev"] * (self._number > 1) + ["next >"] * (self._number < pages)
            return [*turn, *(f"p{place}" for place in self._page_of_results())]
        if self._page == PRODUCT and self._product is not None:
            return ["< prev", *(value for values in self._product.options.values() for value in values), *SUBPAGES]
        return ["< prev"] if self._page in SUBPAGES else []

    def _page_of_results(self) -> list[int]:
        return self._results[(self._number - 1) * PER_PAGE : self._number * PER_PAGE]

    def _observation(self) -> str:
        return self._observe(self._shown_page())

    def _shown_page(self) -> str:
        product = self._product
        if self._page == SEARCH or self._catalogue is None:
            return "Search page. [search(query)]"
        if product is None:
            turn = "".join(f" [{name}]" for name in self._elements() if name[0] != "p")
            pages = math.ceil(len(self._results) / PER_PAGE)
            head = f"Results for {cut(self._query, 60)}: {len(self._results)}, page {self._number} of {pages}"
            found = self._products_on_page(self._catalogue)
            lines = [f"[p{place}] {item.title}, {money(item.price)}" for place, item in found]
            return "\n".join([f"[back to search]{turn}", head if lines else "No results.", *lines])
        if self._page in SUBPAGES:
            return f"[back to search] [< prev]\n{getattr(product, self._page)}"
        options = [
            f"{name}: " + " ".join(f"[{value}]" for value in values) + f" (chosen: {self._choices.get(name, 'none')})"
            for name, values in product.options.items()
        ]
        head = f"[back to search] [< prev]\n{product.title}\nprice: {money(product.cost(self._choices))}"
        return "\n".join([head, *options, "[description] [features]", "buy() buys it."])

    def _products_on_page(self, shop: Catalogue) -> list[tuple[int, Product]]:
        return [(place, shop.products[place]) for place in self._page_of_results()]


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = LEVELS[0],
    catalogue_seed: int = 0,
    split: str | None = None,
    max_turns: int = MAX_TURNS,
) -> Rows:
    """Make rows for a trainer; `reset` appends the request and the search page to the prompt. Each request occurs once.

    A fifth of all combinations of a kind of product and attributes is unseen (by hash, so the same in every catalogue): no
    request of the training rows is like an unseen one.

    Args:
        held_out: the same as the split unseen.
        split: train; seen, every tenth request for combinations that are not unseen; or unseen.
    """
    check_level(level, LEVELS, "shop")
    part = split_of(split, held_out, "shop")
    shop = catalogue(catalogue_seed)
    numbers = [number for number in range(GOALS) if _split(number, shop.goal(number, level).held_out) == part]
    check_count(
        count, len(numbers), f"catalogue_seed {catalogue_seed} has {{}} {KINDS[part]} requests of level {level}"
    )
    picks = draws(seed, part).sample(numbers, count)
    tasks = ({"catalogue_seed": catalogue_seed, "goal": number, "level": level} for number in picks)
    return rows_of(INSTRUCTION, tasks, max_turns, MAX_TURNS, "tool call")


def _split(number: int, unseen: bool) -> str:
    return "unseen" if unseen else "train" if number % 10 else "seen"


def expert() -> Chooser:
    """Return a policy that searches with the words of the request, reads products that may fit, and buys one that fits.

    It judges only by the pages that it has opened, and gives up at the end of the results. One policy may play in many
    environments.
    """
    memory: WeakKeyDictionary[ShopEnvironment, tuple[set[int], set[tuple[int, str]]]] = WeakKeyDictionary()

    def choose(environment: ShopEnvironment) -> ToolCall | None:
        goal, shop = environment._goal, environment._catalogue
        if goal is None or shop is None:
            return None
        if environment.turns == 0 or environment not in memory:
            memory[environment] = set(), set()
        rejected, subpages = memory[environment]  # products, and subpages
        if environment._page == SEARCH:
            return "search", {"query": f"{' '.join(goal.attributes)} {goal.kind} {' '.join(goal.options.values())}"}
        if environment._page == RESULTS:
            for number, item in environment._products_on_page(shop):
                if number not in rejected and item.title.endswith(goal.kind) and item.price <= goal.max_price:
                    return "click", {"element": f"p{number}"}
            return ("click", {"element": "next >"}) if "next >" in environment._elements() else None
        place, product = environment._open, environment._product
        if place is None or product is None:
            return None
        if environment._page in SUBPAGES:
            subpages.add((place, environment._page))
            return "click", {"element": "< prev"}
        text = " ".join([product.title, *(getattr(product, page) for page in SUBPAGES if (place, page) in subpages)])
        missing = [attribute for attribute in goal.attributes if attribute not in text]
        orderable = all(value in product.options.get(name, ()) for name, value in goal.options.items())
        if not orderable or product.cost(environment._choices) > goal.max_price:
            missing, unread = ["an option, or the price"], []
        else:
            unread = [page for page in SUBPAGES if (place, page) not in subpages]
        if missing and unread:
            return "click", {"element": unread[0]}
        if missing:
            rejected.add(place)
            return "click", {"element": "< prev"}
        for name, value in goal.options.items():
            if environment._choices.get(name) != value:
                return "click", {"element": value}
        return "buy", {}

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that searches for a word or two of the request, clicks any element of the page, and buys now and then."""

    def choose(environment: ShopEnvironment) -> ToolCall:
        if environment._page == SEARCH:
            words = environment._goal.kind.split() if environment._goal else ["anything"]
            return "search", {"query": " ".join(rng.sample(words, rng.randint(1, len(words))))}
        if environment._page == PRODUCT and rng.random() < 0.1:
            return "buy", {}
        return "click", {"element": rng.choice(["back to search", *environment._elements()])}

    return choose
