import pytest

from wm_plugin.worlds.kit.counted import CountedEnvironment


class Losable(CountedEnvironment):
    _lost = 0


def test_over_until_the_first_episode_and_after_its_last_turn() -> None:
    environment = CountedEnvironment()
    assert environment.over
    environment.max_turns = 2
    environment._take_turn()
    assert not environment.over
    environment._take_turn()
    assert environment.over
    with pytest.raises(ValueError, match="The episode is over"):
        environment._take_turn()
    assert environment.turns == 2


def test_counts_begin_anew() -> None:
    environment = CountedEnvironment()
    environment.max_turns = 3
    environment._take_turn()
    environment._effective, environment._invalid, environment._ended = 1, 2, True
    assert environment.over
    assert environment.metrics == {"actions": 1, "effective": 1, "invalid": 2}
    environment._begin()
    assert not environment.over
    assert environment.metrics == {"actions": 0, "effective": 0, "invalid": 0}


def test_a_lost_episode_ends_is_counted_and_does_not_spoil_the_next() -> None:
    environment, other = Losable(), Losable()
    environment.max_turns = 3
    environment._lose()
    assert environment.over
    assert environment.metrics == {"actions": 0, "effective": 0, "invalid": 0, "lost": 1}
    assert other.metrics["lost"] == 0
    environment._begin()
    assert not environment.over
    assert environment.metrics["lost"] == 0
