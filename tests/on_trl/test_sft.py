"""World-model SFT through TRL's own trainer: what is learnt, what is reused, and that a model appears whole or not at all."""

import pytest

pytest.importorskip("trl")

from support.predictions import save_tiny
from wm_plugin.client.predict import LocalPredictor
from wm_plugin.errors import UserError
from wm_plugin.trl.sft import _batches, train_world_model

ROWS = [
    {
        "prompt": [{"role": "user", "content": f"{letter}?"}],
        "completion": [{"role": "assistant", "content": f"<think>\n\n</think>\n\n<next_state>{number}</next_state>"}],
    }
    for number, letter in enumerate("abcd")
]
OPTIONS = {"learning_rate": 3e-3, "batch_size": 4, "epochs": 80}


@pytest.fixture
def base(tmp_path):
    return save_tiny(tmp_path / "base")


def test_the_completions_are_learnt_to_their_end(base, tmp_path):
    out = train_world_model(base, ROWS, tmp_path / "filter", **OPTIONS)
    asked = [row["prompt"] for row in ROWS]
    said = LocalPredictor(out, temperature=0, max_new_tokens=60)(asked, k=1, seed=0)
    assert said == [[row["completion"][0]["content"]] for row in ROWS]


def test_a_model_that_is_there_is_taken_and_another_one_refused(base, tmp_path):
    out = tmp_path / "filter"
    (tmp_path / "filter.unfinished").mkdir()  # the user's
    train_world_model(base, ROWS, out, **OPTIONS | {"epochs": 1})
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "filter", "filter.unfinished"]
    assert train_world_model(base, ROWS, out, **OPTIONS | {"epochs": 1}) == out
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    with pytest.raises(UserError, match="a model of other settings .epochs 1 -> 3.; name another folder"):
        train_world_model(base, ROWS, out, **OPTIONS | {"epochs": 3})
    with pytest.raises(UserError, match="of other settings .rows "):
        train_world_model(base, ROWS[:3], out, **OPTIONS | {"epochs": 1})


def test_the_same_seed_gives_the_same_weights(base, tmp_path):
    weights = [
        LocalPredictor(train_world_model(base, ROWS, tmp_path / str(n), **OPTIONS | {"epochs": 2})).settings["weights"]
        for n in range(2)
    ]
    assert weights[0] == weights[1] != LocalPredictor(base).settings["weights"]


def test_nothing_is_written_to_standard_output(base, tmp_path, capsys):
    train_world_model(base, ROWS, tmp_path / "filter", **OPTIONS | {"epochs": 1})
    assert capsys.readouterr().out == ""


def test_mistakes(base, tmp_path):
    with pytest.raises(UserError, match="no rows"):
        train_world_model(base, [], tmp_path / "filter")
    with pytest.raises(UserError, match="/nowhere/at/all"):
        train_world_model("/nowhere/at/all", ROWS, tmp_path / "filter")
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match="taken: there is something else of this name"):
        train_world_model(base, ROWS, tmp_path / "taken")


@pytest.mark.parametrize(("batch", "most", "micro"), [(32, 4, 4), (30, 4, 3), (7, 4, 1), (2, 4, 2)])
def test_a_step_has_exactly_the_batch(batch, most, micro):
    assert _batches(batch, most) == {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": batch // micro,
    }
