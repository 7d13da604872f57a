"""Worlds around worlds: what a dressed class shows to hosts, and what reaches the wrappers and the world."""

import asyncio
import inspect
import math

import numpy as np
import pytest

from wm_plugin.errors import UserError
from wm_plugin.hosting.world import (
    MOST_TURNS,
    Start,
    Wrapper,
    chain_of,
    check_columns,
    dress,
    is_over,
    is_waiting,
    layer_of,
    layers_of,
    missing_columns,
    not_a_tool,
    options_of,
    report,
    resets,
    tool_methods,
    tool_names,
    turn_limit,
)


class Counter:
    """Counts."""

    secret = 7

    def __init__(self):
        self.total, self.over = 0, False

    def reset(self, start: int, *, prompt: str = "", limit: int = 9) -> str:
        """Begin."""
        self.total, self.row = start, (start, prompt, limit)
        return str(start)

    def add(self, number: int, times: int = 1, **more: int) -> str:
        """Add."""
        self.total += number * times + sum(more.values())
        return str(self.total)

    async def wait(self) -> str:
        return "waited"

    def get_reward(self) -> float:
        return self.total / 10

    @property
    def broken(self):
        raise RuntimeError("a property of the instance is not read for its tools")

    @not_a_tool
    def world_context(self):
        """All of it."""
        return f"total {self.total}"

    def _hidden(self): ...


class Noting(Wrapper):
    """Notes what passes, under its options."""

    def __init__(self, world, options, environment):
        super().__init__(world, options, environment)
        self.noted = []

    def reset(self, columns, start):
        self.noted.append((columns, start))
        return f"{self.options}{self.world.reset(columns, start)}"

    def call(self, tool, arguments):
        self.noted.append((tool, arguments))
        return f"{self.options}{self.world.call(tool, arguments)}"


class Rewarding(Noting):
    """Has a reward whatever the world has, and one tool less."""

    metrics = {"mine": 1}  # noqa: RUF012

    @classmethod
    def tools(cls, environment, options):
        return {name: tool for name, tool in super().tools(environment, options).items() if name != "wait"}

    @classmethod
    def has_reward(cls, environment, options):
        return True

    def get_reward(self):
        return 5.0


class Bare:
    def reset(self): ...


def test_a_dressed_class_is_the_users_to_hosts():
    made = dress(Counter, Noting, "a")
    assert made is dress(Counter, Noting, "a")
    assert made is not dress(Counter, Noting, "b")
    assert issubclass(made, Counter)
    assert (made.__name__, made.__doc__, made.__module__) == ("Counter", "Counts.", __name__)
    assert tool_names(made) == tool_names(Counter) == ["add", "wait"]
    assert made.add.__doc__ == "Add."
    assert inspect.signature(made.add) == inspect.signature(Counter.add)
    assert inspect.signature(made.reset) == inspect.signature(Counter.reset)
    assert inspect.iscoroutinefunction(made.wait)
    assert not inspect.iscoroutinefunction(made.add)
    assert set(tool_methods(made())) == {"add", "wait"}
    fewer = dress(made, Rewarding, "b")
    assert tool_names(fewer) == ["add"]
    assert fewer.wait is None
    assert (hasattr(dress(Bare, Noting), "get_reward"), dress(Bare, Rewarding)().get_reward()) == (False, 5.0)


def test_everything_passes_the_wrappers_from_the_outermost_to_the_world():
    world = dress(dress(Counter, Noting, "a"), Noting, "b")()
    with resets(training=False, strength=0.5):
        assert world.reset(3, prompt="p") == "ba3"
    assert world.reset(start=4) == "ba4"
    with resets(strength=0.3):
        world.reset(5)
    assert world.add(2, times=3, more=1) == "ba12"
    assert world.add(number=1) == "ba13"
    outer = chain_of(world)
    inner = outer.world
    assert [layer.options for layer in (outer, inner)] == ["b", "a"]
    assert [layer.environment for layer in (outer, inner)] == [dress(Counter, Noting, "a"), Counter]
    assert outer.noted == inner.noted
    assert outer.noted == [
        ({"start": 3, "prompt": "p"}, Start("p", training=False, strength=0.5)),
        ({"start": 4}, Start(None, training=True, strength=1.0)),
        ({"start": 5}, Start(None, training=True, strength=0.3)),
        ("add", {"number": 2, "times": 3, "more": 1}),
        ("add", {"number": 1}),
    ]


def test_an_asynchronous_tool_is_awaited_whoever_answers():
    class Quick(Wrapper):
        def call(self, tool, arguments):
            return "at once"

    assert asyncio.run(dress(Counter, Wrapper)().wait()) == "waited"
    assert asyncio.run(dress(Counter, Quick)().wait()) == "at once"


def test_a_call_that_does_not_fit_is_the_worlds_own_error():
    world = dress(Counter, Noting, "a")()
    world.reset(1)
    with pytest.raises(TypeError, match=r"Counter\.add\(\) missing 1 required positional argument: 'number'"):
        world.add()
    assert len(chain_of(world).noted) == 1  # it reached no wrapper


def test_attributes_are_the_instances_and_what_stands_of_an_episode_may_be_a_wrappers():
    world = dress(Counter, Rewarding, "a")()
    world.reset(1)
    world.total = 8
    assert (world.total, chain_of(world).instance.total, world.secret) == (8, 8, 7)
    assert world.world_context() == "total 8"
    assert (world.get_reward(), world.metrics, world.over) == (5.0, {"mine": 1}, False)
    for name in ("turns", "unheard_of"):
        assert not hasattr(world, name)
    assert not hasattr(chain_of(world), "total")  # a wrapper answers for no other attribute of the world
    assert not hasattr(chain_of(world).world, "total")
    plain = dress(Counter, Noting, "a")()
    plain.reset(20)
    assert plain.get_reward() == 2.0
    assert isinstance(Counter.world_context, not_a_tool)
    assert (Counter.world_context.__doc__, hasattr(Counter, "secret")) == ("All of it.", True)


def test_wrappers_are_found_by_their_kind():
    kind = dress(dress(Counter, Rewarding, "a"), Noting, "b")
    world = kind()
    assert [(layer, options) for layer, options, _ in layers_of(kind)] == [(Rewarding, "a"), (Noting, "b")]
    assert layers_of(Counter) == ()
    assert (options_of(kind, Rewarding), options_of(world, Noting), options_of(Counter, Noting)) == ("a", "a", None)
    assert layer_of(world, Rewarding) is chain_of(world).world
    assert layer_of(world, Noting) is layer_of(chain_of(world), Wrapper) is chain_of(world)
    assert layer_of(chain_of(dress(Counter, Noting)()), Rewarding) is None
    assert layer_of(Counter(), Noting) is chain_of(Counter()) is None


def test_a_wrapper_that_overrides_nothing_passes_everything_on():
    class Heard(Wrapper):
        async def ready(self):
            heard.append("ready")

        def turn(self, action, results):
            heard.append((action, results))

        def end(self, unanswered):
            heard.append(unanswered)

        def notes(self, failed):
            return {"failed": failed}

        def about(self):
            return {"about": 1}

    heard = []
    outer = chain_of(dress(dress(Counter, Heard), Wrapper)())
    outer.turn("look", ["seen"])
    asyncio.run(outer.ready())
    outer.end(2)
    assert heard == [("look", ["seen"]), "ready", 2]
    assert (outer.notes(True), outer.about()) == ({"failed": True}, {"about": 1})
    plain = chain_of(dress(Counter, Wrapper)())
    assert (plain.reset({"start": 2}, Start()), plain.call("add", {"number": 3})) == ("2", "5")
    assert (plain.notes(True), plain.about()) == ({}, {})
    assert asyncio.run(plain.ready()) is plain.turn("look", []) is plain.end(0) is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": "p"}, "missing a required argument: 'start' (its columns: 'prompt')"),
        ({}, "missing a required argument: 'start' (its columns: none)"),
        ({"start": 1, "extra": 2}, "got an unexpected keyword argument 'extra' (its columns: 'start', 'extra')"),
    ],
)
def test_columns_that_do_not_fit_a_reset(columns, message):
    with pytest.raises(UserError) as error:
        check_columns(Counter, columns)
    assert str(error.value) == f"a row does not fit Counter.reset: {message}"
    check_columns(Counter, {"start": 1, "limit": 2})


def test_a_row_of_many_columns_is_named_by_the_first():
    with pytest.raises(UserError) as error:
        check_columns(Bare, {f"c{number}": 0 for number in range(30)})
    assert "'c19')" in str(error.value)
    with pytest.raises(UserError) as error:
        check_columns(Bare, {"c" * 1000: 0})
    assert len(str(error.value)) < 500


def test_columns_that_a_dataset_lacks():
    class Keyword:
        def reset(self, board, /, level, *, seed, size=3, **more): ...

    assert missing_columns(Counter, ["start", "other"]) is missing_columns(Bare, []) is None
    assert missing_columns(Counter, ["other"]) == (
        "the dataset has no column 'start', which Counter.reset needs (it has 'other')"
    )
    assert "no column 'level', 'seed', which" in missing_columns(Keyword, iter(["size"]))


@pytest.mark.parametrize(
    ("value", "turns"),
    [
        *((value, 7) for value in (None, math.nan, 0, 0.0, np.float64("nan"))),
        *((value, 3) for value in (3, 3.0, np.int64(3), np.float32(3))),
        (1, 1),
        (MOST_TURNS + 1, MOST_TURNS),
        (1e300, MOST_TURNS),
    ],
)
def test_a_rows_turns(value, turns):
    found = turn_limit(value, 7)
    assert (found, type(found)) == (turns, int)


@pytest.mark.parametrize("value", [0.5, 1.5, -1, -2.0, True, "3", [3], math.inf])
def test_what_is_no_number_of_turns(value):
    with pytest.raises(UserError, match=r"column `max_turns` is .*; write a whole number of turns >= 1"):
        turn_limit(value, 7)
    with pytest.raises(UserError, match="column `steps` is"):
        turn_limit(value, 7, "steps")


def test_what_a_world_says_of_its_episode():
    class Told:
        over, success, turns, metrics = True, False, 2, {"actions": 3, "invalid": 1, "seen": 4}

    assert (is_over(Told()), is_waiting(Told()), is_over(Counter()), is_waiting(Counter())) == (
        True,
        False,
        False,
        True,
    )
    assert (is_over(Bare()), is_waiting(Bare())) == (False, False)
    figures = {"success": 0.0, "turns": 2.0, "actions": 3.0, "invalid": 1.0, "seen": 4.0}
    assert report(Told()) == figures
    assert report(Told(), 2) == {**figures, "turns": 4.0, "actions": 5.0, "invalid": 3.0}
    assert report(Bare(), 2) == {}
