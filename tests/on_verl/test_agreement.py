"""verl's adapter computes what TRL's does, on the same turns, from the agent loop to the gradient; see support.agreement."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("verl")

import torch
from verl.workers.utils.padding import response_from_nested

from support import on_verl, selection
from support.agent_loop import config, episode
from support.agreement import OBJECTIVES, TURNS, assert_agree, describe, make_model, read_fixture, read_tokenizer
from support.bare_on_verl import bare
from support.on_verl import Rollout, make_batch, make_worker, policy_loss, with_term
from wm_plugin import EchoConfig
from wm_plugin.objectives import Span
from wm_plugin.objectives.weigh import weigh
from wm_plugin.tokens.spans import SPAN_FIELD, Origin
from wm_plugin.verl.names import COUNTS, ERROR, ORIGINS, TOOL_IDS, WEIGHTS
from wm_plugin.verl.trainer import Row, make_columns


@pytest.fixture(scope="module")
def fixture():
    return read_fixture()


@pytest.fixture(scope="module")
def tokenizer():
    return read_tokenizer()


@pytest.fixture(scope="module")
def worker(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(tokenizer).save_pretrained(folder)
    return make_worker(folder)


def play(tokenizer, echo: dict[str, Any], turns=TURNS, environment="support.tools:Tools") -> list[Any]:
    """What verl's loop makes of every rollout, in their order."""
    settings = config({"environment": environment, **echo}, 600, max_tool_response_length=1000)
    rows = [({"raw_prompt": [{"role": "user", "content": task}]}, one) for task, some in turns.items() for one in some]

    async def run_all() -> list[Any]:
        return [await episode(tokenizer, said, settings, row) for row, said in rows]

    return asyncio.run(run_all())


def rows_of(fixture, outputs, echo) -> tuple[list[Rollout], list[list[tuple[Span, float]]]]:
    """The loop's rollouts in the order of the fixture, with the advantages that TRL gave them."""
    by_tokens = {json.dumps([output.prompt_ids, output.response_ids]): output for output in outputs}
    rollouts, spans = [], []
    for stored in fixture["rollouts"]:
        output = by_tokens.pop(json.dumps([stored["prompt"], stored["response"]]))
        assert output.response_mask == stored["mask"]
        assert ERROR not in output.extra_fields
        rollouts.append(Rollout(output.prompt_ids, output.response_ids, output.response_mask, [], stored["advantage"]))
        origins = [Origin.unpack(values) for values in output.extra_fields[ORIGINS]]
        spans.append(weigh(origins, echo))
    assert not by_tokens
    return rollouts, spans


def old_log_probs(worker, rollouts):
    """As the trainer computes them before the update."""
    batch = make_batch(rollouts, compute_loss=False)
    found = worker.infer_batch(batch)
    return response_from_nested(found["log_probs"], batch["response_mask"])


def updated(worker, loss, batch, old):
    batch["old_log_probs"] = old
    return on_verl.update(worker, loss, batch)


def test_the_same_tokens(fixture, tokenizer):
    rollouts, spans = rows_of(fixture, play(tokenizer, {"coeff": 1.0}), EchoConfig(1.0))
    assert sum(0 in rollout.mask for rollout in rollouts) == 6
    assert any(len({span.tool for span, weight in row if weight}) == 2 for row in spans)


@pytest.fixture(scope="module")
def stock(worker, fixture, tokenizer):
    rollouts, _ = rows_of(fixture, play(tokenizer, {"coeff": 1.0}), EchoConfig(1.0))
    old = old_log_probs(worker, rollouts)
    return updated(worker, policy_loss(), make_batch(rollouts), old), old


def test_the_policy_loss_is_the_same_too(stock, fixture):
    """verl's token-mean is TRL's `dapo`: so the whole objectives agree, not only the terms."""
    update, _ = stock
    found = {"loss": update.losses[0], "gradient": describe(update.gradients[0])}
    assert_agree(found, fixture["figures"]["policy"])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_same_objective(worker, stock, fixture, tokenizer, name):
    before, old = stock
    echo = EchoConfig(**OBJECTIVES[name])
    rollouts, spans = rows_of(fixture, play(tokenizer, OBJECTIVES[name]), echo)
    tools = sorted(echo.tool_names or ("run_code", "lookup_doc"))
    after = updated(worker, with_term(policy_loss(), echo), make_batch(rollouts, echo, spans=spans, tools=tools), old)
    found = echo.figures(after.sums, tools, steps=1, coeff=echo.coeff, silent=0.0)
    found = {key.removeprefix("echo/"): value for key, value in found.items()}
    found["gradient"] = describe(after.gradients[0] - before.gradients[0])
    assert_agree(found, fixture["figures"][name])
    assert after.losses[0] - before.losses[0] == pytest.approx(found["loss"], rel=1e-5)


# -- which tokens count -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def selections():
    return selection.read()


def choose(rows: dict[str, Row], echo: EchoConfig, tokenizer) -> dict[str, Any]:
    """What the trainer makes of a batch of these rows: of each its runs of tokens that count, and its share of N."""
    config = {"data": {"max_response_length": selection.LIMIT}}
    trainer = bare(echo, config=config, tokenizer=tokenizer, tools=sorted(echo.tool_names or ()))
    ((one, spans),) = trainer._weighted_spans(list(rows.values()))
    columns = make_columns(one, spans, list(rows.values()))
    chosen = {}
    for name, weights, numbers, count in zip(
        rows, columns[WEIGHTS].unbind(), columns[TOOL_IDS].unbind(), columns[COUNTS], strict=True
    ):
        row_tools = selection.names_of(numbers.tolist(), one.tools)
        chosen[name] = selection.selected(name, weights.tolist(), row_tools, int(count))
    return chosen


@pytest.fixture(scope="module")
def looped(tokenizer):
    """By the name of a configuration, the rollouts of verl's loop as the trainer reads them."""

    def make(fields: dict[str, Any]) -> dict[str, Row]:
        outputs = iter(play(tokenizer, {"coeff": 1.0, **fields}, selection.TURNS, "support.selection:RaisingTools"))
        rows = {}
        for task, rollouts in selection.TURNS.items():
            for turns in rollouts:
                output, name = next(outputs), selection.name_of(turns[-1])
                mask = torch.tensor(output.response_mask)
                reward = selection.reward_of(name)
                rows[name] = Row(task, output.response_ids, mask, reward, output.extra_fields, False)
        return rows

    return make


@pytest.mark.parametrize("name", selection.CONFIGS)
def test_the_same_tokens_count(selections, looped, tokenizer, name):
    rows = looped(selection.CONFIGS[name])
    for key in set(rows) - set(selection.FAILS):
        assert rows[key].ids == selections["rollouts"][key]["response"]
    assert choose(rows, EchoConfig(1.0, **selection.CONFIGS[name]), tokenizer) == selections["loop"][name]


@pytest.mark.parametrize("name", selection.OWN_CONFIGS)
def test_the_same_tokens_of_a_users_own_spans_count(selections, tokenizer, name):
    rows = {}
    for task, rollouts in selection.TURNS.items():
        for key in (selection.name_of(turns[-1]) for turns in rollouts):
            stored = selections["rollouts"][key]
            mask = torch.tensor(stored["mask"])
            extra = {SPAN_FIELD: selection.own_spans(stored["mask"])}
            rows[key] = Row(task, stored["response"], mask, selection.reward_of(key), extra, False)
    assert choose(rows, EchoConfig(1.0, **selection.CONFIGS[name]), tokenizer) == selections["own"][name]
