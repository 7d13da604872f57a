from collections import Counter

import pytest

pytest.importorskip("transformers")

from tiny_worlds import RingEnvironment
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import read_result
from wm_plugin.lab.tiny.__main__ import main as tiny
from wm_plugin.lab.tiny.held_out import HeldOut
from wm_plugin.lab.tiny.policy import Played, make_model, make_tokenizer
from wm_plugin.worlds.grid import is_held_out

pytestmark = pytest.mark.host

TOKENIZER = make_tokenizer()


def test_boards_are_held_out_and_spread_over_layouts() -> None:
    held_out = HeldOut(TOKENIZER, 512)
    assert (len(held_out.boards), len(held_out.walked)) == (512, 256)
    for boards, measure in ((held_out.boards, "success"), (held_out.walked, "exact")):
        assert all(is_held_out([cell for cell in board if cell != "\n"]) for board in boards)
        layouts = held_out.layouts(measure)
        assert [layout.count("#") for layout in layouts] == [board.count("#") for board in boards]
        assert max(Counter(layouts).values()) <= 4
        assert len(set(layouts)) > len(boards) / 6
    assert held_out.boards != HeldOut(TOKENIZER, 512).walked


def test_the_boards_are_always_the_same_and_measuring_changes_nothing() -> None:
    model = make_model(TOKENIZER, 0)
    first, second = (HeldOut(TOKENIZER, 40).measure(model).means() for _ in range(2))
    assert first == second
    assert set(first) == {"success", "turns", "env_nll", "exact"}


def test_looking_ahead_and_its_controls_play_the_same_boards(monkeypatch) -> None:
    calls = []

    def record(model, tokenizer, boards, seed, advise):
        calls.append((boards, seed))
        return [Played([], advise is not None, 1)] * len(boards)

    def ahead_of(model, tokenizer, seed, *, oracle=False):
        calls.append(("oracle" if oracle else "itself", seed))
        return len

    monkeypatch.setattr("wm_plugin.lab.tiny.held_out.play", record)
    monkeypatch.setattr("wm_plugin.lab.tiny.held_out.look_ahead", ahead_of)
    held_out = HeldOut(TOKENIZER, 256)
    ahead = held_out.look_ahead(make_model(TOKENIZER, 0))
    assert (ahead.plain.mean, ahead.ahead.mean, ahead.oracle.mean, ahead.coin.mean) == (0, 1, 1, 1)
    (first, seed), (second, same), *played = calls
    assert (first, second, seed) == ("itself", "oracle", same)
    assert played == [(held_out.ahead_boards, seed)] * 4
    assert len(held_out.ahead_boards) == 64
    assert len(set(held_out.layouts("look_ahead"))) > 40


def test_the_episodes_are_the_walks_that_are_measured() -> None:
    held_out = HeldOut(TOKENIZER, 24)
    texts = []
    for trajectory in held_out.episodes():
        text = trajectory.context.initial_state
        for turn in trajectory.turns:
            text += f":{turn.action.calls[0].arguments['direction']}{turn.observations[0].text}"
        texts.append(text)
    assert texts == [TOKENIZER.decode(ids) for ids in held_out.walks[0]]


def test_a_policy_is_measured_on_held_out_boards(tmp_path):
    tokenizer = make_tokenizer()
    make_model(tokenizer, seed=0).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    arguments = ["--model", str(tmp_path / "m"), "--name", "real_s0", "--boards", "16"]
    arguments += ["--out", str(tmp_path / "e" / "real_s0")]
    assert tiny(["measure", *arguments, "--step", "3"]) == 0
    found = read_result(tmp_path / "e" / "real_s0")
    assert {one.name for one in found.measures} == {"success", "turns", "env_nll", "exact"}
    assert found.settings["step"] == 3
    assert 0 <= found.measure("success").value <= 1
    assert found.measure("env_nll").value > 1  # it has learnt nothing


def test_a_policy_is_measured_under_another_law_of_motion(tmp_path):
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed=0)
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    arguments = ["measure", "--model", str(tmp_path / "m"), "--name", "a_s0", "--boards", "32"]
    found = {}
    for name in ("grid", "tiny_worlds:RingEnvironment"):
        assert tiny([*arguments, "--environment", name, "--out", str(tmp_path / name)]) == 0
        found[name] = read_result(tmp_path / name)
    grid, ring = found.values()
    assert (grid.data, ring.data) == ("32 held-out boards of the grid", "32 held-out boards of RingEnvironment")
    expected = HeldOut(tokenizer, 32, RingEnvironment).measure(model.eval())
    assert {one.name: one.value for one in ring.measures} == expected.means()
    assert [one.parts for one in expected.played] != [one.parts for one in HeldOut(tokenizer, 32).measure(model).played]
    assert grid.measure("env_nll").value != ring.measure("env_nll").value
    with pytest.raises(
        UserError, match=r"--environment: sql is not a subclass of wm_plugin\.worlds\.grid\.GridEnvironment"
    ):
        tiny([*arguments, "--environment", "sql", "--out", str(tmp_path / "c")])
    with pytest.raises(UserError, match="--ahead works only in the default grid; leave out --environment"):
        tiny([*arguments, "--environment", "tiny_worlds:RingEnvironment", "--ahead", "--out", str(tmp_path / "d")])


def test_looking_ahead_is_measured_beside_its_controls(tmp_path):
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed=0)
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    arguments = ["--model", str(tmp_path / "m"), "--name", "a_s0", "--boards", "16", "--ahead"]
    assert tiny(["measure", *arguments, "--out", str(tmp_path / "a_s0")]) == 0
    found = {one.name: (one.value, one.count) for one in read_result(tmp_path / "a_s0").measures}
    expected = HeldOut(tokenizer, 16).look_ahead(model.eval())
    ways = {"plain": "plain", "ahead": "ahead", "ahead_coin": "coin", "ahead_oracle": "oracle"}
    assert {name: found[name] for name in ways} == {name: (getattr(expected, of).mean, 4) for name, of in ways.items()}
