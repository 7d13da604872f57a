"""The database of the standard level: a small company."""

import random
from typing import Any

from wm_plugin.worlds.sql.databases import CITIES, PEOPLE, Database, day

SCHEMA = """
CREATE TABLE departments (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, city TEXT NOT NULL);
CREATE TABLE employees (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, \
department_id INTEGER NOT NULL REFERENCES departments (id), manager_id INTEGER REFERENCES employees (id), \
salary INTEGER NOT NULL CHECK (salary > 0), hired_on TEXT NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, \
price INTEGER NOT NULL CHECK (price > 0), stock INTEGER NOT NULL CHECK (stock >= 0));
CREATE TABLE orders (id INTEGER PRIMARY KEY, product_id INTEGER NOT NULL REFERENCES products (id), \
employee_id INTEGER NOT NULL REFERENCES employees (id), quantity INTEGER NOT NULL CHECK (quantity > 0), \
ordered_on TEXT NOT NULL);
CREATE TABLE salary_log (id INTEGER PRIMARY KEY, employee_id INTEGER NOT NULL, old_salary INTEGER, new_salary INTEGER);
"""
TRIGGERS = """
CREATE TRIGGER log_salary AFTER UPDATE OF salary ON employees BEGIN \
INSERT INTO salary_log (employee_id, old_salary, new_salary) VALUES (old.id, old.salary, new.salary); END;
CREATE TRIGGER take_stock AFTER INSERT ON orders BEGIN \
UPDATE products SET stock = stock - new.quantity WHERE id = new.product_id; END;
"""
DEPARTMENTS = "Design Finance Kitchen Legal Logistics Research Sales Support"
PRODUCTS = "anvil basket candle drum easel funnel globe hammock inkwell jug kettle ladder mirror notebook"

# A question and the query whose single value answers it. A question whose value is tied or missing is dropped.
TASKS = [
    (
        "How many employees work in {department}?",
        "SELECT count(*) FROM employees e JOIN departments d ON d.id = e.department_id WHERE d.name = :department",
    ),
    (
        "Who earns the most in {department}?",
        "SELECT name FROM (SELECT e.name, rank() OVER (ORDER BY salary DESC) AS place FROM employees e"
        " JOIN departments d ON d.id = e.department_id WHERE d.name = :department) WHERE place = 1",
    ),
    (
        "Which department has the most employees?",
        "SELECT name FROM (SELECT d.name, rank() OVER (ORDER BY count(*) DESC) AS place FROM employees e"
        " JOIN departments d ON d.id = e.department_id GROUP BY d.id) WHERE place = 1",
    ),
    (
        "How many orders of {product} took place from {day} on, that day included?",
        "SELECT count(*) FROM orders o JOIN products p ON p.id = o.product_id WHERE p.name = :product AND ordered_on >= :day",
    ),
    (
        "How much money did the orders of {product} bring in, at price times quantity?",
        "SELECT sum(price * quantity) FROM orders o JOIN products p ON p.id = o.product_id WHERE p.name = :product",
    ),
    (
        "Which product was never ordered?",
        "SELECT name FROM products WHERE id NOT IN (SELECT product_id FROM orders)",
    ),
    (
        "How many people report to {employee}, directly or through others?",
        "WITH RECURSIVE team (id) AS (SELECT id FROM employees WHERE name = :employee UNION ALL"
        " SELECT e.id FROM employees e JOIN team ON e.manager_id = team.id) SELECT count(*) - 1 FROM team",
    ),
    (
        "Whose orders came to the largest total quantity?",
        "SELECT name FROM (SELECT e.name, rank() OVER (ORDER BY sum(quantity) DESC) AS place FROM orders o"
        " JOIN employees e ON e.id = o.employee_id GROUP BY e.id) WHERE place = 1",
    ),
    (
        "Raise every salary in {department} by {amount}. What do all salaries in the company add up to afterwards?",
        "SELECT sum(salary + (d.name = :department) * :amount) FROM employees e JOIN departments d ON d.id = e.department_id",
    ),
    (
        "Record a new order of {product} by {employee} on {day}, quantity {amount}. What is its stock afterwards?",
        "SELECT stock - :amount FROM products WHERE name = :product AND stock >= :amount",
    ),
]


def _fill(rng: random.Random) -> dict[str, list[tuple[Any, ...]]]:
    departments = [
        (i, name, rng.choice(CITIES.split())) for i, name in enumerate(rng.sample(DEPARTMENTS.split(), 4), 1)
    ]
    employees = [
        (i, name, rng.randint(1, 4), rng.randint(1, i - 1) if i > 1 else None, rng.randint(24, 96) * 100, day(rng))
        for i, name in enumerate(rng.sample(PEOPLE.split(), rng.randint(16, 24)), 1)
    ]
    products = [
        (i, name, rng.randint(2, 90), rng.randint(0, 60)) for i, name in enumerate(rng.sample(PRODUCTS.split(), 8), 1)
    ]
    orders = [
        (i, rng.randint(1, len(products)), rng.randint(1, len(employees)), rng.randint(1, 12), day(rng))
        for i in range(1, rng.randint(16, 32))
    ]
    return {"departments": departments, "employees": employees, "products": products, "orders": orders}


COMPANY = Database(
    SCHEMA,
    TRIGGERS,
    _fill,
    {kind: f"SELECT name FROM {kind}s ORDER BY id" for kind in ("department", "product", "employee")},
    TASKS,
    [],
)
