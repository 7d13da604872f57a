"""The rule and the table of benchmarks/agent_sft.py."""

import pytest

pytest.importorskip("trl", minversion="1.16")

import agent_sft as benchmark

pytestmark = pytest.mark.host

ARMS = ("stock", "term", "pooled", "stock, RL at 0", "term, RL at 0", "term, RL at 1")


def records(**gained):
    """Runs in which the arm `term` differs from the others, in which nothing differs, by these values, one a seed."""
    level = dict.fromkeys(benchmark.METRICS, 1.0)
    return [
        {"seed": seed, "cpu_seconds": 1, "arms": dict.fromkeys(ARMS, level) | {
            "term": level | {metric: 1.0 + values[seed] for metric, values in gained.items()}}}
        for seed in range(3)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "values", "said"),
    [
        ("env_nll", (-0.5, -0.6, -0.5), "lower"),
        ("env_nll", (-0.5, -0.6, 0.1), "not shown to be lower"),
        ("agent_nll", (0.01, 0.02, 0.01), "not shown to differ"),
        ("agent_nll", (0.3, 0.31, 0.3), "differs"),
        ("success", (0.3, 0.31, 0.3), "higher"),
        ("exact", (0.3, -0.3, 0.1), "null (the interval contains 0)"),
    ],
)
def test_what_the_rule_says(metric, values, said):
    made = records(**{metric: values})
    assert benchmark.paired(made, "term", "stock", metric)[-1] == said
    assert f"| {metric} | {sum(values) / 3:+.3f}" in benchmark.table(made)


def test_rows_are_an_agents_dialogues():
    tokenizer = benchmark.make_tokenizer()
    (row,) = benchmark.rows(tokenizer, 1, 1)
    spans = {span["start"] for span in row["env_spans"]}
    own = {place for place, mask in enumerate(row["assistant_masks"]) if mask}
    assert min(len(spans), len(own)) > 0
    assert not spans & own
