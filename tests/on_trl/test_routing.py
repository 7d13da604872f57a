"""A world's own words decide which rule of RWML scores a prediction on TRL: from an episode to the reward function."""

from pathlib import Path

import pytest

from support.routing import CONTENTLESS, ROUTES, embeddings, missing, rows_of, said
from wm_plugin.trl.rewards import as_reward_function


@pytest.mark.parametrize(("world", "tool", "observer"), ROUTES)
def test_the_observer_decides(world: str, tool: str, observer: str, tmp_path: Path) -> None:
    if missing(world):
        pytest.skip(" and ".join(missing(world)))
    rows = rows_of(world, tool, "trl", tmp_path)
    assert {row["observer"] for row in rows} == {observer}
    with embeddings() as (address, asked):
        settings = {"model": "words", "base_url": address, "threshold": 0.2, "tag": "next_state"}
        score = as_reward_function({"path": "rwml", "kwargs": settings})
        columns = {name: [row[name] for row in rows] for name in ("target", "observer", "tool", "task_id")}
        logged: dict[str, float] = {}
        host = {"prompts": [row["prompt"] for row in rows], "log_metric": logged.__setitem__}
        right = score(completions=[said(row["target"]) for row in rows], **host, **columns)
        contentless = score(completions=[said(CONTENTLESS) for _ in rows], **host, **columns)
    assert right == [1.0] * len(rows)
    assert bool(asked) == (observer != "tool")
    assert ("wm/rwml/rouge" in logged, "wm/rwml/embedding" in logged) == (observer == "tool", observer != "tool")
    if observer != "tool":
        assert contentless == [0.0] * len(rows)
