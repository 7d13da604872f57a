import pytest
from hypothesis import given
from hypothesis import strategies as st

from wm_plugin import EchoConfig
from wm_plugin.objectives.schedule import SCHEDULES


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("linear", [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ("cosine", [1.0, 0.8828427, 0.6, 0.3171573, 0.2, 0.2]),
        ("step", [1.0] * 4 + [0.2] * 2),
    ],
)
def test_by_hand(schedule, values):
    config = EchoConfig(1.0, schedule=schedule, schedule_steps=4, end_coeff=0.2)
    assert [config.coeff_at(step) for step in range(6)] == pytest.approx(values)


def test_constant_is_the_very_number():
    assert EchoConfig(0.1).coeff_at(0) == EchoConfig(0.1).coeff_at(10**6) == 0.1


def test_it_begins_at_the_very_number():
    """Of which end + (start - end) is short by a rounding: 0.7 + (0.1 - 0.7)."""
    assert EchoConfig(0.1, schedule="linear", schedule_steps=9, end_coeff=0.7).coeff_at(0) == 0.1


@given(st.sampled_from(sorted(SCHEDULES)), st.floats(0, 5), st.floats(0, 5), st.integers(1, 50), st.integers(0, 200))
def test_stays_between_its_ends(schedule, start, end, steps, step):
    ending = {} if schedule == "constant" else {"schedule_steps": steps, "end_coeff": end}
    value = EchoConfig(start, schedule=schedule, **ending).coeff_at(step)
    if schedule == "constant":
        end = start
    assert min(start, end) - 1e-9 <= value <= max(start, end) + 1e-9
    if schedule != "constant" and step >= steps:
        assert value == pytest.approx(end)
