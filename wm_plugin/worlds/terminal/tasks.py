"""Tasks of the terminal, from seeds: `tasks.yaml` has their texts and commands, and here are the values and what a check expects.

A function for each kind draws the files and the values between @. What it expects it computes itself, not by the commands of the
reference solution. A task of level hard-2 is two tasks of different families, in the folders one and two.
"""

import fnmatch
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from wm_plugin.errors import UserError, shown
from wm_plugin.worlds.kit.described import described
from wm_plugin.worlds.kit.rows import unknown
from wm_plugin.worlds.kit.shell import HOME, Entry

UNSEEN = ("archives", "builds")  # families that only held-out rows have
_FOLDERS = ("one", "two")
Files = dict[str, str | Entry]
Values = dict[str, Any]
_DRAWS: dict[str, Callable[[random.Random], tuple[Files, Values]]] = {}


class Kind(NamedTuple):
    """A kind of tasks, as `tasks.yaml` describes it."""

    family: str
    level: str
    text: str
    solution: list[str]
    wrong: list[str]
    checks: list[list[str]]
    changes: list[str]
    setup: tuple[str, ...] = ()


class Task(NamedTuple):
    """A task. Its checks are commands and what they print; `changes` are patterns of the files that may differ in the end."""

    text: str
    files: Files
    setup: list[str]
    solution: list[str]
    wrong: list[str]
    checks: list[tuple[str, str]]
    changes: list[str]

    def kept(self) -> dict[str, str | Entry]:
        """The files that must be as they were."""
        return {
            path: content
            for path, content in self.files.items()
            if not any(fnmatch.fnmatchcase(path, pattern) for pattern in self.changes)
        }


@cache
def kinds() -> dict[str, Kind]:
    """Return the kinds by name."""
    families = {name: members for name, members in described("terminal/tasks.yaml").items() if name != "words"}
    return {name: Kind(family, **of) for family, members in families.items() for name, of in members.items()}


def make(kind: str, seed: int) -> Task:
    """Make the task of a kind, or of two joined by "+", from a seed.

    Raises:
        UserError: there is no such kind.
    """
    if not isinstance(kind, str):
        raise UserError(f"terminal's column `task` is {shown(kind)}; write the name of a kind")
    names = kind.split("+")
    if len(names) > 2 or any(name not in _DRAWS for name in names):
        wrong = next((name for name in names if name not in _DRAWS), kind)
        raise UserError(f"terminal's column `task` is {unknown(wrong, _DRAWS)}")
    if len(names) == 1:
        return _make(names[0], seed, "")
    one, two = (_make(name, seed, f"{folder}/") for name, folder in zip(names, _FOLDERS, strict=True))
    texts = [
        f"{n}. In the folder {folder}: {task.text}"
        for n, folder, task in zip((1, 2), _FOLDERS, (one, two), strict=True)
    ]
    return Task(
        "\n".join(texts), one.files | two.files, *(getattr(one, name) + getattr(two, name) for name in Task._fields[2:])
    )


def _make(name: str, seed: int, folder: str) -> Task:
    kind = kinds()[name]
    files, values = _DRAWS[name](random.Random(f"{name}/{seed}"))

    def fill(text: str) -> str:
        for key, value in values.items():
            text = text.replace(f"@{key}@", str(value))
        return text

    def here(command: str) -> str:
        return f"cd {HOME}/{folder}\n{fill(command)}"

    enter = [f"cd ~/{folder}"] if folder else []
    return Task(
        fill(kind.text),
        {folder + path: content for path, content in files.items()},
        [here(command) for command in kind.setup],
        enter + [fill(command) for command in kind.solution],
        enter + [fill(command) for command in kind.wrong],
        [(here(command), fill(expected)) for command, expected in kind.checks],
        [folder + fill(pattern) for pattern in kind.changes],
    )


# -- values ----------------------------------------------------------------------------------------------------------------


def _kind(draw: Callable[[random.Random], tuple[Files, Values]]) -> Callable[[random.Random], tuple[Files, Values]]:
    _DRAWS[draw.__name__.strip("_")] = draw
    return draw


def _some(rng: random.Random, what: str, count: int) -> list[str]:
    return rng.sample(described("terminal/tasks.yaml")["words"][what], count)


def _lines(lines: Iterable[Any]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _sentence(rng: random.Random) -> str:
    return f"{_some(rng, 'names', 1)[0]} {_some(rng, 'verbs', 1)[0]} the {_some(rng, 'nouns', 1)[0]}"


def _text(rng: random.Random, count: int) -> str:
    return _lines(_sentence(rng) for _ in range(count))


def _joined(lines: Iterable[Any]) -> str:
    return _lines(lines).rstrip("\n")


def _named(rng: random.Random, count: int, endings: tuple[str, ...]) -> dict[str, str]:
    """Draw files: contents by name."""
    return {f"{noun}.{rng.choice(endings)}": _text(rng, rng.randint(1, 4)) for noun in _some(rng, "nouns", count)}


def _in(folder: str, files: Mapping[str, str]) -> Files:
    return {f"{folder}/{name}": content for name, content in files.items()}


@_kind
def by_ending(rng: random.Random) -> tuple[Files, Values]:
    folder, *names = _some(rng, "nouns", 8)
    files = {f"{name}.{rng.choice(('csv', 'log'))}": _text(rng, 1) for name in names} | {"notes.txt": _text(rng, 1)}
    moved = _joined(sorted(f"{name.split('.')[1]}/{name}" for name in files))
    return _in(folder, files), {"folder": folder, "moved": moved}


@_kind
def modes(rng: random.Random) -> tuple[Files, Values]:
    folder, *names = _some(rng, "nouns", 7)
    runs = [True, False, *(rng.random() < 0.5 for _ in names[2:])]
    starts = ("#!/bin/sh\n", "#!/usr/bin/env bash\n"), ("# no script\n", "text\n#!/bin/sh\n")
    files: Files = {
        f"{folder}/{name}": Entry(
            "file", rng.choice((0o600, 0o644, 0o755)), (rng.choice(starts[not run]) + "x\n").encode()
        )
        for name, run in zip(names, runs, strict=True)
    }
    modes = _joined(f"{755 if run else 640} {name}" for name, run in sorted(zip(names, runs, strict=True)))
    return files, {"folder": folder, "modes": modes}


@_kind
def too_large(rng: random.Random) -> tuple[Files, Values]:
    folder, *names = _some(rng, "nouns", 8)
    size = rng.randint(30, 90)
    sizes = [size - 1, size, size + 1, *(rng.randint(5, 2 * size) for _ in names[3:])]
    files = {f"{name}.dat": "x" * count for name, count in zip(names, sizes, strict=True)}
    kept = sorted(name for name, content in files.items() if len(content) <= size)
    values = {"kept": _joined(kept), "bytes": sum(len(files[name]) for name in kept)}
    return _in(folder, files), {"folder": folder, "size": size, **values}


@_kind
def spaces(rng: random.Random) -> tuple[Files, Values]:
    folder, *nouns = _some(rng, "nouns", 8)
    pairs, all_names = list(pairwise(nouns)), {}
    for one, two in pairs:
        number = rng.randint(1, 99)
        all_names[f"{one.title()} {two.upper()} {number}.txt"] = f"{one}-{two}-{number:03d}.txt"
    files = {old: f"{old}\n" for old in all_names}
    example = next(iter(all_names))
    by_new = {new: old for old, new in all_names.items()}
    values = {"all": _joined(sorted(by_new)), "contents": _joined(by_new[new] for new in sorted(by_new))}
    return _in(folder, files), {"folder": folder, "example": example, "renamed": all_names[example], **values}


@_kind
def dead_links(rng: random.Random) -> tuple[Files, Values]:
    folder, *names = _some(rng, "nouns", 9)
    files: Files = {f"{folder}/{name}.txt": _text(rng, 1) for name in names[:3]}
    good = {f"{folder}/deep/{name}": f"../{names[0]}.txt" for name in names[3:5]}
    dead = {f"{folder}/{name}": f"{name}.txt" for name in names[5:]}
    files |= {path: Entry("link", 0o777, target.encode()) for path, target in (good | dead).items()}
    tree = [folder, f"{folder}/deep", *(path for path in files if path not in dead)]
    return files, {"folder": folder, "tree": _joined(sorted(tree)), "left": len(good)}


@_kind
def replace(rng: random.Random) -> tuple[Files, Values]:
    folder, old, new, *names = _some(rng, "nouns", 7)
    bodies = {
        f"{folder}/{place}": "".join(
            f"{_sentence(rng)} {rng.choice((old, f'{old}s', 'nothing', f'un{old}', old))}\n" for _ in range(4)
        )
        + f"one {old}, more {old}s\n"
        for place in (f"{names[0]}.txt", f"deep/{names[1]}.txt", f"{names[2]}.md")
    }
    after = {
        path: "\n".join(" ".join(new + word[len(old) :] if word.strip(",.") == old else word for word in line.split(" "))
                        for line in body.split("\n"))
        for path, body in bodies.items()
    }  # fmt: skip
    text = "".join(after[path] for path in sorted(after) if path.endswith(".txt")).rstrip("\n")
    return dict(bodies), {"folder": folder, "old": old, "new": new, "after": text}


@_kind
def frequent(rng: random.Random) -> tuple[Files, Values]:
    file, *words = _some(rng, "nouns", 9)
    counts = rng.sample(range(8, 16), 3) + [rng.randint(1, 5) for _ in words[3:]]
    all_words = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
    rng.shuffle(all_words)
    text = _lines(" ".join(all_words[place : place + 7]) for place in range(0, len(all_words), 7))
    top = [word for word, _ in Counter(all_words).most_common(3)]
    return {f"{file}.txt": text}, {"file": f"{file}.txt", "top": _joined(top)}


@_kind
def union(rng: random.Random) -> tuple[Files, Values]:
    folder, *names = _some(rng, "nouns", 5)
    lists = {f"{name}.list": [*_some(rng, "names", rng.randint(3, 7)), ""] for name in names[:3]}
    files = {name: _lines(lines) for name, lines in lists.items()} | {f"{names[3]}.txt": _lines(["zoe", "ann"])}
    every = sorted({line for lines in lists.values() for line in lines if line})
    return _in(folder, files), {"folder": folder, "union": _joined(every)}


@_kind
def sections(rng: random.Random) -> tuple[Files, Values]:
    file, *names = _some(rng, "nouns", 5)
    bodies = {name: [_sentence(rng) for _ in range(rng.randint(1, 3))] for name in names}
    text = "".join(f"[{name}]\n{_lines(lines)}" for name, lines in bodies.items())
    split = "".join(f"== {name}.txt\n{_lines(bodies[name])}" for name in sorted(bodies)).rstrip("\n")
    return {f"{file}.conf": text}, {"file": f"{file}.conf", "first": names[0], "split": split}


def _requests(rng: random.Random, count: int) -> list[tuple[str, str, str, str, int]]:
    """Lines of an access.log: time, client, method, path, status."""
    seconds = sorted(rng.sample(range(6 * 3600, 20 * 3600), count))
    clients = [f"10.0.{rng.randint(0, 9)}.{rng.randint(1, 99)}" for _ in range(5)]
    paths = _some(rng, "paths", 5)
    return [
        (
            f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}",
            rng.choice(clients),
            rng.choice(("GET", "GET", "POST")),
            rng.choice(paths),
            rng.choice((200, 200, 200, 404, 500, 503)),
        )
        for second in seconds
    ]


def _access(requests: list[tuple[str, str, str, str, int]]) -> Files:
    return {"access.log": _lines(" ".join(map(str, one)) for one in requests)}


@_kind
def by_path(rng: random.Random) -> tuple[Files, Values]:
    requests = _requests(rng, rng.randint(30, 60))
    status = rng.choice(sorted({one[4] for one in requests} - {200}))
    counts = Counter(one[3] for one in requests if one[4] == status)
    return _access(requests), {"status": status, "counts": _joined(f"{counts[path]} {path}" for path in sorted(counts))}


@_kind
def window(rng: random.Random) -> tuple[Files, Values]:
    seconds = sorted(rng.sample(range(6 * 3600, 20 * 3600), 25))
    lines = [
        f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d} {_some(rng, 'services', 1)[0]}: {_sentence(rng)}"
        for second in seconds
    ]
    first = rng.randint(4, 10)
    part = lines[first : first + rng.randint(4, 9)]
    values = {"begin": part[0][:8], "end": part[-1][:8], "window": _joined(part)}
    return {"events.log": _lines(lines)}, {"file": "events.log", **values}


@_kind
def busiest(rng: random.Random) -> tuple[Files, Values]:
    while True:
        requests = _requests(rng, rng.randint(30, 60))
        (client, most), (_, second) = Counter(one[1] for one in requests).most_common(2)
        if most > second and client != requests[0][1]:
            return _access(requests), {"client": client}


@_kind
def slowest(rng: random.Random) -> tuple[Files, Values]:
    services = _some(rng, "services", 4)
    values = rng.sample(range(10, 990), 20)
    times = [(rng.choice(services), value) for value in values]
    lines = [f"09:{place:02d} {service} took {value}ms" for place, (service, value) in enumerate(times)]
    lines[3:3] = [f"09:03 {services[0]} failed after 999ms", f"09:03 {services[1]} restarted"]
    largest: dict[str, int] = {}
    for service, value in times:
        largest[service] = max(value, largest.get(service, 0))
    slow = sorted(largest, key=lambda service: -largest[service])
    return {"times.log": _lines(lines)}, {
        "file": "times.log",
        "slow": _joined(f"{service} {largest[service]}" for service in slow),
    }


def _sales(rng: random.Random) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns of a table of sales, in any order, and its rows."""
    columns, towns = rng.sample(["name", "town", "amount", "day"], 4), _some(rng, "towns", 3)
    rows = [
        {"name": name, "town": rng.choice(towns), "amount": rng.randint(1, 99), "day": rng.randint(1, 28)}
        for name in _some(rng, "names", rng.randint(8, 14))
    ]
    return columns, rows


def _csv(columns: list[str], rows: Iterable[Mapping[str, Any]]) -> str:
    return _lines([",".join(columns), *(",".join(str(row[column]) for column in columns) for row in rows)])


def _places(columns: list[str]) -> Values:
    return {column: place for place, column in enumerate(columns, 1)} | {"header": ", ".join(columns)}


@_kind
def totals(rng: random.Random) -> tuple[Files, Values]:
    columns, rows = _sales(rng)
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row["town"]] += row["amount"]
    totals = _joined(["town,total", *(f"{town},{sums[town]}" for town in sorted(sums))])
    return {"sales.csv": _csv(columns, rows)}, {**_places(columns), "totals": totals}


@_kind
def select(rng: random.Random) -> tuple[Files, Values]:
    columns, rows = _sales(rng)
    where = rng.choice(rows)["town"]
    selected = _csv(["name", "amount"], [row for row in rows if row["town"] == where]).rstrip("\n")
    return {"sales.csv": _csv(columns, rows)}, {**_places(columns), "where": where, "selected": selected}


@_kind
def setting(rng: random.Random) -> tuple[Files, Values]:
    services = _some(rng, "services", 4)
    ports = rng.sample(range(2000, 9000), 5)
    chosen, port = rng.choice(services), ports.pop()

    def config(of: Mapping[str, int]) -> str:
        lines = [f'  "{name}": {{"port": {number}, "workers": {len(name)}}}' for name, number in of.items()]
        return "{\n" + ",\n".join(lines) + "\n}"

    before = dict(zip(services, ports, strict=True))
    values = {"service": chosen, "port": port, "config": config(before | {chosen: port})}
    return {"config.json": config(before) + "\n"}, values


@_kind
def from_json(rng: random.Random) -> tuple[Files, Values]:
    names = _some(rng, "names", rng.randint(5, 9))
    people = [
        {"name": name, "age": age, "town": rng.choice(_some(rng, "towns", 4))}
        for name, age in zip(names, rng.sample(range(18, 90), len(names)), strict=True)
    ]
    orders = [rng.sample(["name", "age", "town"], 3) for _ in people]
    lines = [json.dumps({key: one[key] for key in order}) for one, order in zip(people, orders, strict=True)]
    table = _csv(["name", "town", "age"], sorted(people, key=lambda one: int(one["age"]))).rstrip("\n")
    return {"people.jsonl": _lines(lines)}, {"people": table}


@_kind
def join(rng: random.Random) -> tuple[Files, Values]:
    names, ids = _some(rng, "names", 6), rng.sample(range(100, 999), 8)
    people = dict(zip(ids, names, strict=False))
    orders = [(rng.choice(ids), noun) for noun in _some(rng, "nouns", 12)] + [(ids[-1], "globe"), (ids[0], "lamp")]
    files = {
        "people.csv": _lines(["id,name", *(f"{number},{name}" for number, name in people.items())]),
        "orders.csv": _lines(["id,item", *(f"{number},{item}" for number, item in orders)]),
    }
    return dict(files), {"report": _joined(f"{people[number]} {item}" for number, item in orders if number in people)}


@_kind
def pack(rng: random.Random) -> tuple[Files, Values]:
    folder, *names = _some(rng, "nouns", 8)
    files = {
        f"{folder}/{'deep/' * rng.randint(0, 1)}{name}.{ending}": _text(rng, 2)
        for name, ending in zip(names, ("txt", "tmp", "csv", "tmp", "txt", "md", "md"), strict=True)
    }
    packed = sorted(path for path in files if not path.endswith(".tmp"))
    one = rng.choice(packed)
    return dict(files), {"folder": folder, "packed": _joined(packed), "one": one, "content": files[one].rstrip("\n")}


@_kind
def one_file(rng: random.Random) -> tuple[Files, Values]:
    folder, *names = _some(rng, "nouns", 7)
    files = {f"{folder}/{rng.choice('abc')}/{name}.txt": _text(rng, 2) for name in names}
    path = rng.choice(sorted(files))
    values = {"path": path, "name": path.rpartition("/")[2], "content": files[path].rstrip("\n")}
    return dict(files), {"folder": folder, **values}


@_kind
def gunzip(rng: random.Random) -> tuple[Files, Values]:
    names = [f"part-{number:02d}.log" for number in sorted(rng.sample(range(1, 40), rng.randint(3, 6)))]
    files = {name: _text(rng, rng.randint(1, 3)) for name in names}
    return _in("logs", files), {
        "all": "".join(files.values()).rstrip("\n"),
        "names": _joined(f"{name}.gz" for name in names),
    }


@_kind
def nested(rng: random.Random) -> tuple[Files, Values]:
    folder, *names = _some(rng, "nouns", 6)
    key = f"{rng.choice(names)}-{rng.randint(100, 999)}"
    files = {f"{folder}/{name}.txt": _text(rng, 3) for name in names}
    chosen = rng.choice(sorted(files))
    files[chosen] += f"key: {key}\n" + _text(rng, 1)
    return {**files, "other.txt": "a key: is not here\n"}, {"folder": folder, "key": key}


@_kind
def quotes(rng: random.Random) -> tuple[Files, Values]:
    one, two, plain = _some(rng, "nouns", 3)
    count = rng.randint(2, 9)
    script = "#!/bin/bash\nfor f in $@; do\n  echo $(wc -l < $f) $f\ndone\n"
    return {"lines.sh": script, f"{plain}.txt": _text(rng, count)}, {
        "spaced": f"{one} {two}.txt",
        "plain": f"{plain}.txt",
        "count": count,
    }


@_kind
def off_by_one(rng: random.Random) -> tuple[Files, Values]:
    low, n, m = rng.randint(1, 5), rng.randint(6, 12), rng.randint(20, 60)
    script = f"#!/bin/bash\ntotal=0\nfor ((i = {low}; i < $1; i++)); do\n  total=$((total + i))\ndone\necho $total\n"
    sums = {f"sum_{name}": sum(range(low, value + 1)) for name, value in (("n", n), ("m", m))}
    return {"sum.sh": script}, {"low": low, "n": n, "m": m, **sums}


@_kind
def exit_code(rng: random.Random) -> tuple[Files, Values]:
    names = _some(rng, "names", 6)
    lines = [f"{name} {rng.randint(1000, 1999)}" for name in names[:-1]]
    script = '#!/bin/bash\nfor line in "$1"; do\n  grep "^$line " users.txt\ndone\nexit 0\n'
    values = {"there": names[0], "line": lines[0], "absent": names[-1], "code": rng.randint(2, 9)}
    return {"users.txt": _lines(lines), "find_user.sh": script}, values


@_kind
def defaults(rng: random.Random) -> tuple[Files, Values]:
    return {}, {"greeting": rng.choice(["Hello", "Welcome", "Good day"]), "name": _some(rng, "names", 1)[0]}


@_kind
def tabs(rng: random.Random) -> tuple[Files, Values]:
    target, *parts = _some(rng, "nouns", 4)
    files = {f"{part}.part": _text(rng, 1) for part in parts}
    makefile = f"{target}: {' '.join(files)}\n    cat $^ > $@\n"
    return {**files, "Makefile": makefile}, {"target": target, "built": "".join(files.values()).rstrip("\n")}


@_kind
def prerequisite(rng: random.Random) -> tuple[Files, Values]:
    target, *parts = _some(rng, "nouns", 4)
    files, forgotten = {f"{part}.part": _text(rng, 1) for part in parts}, rng.choice(parts)
    all_parts = " ".join(files)
    given = " ".join(name for name in files if name != f"{forgotten}.part")
    more = _sentence(rng)
    built = "".join(body + (f"{more}\n" if name == f"{forgotten}.part" else "") for name, body in files.items())
    values = {"part": forgotten, "parts": all_parts, "more": more, "built": built.rstrip("\n")}
    return {**files, "Makefile": f"{target}: {given}\n\tcat {all_parts} > $@\n"}, {"target": target, **values}


@_kind
def pattern_rule(rng: random.Random) -> tuple[Files, Values]:
    more, *names = _some(rng, "nouns", 4)
    files = {f"{name}.txt": _text(rng, 2) for name in names}
    upper = "".join(files[name] for name in sorted(files)).upper().rstrip("\n")
    return _in("src", files), {"upper": upper, "more": more, "loud": more.upper()}


@_kind
def first_commit(rng: random.Random) -> tuple[Files, Values]:
    folder, *names = _some(rng, "nouns", 6)
    files = {
        f"{name}.{ending}": _text(rng, 1)
        for name, ending in zip(names, ("txt", "tmp", "md", "tmp", "csv"), strict=True)
    }
    tracked = sorted(name for name in files if not name.endswith(".tmp"))
    return _in(folder, files), {"folder": folder, "message": f"add the {names[0]}", "tracked": _joined(tracked)}


@_kind
def restore(rng: random.Random) -> tuple[Files, Values]:
    folder, *_ = _some(rng, "nouns", 1)
    files = _named(rng, 4, ("txt", "md"))
    file = rng.choice(sorted(files))
    return _in(folder, files), {"folder": folder, "file": file, "content": files[file].rstrip("\n")}


@_kind
def which_commit(rng: random.Random) -> tuple[Files, Values]:
    folder, file, word, *others = _some(rng, "nouns", 9)
    subjects = [f"{rng.choice(('note', 'add', 'mention'))} part {place}" for place in rng.sample(range(10, 99), 5)]
    when = rng.randrange(4)
    commits = [
        f"echo the {word if place == when else others[place]} >> {file} && git add . && git commit -q -m '{subject}'"
        for place, subject in enumerate(subjects)
    ]
    return {f"{folder}/{file}": "the first line\n"}, {
        "folder": folder,
        "file": file,
        "word": word,
        "commits": " && ".join(commits),
        "subject": subjects[when],
    }


@_kind
def merge(rng: random.Random) -> tuple[Files, Values]:
    folder, file, branch = _some(rng, "nouns", 3)
    ours, theirs, body = _sentence(rng), _sentence(rng), _text(rng, 2)
    branches = _joined(sorted([branch, "main"]))
    return {f"{folder}/{file}.txt": body}, {
        "folder": folder,
        "file": f"{file}.txt",
        "branch": branch,
        "ours": ours,
        "theirs": theirs,
        "merged": f"{body}{ours}\n{theirs}",
        "merged_branches": branches,
    }
