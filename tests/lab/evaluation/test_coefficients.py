"""Equal pulls, by counts that are known by hand."""

import pytest

from wm_plugin import EchoConfig
from wm_plugin.lab.evaluation.coefficients import equivalents, pull
from wm_plugin.objectives.echo import PRESETS
from wm_plugin.tokens.spans import Origin, Span


def span(start, end, *, content=True, role="tool", failed=False):
    return Origin(Span(start, end, role, "t" if role == "tool" else None, content), failed=failed)


# 4 tokens of content in 2 of scaffold; none; 6 of content, 2 of an error and 8 of a user
BATCH = [
    [span(0, 1, content=False), span(1, 5), span(5, 6, content=False)],
    [],
    [span(0, 6), span(8, 10, failed=True), span(12, 20, role="user")],
]
PULLS = {
    "blog": 10 / (4 + 6 + 8),
    "paper": (4 / 4 + 6 / 16) / 3,
    "prime-rl": 10 / (4 + 6 + 2),
    "verl-recipe": (4 / 4 + 6 / 16) / 3,
    "rllm": (4 / 6 + 6 / 16) / 3,
    "openenv": 10 / 22,
}


def test_each_presets_pull_and_the_coefficients_that_make_them_equal():
    assert {name: pull(BATCH, EchoConfig(preset=name)) for name in PRESETS} == pytest.approx(PULLS)
    rows = {row["preset"]: row["as strong"] for row in equivalents(BATCH, "prime-rl", 0.2)}
    assert rows == pytest.approx({name: 0.2 * PULLS["prime-rl"] / own for name, own in PULLS.items()})
    own = {row["preset"]: row["as strong"] for row in equivalents(BATCH, "rllm", None)}
    assert own["rllm"] == pytest.approx(0.05)


def test_what_depends_on_the_split_and_what_does_not():
    assert pull(BATCH, EchoConfig(preset="openenv"), 3) == pytest.approx(4 / 6 + 6 / 16)
    assert pull(BATCH, EchoConfig(preset="paper"), 3) == pytest.approx(PULLS["paper"])
    per_role = EchoConfig(roles={"tool": 2.0, "user": 1.0}, normalization="per_role")
    assert pull(BATCH, per_role) == pytest.approx(2.0)


def test_rollouts_without_results_have_no_coefficient():
    assert [row["as strong"] for row in equivalents([[], []], "paper", None)] == [None] * len(PRESETS)
