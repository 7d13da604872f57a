"""The problems of the world forth that are drawn by families: `wm_plugin/worlds/forth/generated.jsonl`.

    python benchmarks/forth_problems.py

A family is a task with numbers drawn for it, a solution, a wrong solution, and tests by a reference in Python. It has `EACH`
problems or fewer, always the same ones. The solutions pass the tests on the real gforth (tests/worlds/test_forth.py). Families
of level 6 are held out; none of them is a family of another level with other numbers.
"""

import json
import operator
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import wm_plugin.worlds.forth

RESULT = Path(wm_plugin.worlds.forth.__file__).with_name("generated.jsonl")
EACH = 11
TESTS = 5  # of a problem, beside the example
Case = tuple[str, str]  # a line of Forth, and what it prints


class Draft(NamedTuple):
    """A problem without its name and level. `numbers` tells it from others of its family."""

    numbers: tuple[object, ...]
    task: str
    solution: str
    wrong: str
    cases: list[Case]


Family = Callable[[random.Random, str], Draft]


def one_too_many(numbers: tuple[int, ...], task: str, code: str, cases: list[Case]) -> Draft:
    """A draft of code with a gap, {}, for the last of its numbers, which is larger by one in the wrong solution."""
    return Draft(numbers, task, code.format(numbers[-1]), code.format(numbers[-1] + 1), cases)


def numeric(
    rng: random.Random, word: str, function: Callable[..., int | tuple[int, ...]], *inputs: list[int]
) -> list[Case]:
    """Cases that push numbers and print all results, the top first. `inputs` has what each number is drawn from. The first test,
    which is hidden, has the first of each, which should be the edge; the next has a number below that is to stay."""
    drawn = [tuple(rng.choice(values) for values in inputs), tuple(values[0] for values in inputs)]
    while len(drawn) < TESTS + 1:
        drawn.append(tuple(rng.choice(values) for values in inputs))
    cases = []
    for place, values in enumerate(drawn):
        results = function(*values)
        results = results if isinstance(results, tuple) else (results,)
        below = ["77"] if place == 2 else []
        line = " ".join([*below, *map(str, values), word, *["."] * (len(results) + len(below))])
        cases.append((line, " ".join([*map(str, reversed(results)), *below])))
    return cases


def printing(word: str, function: Callable[..., str], *arguments: tuple[object, ...]) -> list[Case]:
    """Cases of a word that prints by itself; a text becomes a string of Forth."""
    cases = []
    for values in arguments:
        pushed = [f's" {value}"' if isinstance(value, str) else str(value) for value in values]
        cases.append((" ".join([*pushed, word]), " ".join(function(*values).split())))
    return cases


def span(low: int, high: int) -> list[int]:
    return list(range(low, high + 1))


def digits(number: int, base: int) -> list[int]:
    """The lowest first."""
    places = [number % base]
    while number := number // base:
        places.append(number % base)
    return places


def texts(rng: random.Random, edge: str, others: list[str]) -> list[tuple[str]]:
    """Arguments of cases: others' texts, and the edge as the first that is hidden."""
    example, *hidden = rng.sample(others, TESTS)
    return [(text,) for text in (example, edge, *hidden)]


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


# 2: one loop


def powers(rng: random.Random, word: str) -> Draft:
    power, step = rng.choice([2, 3]), rng.randint(1, 6)
    multiply = "dup *" if power == 2 else "dup dup * *"
    return Draft(
        (power, step),
        f"Define {word} ( n -- sum ), the sum of the numbers from 1 to n in steps of {step} (1, {1 + step}, "
        f"... as far as n), each to the power of {power}; 0 if n is less than 1.",
        f": {word} 0 swap 1+ 1 max 1 ?do i {multiply} + {step} +loop ;",
        f": {word} 0 swap 1 max 1 ?do i {multiply} + {step} +loop ;",
        numeric(rng, word, lambda n: sum(i**power for i in range(1, n + 1, step)), [step + 1, *span(0, 40)]),
    )


def multiples(rng: random.Random, word: str) -> Draft:
    a, b = sorted(rng.sample([2, 3, 4, 5, 6, 7, 8, 9], 2))
    return Draft(
        (a, b),
        f"Define {word} ( n -- count ), how many of the numbers from 1 to n are divisible by {a} or by {b}; n "
        "is not negative.",
        f": {word} 0 swap 1+ 1 ?do i {a} mod 0= i {b} mod 0= or - loop ;",
        f": {word} dup {a} / swap {b} / + ;",
        numeric(
            rng,
            word,
            lambda n: sum(i % a == 0 or i % b == 0 for i in range(1, n + 1)),
            [a * b, 2 * a * b, *span(0, 60)],
        ),
    )


def sequence(rng: random.Random, word: str) -> Draft:
    start, step = rng.randint(-20, 30), rng.choice([-7, -5, -4, -3, 2, 3, 4, 5, 6, 7, 9])
    return Draft(
        (start, step),
        f"Define {word} ( n -- ), which prints the first n terms of the sequence {start}, {start + step}, "
        f"{start + 2 * step}, ... with spaces between; nothing if n is 0.",
        f": {word} {start} swap 0 ?do dup . {step} + loop drop ;",
        f": {word} {start} swap 0 ?do {step} + dup . loop drop ;",
        printing(
            word,
            lambda n: " ".join(str(start + i * step) for i in range(n)),
            *((n,) for n in (3, 0, 1, 5, rng.randint(6, 9), rng.randint(10, 14))),
        ),
    )


def iterated(rng: random.Random, word: str) -> Draft:
    a, b, size = rng.randint(3, 19), rng.randint(1, 20), rng.choice([31, 50, 64, 97, 100, 101, 128, 211])

    def after(x: int, n: int) -> int:
        for _ in range(n):
            x = (a * x + b) % size
        return x

    return Draft(
        (a, b, size),
        f"Define {word} ( x n -- y ), x after n times of this step: multiply by {a}, add {b}, and take the "
        f"remainder by {size}. Neither number is negative.",
        f": {word} 0 ?do {a} * {b} + {size} mod loop ;",
        f": {word} 0 ?do {a} * {b + 1} + {size} mod loop ;",
        numeric(rng, word, after, [5, *span(0, 30)], [2, *span(0, 25)]),
    )


def savings(rng: random.Random, word: str) -> Draft:
    percent, yearly = rng.randint(2, 12), rng.randint(5, 60)

    def after(amount: int, years: int) -> int:
        for _ in range(years):
            amount += amount * percent // 100 + yearly
        return amount

    return Draft(
        (percent, yearly),
        f"Define {word} ( amount years -- amount ): each year {percent} percent of the amount, rounded down, "
        f"and {yearly} are added. Neither number is negative.",
        f": {word} 0 ?do dup {percent} * 100 / + {yearly} + loop ;",
        f": {word} 0 ?do {yearly} + dup {percent} * 100 / + loop ;",
        numeric(rng, word, after, [990, *span(100, 900)], [6, *span(0, 12)]),
    )


def first_over(rng: random.Random, word: str) -> Draft:
    factor, start = rng.randint(2, 7), rng.randint(1, 9)

    def steps(limit: int) -> int:
        value, count = start, 0
        while value <= limit:
            value, count = value * factor, count + 1
        return count

    return Draft(
        (factor, start),
        f"Define {word} ( limit -- n ): how often {start} has to be multiplied by {factor} until it is greater "
        "than the limit.",
        f": {word} {{ limit }} 0 {start} begin dup limit <= while {factor} * swap 1+ swap repeat drop ;",
        f": {word} {{ limit }} 0 {start} begin dup limit < while {factor} * swap 1+ swap repeat drop ;",
        numeric(rng, word, steps, [start * factor, *span(0, 3000)]),
    )


# 3: loops in loops, and digits


def digit_sum(rng: random.Random, word: str) -> Draft:
    base, power = rng.randint(2, 16), rng.choice([1, 2])
    square = " dup *" if power == 2 else ""
    return Draft(
        (base, power),
        f"Define {word} ( n -- sum ), the sum of the {'squares of the ' if power == 2 else ''}digits of n in "
        f"base {base}; n is not negative.",
        f": {word} 0 swap begin dup while {base} /mod swap{square} rot + swap repeat drop ;",
        f": {word} 0 swap begin {base} /mod dup while swap{square} rot + swap repeat 2drop ;",
        numeric(rng, word, lambda n: sum(digit**power for digit in digits(n, base)), [base + 1, *span(0, 4000)]),
    )


def backwards(rng: random.Random, word: str) -> Draft:
    base = rng.randint(2, 16)

    def turned(n: int) -> int:
        value = 0
        for digit in digits(n, base):
            value = value * base + digit
        return value

    return Draft(
        (base,),
        f"Define {word} ( n -- m ), the number whose digits in base {base} are those of n in reverse order; n "
        "is not negative.",
        f": {word} 0 swap begin dup while {base} /mod swap rot {base} * + swap repeat drop ;",
        f": {word} 0 swap begin dup while {base} /mod swap rot + {base} * swap repeat drop ;",
        numeric(rng, word, turned, [base + 2, *span(0, 4000)]),
    )


def digit_count(rng: random.Random, word: str) -> Draft:
    digit = rng.randint(1, 9)
    step = rng.randint(1, 3)
    return Draft(
        (digit, step),
        f"Define {word} ( n -- count ), how often the digit {digit} is written in the numbers 1, {1 + step}, "
        f"{1 + 2 * step}, ... as far as n, which is positive.",
        f": {word} 0 swap 1+ 1 ?do i begin dup while 10 /mod swap {digit} = if swap 1+ swap then repeat drop "
        f"{step} +loop ;",
        f": {word} 0 swap 1+ 1 ?do i 10 mod {digit} = - {step} +loop ;",
        numeric(
            rng, word, lambda n: sum(str(i).count(str(digit)) for i in range(1, n + 1, step)), [199, *span(1, 250)]
        ),
    )


def pairs(rng: random.Random, word: str) -> Draft:
    size, rest = rng.randint(3, 9), rng.randint(0, 2)
    return Draft(
        (size, rest),
        f"Define {word} ( n -- count ), how many pairs of different numbers from 1 to n have a sum whose "
        f"remainder by {size} is {rest}; a pair counts once, and n is positive.",
        f": {word} 0 swap 1+ dup 1 ?do dup i 1+ ?do i j + {size} mod {rest} = if swap 1+ swap then loop loop drop ;",
        f": {word} 0 swap 1+ dup 1 ?do dup 1 ?do i j + {size} mod {rest} = if swap 1+ swap then loop loop drop ;",
        numeric(
            rng,
            word,
            lambda n: sum((i + j) % size == rest for i in range(1, n + 1) for j in range(i + 1, n + 1)),
            [2 * size, *span(1, 25)],
        ),
    )


def triangle(rng: random.Random, word: str) -> Draft:
    sign, step, rising = rng.choice("*#+o=x"), rng.randint(1, 3), rng.random() < 0.5

    def rows(n: int) -> str:
        widths = [1 + step * row for row in range(n)]
        return "\n".join(sign * width for width in (widths if rising else reversed(widths)))

    width = f"i {step} * 1+" if rising else f"dup i - 1- {step} * 1+"
    wrong = f"i {step} *" if rising else f"dup i - {step} * 1+"
    return Draft(
        (sign, step, rising),
        f"Define {word} ( n -- ), which prints n lines of the sign {sign}: the {'first' if rising else 'last'} "
        f"is one sign wide, and each {'next' if rising else 'earlier'} one is {step} wider.",
        f": {word} dup 0 ?do {width} 0 ?do [char] {sign} emit loop cr loop drop ;",
        f": {word} dup 0 ?do {wrong} 0 ?do [char] {sign} emit loop cr loop drop ;",
        printing(word, rows, (3,), (2,), (0,), (1,), (4,), (rng.randint(5, 7),)),
    )


def primes(rng: random.Random, word: str) -> Draft:
    size = rng.choice([3, 4, 5, 6, 7, 8, 10, 12])
    rest = rng.choice([1, size - 1])

    def count(n: int) -> int:
        return sum(p % size == rest and all(p % d for d in range(2, p)) for p in range(2, n + 1))

    return Draft(
        (size, rest),
        f"Define {word} ( n -- count ), how many primes up to n, which is at least 2, have the remainder "
        f"{rest} by {size}.",
        f": {word}-p ( n -- flag ) dup 2 ?do dup i mod 0= if drop false unloop exit then loop drop true ; "
        f": {word} 0 swap 1+ 2 ?do i {size} mod {rest} = if i {word}-p - then loop ;",
        f": {word} 0 swap 1+ 2 ?do i {size} mod {rest} = - loop ;",
        numeric(rng, word, count, [60, *span(2, 90)]),
    )


# 4: memory and strings

TEXTS = """forth, stack and heap, banana bread, a quick test, level seven, zebra, one two three, mississippi,
under the sea, programming, quiet evening, xyz, hello there, abracadabra, apple pie, over and over""".replace(
    "\n", " "
).split(", ")


def table(rng: random.Random, word: str) -> Draft:
    values = rng.sample(span(2, 99), rng.randint(4, 7))
    size = len(values)
    cells = " ".join(f"{value} ," for value in values)
    return Draft(
        tuple(values),
        f"Define {word} ( n -- value ), the n-th of the values {', '.join(map(str, values))}, counted from 0; "
        "after the last comes the first again, and n is not negative.",
        f"create {word}-values {cells} : {word} {size} mod cells {word}-values + @ ;",
        f"create {word}-values {cells} : {word} 1- {size} mod cells {word}-values + @ ;",
        numeric(rng, word, lambda n: values[n % size], [size, *span(0, 40)]),
    )


def caesar(rng: random.Random, word: str) -> Draft:
    shift = rng.randint(1, 25)

    def moved(text: str) -> str:
        return "".join(chr((ord(c) - 97 + shift) % 26 + 97) if c.islower() else c for c in text)

    letter = f"dup [char] a [char] z 1+ within if [char] a - {shift} + 26 mod [char] a + then"
    return Draft(
        (shift,),
        f"Define {word} ( c-addr u -- ), which prints a string with each small letter moved {shift} places on "
        "in the alphabet, a after z; other characters stay.",
        f": {word} 0 ?do dup i + c@ {letter} emit loop drop ;",
        f": {word} 0 ?do dup i + c@ {shift} + emit loop drop ;",
        printing(word, moved, *texts(rng, "wxyz", TEXTS)),
    )


def letters(rng: random.Random, word: str) -> Draft:
    chosen = "".join(sorted(rng.sample("aeiorstnlp", rng.randint(2, 3))))
    # the first test keeps the character below its flag, as the others find it
    parts = [f"dup [char] {chosen[0]} =", *(f"over [char] {letter} = or" for letter in chosen[1:])]
    return Draft(
        (chosen,),
        f"Define {word} ( c-addr u -- n ), how many characters of a string are one of the letters {', '.join(chosen)}.",
        f": {word} 0 -rot 0 ?do dup i + c@ {' '.join(parts)} nip if swap 1+ swap then loop drop ;",
        f": {word} 0 -rot 0 ?do dup i + c@ [char] {chosen[0]} = if swap 1+ swap then loop drop ;",
        [
            (f's" {text}" {word} .', str(sum(text.count(letter) for letter in chosen)))
            for (text,) in texts(rng, chosen, TEXTS)
        ],
    )


def replaced(rng: random.Random, word: str) -> Draft:
    old, new = rng.sample("aeiost", 2)
    return Draft(
        (old, new),
        f"Define {word} ( c-addr u -- ), which prints a string backwards, with {new} for every {old}.",
        f": {word} begin dup while 1- 2dup + c@ dup [char] {old} = if drop [char] {new} then emit repeat 2drop ;",
        f": {word} begin dup while 1- 2dup + c@ dup [char] {new} = if drop [char] {old} then emit repeat 2drop ;",
        printing(word, lambda text: text.replace(old, new)[::-1], *texts(rng, f"{old}b{new}", TEXTS)),
    )


def gathered(rng: random.Random, word: str) -> Draft:
    size = rng.randint(2, 9)
    rest = rng.randrange(size)
    cases = []
    for _ in range(TESTS):
        values = [rng.randint(0, 60) for _ in range(rng.randint(2, 6))]
        cases.append((values, sum(value for value in values if value % size == rest)))
    cases.insert(0, ([size + rest, rest + 1, 2 * size + rest], 3 * size + 2 * rest + (rest + 1 if size == 1 else 0)))
    cases.append(([], 0))
    return Draft(
        (size, rest),
        f"Define {word} ( x1 ... xn n -- sum ), the sum of those of n numbers whose remainder by {size} is "
        f"{rest}; no number is negative, and n may be 0.",
        f": {word} 0 swap 0 ?do swap dup {size} mod {rest} = if + else drop then loop ;",
        f": {word} 0 swap 0 ?do swap dup {size} mod {rest} = if drop else + then loop ;",
        [(" ".join([*map(str, values), str(len(values)), word, "."]), str(total)) for values, total in cases],
    )


def history(rng: random.Random, word: str) -> Draft:
    size, start = rng.randint(20, 90), rng.randint(0, 15)

    def totals(*values: int) -> str:
        total, shown = start, []
        for value in values:
            total = (total + value) % size
            shown.append(str(total))
        return " ".join(shown)

    runs = [[rng.randint(1, 80) for _ in range(rng.randint(2, 5))] for _ in range(TESTS + 1)]
    cases = [
        (" ".join([f"{word}-reset", *(f"{value} {word} ." for value in values)]), totals(*values)) for values in runs
    ]
    code = f"variable {word}-total : {word}-reset {{}} {word}-total ! ; {word}-reset "
    code += f": {word} {word}-total @ + {size} mod dup {word}-total ! ;"
    return one_too_many(
        (size, start),
        f"Define {word} ( n -- total ), which adds n to a running total, kept below {size} by the remainder, "
        f"and returns it; and {word}-reset ( -- ), which sets the total to {start}, where it starts too.",
        code,
        cases,
    )


# 5: recursion, words that define words


def recurrence(rng: random.Random, word: str) -> Draft:
    a, b, p, q = rng.randint(0, 4), rng.randint(1, 5), rng.randint(1, 3), rng.randint(1, 3)

    def term(n: int) -> int:
        x, y = a, b
        for _ in range(n):
            x, y = y, p * y + q * x
        return x

    code = f": {word} dup 0= if drop {a} exit then dup 1 = if drop {b} exit then "
    code += "dup 1- recurse {p} * swap 2 - recurse {q} * + ;"
    return Draft(
        (a, b, p, q),
        f"Define {word} ( n -- m ), the n-th number of a sequence, n from 0 to 15: {a}, {b}, and then each is "
        f"{p} times the one before plus {q} times the one before that.",
        code.format(p=p, q=q),
        code.format(p=q, q=p) if p != q else code.format(p=p + 1, q=q),
        numeric(rng, word, term, [4, *span(0, 15)]),
    )


def defining(rng: random.Random, word: str) -> Draft:
    a, b = rng.randint(2, 12), rng.randint(1, 30)
    cases = []
    for place, number in enumerate([3, *rng.sample(span(-20, 60), TESTS)]):
        x, y = rng.randint(-9, 30), rng.randint(-9, 30)
        shown = [number + a * x + b, number + a * y + b]
        own = f"{word}-{'abcdef'[place]}"
        cases.append((f"{number} {word} {own} {x} {own} . {y} {own} .", f"{shown[0]} {shown[1]}"))
    return Draft(
        (a, b),
        f'Define {word} ( n "name" -- ), a defining word: the word that it defines is ( x -- m ), {a} times x plus n plus {b}.',
        f": {word} create , does> @ swap {a} * + {b} + ;",
        f": {word} create , does> @ + {a} * {b} + ;",
        cases,
    )


def stairs(rng: random.Random, word: str) -> Draft:
    small, large = sorted(rng.sample(span(1, 6), 2))

    def ways(n: int) -> int:
        counts = [1]
        for height in range(1, n + 1):
            counts.append(sum(counts[height - step] for step in (small, large) if step <= height))
        return counts[n]

    return one_too_many(
        (small, large),
        f"Define {word} ( n -- ways ), in how many ways one can climb n stairs with steps of {small} and of "
        f"{large} stairs, where the order of the steps matters; n is from 0 to 18, and there is one way to climb none.",
        f": {word} dup 0< if drop 0 exit then dup 0= if drop 1 exit then dup {small} - recurse swap {{}} - recurse + ;",
        numeric(rng, word, ways, [2 * large, *span(0, 18)]),
    )


def shrinking(rng: random.Random, word: str) -> Draft:
    divisor, less = rng.randint(2, 7), rng.randint(1, 3)

    def steps(n: int) -> int:
        return 0 if n < 1 else 1 + steps(n // divisor if n % divisor == 0 else n - less)

    return one_too_many(
        (divisor, less),
        f"Define {word} ( n -- steps ), how many steps take n below 1: a number that {divisor} divides is "
        f"divided by it, and any other is made smaller by {less}. n is at most 500.",
        f": {word} dup 1 < if drop 0 exit then dup {divisor} mod if {{}} - else {divisor} / then recurse 1+ ;",
        numeric(rng, word, steps, [divisor * divisor + 1, *span(0, 500)]),
    )


def nested(rng: random.Random, word: str) -> Draft:
    left, right = rng.choice([("(", ")"), ("[", "]"), ("<", ">")])
    middle = rng.choice("ox.-")
    twice = rng.random() < 0.5

    def drawn(n: int) -> str:
        return middle if n == 0 else left + drawn(n - 1) * (2 if twice else 1) + right

    inner = "dup 1- recurse 1- recurse" if twice else "1- recurse"
    code = f": {word} dup 0= if drop [char] {middle} emit exit then [char] {{0}} emit {inner} [char] {{1}} emit ;"
    return Draft(
        (left, middle, twice),
        f"Define {word} ( n -- ), which prints a nest of depth n: depth 0 is {middle}, and each other is {left}, "
        f"{'twice' if twice else 'once'} the nest of one less, and {right}. n is not negative.",
        code.format(left, right),
        code.format(right, left),
        printing(word, drawn, (2,), (0,), (1,), (3,), (4,), (5,)),
    )


def folded(rng: random.Random, word: str) -> Draft:
    a, size = rng.randint(2, 9), rng.choice([50, 64, 97, 100, 127])
    cases = []
    words: dict[str, Callable[[int, int], int]] = {
        "+": operator.add,
        "*": operator.mul,
        "-": operator.sub,
        "max": max,
        "min": min,
    }
    for name, function in words.items():
        values = [rng.randint(1, 30) for _ in range(4)]
        total = a
        for value in reversed(values):
            total = function(total, value) % size
        cases.append((f"{' '.join(map(str, values))} 4 ' {name} {word} .", str(total)))
    cases.append((f"0 ' + {word} .", str(a)))
    return Draft(
        (a, size),
        f"Define {word} ( x1 ... xn n xt -- m ): start with {a}; then for each number, the last one first, "
        f"execute xt ( m x -- m ) and take the remainder of its result by {size}. n may be 0.",
        f": {word} {{ xt }} {a} swap 0 ?do swap xt execute {size} mod loop ;",
        f": {word} {{ xt }} {a + 1} swap 0 ?do swap xt execute {size} mod loop ;",
        cases,
    )


def coins(rng: random.Random, word: str) -> Draft:
    values = sorted(rng.sample(span(2, 9), 2))

    def ways(n: int) -> int:
        return sum(
            1
            for a in range(n + 1)
            for b in range(n + 1)
            if a + values[0] * b <= n and (n - a - values[0] * b) % values[1] == 0
        )

    code = f": {word} 0 swap 1+ dup 0 ?do dup 1- i - {{step}} / 1+ rot + swap {values[1]} +loop drop ;"
    return Draft(
        tuple(values),
        f"Define {word} ( n -- ways ), in how many ways n can be paid with coins of 1, {values[0]} and "
        f"{values[1]}, where the order does not matter; n is from 0 to 60.",
        code.format(step=values[0]),
        code.format(step=values[0] + 1),
        numeric(rng, word, ways, [2 * values[0], *span(0, 60)]),
    )


ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth", 9: "ninth"}


def circle(rng: random.Random, word: str) -> Draft:
    step, first = rng.randint(2, 9), rng.choice([0, 1])

    def last(n: int) -> int:
        place = 0
        for size in range(2, n + 1):
            place = (place + step) % size
        return place + first

    return Draft(
        (step, first),
        f"Define {word} ( n -- who ): n people, numbered from {first}, sit in a circle; counting from the "
        f"first one, every {ORDINALS[step]} one leaves, round and round, and it is asked who stays last. n is "
        "positive.",
        f": {word} 0 swap 1+ 2 ?do {step} + i mod loop {first} + ;",
        f": {word} 0 swap 1+ 2 ?do {step - 1} + i mod loop {first} + ;",
        numeric(rng, word, last, [5, *span(1, 40)]),
    )


def runs(rng: random.Random, word: str) -> Draft:
    sign, least = rng.choice([":", "-", "x", "/"]), rng.randint(1, 3)
    strings = [
        "aaab",
        "abbbcc",
        "aabbaa",
        "zzzz",
        "abc",
        "mmmmnoo",
        "ddddde",
        "ssttt",
        "f",
        "kkkkkkk",
        "ppqqqrr",
        "aab",
    ]

    def packed(text: str) -> str:
        shown, place = "", 0
        while place < len(text):
            length = len(text[place:]) - len(text[place:].lstrip(text[place]))
            shown += f"{text[place]}{sign}{length}" if length > least else text[place] * length
            place += length
        return shown

    code = (
        f": {word}-run ( c-addr u -- n ) over c@ {{ a u c }} u 0 ?do a i + c@ c <> if i unloop exit then loop u ; "
        f": {word} begin dup while 2dup {word}-run {{0}} dup {{1}} if 2 pick c@ emit [char] {sign} emit dup 0 .r "
        "else 2 pick c@ over 0 ?do dup emit loop drop then /string repeat 2drop ;"
    ).replace("{ a u c }", "{{ a u c }}")
    return Draft(
        (sign, least),
        f"Define {word} ( c-addr u -- ), which prints a string with its runs packed: more than {least} of the "
        f"same character one after the other become the character, {sign} and their number; shorter runs stay "
        "as they are.",
        code.format("", f"{least} >"),
        code.format("", f"{least + 1} >"),
        printing(word, packed, *texts(rng, "a" * (least + 1) + "b", strings)),
    )


def in_base(rng: random.Random, word: str) -> Draft:
    base, separator = rng.randint(2, 20), rng.choice([".", ":", "/", "|"])
    return Draft(
        (base, separator),
        f"Define {word} ( n -- ), which prints the digits of n in base {base}, the highest first, each as a "
        f"decimal number, with {separator} between them and no spaces; n is not negative.",
        f": {word} {base} /mod dup if recurse [char] {separator} emit else drop then 0 .r ;",
        f": {word} {base} /mod swap 0 .r dup if [char] {separator} emit recurse else drop then ;",
        printing(
            word,
            lambda n: separator.join(map(str, reversed(digits(n, base)))),
            *((n,) for n in [2 * base + 1, 0, base, base * base + 1, rng.randint(300, 900), rng.randint(1000, 9000)]),
        ),
    )


def weave(rng: random.Random, word: str) -> Draft:
    first, gap = rng.choice([0, 1]), rng.choice("-+_*")

    def woven(one: str, other: str) -> str:
        pair = (other, one) if first else (one, other)
        shown = ""
        for place in range(max(len(one), len(other))):
            shown += "".join(text[place] if place < len(text) else gap for text in pair)
        return shown

    examples = [("abc", "xy"), ("a", "xyz"), ("", "k"), ("forth", "stack"), ("go", ""), ("one", "seven")]
    code = (
        f": {word}-at ( c-addr u i -- ) 2dup > if nip + c@ emit else drop 2drop [char] {gap} emit then ; "
        f": {word} {{{{ a u b v }}}} u v {{order}} 0 ?do {{body}} loop ;"
    )
    ways = [f"a u i {word}-at", f"b v i {word}-at"]
    return Draft(
        (first, gap),
        f"Define {word} ( c-addr1 u1 c-addr2 u2 -- ), which prints two strings woven together, a character of the "
        f"{'second' if first else 'first'} and one of the {'first' if first else 'second'} in turn; the "
        f"shorter one is filled up with {gap}.",
        code.format(order="max", body=" ".join(reversed(ways) if first else ways)),
        code.format(order="min", body=" ".join(reversed(ways) if first else ways)),
        printing(word, woven, *examples),
    )


def sorted_items(rng: random.Random, word: str) -> Draft:
    size = rng.randint(3, 12)
    code = (
        f"create {word}-items 20 cells allot : {word}-at cells {word}-items + ; "
        f": {word} {{{{ n }}}} n 0 ?do i {word}-at ! loop n 0 ?do n 1- i - 0 ?do i {word}-at @ i 1+ {word}-at @ "
        f"over {size} mod over {size} mod {{compare}} if i {word}-at ! i 1+ {word}-at ! else 2drop then loop loop "
        f"n 0 ?do i {word}-at @ . loop ;"
    )
    cases = []
    for count in (3, 1, 4, 5, 6, 0):
        values = [rng.randrange(10) * size + rest for rest in rng.sample(range(size), min(count, size))]
        printed = " ".join(str(value) for value in sorted(values, key=lambda value: value % size))
        cases.append((" ".join([*map(str, values), str(len(values)), word]), printed))
    return Draft(
        (size,),
        f"Define {word} ( x1 ... xn n -- ), which prints n numbers in the order of their remainders by {size}, "
        "the smallest first, with spaces between; no number is negative, no two remainders are the same, and n "
        "may be 0.",
        code.format(compare=">"),
        code.format(compare="<"),
        cases,
    )


FAMILIES: dict[str, tuple[Family, ...]] = {
    "0": (linear, weighted, quadratic, units, packets, shuffle),
    "1": (two_rules, limited, divisible, tariff, graded, wrapped),
    "2": (powers, multiples, sequence, iterated, savings, first_over),
    "3": (digit_sum, backwards, digit_count, pairs, triangle, primes),
    "4": (table, caesar, letters, replaced, gathered, history),
    "5": (recurrence, defining, stairs, shrinking, nested, folded),
    "6": (coins, circle, runs, in_base, weave, sorted_items),
}


def problems() -> Iterator[dict[str, Any]]:
    """Yield the lines of the file; the first case of a problem is the example that its prompt shows."""
    for level, families in FAMILIES.items():
        for family in families:
            name, rng = family.__name__.replace("_", "-"), random.Random(f"forth {family.__name__}")
            known: set[tuple[object, ...]] = set()
            for _ in range(50 * EACH):
                word = f"{name}-{len(known) + 1}"
                draft = family(rng, word)
                if draft.numbers in known:
                    continue
                known.add(draft.numbers)
                example, *tests = dict.fromkeys(draft.cases)
                solutions = {"solution": draft.solution, "wrong": draft.wrong}
                yield {
                    "name": word,
                    "level": level,
                    "task": draft.task,
                    "example": example,
                    "tests": tests,
                    **solutions,
                }
                if len(known) == EACH:
                    break


def written() -> str:
    """The content of the file."""
    return "".join(f"{json.dumps(problem)}\n" for problem in problems())


if __name__ == "__main__":
    RESULT.write_text(written())
