import math

import pytest

from wm_plugin.errors import UserError
from wm_plugin.lab.report.arms import Arm, arms, parse, spread, student, without_seed
from wm_plugin.lab.report.logs import Run


def run(name, **metrics):
    made = Run(name, f"runs/{name}")
    for metric, values in metrics.items():
        for step, value in values.items():
            made.add(metric, step, value)
    return made


@pytest.mark.parametrize(
    ("name", "arm"),
    [
        ("echo_seed0", "echo"),
        ("echo-seed=12", "echo"),
        ("Echo_S3", "Echo"),
        ("seed1/echo", "echo"),
        ("echo/seed_2", "echo"),
        ("echo_seed0_lr1e-5", "echo_lr1e-5"),
        ("seed0", ""),
        ("qwen-7", "qwen-7"),  # a number may be a setting
        ("steps100", "steps100"),
        ("run2", "run2"),
    ],
)
def test_the_name_of_an_arm(name, arm):
    assert without_seed(name) == arm


def test_runs_are_grouped_by_pattern_and_then_by_name():
    runs = [run("echo_seed0"), run("echo_seed1"), run("old"), run("grpo_seed0"), run("seed7")]
    table = arms(runs, {"mine": "runs/old", "e": "echo_*"})
    assert [(arm.name, [one.name for one in arm.runs]) for arm in table] == [
        ("mine", ["old"]),
        ("e", ["echo_seed0", "echo_seed1"]),
        ("grpo", ["grpo_seed0"]),
        ("seed7", ["seed7"]),
    ]


def test_a_pattern_may_be_a_folder_above():
    assert arms([run("a/b/c")], {"x": "runs/a/*"})[0].name == "x"
    assert arms([run("a/b/c")], {"x": "./runs/a/"})[0].name == "x"


@pytest.mark.parametrize("setting", ["", "echo", "=x", "echo=", " =x"])
def test_an_arm_without_name_or_pattern(setting):
    with pytest.raises(UserError, match="NAME=PATTERN"):
        parse([setting])


def test_an_arm_has_one_pattern():
    assert parse(["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(UserError, match="twice"):
        parse(["a=b", "a=c"])


def test_spreads_by_hand():
    assert spread([2.0]) == (2.0, None)
    assert spread([1.0, 3.0]) == (2.0, (1.0, 3.0))
    mean, (low, high) = spread([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert spread([1e308, -1e308, 1e308])[0] == pytest.approx(1e308 / 3)
    assert spread([1e308, -1e308, 1e308])[1] is None  # beyond a float
    assert spread([0.0, 0.0, 0.0]) == (0.0, (0.0, 0.0))
    assert (low, high) == pytest.approx((2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)))


def test_quantiles_of_student():
    assert [round(student(freedom), 3) for freedom in (1, 10, 11, 20, 30, 120)] == [
        12.706, 2.228, 2.201, 2.086, 2.042, 1.980,
    ]  # fmt: skip


def test_a_line_is_the_mean_at_the_steps_that_all_runs_have():
    arm = Arm("a", [run("0", r={1: 0.0, 2: 1.0, 3: 5.0}), run("1", r={2: 3.0, 1: 2.0}), run("2", other={1: 1.0})])
    line = arm.series("r")
    assert (list(line.x), list(line.y), list(line.band)) == ([1, 2], [1.0, 2.0], [(0.0, 2.0), (1.0, 3.0)])
    assert [x for x, _ in line.own] == [[1, 2, 3], [1, 2]]
    assert arm.last("r") == (4.0, (3.0, 5.0), 2)
    assert arm.series("none") is None
    assert arm.last("none") is None
    alone = Arm("a", [run("0", r={1: 0.5})]).series("r")
    assert (alone.band, alone.own) == ((), ())
