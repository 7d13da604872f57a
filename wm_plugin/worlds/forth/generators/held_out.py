"""Families of level 6, which is held out: several things at once. None is a family of another level with other numbers."""

import random

from wm_plugin.worlds.forth.generators.drafts import Draft, Family, digits, numeric, printing, span, texts


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
    "6": (coins, circle, runs, in_base, weave, sorted_items),
}
