"""Families of levels 4 and 5."""

import operator
import random
from collections.abc import Callable

from wm_plugin.worlds.forth.generators.drafts import (
    TESTS,
    Draft,
    Family,
    numeric,
    one_too_many,
    printing,
    span,
    texts,
)

# 4: memory and strings

TEXTS = [
    "forth",
    "stack and heap",
    "banana bread",
    "a quick test",
    "level seven",
    "zebra",
    "one two three",
    "mississippi",
]
TEXTS += [
    "under the sea",
    "programming",
    "quiet evening",
    "xyz",
    "hello there",
    "abracadabra",
    "apple pie",
    "over and over",
]


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


FAMILIES: dict[str, tuple[Family, ...]] = {
    "4": (table, caesar, letters, replaced, gathered, history),
    "5": (recurrence, defining, stairs, shrinking, nested, folded),
}
