"""Options are declared once, and a value that does not fit is one line."""

import copy
import pickle
from typing import Annotated, Literal

import pytest
from pydantic import Field, model_validator

from wm_plugin.errors import UserError
from wm_plugin.options import Names, Number, Options, Parsed, Whole, option


class Server(Options):
    example = "{url: http://localhost:8000/v1}"

    url: str = option("Address.")
    retries: Whole = option("Retries.", default=3, ge=1)
    kind: Literal["refuse", "accept"] = option("Kind.", default="refuse")

    @model_validator(mode="after")
    def _check(self):
        if self.retries == 7:
            raise UserError("retries is 7, which is unlucky")
        return self


class Run(Options):
    aliases = {"alpha": "coeff"}  # noqa: RUF012

    coeff: Number = option("Coefficient.", default=0.0, ge=0, write="a number >= 0; 0 turns it off")
    tools: Annotated[Names | dict[str, Annotated[Number, Field(ge=0)]] | None, Parsed] = option(
        "Tools.", default=None, write="names"
    )
    server: Annotated[Server | None, Parsed] = option("Server.", default=None)
    servers: tuple[Server, ...] = option("Servers.", default=())
    share: Number = option("Share.", default=0.5, gt=0, le=1)
    flag: bool = option("Flag.", default=True)
    count: Whole | None = option("Count.", default=None, ge=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"coeff": -1}, "coeff is -1; write a number >= 0; 0 turns it off"),
        ({"coeff": True}, "coeff is True; write a number"),
        ({"coeff": float("nan")}, "coeff is nan; write a number"),
        ({"coef": 1}, "RUN has no field 'coef'; did you mean 'coeff'?"),
        ({"alpha": 1, "coeff": 2}, "RUN gets coeff twice (alpha is the same); keep one"),
        ({"tools": {"a": -1}}, "tools is {'a': -1}; write names"),
        ({"server": {"retries": 1}}, "server.url is missing; write a text"),
        ({"server": {"url": "a", "retries": 0}}, "server.retries is 0; write a whole number >= 1"),
        ({"server": {"url": "a", "retris": 0}}, "server has no field 'retris'; did you mean 'retries'?"),
        ({"server": {"url": "a", "retries": 7}}, "server.retries is 7, which is unlucky"),
        ({"server": '{"url": "a", "kind": "refus"}'}, "server.kind is 'refus'; did you mean 'refuse'?"),
        ({"server": 3}, "server is 3; write fields, e.g. {url: http://localhost:8000/v1} or null"),
        ({"servers": [{"url": "a"}, {"url": "b", "kind": "x"}]}, "servers[1].kind is 'x'; there is 'accept', 'refuse'"),
        ({"share": 2}, "share is 2; write a number > 0 and <= 1"),
        ({"flag": "maybe"}, "flag is 'maybe'; write true or false"),
        ({"count": 0}, "count is 0; write a whole number >= 1 or null"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(values, message):
    for make, where, prefix in (
        (lambda: Run(**values), "Run", ""),
        (lambda: Run.read(values, "wm.run"), "wm.run", "wm.run."),
    ):
        with pytest.raises(UserError) as error:
            make()
        expected = message.replace("RUN", where) if "RUN" in message else prefix + message
        assert str(error.value).startswith(expected)
        assert "\n" not in str(error.value)


def test_flags_and_files_hand_over_text():
    run = Run.read({"tools": "a, b", "coeff": "1e-3", "server": '{"url": "x"}'})  # YAML takes 1e-3 for a text
    assert run == Run(1e-3, ("a", "b"), Server("x"))
    assert Run.read('{"tools": {"a": 2}}').tools == {"a": 2.0}
    with pytest.raises(UserError, match=r"wm is not JSON"):
        Run.read("{", "wm")
    with pytest.raises(UserError, match=r"server is 'x'; write fields, e\.g\. \{url: http"):
        Server.read("x", "server")


def test_a_changed_copy_is_checked_and_remembers_what_was_given():
    run = Run(tools=["a"])
    assert run.model_fields_set == {"tools"}
    assert run.replace(coeff=2).changed() == {"coeff": 2.0, "tools": ["a"]}
    assert Run.read(run.changed()) == run
    with pytest.raises(UserError, match="coeff is -2"):
        run.replace(coeff=-2)
    assert copy.deepcopy(run) == pickle.loads(pickle.dumps(run)) == run
    assert hash(run) == hash(Run(tools=["a"]))


def test_a_field_by_position_is_not_given_again():
    for make, message in (
        (lambda: Run(0.5, coeff=0.1), r"Run gets coeff twice \(alpha is the same\); keep one"),
        (lambda: Server("a", url="b"), "Server gets url twice; keep one"),
        (lambda: Server("a", 1, "refuse", 4), "Server has 3 fields and gets 4 values"),
    ):
        with pytest.raises(UserError, match=message):
            make()
