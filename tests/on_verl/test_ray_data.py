"""On Ray the same transitions come out as from one process, in the same order."""

import json

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

from recipes.verl import ray_data  # noqa: E402
from wm_plugin.data import Trajectory, expand  # noqa: E402
from wm_plugin.data.filter import Filter  # noqa: E402
from wm_plugin.data.readers import read_rows  # noqa: E402
from wm_plugin.runtime.command import exit_code  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def row(number: int) -> dict:
    says = {"role": "assistant", "content": f"step {number}"}
    return {"id": number, "messages": [says, {"role": "user", "content": f"é {number}"}] * (number % 4 + 1)}


class Batches:
    """Stands for a dataset of Ray: transitions in two batches."""

    def iter_batches(self, batch_size):
        yield {"transition": ["1", "2"]}
        yield {"transition": ["3"]}


def command(monkeypatch, *arguments):
    monkeypatch.setattr(ray_data, "run", lambda sources: Batches())
    monkeypatch.setattr("sys.argv", ["ray_data", *arguments])
    return exit_code(ray_data.main, "ray_data")


def test_transitions_go_to_a_new_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".wm-0-x.unfinished").touch()  # of a killed run
    for out in ("new/deep", "empty"):
        assert command(monkeypatch, out, "rows.jsonl") == 0
        texts = {path.name: path.read_text() for path in (tmp_path / out).iterdir() if path.name[0] != "."}
        assert texts == {"00000.jsonl": "1\n2\n", "00001.jsonl": "3\n"}
        assert json.loads(capsys.readouterr().out) == {"transitions": 3, "out": out}


def test_no_file_of_the_users_is_written_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "00000.jsonl").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "00007.jsonl").write_text("of another run")
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "dangling").symlink_to("nothing")
    source = "data/00000.jsonl"
    for out in ("data", "link", "other", "dangling", ".", source, f"{source}/x", "x\0"):
        assert command(monkeypatch, out, source) == 2, out
        assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "data" / "00000.jsonl").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "data", "link", "other"]
    assert command(monkeypatch, "new", source, "link/00000.jsonl") == 0


@pytest.mark.slow
def test_it_is_what_one_process_makes(cluster, tmp_path):
    lines = [json.dumps(row(number)) if number % 9 else '{"messages": 5}' for number in range(1, 200)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.json").write_text(json.dumps([row(number) for number in range(20)]))
    sources = [tmp_path / "a.jsonl", tmp_path / "b.json"]
    kept = (found for source in sources for found in read_rows(source) if isinstance(found, Trajectory))
    alone = [transition.to_bytes().decode() for transition in expand(Filter(without=ray_data.WITHOUT)(kept))]
    assert len(alone) > 300
    assert [found["transition"] for found in ray_data.run(sources, size=1000).take_all()] == alone
