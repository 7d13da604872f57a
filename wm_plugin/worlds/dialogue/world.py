"""The customer desk's plant nursery: its policy, its database, the changes that its tools make, and the requests of customers.

The nursery is our own invention and sends orders by mail. A case depends only on a seed and a level.
"""

import datetime
import random
import sqlite3
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wm_plugin.worlds.kit.described import described

LEVELS = ("standard", "hard")
DAYS = 30  # after delivery, in which an item can come back

_NURSERY = described("dialogue/nursery.yaml")
PRODUCTS: dict[str, list[str]] = _NURSERY["products"]
REQUESTS: dict[str, list[str]] = _NURSERY["requests"]  # kinds, and the reasons for which the policy may forbid them
STATUSES = ("pending", "shipped", "delivered", "cancelled")
TABLES = ("customers", "products", "orders", "items")
ANYONES = ("stranger", "postcode")  # the order is somebody else's; the postcode is wrong


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a customer.

    Attributes:
        kind: a key of `REQUESTS`.
        trap: why the policy forbids it; empty if it does not.
        fact: the amount in cents or the status that the customer has to be told; None: neither.
    """

    kind: str
    order: int
    item: str = ""
    product: str = ""
    address: str = ""
    trap: str = ""
    fact: int | str | None = None


@dataclass(frozen=True)
class Case:
    """A customer, their requests, and the tables of the database on that day."""

    today: str
    name: str
    email: str
    postcode: str  # as the customer says it
    manner: int  # of speaking
    requests: tuple[Request, ...]
    tables: dict[str, list[tuple[Any, ...]]]


@lru_cache(maxsize=256)  # all rollouts of a group start from the same case
def case(seed: int, level: str) -> Case:
    """Return the case of a seed. A standard customer has one request that the policy allows, a hard one also a forbidden one."""
    return _Maker(random.Random(f"{level} {seed}")).case(level)


class _Maker:
    """Draws a case."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.tables = rng, {name: list[tuple[Any, ...]]() for name in TABLES}
        self.today = datetime.date(2031, 1, 1) + datetime.timedelta(days=rng.randrange(365))

    def case(self, level: str) -> Case:
        rng, tables = self.rng, self.tables
        people = zip(*(rng.sample(_NURSERY[part].split(), 6) for part in ("names", "surnames")), strict=True)
        for i, person in enumerate(map(" ".join, people), 1):
            email = person.lower().replace(" ", rng.choice(["", ".", "_"])) + "@example.org"
            tables["customers"].append((i, person, email, str(rng.randint(10000, 99999))))
        names = [(name, kind) for kind, several in PRODUCTS.items() for name in several]
        prices = rng.sample(range(250, 4000, 25), len(names))  # all different
        for i, ((name, kind), price) in enumerate(zip(names, prices, strict=True), 1):
            tables["products"].append((i, name, kind, price, rng.randint(1, 20)))
        numbers = rng.sample(range(1000, 10000), 10)
        for number in numbers[2:]:
            self._order(number, rng.randint(1, 6), rng.choice(STATUSES[:3]))
        caller = rng.randint(1, 6)
        _, name, email, postcode = tables["customers"][caller - 1]
        wishes = [(rng.choice(list(REQUESTS)), "")]
        if level == "hard":
            kind = rng.choice([kind for kind, traps in REQUESTS.items() if traps])
            trap = rng.choice([*REQUESTS[kind], *ANYONES])
            other = rng.choice([one for one in REQUESTS if one != kind])
            wishes = rng.sample([(kind, trap), (other, "")], 2)
            if trap == "postcode":  # it would forbid the other request as well
                wishes, postcode = [(kind, trap)], str(int(postcode) - 1)
        requests = tuple(self._request(number, caller, *wish) for number, wish in zip(numbers, wishes, strict=False))
        return Case(self.today.isoformat(), name, email, postcode, rng.randrange(3), requests, tables)

    def _request(self, number: int, caller: int, kind: str, trap: str) -> Request:
        """Add an order that the request is about, and return the request."""
        rng, tables = self.rng, self.tables
        needed = {"cancel": "pending", "address": "pending", "exchange": "delivered", "refund": "delivered"}
        status = needed.get(kind, rng.choice(STATUSES[:3]))
        owner = caller % 6 + 1 if trap == "stranger" else caller
        days = rng.randint(DAYS + 1, DAYS + 20) if trap == "late" else rng.randint(1, DAYS)
        final_sale = trap == "final sale" if kind == "refund" else None
        self._order(number, owner, "shipped" if trap == "shipped" else status, days, final_sale)
        if kind in ("cancel", "address"):
            return Request(kind, number, address=self._address() if kind == "address" else "", trap=trap)
        items = [item for item in tables["items"] if item[1] == number]
        if kind in ("total", "status"):
            return Request(kind, number, trap=trap, fact=sum(item[3] for item in items) if kind == "total" else status)
        item = rng.choice(items)
        _, name, its_kind, _, _ = tables["products"][item[2] - 1]
        if kind == "refund":
            return Request(kind, number, item=name, trap=trap, fact=None if trap else item[3])
        taken = {one[2] for one in items}
        of_kind = [one for one in tables["products"] if (one[2] != its_kind) == (trap == "other kind")]
        product = rng.choice([one for one in of_kind if one[0] not in taken])
        if trap == "no stock":
            tables["products"][product[0] - 1] = (*product[:4], 0)
        difference = None if trap else product[3] - item[3]
        return Request(kind, number, item=name, product=product[1], trap=trap, fact=difference)

    def _order(self, number: int, owner: int, status: str, days: int = 0, final_sale: bool | None = None) -> None:
        """Add an order, delivered `days` ago if it is delivered; with `final_sale` None each item is drawn to be final or not."""
        rng, tables = self.rng, self.tables
        delivered = self.today - datetime.timedelta(days=days or rng.randint(1, 90))
        day = delivered.isoformat() if status == "delivered" else None
        tables["orders"].append((number, owner, status, day, self._address()))
        for product in rng.sample(tables["products"], rng.randint(1, 3)):
            final = rng.random() < 0.2 if final_sale is None else final_sale
            tables["items"].append((len(tables["items"]) + 1, number, product[0], product[3], int(final), "kept"))

    def _address(self) -> str:
        street, town = (self.rng.choice(_NURSERY[names]) for names in ("streets", "towns"))
        return f"{self.rng.randint(1, 99)} {street}, {town}"


def open_database(of: Case) -> sqlite3.Connection:
    """Open a new database in memory with the case's tables; a host may use it from any thread."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(f"BEGIN; {_NURSERY['schema']}")
    for name, rows in of.tables.items():
        connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.execute("COMMIT")
    return connection


def content(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Return all rows of all tables."""
    return [row for name in TABLES for row in connection.execute(f"SELECT * FROM {name} ORDER BY id")]


def target_content(of: Case) -> list[tuple[Any, ...]]:
    """Return all rows after everything that the policy allows has been done, and nothing else."""
    connection = open_database(of)
    for request in of.requests:
        if not request.trap and request.kind in WRITES:
            fields = {"cancel": [], "address": [request.address], "refund": [request.item]}
            WRITES[request.kind](connection, request.order, *fields.get(request.kind, [request.item, request.product]))
    rows = content(connection)
    connection.close()
    return rows


# The changes that tools make. They check that things exist, not that the policy allows the change. Each returns the answer for
# the agent and whether the change was made.


def cancel(connection: sqlite3.Connection, order: int) -> tuple[str, bool]:
    done = connection.execute("UPDATE orders SET status = 'cancelled' WHERE id = ? AND status <> 'cancelled'", (order,))
    return _outcome(done, f"order {order} is cancelled", f"there is no order {order} that could be cancelled")


def change_address(connection: sqlite3.Connection, order: int, address: str) -> tuple[str, bool]:
    done = connection.execute("UPDATE orders SET address = ? WHERE id = ? AND address <> ?", (address, order, address))
    return _outcome(done, f"order {order} goes to {address}", f"there is no order {order} with another address")


def refund(connection: sqlite3.Connection, order: int, item: str) -> tuple[str, bool]:
    done = connection.execute(
        "UPDATE items SET state = 'refunded' WHERE id = (SELECT items.id FROM items JOIN products ON products.id = product_id"
        " WHERE order_id = ? AND name = ? COLLATE NOCASE AND state <> 'refunded')",
        (order, item),
    )
    return _outcome(done, f"{item} of order {order} is refunded", "there is no such item that could be refunded")


def exchange(connection: sqlite3.Connection, order: int, item: str, product: str) -> tuple[str, bool]:
    query = "SELECT id, price FROM products WHERE name = ? COLLATE NOCASE AND stock > 0"
    new = connection.execute(query, (product,)).fetchone()
    if new is None:
        return "Error: there is no such product in stock.", False
    done = connection.execute(
        "UPDATE items SET product_id = ?, price = ?, state = 'exchanged' WHERE id = (SELECT items.id FROM items"
        " JOIN products ON products.id = product_id WHERE order_id = ? AND name = ? COLLATE NOCASE AND state = 'kept'"
        " AND product_id <> ?)",
        (*new, order, item, new[0]),
    )
    if done.rowcount:
        connection.execute("UPDATE products SET stock = stock - 1 WHERE id = ?", (new[0],))
    return _outcome(done, f"{item} of order {order} is exchanged for {product}", "there is no such item to exchange")


WRITES: dict[str, Any] = {"cancel": cancel, "address": change_address, "exchange": exchange, "refund": refund}


def _outcome(done: sqlite3.Cursor, text: str, otherwise: str) -> tuple[str, bool]:
    return (f"Done: {text}.", True) if done.rowcount else (f"Error: {otherwise}.", False)


def money(cents: int) -> str:
    return f"{cents / 100:.2f}"
