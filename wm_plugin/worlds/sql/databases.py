"""The databases of the harder levels: a library, a cinema and a bank, with questions over joins and with changes to make.

Triggers keep columns in step and write logs; entries of a log cannot be removed.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

CITIES = "Bergen Gdansk Lyon Porto Turku Zagreb"
PEOPLE = """Ada Amir Anouk Bela Bruno Carla Chidi Dana Diego Edda Emil Farah Fumi Gita Goran Hana Hugo Ines Ivan Jana Jonas
Kaya Kofi Lena Luca Mara Milo Nadia Nils Olga Omar Paula Pavel Quinn Rosa Ruben Sana Sven Tara Theo Uma Vera Yusuf Zoe"""
ADJECTIVES = "Blue Cold Distant Early Empty Golden Hidden Last Long Quiet Red Second Silver Small White"
NOUNS = "Bridge Garden Harbour Island Journey Lantern Letter Mirror Mountain River Station Street Summer Tower Winter"


class Database(NamedTuple):
    """A schema, its rows and its tasks.

    `fill` makes the rows of each table in order. `picks` are queries for the values that a task may name. A question is a text
    and the query whose single value answers it; a change is a text and the statements that make it.
    """

    schema: str
    triggers: str
    fill: Callable[[random.Random], dict[str, list[tuple[Any, ...]]]]
    picks: Mapping[str, str]
    questions: list[tuple[str, str]]
    changes: list[tuple[str, list[str]]]


def day(rng: random.Random) -> str:
    return f"202{rng.randint(1, 4)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _titles(rng: random.Random, count: int) -> list[str]:
    names = [f"{adjective} {noun}" for adjective in ADJECTIVES.split() for noun in NOUNS.split()]
    return rng.sample(names, count)


def _best(name: str, measure: str, source: str) -> str:
    """A query for the `name` with the largest `measure`; two rows if it is tied."""
    ranked = f"SELECT {name} AS name, rank() OVER (ORDER BY {measure} DESC) AS place FROM {source}"
    return f"SELECT name FROM ({ranked}) WHERE place = 1"


def _append_only(log: str) -> str:
    stop = "BEGIN SELECT RAISE(ABORT, 'the log cannot be changed'); END;"
    return f"""CREATE TRIGGER keep_{log} BEFORE DELETE ON {log} {stop}
CREATE TRIGGER freeze_{log} BEFORE UPDATE ON {log} {stop}
"""


def _fill_library(rng: random.Random) -> dict[str, list[tuple[Any, ...]]]:
    authors = rng.sample(PEOPLE.split(), 5)
    members = [
        (i, name, rng.choice(CITIES.split()[:4]))
        for i, name in enumerate(rng.sample(PEOPLE.split(), rng.randint(9, 13)), 1)
    ]
    books = [(i, title, rng.choice(authors), rng.randint(0, 4)) for i, title in enumerate(_titles(rng, 12), 1)]
    loans = [
        (i, rng.randint(1, 12), rng.randint(1, len(members)), day(rng), day(rng) if rng.random() < 0.6 else None)
        for i in range(1, rng.randint(24, 36))
    ]
    fines = [
        (i, rng.randint(1, len(members)), rng.randint(1, 30), rng.randint(0, 1)) for i in range(1, rng.randint(12, 18))
    ]
    return {"members": members, "books": books, "loans": loans, "fines": fines}


LIBRARY = Database(
    """
CREATE TABLE members (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, city TEXT NOT NULL);
CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT NOT NULL UNIQUE, author TEXT NOT NULL, \
copies INTEGER NOT NULL CHECK (copies >= 0));
CREATE TABLE loans (id INTEGER PRIMARY KEY, book_id INTEGER NOT NULL REFERENCES books (id), \
member_id INTEGER NOT NULL REFERENCES members (id), lent_on TEXT NOT NULL, returned_on TEXT);
CREATE TABLE fines (id INTEGER PRIMARY KEY, member_id INTEGER NOT NULL REFERENCES members (id), \
amount INTEGER NOT NULL CHECK (amount > 0), paid INTEGER NOT NULL CHECK (paid IN (0, 1)));
CREATE TABLE loan_log (id INTEGER PRIMARY KEY, book_id INTEGER NOT NULL, what TEXT NOT NULL);
""",
    """
CREATE TRIGGER lend AFTER INSERT ON loans BEGIN \
UPDATE books SET copies = copies - 1 WHERE id = new.book_id; \
INSERT INTO loan_log (book_id, what) VALUES (new.book_id, 'lent'); END;
CREATE TRIGGER take_back AFTER UPDATE OF returned_on ON loans WHEN old.returned_on IS NULL AND new.returned_on IS NOT NULL BEGIN \
UPDATE books SET copies = copies + 1 WHERE id = new.book_id; \
INSERT INTO loan_log (book_id, what) VALUES (new.book_id, 'returned'); END;
"""
    + _append_only("loan_log"),
    _fill_library,
    {
        "member": "SELECT name FROM members ORDER BY id",
        "city": "SELECT DISTINCT city FROM members ORDER BY city",
        "title": "SELECT title FROM books ORDER BY id",
        "author": "SELECT DISTINCT author FROM books ORDER BY author",
    },
    [
        (
            "Which member has borrowed books by the largest number of different authors?",
            _best(
                "m.name",
                "count(DISTINCT author)",
                "members m JOIN loans l ON l.member_id = m.id JOIN books b ON b.id = l.book_id GROUP BY m.id",
            ),
        ),
        (
            "How many books were never borrowed by anyone from {city}?",
            "SELECT count(*) FROM books WHERE id NOT IN"
            " (SELECT book_id FROM loans l JOIN members m ON m.id = l.member_id WHERE city = :city)",
        ),
        (
            "What do the unpaid fines of those members add up to who have not returned some book yet?",
            "SELECT sum(amount) FROM fines WHERE paid = 0"
            " AND member_id IN (SELECT member_id FROM loans WHERE returned_on IS NULL)",
        ),
        (
            "Which author's books were lent most often?",
            _best("author", "count(*)", "loans l JOIN books b ON b.id = l.book_id GROUP BY author"),
        ),
        (
            "How many members have borrowed at least three books in all, and one by {author} among them?",
            "SELECT count(*) FROM members m WHERE (SELECT count(*) FROM loans WHERE member_id = m.id) >= 3 AND EXISTS"
            " (SELECT 1 FROM loans l JOIN books b ON b.id = l.book_id WHERE member_id = m.id AND author = :author)",
        ),
        (
            "In which city do the members live who together owe the largest sum of unpaid fines?",
            _best("city", "sum(amount)", "fines f JOIN members m ON m.id = f.member_id WHERE paid = 0 GROUP BY city"),
        ),
    ],
    [
        (
            "{member} brings back every book not returned yet on {day}.",
            [
                "UPDATE loans SET returned_on = :day WHERE returned_on IS NULL"
                " AND member_id = (SELECT id FROM members WHERE name = :member)"
            ],
        ),
        (
            "{member} borrows {title} on {day}; the loan's id is the largest one so far plus 1.",
            [
                "INSERT INTO loans SELECT (SELECT max(id) + 1 FROM loans), b.id, m.id, :day, NULL FROM books b, members m"
                " WHERE title = :title AND name = :member"
            ],
        ),
        (
            "Remove the member {member} and all their loans and fines; what they have not returned stays lost.",
            [
                "DELETE FROM fines WHERE member_id = (SELECT id FROM members WHERE name = :member)",
                "DELETE FROM loans WHERE member_id = (SELECT id FROM members WHERE name = :member)",
                "DELETE FROM members WHERE name = :member",
            ],
        ),
        (
            "Every unpaid fine of members from {city} is paid now, and every book by {author} gets one copy more.",
            [
                "UPDATE fines SET paid = 1 WHERE paid = 0 AND member_id IN (SELECT id FROM members WHERE city = :city)",
                "UPDATE books SET copies = copies + 1 WHERE author = :author",
            ],
        ),
    ],
)


def _fill_cinema(rng: random.Random) -> dict[str, list[tuple[Any, ...]]]:
    halls = [
        (i, name, seats) for i, (name, seats) in enumerate(zip("ABCD", rng.sample(range(40, 90), 4), strict=True), 1)
    ]
    genres = ["comedy", "crime", "drama", "history"]
    films = [(i, title, rng.choice(genres), rng.randint(75, 190)) for i, title in enumerate(_titles(rng, 8), 1)]
    screenings = [
        (i, rng.randint(1, 8), rng.randint(1, 4), day(rng), rng.randint(5, 15), 0)
        for i in range(1, rng.randint(16, 24))
    ]
    buyers = rng.sample(PEOPLE.split(), 9)
    tickets = [
        (i, rng.randint(1, len(screenings)), rng.choice(buyers), rng.randint(1, 6))
        for i in range(1, rng.randint(30, 44))
    ]
    sold = {place: sum(count for _, screening, _, count in tickets if screening == place) for place, *_ in screenings}
    screenings = [(*screening[:5], sold[screening[0]]) for screening in screenings]
    return {"halls": halls, "films": films, "screenings": screenings, "tickets": tickets}


CINEMA = Database(
    """
CREATE TABLE halls (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, seats INTEGER NOT NULL CHECK (seats > 0));
CREATE TABLE films (id INTEGER PRIMARY KEY, title TEXT NOT NULL UNIQUE, genre TEXT NOT NULL, \
minutes INTEGER NOT NULL CHECK (minutes > 0));
CREATE TABLE screenings (id INTEGER PRIMARY KEY, film_id INTEGER NOT NULL REFERENCES films (id), \
hall_id INTEGER NOT NULL REFERENCES halls (id), day TEXT NOT NULL, price INTEGER NOT NULL CHECK (price BETWEEN 1 AND 40), \
sold INTEGER NOT NULL CHECK (sold >= 0));
CREATE TABLE tickets (id INTEGER PRIMARY KEY, screening_id INTEGER NOT NULL REFERENCES screenings (id), buyer TEXT NOT NULL, \
seats INTEGER NOT NULL CHECK (seats > 0));
CREATE TABLE price_log (id INTEGER PRIMARY KEY, screening_id INTEGER NOT NULL, old_price INTEGER, new_price INTEGER);
""",
    """
CREATE TRIGGER fit BEFORE INSERT ON tickets WHEN new.seats + (SELECT sold FROM screenings WHERE id = new.screening_id) > \
(SELECT seats FROM halls h JOIN screenings s ON s.hall_id = h.id WHERE s.id = new.screening_id) BEGIN \
SELECT RAISE(ABORT, 'not enough seats are left'); END;
CREATE TRIGGER sell AFTER INSERT ON tickets BEGIN \
UPDATE screenings SET sold = sold + new.seats WHERE id = new.screening_id; END;
CREATE TRIGGER refund AFTER DELETE ON tickets BEGIN \
UPDATE screenings SET sold = sold - old.seats WHERE id = old.screening_id; END;
CREATE TRIGGER log_price AFTER UPDATE OF price ON screenings WHEN new.price <> old.price BEGIN \
INSERT INTO price_log (screening_id, old_price, new_price) VALUES (new.id, old.price, new.price); END;
"""
    + _append_only("price_log"),
    _fill_cinema,
    {
        "film": "SELECT title FROM films ORDER BY id",
        "genre": "SELECT DISTINCT genre FROM films ORDER BY genre",
        "hall": "SELECT name FROM halls ORDER BY id",
        "buyer": "SELECT DISTINCT buyer FROM tickets ORDER BY buyer",
        "screening": "SELECT id FROM screenings ORDER BY id",
    },
    [
        (
            "Which film brought in the most money, at sold seats times price?",
            _best("title", "sum(sold * price)", "films f JOIN screenings s ON s.film_id = f.id GROUP BY f.id"),
        ),
        (
            "How many seats stayed free at all screenings of films of the genre {genre} together?",
            "SELECT sum(seats - sold) FROM screenings s JOIN halls h ON h.id = s.hall_id JOIN films f ON f.id = s.film_id"
            " WHERE genre = :genre",
        ),
        (
            "In which hall were the most seats sold?",
            _best("h.name", "sum(sold)", "halls h JOIN screenings s ON s.hall_id = h.id GROUP BY h.id"),
        ),
        (
            "Who bought tickets for the largest number of different films?",
            _best(
                "buyer",
                "count(DISTINCT film_id)",
                "tickets t JOIN screenings s ON s.id = t.screening_id GROUP BY buyer",
            ),
        ),
        (
            "How many screenings of {film} or in hall {hall} had no ticket sold?",
            "SELECT count(*) FROM screenings WHERE sold = 0 AND (film_id = (SELECT id FROM films WHERE title = :film)"
            " OR hall_id = (SELECT id FROM halls WHERE name = :hall))",
        ),
        (
            "What did {buyer} pay for all tickets together, at seats times price?",
            "SELECT sum(seats * price) FROM tickets t JOIN screenings s ON s.id = t.screening_id WHERE buyer = :buyer",
        ),
    ],
    [
        (
            "Every screening in hall {hall} from {day} on, that day included, becomes dearer by {amount}.",
            [
                "UPDATE screenings SET price = price + :amount WHERE day >= :day"
                " AND hall_id = (SELECT id FROM halls WHERE name = :hall)"
            ],
        ),
        (
            "{buyer} gives all tickets for {film} back; delete them.",
            [
                "DELETE FROM tickets WHERE buyer = :buyer AND screening_id IN"
                " (SELECT s.id FROM screenings s JOIN films f ON f.id = s.film_id WHERE title = :film)"
            ],
        ),
        (
            "{film} is withdrawn: remove the film, its screenings and their tickets.",
            [
                "DELETE FROM tickets WHERE screening_id IN"
                " (SELECT s.id FROM screenings s JOIN films f ON f.id = s.film_id WHERE title = :film)",
                "DELETE FROM screenings WHERE film_id = (SELECT id FROM films WHERE title = :film)",
                "DELETE FROM films WHERE title = :film",
            ],
        ),
        (
            "{buyer} buys {amount} seats for the screening with the id {screening}; the ticket's id is the largest one so far"
            " plus 1.",
            ["INSERT INTO tickets SELECT max(id) + 1, :screening, :buyer, :amount FROM tickets"],
        ),
    ],
)


def _fill_bank(rng: random.Random) -> dict[str, list[tuple[Any, ...]]]:
    customers = [(i, name, rng.choice(CITIES.split()[:4])) for i, name in enumerate(rng.sample(PEOPLE.split(), 10), 1)]
    accounts = [
        (i, rng.randint(1, 10), rng.choice(["current", "savings"]), rng.randint(0, 900))
        for i in range(1, rng.randint(16, 22))
    ]
    pairs = [rng.sample(range(1, len(accounts) + 1), 2) for _ in range(rng.randint(18, 28))]
    transfers = [(i, *pair, rng.randint(5, 200), day(rng)) for i, pair in enumerate(pairs, 1)]
    return {"customers": customers, "accounts": accounts, "transfers": transfers}


BANK = Database(
    """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, city TEXT NOT NULL);
CREATE TABLE accounts (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers (id), \
kind TEXT NOT NULL CHECK (kind IN ('current', 'savings')), balance INTEGER NOT NULL CHECK (balance >= 0));
CREATE TABLE transfers (id INTEGER PRIMARY KEY, from_id INTEGER NOT NULL REFERENCES accounts (id), \
to_id INTEGER NOT NULL REFERENCES accounts (id), amount INTEGER NOT NULL CHECK (amount > 0), made_on TEXT NOT NULL, \
CHECK (from_id <> to_id));
CREATE TABLE balance_log (id INTEGER PRIMARY KEY, account_id INTEGER NOT NULL, change INTEGER NOT NULL);
""",
    """
CREATE TRIGGER pay AFTER INSERT ON transfers BEGIN \
UPDATE accounts SET balance = balance - new.amount WHERE id = new.from_id; \
UPDATE accounts SET balance = balance + new.amount WHERE id = new.to_id; END;
CREATE TRIGGER log_balance AFTER UPDATE OF balance ON accounts WHEN new.balance <> old.balance BEGIN \
INSERT INTO balance_log (account_id, change) VALUES (new.id, new.balance - old.balance); END;
"""
    + _append_only("balance_log"),
    _fill_bank,
    {
        "customer": "SELECT name FROM customers ORDER BY id",
        "city": "SELECT DISTINCT city FROM customers ORDER BY city",
        "account": "SELECT id FROM accounts ORDER BY id",
        "other": "SELECT id FROM accounts ORDER BY id DESC",
    },
    [
        (
            "Which customer has the largest balance over all accounts together?",
            _best("name", "sum(balance)", "customers c JOIN accounts a ON a.customer_id = c.id GROUP BY c.id"),
        ),
        (
            "How many customers have more money in savings accounts than in current accounts?",
            "SELECT count(*) FROM (SELECT customer_id FROM accounts GROUP BY customer_id"
            " HAVING sum(balance * (kind = 'savings')) > sum(balance * (kind = 'current')))",
        ),
        (
            "How much money was transferred from customers in {city} to customers in other cities?",
            "SELECT sum(amount) FROM transfers t JOIN accounts a ON a.id = from_id JOIN customers c ON c.id = a.customer_id"
            " JOIN accounts b ON b.id = to_id JOIN customers d ON d.id = b.customer_id WHERE c.city = :city AND d.city <> :city",
        ),
        (
            "How many customers have an account but never sent money to another customer?",
            "SELECT count(DISTINCT customer_id) FROM accounts WHERE customer_id NOT IN (SELECT a.customer_id FROM transfers"
            " JOIN accounts a ON a.id = from_id JOIN accounts b ON b.id = to_id WHERE a.customer_id <> b.customer_id)",
        ),
        (
            "Which customer received transfers from the largest number of different accounts?",
            _best(
                "name",
                "count(DISTINCT from_id)",
                "transfers JOIN accounts a ON a.id = to_id JOIN customers c ON c.id = a.customer_id GROUP BY c.id",
            ),
        ),
        (
            "How much did {customer} receive by transfers from {day} on, that day included?",
            "SELECT sum(amount) FROM transfers JOIN accounts a ON a.id = to_id JOIN customers c ON c.id = a.customer_id"
            " WHERE name = :customer AND made_on >= :day",
        ),
    ],
    [
        (
            "Transfer {amount} from account {account} to account {other} on {day}; the transfer's id is the largest one so far"
            " plus 1.",
            ["INSERT INTO transfers SELECT max(id) + 1, :account, :other, :amount, :day FROM transfers"],
        ),
        (
            "Every savings account of a customer in {city} gets {amount} more.",
            [
                "UPDATE accounts SET balance = balance + :amount WHERE kind = 'savings'"
                " AND customer_id IN (SELECT id FROM customers WHERE city = :city)"
            ],
        ),
        (
            "{customer} moves to {city}, and all their current accounts become savings accounts.",
            [
                "UPDATE customers SET city = :city WHERE name = :customer",
                "UPDATE accounts SET kind = 'savings' WHERE customer_id = (SELECT id FROM customers WHERE name = :customer)",
            ],
        ),
        (
            "Each customer without an account gets a current one with a balance of {amount}; their ids follow the largest one"
            " so far in the order of the customers' ids.",
            [
                "INSERT INTO accounts SELECT (SELECT max(id) FROM accounts) + row_number() OVER (ORDER BY id), id, 'current',"
                " :amount FROM customers WHERE id NOT IN (SELECT customer_id FROM accounts)"
            ],
        ),
    ],
)

OTHERS = {"library": LIBRARY, "cinema": CINEMA, "bank": BANK}
