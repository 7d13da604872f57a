"""A customer desk (after tau-bench and its successor): a policy, tools on a real SQLite, and a customer to talk to.

The tools check that things exist; keeping to the policy is up to the agent. As in tau-bench, an episode is a success when the
database ends as it should (everything that the policy allows is done, and nothing else) and the customer has been told the facts
that they need.

The customer is scripted, and then an episode depends only on the row and the calls; or a model behind an OpenAI-compatible
server, which the row's columns `user_url` and `user_model` name, so that the dataset sets it up on both hosts.
"""

import sqlite3
from typing import Any, ClassVar

from wm_plugin.errors import UserError
from wm_plugin.worlds.dialogue import world
from wm_plugin.worlds.dialogue.policies import expert, wanderer
from wm_plugin.worlds.dialogue.user import ScriptedUser, ServedUser, User, UserLostError
from wm_plugin.worlds.dialogue.world import LEVELS, PRODUCTS, Case, money
from wm_plugin.worlds.kit.counted import CountedEnvironment, one_line
from wm_plugin.worlds.kit.customer import NAMELESS
from wm_plugin.worlds.kit.rows import Rows, check_level, draws, row_number, row_texts, rows_of, turn_limit
from wm_plugin.worlds.kit.sqlite_guard import cell
from wm_plugin.worlds.specs import SPECS, described_as

__all__ = ["INSTRUCTION", "LEVELS", "DialogueEnvironment", "dataset_rows", "expert", "wanderer"]

MAX_TURNS = 30
MAX_MESSAGE, MAX_CHARACTERS = 2000, 200  # of a message and of any other argument; a longer one is invalid
CALLER = "The customer: "

INSTRUCTION = SPECS["dialogue"].instruction


@described_as("dialogue")
class DialogueEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` tool calls; reward 1 for a case that is handled as the policy says.

    A call is effective when it shows or changes something new.
    """

    observer: ClassVar = {"message_user": "user"}
    refusals = ("Error: ",)
    _last_line = "No calls are left. The episode is over."
    _case: Case | None = None
    _user: User | None = None
    _lost = 0

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)  # a host may call from any thread
        super().__init__()

    def reset(
        self,
        seed: int,
        level: str = LEVELS[0],
        user_url: str = "",
        user_model: str = "",
        max_turns: int | None = None,
        **_: Any,
    ) -> str:
        """Take the case of a seed, and return the day and the customer's first sentence.

        Args:
            seed: number of the case.
            user_url: of an OpenAI-compatible server, such as http://localhost:8000/v1; empty for the scripted customer. It gets
                the key in OPENAI_API_KEY only if `kit.customer.key_variable` says so.
            user_model: the name under which the customer's model is served.
        """
        check_level(level, LEVELS, "dialogue")
        number = row_number(seed, "seed", "dialogue")
        user_url, user_model = row_texts("dialogue", user_url=user_url, user_model=user_model)
        if user_url and not user_model:
            raise UserError(f"A dialogue's column `user_model` is empty; {NAMELESS}")
        self._case = world.case(number, level)
        self._database.close()
        self._database = world.open_database(self._case)
        if user_url:
            self._user = ServedUser(self._case, user_url, user_model)
        else:
            self._user = ScriptedUser(self._case, insistent=level == "hard")
        self.max_turns = turn_limit(max_turns, MAX_TURNS)
        self._begin()
        try:
            opening = self._user.opening()
        except UserLostError:
            return self._hang_up()
        return f"Today is {self._case.today}.\n{CALLER}{opening}"

    def message_user(self, text: str) -> str:
        [message] = self._start_action([text], MAX_MESSAGE)
        if not message or self._user is None:
            return self._answer("Error: there is nothing to say, or too much.", False, "message_user")
        try:
            reply, goodbye = self._user.answer(message)
        except UserLostError:
            return self._hang_up()
        if goodbye:
            self._effective += 1
            return f"{CALLER}{reply}\nThe customer has gone. {self._end()}"
        return self._answer(CALLER + reply, True, "message_user", message)

    def find_customer(self, email: str) -> str:
        [address] = self._start_action([email])
        query = "SELECT id, name, email, postcode FROM customers WHERE email = ? COLLATE NOCASE"
        customer = self._database.execute(query, (address,)).fetchone()
        if customer is None:
            return self._answer("Error: no customer has this email.", False, "find_customer")
        query = "SELECT id FROM orders WHERE customer_id = ? ORDER BY id"
        orders = ", ".join(str(number) for (number,) in self._database.execute(query, customer[:1]))
        text = f"{customer[1]}, {customer[2]}, postcode {customer[3]}, orders: {orders or 'none'}"
        return self._answer(text, True, "find_customer", address)

    def get_order(self, order_id: str) -> str:
        [text_number] = self._start_action([order_id])
        number = _number(text_number)
        query = "SELECT status, delivered_on, address FROM orders WHERE id = ?"
        order = self._database.execute(query, (number,)).fetchone()
        if order is None:
            return self._answer("Error: there is no such order.", False, "get_order")
        items = self._database.execute(
            "SELECT name, kind, items.price, final_sale, state FROM items JOIN products ON products.id = product_id"
            " WHERE order_id = ? ORDER BY items.id",
            (number,),
        ).fetchall()
        lines = [
            f"- {name} ({kind}), {money(price)}{', final sale' * final}{f', {state}' * (state != 'kept')}"
            for name, kind, price, final, state in items
        ]
        day = f" on {order[1]}" if order[1] else ""
        text = "\n".join([f"order {number}: {order[0]}{day}, to {order[2]}", *lines])
        return self._answer(text, True, "get_order", str(number))

    def find_products(self, kind: str) -> str:
        [name_of_kind] = self._start_action([kind])
        query = "SELECT name, price, stock FROM products WHERE kind = ? COLLATE NOCASE ORDER BY id"
        found = self._database.execute(query, (name_of_kind,))
        lines = [f"- {name}, {money(price)}, {stock} in stock" for name, price, stock in found]
        if not lines:
            return self._answer(f"Error: the kinds are {', '.join(PRODUCTS)}.", False, "find_products")
        return self._answer("\n".join(lines), True, "find_products", name_of_kind.lower())

    def cancel_order(self, order_id: str) -> str:
        return self._write("cancel", order_id)

    def change_address(self, order_id: str, address: str) -> str:
        return self._write("address", order_id, address)

    def exchange_item(self, order_id: str, item: str, product: str) -> str:
        return self._write("exchange", order_id, item, product)

    def refund_item(self, order_id: str, item: str) -> str:
        return self._write("refund", order_id, item)

    def finish(self) -> str:
        self._start_action([])
        self._effective += 1
        return self._end()

    @property
    def user_profile(self) -> dict[str, str]:
        """What the customer knows of themselves, without what they want (see `data.values.profile_to_context`)."""
        of = self._case
        if of is None:
            return {}
        return {"known_info": f"You are {of.name}. Your email is {of.email}. Your postcode is {of.postcode}."}

    def _start_action(self, arguments: list[Any], limit: int = MAX_CHARACTERS) -> list[str]:
        """Count a call and return its arguments, each on one line."""
        self._take_turn()
        return [one_line(text, limit).replace("\0", "") for text in arguments]

    def _write(self, name: str, order_id: Any, *arguments: Any) -> str:
        order, *texts = self._start_action([order_id, *arguments])
        if not all(texts):
            return self._answer("Error: an argument is empty or too long.", False, name)
        text, done = world.WRITES[name](self._database, _number(order), *map(cell, texts))
        return self._answer(text, done, name, order, *texts)

    def _answer(self, text: str, valid: bool, *call: str) -> str:
        """Count the result of a call and return it, with a last line if no calls are left."""
        self._invalid += not valid
        self._note(valid, *call, text)
        return self._observe(text)

    def _end(self) -> str:
        assert self._case is not None
        assert self._user is not None
        self._ended = True
        informed = all(heard.informed for heard in self._user.heard)
        self._reward = float(informed and world.content(self._database) == world.target_content(self._case))
        handled = "It was handled as it should be." if self.success else "It was not handled as it should be."
        return f"The case is closed. {handled} The episode is over."

    def _hang_up(self) -> str:
        self._lose()
        return "The line to the customer is dead. The episode is over."


def _number(text: str) -> int:
    """Return an order's number, or -1, which no order has, if the text is no number."""
    digits = text.removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = LEVELS[0],
    user_url: str = "",
    user_model: str = "",
    max_turns: int = MAX_TURNS,
) -> Rows:
    """Make rows for a trainer; `reset` appends the day and the customer's first sentence to the prompt.

    Held-out cases are those with seeds divisible by 10. `user_url` and `user_model` become columns if there is a `user_url`.
    """
    check_level(level, LEVELS, "dialogue")
    rng = draws(seed, held_out)
    seeds = [number * 10 + (0 if held_out else rng.randint(1, 9)) for number in rng.sample(range(10**8), count)]
    user = {"user_url": user_url, "user_model": user_model} if user_url else {}
    tasks = ({"seed": number, "level": level, **user} for number in seeds)
    return rows_of(INSTRUCTION, tasks, max_turns, MAX_TURNS, "tool call")
