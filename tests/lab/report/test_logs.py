import json
import sqlite3
import sys

import pytest

from support.trainer_logs import REAL, write_demo, write_events, write_state, write_trackio, write_verl, write_wandb
from wm_plugin.errors import UserError
from wm_plugin.lab.report.logs import read, rows_of

POINTS = {"loss": {1: 0.5, 2: 0.25}, "eval/reward": {2: 1.0}}


def values(run):
    return {metric: dict(sorted(steps.items())) for metric, steps in sorted(run.values.items())}


@pytest.mark.parametrize("form", ["trl", "tensorboard", "trackio", "trackio, first releases", "verl"])
def test_every_log_of_the_same_run_says_the_same(tmp_path, form):
    if form == "trl":
        path = write_state(tmp_path, {"loss": POINTS["loss"], "eval_reward": POINTS["eval/reward"]})
    elif form == "tensorboard":
        path = write_events(tmp_path, {"train/loss": POINTS["loss"], "eval/reward": POINTS["eval/reward"]})
    elif form == "verl":
        path = write_verl(tmp_path / "run.jsonl", POINTS)
    else:
        path = write_trackio(
            tmp_path / "p.db", {"one": {"loss": POINTS["loss"], "eval_reward": {2: 1.0}}}, form=form != "trackio"
        )
    if "trackio" in form:
        assert [run.name for run in read(path)] == ["one"]
        assert values(read(path)[0])["loss"] == POINTS["loss"]
    else:
        (run,) = read(path)
        assert values(run) == {"eval/reward": {2: 1.0}, "loss": {1: 0.5, 2: 0.25}}
        assert list(rows_of(run)) == [("eval/reward", 2, 1.0), ("loss", 1, 0.5), ("loss", 2, 0.25)]
        assert (run.last_step, run.notes) == (2, [])


def test_what_is_no_finite_number_is_left_out(tmp_path):
    history = [
        {"step": 1, "loss": "0.5", "a": None, "b": True, "c": [1], "d": 1e400, "f": 3},
        {"loss": 1.0},
        "text",
        {"step": "2", "loss": 1.0},
        {"step": 10**300, "loss": 1.0},
        {"step": 2.0, "loss": 1.0},
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history}))
    assert values(read(path)[0]) == {"f": {1: 3.0}, "loss": {2: 1.0}}
    path = tmp_path / "run.jsonl"
    rows = ['{"step":1,"data":{"loss":NaN,"a":1}}', "broken", "[]", '{"step":2,"data":[]}', '{"step":2,"data":{"a":2}}']
    path.write_text("\n".join(rows))
    (run,) = read(path)
    assert values(run) == {"a": {1: 1.0, 2: 2.0}}
    assert len(run.notes) == 1


def test_the_last_value_of_a_step_counts_and_another_log_adds_what_is_missing(tmp_path):
    path = write_verl(tmp_path / "run.jsonl", {"loss": {1: 1.0}})
    path.write_text(path.read_text() + '{"step":1,"data":{"loss":2.0}}\n')
    (run,) = read(path)
    assert values(run) == {"loss": {1: 2.0}}
    (other,) = read(write_verl(tmp_path / "b.jsonl", {"loss": {1: 9.0, 2: 3.0}, "new": {1: 1.0}}))
    run.merge(other)
    assert values(run) == {"loss": {1: 2.0, 2: 3.0}, "new": {1: 1.0}}
    assert len(run.sources) == 2


def test_a_file_of_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(REAL)
    (run,) = read(path)
    assert values(run) == {"big": {2**40: 3.0}, "eval/reward": {2: -1.5}, "loss": {1: 0.5, 2: 0.25}}
    path.write_bytes(REAL[:-60] + b"\0" * 60)  # damaged: what comes before is read
    assert values(read(path)[0]) == values(run)


def test_without_tensorboard_its_files_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    (tmp_path / "events.out.tfevents.1").write_bytes(REAL)
    with pytest.raises(UserError, match="pip install tensorboard"):
        read(tmp_path / "events.out.tfevents.1")


@pytest.mark.host
def test_a_file_of_wandb(tmp_path):
    """By wandb's own messages, in blocks as LevelDB writes them. It is in verl's environment."""
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    texts = []
    name = Record()
    name.run.display_name = "lively-sun-1"
    for step, reward in enumerate(("0.5", "NaN", '"a text"', "0.75")):
        record = Record()
        for key, value in (("train/reward", reward), ("_step", str(step)), ("long", "1." + "0" * 40_000)):
            item = record.history.item.add()
            item.nested_key.append(key)
            item.value_json = value
        texts.append(record.SerializeToString())
    path = write_wandb(tmp_path / "offline-run-1" / "run-abc.wandb", [name.SerializeToString(), *texts])
    (run,) = read(path)
    assert values(run) == {"reward": {0: 0.5, 3: 0.75}, "long": dict.fromkeys(range(4), 1.0)}
    assert (run.name, run.place) == ("lively-sun-1", str(path.parent))
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])  # killed while it wrote
    assert values(read(path)[0]) == {"reward": {0: 0.5}, "long": dict.fromkeys(range(3), 1.0)}
    path.write_bytes(b"x" * 99)
    with pytest.raises(UserError, match="no file of wandb"):
        read(path)


def test_without_wandb_its_files_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb.proto.wandb_internal_pb2", None)
    monkeypatch.setitem(sys.modules, "wandb.proto", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    (tmp_path / "run-abc.wandb").write_bytes(b":W&B")
    with pytest.raises(UserError, match="pip install wandb"):
        read(tmp_path / "run-abc.wandb")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE other (id)",
        "CREATE TABLE metrics (id)",
    ],
)
def test_other_databases_are_one_line(tmp_path, statement):
    path = tmp_path / "x.db"
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()
    with pytest.raises(UserError, match=r"x\.db: .*trackio"):
        read(path)


def test_rows_of_a_database_that_are_no_metrics(tmp_path):
    path = write_trackio(tmp_path / "x.db", {"a": {"loss": {1: 0.5}}, "b": {"loss": {3: 1.0}}})
    database = sqlite3.connect(path)
    database.execute("UPDATE metrics SET metrics = ? WHERE run_name = 'a'", ("[" * 100_000,))
    database.execute("UPDATE metrics SET run_name = 'b', run_id = x'ff00'")
    database.commit()
    database.close()
    for run in read(path):
        assert run.name == "b"
        assert "left out" in run.notes[0]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x.db"]  # nothing is written beside it


def test_a_run_that_still_writes_into_its_database(tmp_path):
    path = write_trackio(tmp_path / "x.db", {"a": {"loss": {1: 0.5}}})
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("UPDATE metrics SET metrics = '{\"train/loss\": 0.75}'")
    database.commit()
    assert values(read(path)[0]) == {"loss": {0: 0.75}}
    database.close()


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.txt", "x.db", "trainer_state.json", "result.json"])
@pytest.mark.parametrize("text", ["", "[" * 5000, '{"step": 1}', '{"log_history": 1}', '{"arms": [{"coeff": null}]}'])
def test_files_of_others_are_one_line(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        read(path)
    assert "\n" not in str(refused.value)


def test_the_arms_of_the_demo_are_runs(tmp_path):
    path = write_demo(tmp_path / "demo_seed1", {"loss": POINTS["loss"], "eval_reward": POINTS["eval/reward"]})
    runs = read(path)
    assert [run.name for run in runs] == ["demo_seed1 coeff_0", "demo_seed1 coeff_1"]
    assert len({run.place for run in runs}) == 2
    for run in runs:
        assert values(run) == {"eval/reward": {2: 1.0}, "loss": {1: 0.5, 2: 0.25}}
        assert (run.last_step, run.titled) == (2, True)
