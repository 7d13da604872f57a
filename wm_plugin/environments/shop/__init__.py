"""A web shop in text, with WebShop's protocol (Yao et al. 2022): search, click through pages, choose options, buy.

`search[...]` and `click[...]` are the tools `search` and `click`. Buying is a tool of its own, `buy`, because it is what
cannot be taken back: whoever checks an action before it happens knows it by its name. `click("buy now")` is refused therefore.

Everything follows from the row: products and requests are made from numbers (`shop_catalogue`).
"""

import math
import random
from typing import Any
from weakref import WeakKeyDictionary

from wm_plugin.environments.kit.counted import CountedEnvironment
from wm_plugin.environments.kit.protocol import Chooser, ToolCall
from wm_plugin.environments.kit.rows import check_level
from wm_plugin.environments.kit.sqlite_guard import cut
from wm_plugin.environments.shop.goods import GOALS, LEVELS, Catalogue, Goal, Product, catalogue, match, money
from wm_plugin.errors import UserError

MAX_TURNS = 30
PER_PAGE, MAX_PAGES = 8, 5
MAX_CHARACTERS = 200  # of an argument; a longer one is invalid
SEARCH, RESULTS, PRODUCT = "search", "results", "product"  # pages; a product's subpages have their own name
SUBPAGES = ("description", "features")

INSTRUCTION = f"""Buy what a customer asks for in a web shop, with at most {MAX_TURNS} tool calls.
search(query) works on the search page and lists products. click(element) takes what stands in square brackets on the page: a
product, an option, description, features, next >, < prev or back to search. buy() buys the open product in the chosen options
and ends the task; nothing takes it back. An option may cost more: the price on the page is that of the chosen options.
What counts: the kind of product, each attribute (some only stand in description or features), each option, and the price.

"""


class ShopEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` calls; the reward is `shop_catalogue.match` of what was bought, and 0 before.

    `success` is a reward of 1. An action is effective when it changes the page or a chosen option.
    """

    irreversible = ("buy",)

    def __init__(self) -> None:
        self._catalogue: Catalogue | None = None
        self._goal: Goal | None = None
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._reward = 0.0
        self._page, self._query, self._number = SEARCH, "", 1
        self._found: list[int] = []
        self._open: int | None = None
        self._chosen: dict[str, str] = {}

    def reset(
        self, catalogue_seed: int, goal: int, level: str = LEVELS[0], max_turns: int | None = None, **_: Any
    ) -> str:
        """Open the shop for a request and return the search page.

        Args:
            catalogue_seed: number of the catalogue; it is built once a process.
            goal: number of the request, below `GOALS`.
            level: one of `LEVELS`.

        Raises:
            UserError: a column that is none of that.
            MissingExtraError: bm25s is not installed.
        """
        check_level(level, LEVELS, "shop")
        for name, value in (("catalogue_seed", catalogue_seed), ("goal", goal)):
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
                raise UserError(f"A shop's column `{name}` needs a whole number from 0, not {str(value)[:20]!r}")
        self._catalogue = catalogue(int(catalogue_seed))
        self._goal = self._catalogue.goal(int(goal), level)
        self.max_turns = max_turns or MAX_TURNS
        self._begin()
        return f"Wanted: {self._goal.text}\n{self._observation()}"

    def search(self, query: str) -> str:
        """Search the shop for products. It works on the search page only.

        Args:
            query: A few words, e.g. "waterproof backpack".

        Returns:
            The first page of results.
        """
        words = self._start_action(query)
        if words and self._page == SEARCH and self._catalogue is not None:
            found = self._catalogue.index.search(words, PER_PAGE * MAX_PAGES)
            return self._move(RESULTS, query=words, found=found, number=1)
        return self._refuse(
            "search needs the search page: click back to search first" if words else "no words to search"
        )

    def click(self, element: str) -> str:
        """Click what stands in square brackets on the page.

        Args:
            element: What stands there, without the brackets, e.g. "p12", "olive", "features", "next >" or "back to search".

        Returns:
            The page that follows.
        """
        name = self._start_action(element).strip("[] ").lower()
        if name == "back to search" and self._page != SEARCH:
            return self._move(SEARCH, query="", found=[], number=1, open=None, chosen={})
        if self._page == RESULTS:
            if name in self._elements():
                if name[0] == "p":
                    return self._move(PRODUCT, open=int(name[1:]), chosen={})
                return self._move(RESULTS, number=self._number + (1 if name == "next >" else -1))
        elif self._product is not None and name in self._elements():
            if name == "< prev":
                return self._move(PRODUCT) if self._page in SUBPAGES else self._move(RESULTS, open=None, chosen={})
            if name in SUBPAGES:
                return self._move(name)
            option = next(option for option, values in self._product.options.items() if name in values)
            return self._move(PRODUCT, chosen={**self._chosen, option: name})
        if name in ("buy", "buy now"):
            return self._refuse("buying is the tool buy")
        return self._refuse("nothing on this page is called that")

    def buy(self) -> str:
        """Buy the open product in the chosen options. This ends the task, and nothing takes it back.

        Returns:
            What was bought, and how well it fits the request.
        """
        self._start_action("buy")
        product = self._product
        if product is None or self._goal is None:
            return self._refuse("no product is open")
        self._effective += 1
        self._reward, self._ended = match(self._goal, product, self._chosen), True
        options = "".join(f", {name} {value}" for name, value in self._chosen.items())
        fits = "It is what was wanted" if self.success else f"It is not quite what was wanted ({self._reward:.2f} of 1)"
        return (
            f"Bought: {product.title}{options}, for {money(product.cost(self._chosen))}. {fits}. The episode is over."
        )

    def get_reward(self) -> float:
        return self._reward

    @property
    def success(self) -> bool:
        return self._reward == 1.0

    @property
    def _product(self) -> Product | None:
        return None if self._open is None or self._catalogue is None else self._catalogue.products[self._open]

    def _start_action(self, text: Any) -> str:
        """Count a call and return its argument on one line; nothing where that is no short text."""
        self._take_turn()
        if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
            return ""
        return " ".join(text.encode(errors="replace").decode().split())  # the page shows the query

    def _move(self, page: str, **changes: Any) -> str:
        """Go to a page with these changes of the state, and show it."""
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
        return self._page, self._query, self._number, self._open, tuple(sorted(self._chosen.items()))

    def _elements(self) -> list[str]:
        """What can be clicked, besides `back to search`."""
        if self._page == RESULTS:
            pages = math.ceil(len(self._found) / PER_PAGE)
            turn = ["< prev"] * (self._number > 1) + ["next >"] * (self._number < pages)
            return [*turn, *(f"p{place}" for place in self._shown())]
        if self._page == PRODUCT and self._product is not None:
            return ["< prev", *(value for values in self._product.options.values() for value in values), *SUBPAGES]
        return ["< prev"] if self._page in SUBPAGES else []

    def _shown(self) -> list[int]:
        return self._found[(self._number - 1) * PER_PAGE : self._number * PER_PAGE]

    def _observation(self) -> str:
        end = "\nThe episode is over." if self.over else ""
        product = self._product
        if self._page == SEARCH or self._catalogue is None:
            return "Search page. [search(query)]" + end
        if product is None:
            turn = "".join(f" [{name}]" for name in self._elements() if name[0] != "p")
            pages = math.ceil(len(self._found) / PER_PAGE)
            head = f"Results for {cut(self._query, 60)}: {len(self._found)}, page {self._number} of {pages}"
            lines = [f"[p{place}] {one.title}, {money(one.price)}" for place, one in self._listed(self._catalogue)]
            return "\n".join([f"[back to search]{turn}", head if lines else "No results.", *lines]) + end
        if self._page in SUBPAGES:
            return f"[back to search] [< prev]\n{getattr(product, self._page)}{end}"
        options = [
            f"{name}: " + " ".join(f"[{value}]" for value in values) + f" (chosen: {self._chosen.get(name, 'none')})"
            for name, values in product.options.items()
        ]
        price = f"price: {money(product.cost(self._chosen))}"
        return (
            "\n".join(
                [
                    "[back to search] [< prev]",
                    product.title,
                    price,
                    *options,
                    "[description] [features]",
                    "buy() buys it.",
                ]
            )
            + end
        )

    def _listed(self, shop: Catalogue) -> list[tuple[int, Product]]:
        return [(place, shop.products[place]) for place in self._shown()]


def dataset_rows(
    count: int, seed: int = 0, held_out: bool = False, level: str = LEVELS[0], catalogue_seed: int = 0
) -> list[dict[str, Any]]:
    """Rows for a trainer: the prompt explains the task, and `reset` appends the request and the search page to it.

    Held out is a fifth of the combinations of a kind of product and attributes (by their hash, so in every catalogue): what is
    asked for in training is never asked for in evaluation. A request is given once; more than there are is a UserError.
    """
    check_level(level, LEVELS, "shop")
    shop = catalogue(catalogue_seed)
    numbers = [number for number in range(GOALS) if shop.goal(number, level).held_out == held_out]
    if count > len(numbers):
        kind = "held-out" if held_out else "training"
        raise UserError(
            f"Catalogue {catalogue_seed} has {len(numbers)} {kind} requests of level {level}; write a count up to that, "
            f"not {count}, or another catalogue_seed"
        )
    chosen = random.Random(seed * 2 + held_out).sample(numbers, count)
    return [
        {
            "prompt": [{"role": "user", "content": INSTRUCTION}],
            "catalogue_seed": catalogue_seed,
            "goal": number,
            "level": level,
        }
        for number in chosen
    ]


def expert() -> Chooser:
    """A policy that searches in the words of the request, opens what may fit, reads it, and buys what fits; or gives up.

    It judges by what the pages have shown, never by what it has not opened. One policy may play in many environments.
    """
    memory: WeakKeyDictionary[ShopEnvironment, tuple[set[int], set[tuple[int, str]]]] = WeakKeyDictionary()

    def choose(environment: ShopEnvironment) -> ToolCall | None:
        goal, shop = environment._goal, environment._catalogue
        if goal is None or shop is None:
            return None
        if environment.turns == 0 or environment not in memory:
            memory[environment] = set(), set()
        rejected, read = memory[environment]  # products, and subpages
        if environment._page == SEARCH:
            return "search", {"query": f"{' '.join(goal.attributes)} {goal.kind} {' '.join(goal.options.values())}"}
        if environment._page == RESULTS:
            for listed, one in environment._listed(shop):
                if listed not in rejected and one.title.endswith(goal.kind) and one.price <= goal.max_price:
                    return "click", {"element": f"p{listed}"}
            return ("click", {"element": "next >"}) if "next >" in environment._elements() else None
        place, product = environment._open, environment._product
        if place is None or product is None:
            return None
        if environment._page in SUBPAGES:
            read.add((place, environment._page))
            return "click", {"element": "< prev"}
        shown = " ".join([product.title, *(getattr(product, page) for page in SUBPAGES if (place, page) in read)])
        missing = [one for one in goal.attributes if one not in shown]
        orderable = all(value in product.options.get(name, ()) for name, value in goal.options.items())
        if not orderable or product.cost(environment._chosen) > goal.max_price:
            missing, unread = ["an option, or the price"], []
        else:
            unread = [page for page in SUBPAGES if (place, page) not in read]
        if missing and unread:
            return "click", {"element": unread[0]}
        if missing:
            rejected.add(place)
            return "click", {"element": "< prev"}
        for name, value in goal.options.items():
            if environment._chosen.get(name) != value:
                return "click", {"element": value}
        return "buy", {}

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """A policy that searches for a word or two of the request, and clicks whatever is on the page; it buys now and then."""

    def choose(environment: ShopEnvironment) -> ToolCall:
        if environment._page == SEARCH:
            words = environment._goal.kind.split() if environment._goal else ["anything"]
            return "search", {"query": " ".join(rng.sample(words, rng.randint(1, len(words))))}
        if environment._page == PRODUCT and rng.random() < 0.1:
            return "buy", {}
        return "click", {"element": rng.choice(["back to search", *environment._elements()])}

    return choose
