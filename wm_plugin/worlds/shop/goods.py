"""The shop's products and the requests of its customers, made from the number of a catalogue.

Products come in families of five that differ in an attribute, in the price or in an option, so that every product has near
misses. No product is a real one.
"""

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from wm_plugin.worlds.kit.described import described
from wm_plugin.worlds.kit.search import Index

SIZE = 1000  # products of a catalogue
FAMILY = 5  # one product and its near misses
GOALS = 4 * SIZE  # requests of a catalogue and level
LEVELS = ("standard", "hard")

_GOODS = described("shop/goods.yaml")
_DEPARTMENTS, _VALUES = _GOODS["departments"], _GOODS["options"]
DEPARTMENT = {kind: department for department, of in _DEPARTMENTS.items() for kind in of["kinds"]}


@dataclass(frozen=True, slots=True)
class Product:
    """One product. Money is in cents everywhere.

    Attributes:
        attributes: the first two stand in the title, the third in the description, the fourth among the features.
        options: by name, the values that can be ordered, each with its surcharge.
    """

    title: str
    kind: str
    attributes: tuple[str, ...]
    options: Mapping[str, Mapping[str, int]]
    price: int
    description: str
    features: str

    def cost(self, choices: Mapping[str, str]) -> int:
        """Return the price with these values of the options."""
        return self.price + sum(self.options[name][value] for name, value in choices.items())


@dataclass(frozen=True, slots=True)
class Goal:
    """A request: a product of this kind, with all these attributes and options, for at most this price."""

    kind: str
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    max_price: int

    @property
    def text(self) -> str:
        options = " and ".join(f"{name} {value}" for name, value in self.options.items())
        return f"{self.kind}: {', '.join(self.attributes)}; in {options}; for at most {money(self.max_price)}"

    @property
    def held_out(self) -> bool:
        """Whether it is for evaluation: a fifth of all combinations of a kind and attributes, in any catalogue."""
        return zlib.crc32("|".join([self.kind, *sorted(self.attributes)]).encode()) % 5 == 0


def match(goal: Goal, product: Product, choices: Mapping[str, str]) -> float:
    """Return WebShop's reward (Yao et al. 2022, section 3) for buying `product` with the options `choices`, in [0, 1].

    r = r_type * (|goal's attributes that the product has| + |goal's options among `choices`| + [cost <= max_price])
               / (|goal's attributes| + |goal's options| + 1)

    WebShop's r_type compares titles; ours compares kinds: 1 for the goal's kind, 0.5 for another kind of the same department, 0
    for anything else.
    """
    same = DEPARTMENT[product.kind] == DEPARTMENT[goal.kind]
    kind = 1.0 if product.kind == goal.kind else 0.5 if same else 0.0
    attributes = len(set(goal.attributes) & set(product.attributes))
    options = sum(choices.get(name) == value for name, value in goal.options.items())
    within = product.cost(choices) <= goal.max_price
    return kind * (attributes + options + within) / (len(goal.attributes) + len(goal.options) + 1)


@dataclass(frozen=True)
class Catalogue:
    """Products and their search index: the same object for all environments of a process."""

    products: tuple[Product, ...]
    index: Index

    def goal(self, number: int, level: str) -> Goal:
        """Return a request that at least one product fulfils: the one of the same number, modulo `SIZE`.

        standard: one or two attributes, one option, and a maximum of a third above the price. hard: three attributes, every
        option, and a maximum below the price of the dearer near misses.
        """
        product, rng = self.products[number % SIZE], random.Random(number)
        hard = level == "hard"
        attributes = rng.sample(product.attributes, 3 if hard else rng.randint(1, 2))
        names = list(product.options) if hard else [rng.choice(list(product.options))]
        options = {name: rng.choice(list(product.options[name])) for name in names}
        limit = product.cost(options) * (102 if hard else 133) // 100
        return Goal(product.kind, tuple(attributes), options, -(-limit // 50) * 50)


@lru_cache(maxsize=4)  # 1.1 MB each
def catalogue(seed: int) -> Catalogue:
    """Return the catalogue of a number, built once in a process."""
    rng = random.Random(seed)
    kinds = list(DEPARTMENT)
    products = [product for i in range(SIZE // FAMILY) for product in _family(rng, kinds[i % len(kinds)])]
    rng.shuffle(products)
    return Catalogue(tuple(products), Index([_search_text(product) for product in products]))


def _family(rng: random.Random, kind: str) -> list[Product]:
    department = _DEPARTMENTS[DEPARTMENT[kind]]
    all_attributes = department["attributes"]
    attributes, price = rng.sample(all_attributes, 4), rng.randrange(400, 9000, 10)
    options = {"colour": dict.fromkeys(rng.sample(_VALUES["colour"], rng.randint(3, 4)), 0)}
    for name in department["options"]:
        step = rng.randrange(50, 50 + price // 4, 10)
        options[name] = {value: i * step for i, value in enumerate(_VALUES[name])}
    other_attributes = [attribute for attribute in all_attributes if attribute not in attributes]
    products = [_product(rng, kind, attributes, options, price)]
    for _ in range(FAMILY - 3):  # another attribute
        changed = list(attributes)
        changed[rng.randrange(4)] = rng.choice(other_attributes)
        products.append(_product(rng, kind, changed, options, price))
    products.append(_product(rng, kind, attributes, options, price * rng.randint(120, 160) // 100))
    dropped_colour = rng.choice(list(options["colour"]))
    colours = {value: more for value, more in options["colour"].items() if value != dropped_colour}
    products.append(_product(rng, kind, attributes, {**options, "colour": colours}, price))
    return products


def _product(
    rng: random.Random, kind: str, attributes: list[str], options: Mapping[str, Mapping[str, int]], price: int
) -> Product:
    first, second, third, fourth = attributes = rng.sample(attributes, 4)
    title = f"{rng.choice(_GOODS['brands'])} {first} {second} {kind}"
    description = f"{rng.choice(_GOODS['openings'])}: this {kind} is {third}."
    features = f"- {fourth}\n- {rng.randint(1, 5)} year warranty\n- {rng.randint(1, 90) * 50} g"
    return Product(title, kind, tuple(attributes), options, price, description, features)


def _search_text(product: Product) -> str:
    values = " ".join(value for values in product.options.values() for value in values)
    return f"{product.title} {product.description} {product.features} {values}"


def money(cents: int) -> str:
    return f"{cents / 100:.2f}"
