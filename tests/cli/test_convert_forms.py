"""`wm data convert --to` and `hf:`, from flags to files."""

import json
import sys

import pytest

from support.formats import CHAT
from wm_plugin.data.readers import read_rows

ROW = {"messages": CHAT, "tools": [{"type": "function", "function": {"name": "find"}}], "reward": 1.0, "task_id": "t"}
HIDDEN = {
    "turns": [
        {"action": {"text": "go"}, "observations": [{"kind": "environment", "text": "no", "error": True}]},
        {"action": {"text": "", "calls": [{"name": "reset"}]}, "actor": "user"},
    ],
    "context": {"permissions": "none"},
    "version": 1,
}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(
        "".join(
            json.dumps(row) + "\n" for row in (HIDDEN, *[{**HIDDEN, "context": {}, "turns": [HIDDEN["turns"][0]]}] * 2)
        )
    )
    return path


def test_forms_by_the_command_also_in_several_processes(wm, source, tmp_path):
    for to in ("atif", "messages"):
        outs = [tmp_path / f"{to}{workers}.jsonl" for workers in (1, 2)]
        results = [
            wm.json("data", "convert", source, "--out", out, "--to", to, "--workers", n)
            for n, out in enumerate(outs, 1)
        ]
        assert outs[0].read_bytes() == outs[1].read_bytes()
        assert results[0].get("notes") == results[1].get("notes")
    assert results[0]["notes"] == [
        "messages cannot hold flags of errors: left out of 3 trajectories",
        "messages cannot hold the calls of users: left out of 1 trajectories",
        "messages cannot hold what only a world model is shown: left out of 1 trajectories",
    ]
    wm.json("data", "convert", tmp_path / "atif1.jsonl", "--out", tmp_path / "back.jsonl")
    wm.json("data", "convert", source, "--out", tmp_path / "own.jsonl")
    assert (tmp_path / "back.jsonl").read_bytes() == (tmp_path / "own.jsonl").read_bytes()


def test_the_first_reason_where_nothing_is_read(wm, tmp_path):
    source, out = tmp_path / "run.json", tmp_path / "out.jsonl"
    steps = [{"source": "user", "message": "hi"}, {"source": "robot", "message": "x" * 70_000}]
    source.write_text(json.dumps({"schema_version": "ATIF-v1.4", "steps": steps}))
    reason = "nothing was read; run.json, row 0: step 2 is no step of a system, a user or an agent"
    for workers in (1, 2):
        result = wm.json("data", "convert", source, "--out", out, "--workers", workers, code=1)
        assert result["notes"] == [f"{reason}; --format names the format, if the guess was wrong"]


def test_messages_in_parquet_and_forms_that_are_refused(wm, tmp_path):
    source, out = tmp_path / "chat.jsonl", tmp_path / "out.parquet"
    source.write_text(json.dumps({**ROW, "messages": [*CHAT, {"role": "assistant", "content": "\ud800"}]}) + "\n")
    for workers in (1, 2):
        wm.json("data", "convert", source, "--out", out, "--to", "messages", "--workers", workers)
        (trajectory,) = read_rows(out, "openai")
        assert [one.text for _, _, one in trajectory.observed()] == ["found", "thanks"]
        assert trajectory.context.action_space == tuple(ROW["tools"])
        assert (trajectory.task_id, trajectory.reward) == ("t", 1.0)
    assert "ATIF is JSON: write a name that ends in .jsonl" in wm.error(
        "data", "convert", source, "--out", out, "--to", "atif"
    )
    assert "--to is 'atiff'; did you mean 'atif'?" in wm.error("data", "convert", source, "--out", out, "--to", "atiff")


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Two folders that `datasets` takes, as names: of two splits, and with messages as JSON text, as some datasets have them."""
    rows = {
        "a/train": [ROW, {**ROW, "messages": CHAT[:4]}],
        "a/test": [ROW],
        "b/train": [{**ROW, "messages": json.dumps(CHAT)}],
    }
    for name, some in rows.items():
        path = tmp_path / "owner" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
    monkeypatch.chdir(tmp_path)


@pytest.mark.host  # datasets looks at transformers
def test_a_dataset_by_its_name(wm, dataset, tmp_path):
    out = tmp_path / "out.jsonl"
    for name, count, transitions in (("a@train", 2, 3), ("a", 3, 5), ("b", 1, 2), ("a@test", 1, 2)):
        result = wm.json("data", "convert", f"hf:owner/{name}", "--out", out)
        assert (result["trajectories"], result["transitions"], result["rejected"]) == (count, transitions, 0)
    (trajectory,) = read_rows(out)
    assert (trajectory.source.file, trajectory.reward) == ("owner--a.test.jsonl", 1.0)
    for name, said in (("hf:owner/a@dev", "dev"), ("hf:owner/a:big", "big"), ("hf:", "'hf:' names no dataset")):
        assert said in wm.error("data", "convert", name, "--out", out)
    assert not list(tmp_path.glob(".wm*"))


def test_a_dataset_needs_the_extra(wm, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    said = wm.error("data", "convert", "hf:owner/name", "--out", tmp_path / "out.jsonl")
    assert "hf:… needs datasets: pip install" in said
    assert "[hub]" in said
