"""Which call a result belongs to."""

from hypothesis import given
from hypothesis import strategies as st

from wm_plugin.tokens.message import Waiting

names = st.sampled_from(["a", "b", "c", "", 1, 2, None, ["a"], {}, 1.5])


@given(st.lists(names), st.lists(names))
def test_a_result_takes_the_first_call_of_its_name_or_the_first(calls, results):
    waiting, left = Waiting(calls), list(range(len(calls)))
    for name in results:
        named = [place for place in left if isinstance(name, str | int) and calls[place] == name]
        expected = next(iter(named or left), None)
        assert waiting.take(name) == expected
        left = [place for place in left if place != expected]
