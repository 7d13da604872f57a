"""Families of levels 2 and 3."""

import random

from wm_plugin.worlds.forth.generators.drafts import Draft, Family, digits, numeric, printing, span

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


FAMILIES: dict[str, tuple[Family, ...]] = {
    "2": (powers, multiples, sequence, iterated, savings, first_over),
    "3": (digit_sum, backwards, digit_count, pairs, triangle, primes),
}
