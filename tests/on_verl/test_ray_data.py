"""On Ray the same transitions come out as from one process, in the same order."""

import json

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

from recipes.verl import ray_data  # noqa: E402
from wm_plugin.trajectories import Trajectory, expand  # noqa: E402
from wm_plugin.trajectories.filter import Filter  # noqa: E402
from wm_plugin.trajectories.readers import read_rows  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def row(number: int) -> dict:
    says = {"role": "assistant", "content": f"step {number}"}
    return {"id": number, "messages": [says, {"role": "user", "content": f"é {number}"}] * (number % 4 + 1)}


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
