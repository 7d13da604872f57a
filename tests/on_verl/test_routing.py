"""A world's own words decide which rule of RWML scores a prediction on verl: from an episode to the custom reward function."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("verl")

from support.routing import CONTENTLESS, ROUTES, embeddings, missing, rows_of, said
from wm_plugin.verl.rewards import compute_score


@pytest.mark.parametrize(("world", "tool", "observer"), ROUTES)
def test_the_observer_decides(world: str, tool: str, observer: str, tmp_path: Path) -> None:
    if missing(world):
        pytest.skip(" and ".join(missing(world)))
    rows = rows_of(world, tool, "verl", tmp_path)
    assert {row["extra_info"]["observer"] for row in rows} == {observer}
    with embeddings() as (address, asked):
        settings = {"model": "words", "base_url": address, "threshold": 0.2, "tag": "next_state"}

        async def scores(texts: list[str]) -> list[dict[str, float]]:
            return await asyncio.gather(
                *(
                    compute_score(
                        said(text),
                        row["reward_model"]["ground_truth"],
                        path="rwml",
                        kwargs=settings,
                        data_source=row["data_source"],
                        extra_info=row["extra_info"],
                    )
                    for row, text in zip(rows, texts, strict=True)
                )
            )

        right = asyncio.run(scores([row["reward_model"]["ground_truth"] for row in rows]))
        contentless = asyncio.run(scores([CONTENTLESS for _ in rows]))
    assert [row["score"] for row in right] == [1.0] * len(rows)
    assert bool(asked) == (observer != "tool")
    assert {"wm/rwml/rouge" in row for row in right} == {observer == "tool"}
    if observer != "tool":
        assert [row["score"] for row in contentless] == [0.0] * len(rows)
