"""What a reward gets of a row is the same on both hosts: what a judge is asked, byte for byte, and by which rule RWML scores."""

import importlib

import pytest

from support import agentworld
from support.routing import CONTENTLESS, ROUTES, embeddings, missing, rows_of, said
from wm_plugin.data.rows import write_rows

pytestmark = pytest.mark.host


@pytest.fixture(params=[("trl", "function"), ("verl", "manager"), ("verl", "function")], ids="-".join)
def score(request):
    """The targets, scores and figures of a file's rows, in each way that a host has; with `host`."""
    host, way = request.param
    pytest.importorskip(host)
    module = importlib.import_module(f"support.score_on_{host}")

    def scored(spec, path, say):
        return module.score(spec, path, say, way)

    scored.host, scored.way = host, way
    return scored


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_the_judge_is_asked_the_same_on_both_hosts(score, suffix, tmp_path):
    expected, scores = agentworld.measured(tmp_path)
    assert agentworld.digest(expected) == agentworld.DIGEST
    built = agentworld.build(tmp_path, score.host, suffix)
    with agentworld.judge() as server:
        targets, found, _ = score(agentworld.block(server), built, agentworld.output)
        assert found == [scores[target] for target in targets]
        assert agentworld.requests(server) == expected


def test_a_row_without_a_context_shows_its_prompt(score, tmp_path):
    if (score.host, score.way) == ("verl", "function"):
        pytest.skip("verl gives prompts to managers alone")
    prompt = [{"role": "system", "content": "Be a shell."}, {"role": "user", "content": "ls"}]
    row = {"prompt": prompt, "target": "a"}
    if score.host == "verl":
        row = {"data_source": "x", "prompt": prompt, "reward_model": {"ground_truth": "a"}, "extra_info": {"index": 0}}
    write_rows([row], tmp_path / "rows.parquet")
    with agentworld.judge() as server:
        score(agentworld.block(server), tmp_path / "rows.parquet", agentworld.output)
        assert server.received == [agentworld.prompt_request()]


@pytest.mark.parametrize(("world", "tool", "observer"), ROUTES)
def test_a_worlds_words_decide_which_rule_of_rwml_scores(score, world, tool, observer, tmp_path):
    """From an episode to the reward."""
    if missing(world):
        pytest.skip(" and ".join(missing(world)))
    path = rows_of(world, tool, score.host, tmp_path, observer)
    with embeddings() as (address, asked):
        settings = {"model": "words", "base_url": address, "threshold": 0.2, "tag": "next_state"}
        _, right, figures = score({"path": "rwml", "kwargs": settings}, path, said)
        _, contentless, _ = score({"path": "rwml", "kwargs": settings}, path, lambda _: said(CONTENTLESS))
    assert right == [1.0] * len(right)
    assert bool(asked) == (observer != "tool")
    assert ("wm/rwml/rouge" in figures) == (observer == "tool")
    if observer != "tool":
        assert contentless == [0.0] * len(right)
