"""Families of levels 0 and 1."""

import random

from wm_plugin.worlds.forth.generators.drafts import Draft, Family, numeric, printing, span

# 0: a few words in a row


def linear(rng: random.Random, word: str) -> Draft:
    a, b = rng.randint(2, 19), rng.randint(1, 40)
    return Draft(
        (a, b),
        f"Define {word} ( n -- m ), {a} times n, plus {b}.",
        f": {word} {a} * {b} + ;",
        f": {word} {b} + {a} * ;",
        numeric(rng, word, lambda n: a * n + b, [0, *span(-30, 99)]),
    )


def weighted(rng: random.Random, word: str) -> Draft:
    a, b = rng.sample(span(2, 12), 2)
    return Draft(
        (a, b),
        f"Define {word} ( x y -- n ), {a} times x plus {b} times y.",
        f": {word} {b} * swap {a} * + ;",
        f": {word} {a} * swap {b} * + ;",
        numeric(rng, word, lambda x, y: a * x + b * y, [1, *span(-9, 30)], [0, *span(-9, 30)]),
    )


def quadratic(rng: random.Random, word: str) -> Draft:
    a, b = rng.randint(2, 15), rng.randint(1, 30)
    return Draft(
        (a, b),
        f"Define {word} ( n -- m ), the square of n, plus {a} times n, less {b}.",
        f": {word} dup {a} + * {b} - ;",
        f": {word} dup {a} * + {b} - ;",
        numeric(rng, word, lambda n: n * n + a * n - b, [3, *span(-20, 40)]),
    )


def units(rng: random.Random, word: str) -> Draft:
    a, b = rng.sample([7, 8, 10, 12, 14, 16, 20, 24, 30, 60], 2)
    return Draft(
        (a, b),
        f"Define {word} ( large middle small -- n ), a measure in small units: a large unit is {a} middle "
        f"ones, and a middle one is {b} small ones.",
        f": {word} rot {a} * rot + {b} * + ;",
        f": {word} rot {b} * rot + {a} * + ;",
        numeric(rng, word, lambda x, y, z: (x * a + y) * b + z, [1, *span(0, 9)], [0, *span(0, 20)], [0, *span(0, 50)]),
    )


def packets(rng: random.Random, word: str) -> Draft:
    size = rng.choice([3, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 18, 24, 25])
    return Draft(
        (size,),
        f"Define {word} ( n -- left packets ) for n things, none or more, in packets of {size}: what is left "
        "over, and above it the number of full packets.",
        f": {word} {size} /mod ;",
        f": {word} {size} /mod swap ;",
        numeric(rng, word, lambda n: (n % size, n // size), [size - 1, *span(0, 300)]),
    )


def shuffle(rng: random.Random, word: str) -> Draft:
    names = ["a", "b", "c", "d"]
    order = rng.sample(names, 4)
    if order == names:
        order.reverse()
    rest = sorted(order, key=lambda name: (name == order[0], name))
    return Draft(
        tuple(order),
        f"Define {word} ( a b c d -- {' '.join(order)} ), which puts four numbers in this order.",
        f": {word} {{ a b c d }} {' '.join(order)} ;",
        f": {word} {{ a b c d }} {' '.join(rest)} ;",
        numeric(
            rng,
            word,
            lambda *values: tuple(values[names.index(name)] for name in order),
            *([start, *span(10 * start, 10 * start + 9)] for start in (1, 2, 3, 4)),
        ),
    )


# 1: conditions


def two_rules(rng: random.Random, word: str) -> Draft:
    limit, a, b = rng.randint(5, 40), rng.randint(2, 9), rng.randint(3, 50)
    return Draft(
        (limit, a, b),
        f"Define {word} ( n -- m ): {a} times n if n is less than {limit}, and n plus {b} otherwise.",
        f": {word} dup {limit} < if {a} * else {b} + then ;",
        f": {word} dup {limit} > if {a} * else {b} + then ;",
        numeric(rng, word, lambda n: a * n if n < limit else n + b, [limit, limit - 1, *span(-10, 60)]),
    )


def limited(rng: random.Random, word: str) -> Draft:
    low = rng.randint(-20, 20)
    high = low + rng.randint(5, 40)
    return Draft(
        (low, high),
        f"Define {word} ( n -- m ): n itself from {low} to {high}, otherwise the nearer of these two.",
        f": {word} {low} max {high} min ;",
        f": {word} {low} min {high} max ;",
        numeric(rng, word, lambda n: max(low, min(high, n)), [high + 1, low - 1, *span(low - 20, high + 20)]),
    )


def divisible(rng: random.Random, word: str) -> Draft:
    a, b = rng.sample([2, 3, 4, 5, 6, 7, 9, 10, 11], 2)
    inputs = [a * b, a, b, *span(0, 120)]
    return Draft(
        (a, b),
        f"Define {word} ( n -- flag ), true (-1) if n, which is not negative, is divisible by exactly one of "
        f"{a} and {b}, and false (0) otherwise.",
        f": {word} dup {a} mod 0= swap {b} mod 0= xor ;",
        f": {word} dup {a} mod 0= swap {b} mod 0= or ;",
        numeric(rng, word, lambda n: -int((n % a == 0) != (n % b == 0)), inputs),
    )


def tariff(rng: random.Random, word: str) -> Draft:
    limit, first, later = rng.randint(5, 30), rng.randint(4, 12), rng.randint(1, 3)
    return Draft(
        (limit, first, later),
        f"Define {word} ( n -- price ) for n pieces, none or more: each of the first {limit} costs {first}, "
        f"and each further one {later}.",
        f": {word} dup {limit} min {first} * swap {limit} - 0 max {later} * + ;",
        f": {word} dup {limit} > if {later} * else {first} * then ;",
        numeric(rng, word, lambda n: min(n, limit) * first + max(0, n - limit) * later, [limit + 4, *span(0, 80)]),
    )


def graded(rng: random.Random, word: str) -> Draft:
    low = rng.randint(-10, 30)
    high = low + rng.randint(4, 40)
    names = rng.choice([("cold", "mild", "hot"), ("low", "fair", "high"), ("small", "medium", "large")])

    def grade(n: int) -> str:
        return names[0] if n < low else names[1] if n < high else names[2]

    body = " else ".join(['dup {} < if drop ." {}"', '{} < if ." {}"', '." {}" then then ;'])
    arguments = [low - 1, high, low, high - 1, rng.randint(high, high + 60), rng.randint(low - 60, low - 1)]
    return Draft(
        (low, high, names),
        f"Define {word} ( n -- ), which prints {names[0]} for a number below {low}, {names[1]} for one below "
        f"{high}, and {names[2]} for any other.",
        f": {word} " + body.format(low, names[0], high, names[1], names[2]),
        f": {word} " + body.format(low + 1, names[0], high + 1, names[1], names[2]),
        printing(word, grade, *((number,) for number in arguments)),
    )


def wrapped(rng: random.Random, word: str) -> Draft:
    size = rng.randint(5, 60)
    return Draft(
        (size,),
        f"Define {word} ( position steps -- position ) on a ring of {size} places, numbered from 0: the place "
        "after that many steps, backwards if they are negative.",
        f": {word} + {size} mod ;",
        f": {word} + dup {size - 1} > if {size} - then ;",
        numeric(rng, word, lambda p, n: (p + n) % size, [size - 1, *span(0, size - 1)], [-2 * size, *span(-150, 150)]),
    )


FAMILIES: dict[str, tuple[Family, ...]] = {
    "0": (linear, weighted, quadratic, units, packets, shuffle),
    "1": (two_rules, limited, divisible, tariff, graded, wrapped),
}
