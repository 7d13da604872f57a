import itertools
import random
import re
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.worlds import shop
from wm_plugin.worlds.shop import ShopEnvironment, dataset_rows, expert
from wm_plugin.worlds.shop.goods import DEPARTMENT, FAMILY, GOALS, SIZE, Goal, Product, catalogue, match

pytestmark = pytest.mark.skipif(find_spec("bm25s") is None, reason="needs bm25s")

TENT = Product(
    title="Selby waterproof padded tent",
    kind="tent",
    attributes=("waterproof", "padded", "packable", "windproof"),
    options={"colour": {"red": 0, "teal": 0}, "size": {"small": 0, "large": 500}},
    price=5000,
    description="",
    features="",
)


LARGE = {"colour": "red", "size": "large"}


@pytest.fixture
def environment() -> ShopEnvironment:
    environment = ShopEnvironment()
    environment.reset(catalogue_seed=0, goal=0)
    return environment


@pytest.mark.parametrize(
    ("kind", "attributes", "options", "max_price", "chosen", "reward"),
    [
        # (2 attributes + 1 option + 1 price) / 4
        ("tent", ("waterproof", "windproof"), {"colour": "red"}, 5000, {"colour": "red"}, 1.0),
        # large costs 5.00 more: (2 + 2 + 0) / 5
        ("tent", ("waterproof", "padded"), LARGE, 5499, LARGE, 0.8),
        ("tent", ("waterproof", "padded"), LARGE, 5500, LARGE, 1.0),
        # one attribute is missing, and nothing was chosen: (1 + 0 + 1) / 4
        ("tent", ("waterproof", "reflective"), {"colour": "red"}, 9000, {}, 0.5),
        # the wrong colour, too dear: (1 + 0 + 0) / 3
        ("tent", ("padded",), {"colour": "red"}, 4000, {"colour": "teal"}, 1 / 3),
        # an option that nobody asked for costs nothing but its price: (1 + 1 + 1) / 3
        ("tent", ("padded",), {"colour": "red"}, 5500, {"colour": "red", "size": "large"}, 1.0),
        # another kind of the department: 0.5 * (1 + 1 + 1) / 3
        ("hammock", ("waterproof",), {"colour": "teal"}, 5000, {"colour": "teal"}, 0.5),
        # another department, though it is waterproof too
        ("rain jacket", ("waterproof",), {"colour": "teal"}, 5000, {"colour": "teal"}, 0.0),
    ],
)
def test_rewards_computed_by_hand(
    kind: str,
    attributes: tuple[str, ...],
    options: dict[str, str],
    max_price: int,
    chosen: dict[str, str],
    reward: float,
) -> None:
    assert match(Goal(kind, attributes, options, max_price), TENT, chosen) == pytest.approx(reward, abs=1e-12)


def test_a_catalogue() -> None:
    products = catalogue(3).products
    assert len(products) == SIZE
    assert {product.kind for product in products} == set(DEPARTMENT)
    for product in products:
        first, second, third, fourth = product.attributes
        assert len(set(product.attributes)) == 4
        assert product.title.endswith(f" {first} {second} {product.kind}")
        assert third in product.description
        assert product.features.startswith(f"- {fourth}\n")
        values = [value for values in product.options.values() for value in values]
        assert len(values) == len(set(values)) <= 11
        assert not set(values) & {*shop.SUBPAGES, "< prev", "back to search"}
    assert catalogue(3) is catalogue(3)
    assert catalogue(3).products != catalogue(4).products


@pytest.mark.parametrize("level", shop.LEVELS)
def test_every_request_can_be_fulfilled_and_hard_ones_have_near_misses(level: str) -> None:
    of_catalogue, near, fulfilled = catalogue(0), 0, 0
    by_kind = {kind: [one for one in of_catalogue.products if one.kind == kind] for kind in DEPARTMENT}
    numbers = range(0, GOALS, 29)
    for number in numbers:
        goal = of_catalogue.goal(number, level)
        best = []
        for product in by_kind[goal.kind]:
            orders = itertools.product(
                *[[(name, value) for value in values] for name, values in product.options.items()]
            )
            best.append(max(match(goal, product, dict(order)) for order in orders))
        assert max(best) == 1.0
        fulfilled += best.count(1.0)
        near += sum(0.7 < one < 1.0 for one in best)
    if level == "hard":
        assert fulfilled / len(numbers) < 3
        assert near / len(numbers) > FAMILY - 2


@pytest.mark.parametrize("level", shop.LEVELS)
def test_one_expert_fulfils_every_request_in_many_environments_in_turns(level: str) -> None:
    rows = dataset_rows(80, seed=3, level=level) + dataset_rows(40, seed=3, held_out=True, level=level)
    environments, choose = [ShopEnvironment() for _ in rows], expert()
    for environment, row in zip(environments, rows, strict=True):
        environment.reset(**row)
    assert len({id(environment._catalogue) for environment in environments}) == 1
    while left := [environment for environment in environments if not environment.over]:
        for environment in left:
            name, arguments = choose(environment) or ("gave up", {})
            assert len(getattr(environment, name)(**arguments)) < 1000
    for environment in environments:
        assert environment.success
        assert environment.metrics == {"actions": environment.turns, "effective": environment.turns, "invalid": 0}


def test_splits_share_no_combination_of_kind_and_attributes() -> None:
    def asked(level: str, held_out: bool) -> set[tuple[str, ...]]:
        rows = dataset_rows(700, held_out=held_out, level=level)
        goals = [catalogue(0).goal(row["goal"], row["level"]) for row in rows]
        return {(goal.kind, *sorted(goal.attributes)) for goal in goals}

    for level in shop.LEVELS:
        assert not asked(level, False) & asked(level, True)
    assert len({row["goal"] for row in dataset_rows(800, held_out=True)}) == 800


def test_an_episode_by_hand(environment: ShopEnvironment) -> None:
    first = environment.reset(catalogue_seed=0, goal=5, level="hard")
    goal, product = catalogue(0).goal(5, "hard"), catalogue(0).products[5]
    assert first == f"Wanted: {goal.text}\nSearch page. [search(query)]"
    assert len(shop.INSTRUCTION + first) < 1500
    assert environment.click("next >").startswith("Invalid: nothing on this page is called that.\nSearch page.")
    results = environment.search(product.title)
    assert f"\n[p5] {product.title}, {product.price / 100:.2f}\n" in results
    assert environment.search("again").startswith("Invalid: search needs the search page")
    assert environment.click("[next >]").split("\n")[0] == "[back to search] [< prev] [next >]"
    assert environment.click("< Prev") == results
    assert environment.buy().startswith("Invalid: no product is open.\n")
    page = environment.click("P5")
    for name, value in goal.options.items():
        assert f"{name}: " in page
        page = environment.click(value)
        assert f"(chosen: {value})" in page
    assert f"price: {product.cost(goal.options) / 100:.2f}\n" in page
    effective = environment.metrics["effective"]
    assert environment.click(value) == page  # chosen already
    assert environment.metrics["effective"] == effective
    assert environment.click("description") == f"[back to search] [< prev]\n{product.description}"
    assert environment.click("< prev") == page
    assert environment.click("buy now").startswith("Invalid: buying is the tool buy.\n")
    assert environment.get_reward() == 0.0
    assert environment.buy().endswith("It is what was wanted. The episode is over.")
    assert (environment.over, environment.success, environment.get_reward()) == (True, True, 1.0)
    assert environment.metrics["invalid"] == 4


def test_a_near_miss_is_told_and_going_back_forgets_the_options(environment: ShopEnvironment) -> None:
    product = catalogue(0).products[0]
    environment.search(product.title)
    environment.click("p0")
    colour = next(iter(product.options["colour"]))
    environment.click(colour)
    environment.click("< prev")
    assert f"[{colour}]" in environment.click("p0")
    assert environment._choices == {}
    end = environment.buy()
    reward = match(catalogue(0).goal(0, "standard"), product, {})
    assert 0 < reward < 1
    assert f"({reward:.2f} of 1). The episode is over." in end
    assert environment.get_reward() == reward
    assert not environment.success


def test_a_search_without_results(environment: ShopEnvironment) -> None:
    assert environment.search("zzz 日本") == "[back to search]\nNo results."
    assert environment.click("back to search") == "Search page. [search(query)]"


ELEMENT = re.compile(r"\[([^]]+)]")


@settings(max_examples=examples(100), derandomize=True, deadline=None, database=None)
@given(st.integers(0, 2**31), st.integers(0, GOALS - 1))
def test_what_stands_in_brackets_can_be_clicked_and_nothing_else(seed: int, goal: int) -> None:
    environment, rng = ShopEnvironment(), random.Random(seed)
    text = environment.reset(catalogue_seed=0, goal=goal)
    everything = [
        "back to search",
        "next >",
        "< prev",
        "description",
        "features",
        "olive",
        "small",
        "p1",
        "p2",
        "p999",
        "p",
    ]
    for _ in range(25):
        page = ELEMENT.findall(text)
        if page == ["search(query)"]:
            text = environment.search(rng.choice(list(DEPARTMENT)))
            continue
        before, invalid = environment._state(), environment.metrics["invalid"]
        element = rng.choice(page if rng.random() < 0.8 else everything)
        answer = environment.click(element)
        if element in page:
            assert environment.metrics["invalid"] == invalid
            text = answer
        else:
            assert answer == f"Invalid: nothing on this page is called that.\n{text}"
            assert environment._state() == before
            assert environment.metrics["invalid"] == invalid + 1
