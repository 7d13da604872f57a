"""Two gloo ranks: N counts both, and averaging over ranks does not halve the term. So it is where parameters are sharded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.foreseeing import by_hand
from wm_plugin.data.host_dumps import EVERY, Shown, Writer
from wm_plugin.data.readers import read

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]
SILENT = "a rank without environment tokens"

CASES = {
    "unequal ranks": {
        "fields": {"loss_type": "dapo"},
        "silent_rank": None,
        "echo": {"coeff": 0.37, "turn_information": {"action": 0.3}},
    },
    SILENT: {
        "fields": {"loss_type": "grpo", "gradient_accumulation_steps": 1},
        "silent_rank": 1,
        "echo": {"coeff": 0.37},
    },
    "a refill": {
        "fields": {"loss_type": "dapo", "num_generations": 2},
        "silent_rank": None,
        "echo": {"coeff": 0.37, "zero_variance_groups": "refill"},
    },
    "a refill of groups that lie on both ranks": {
        "fields": {
            "loss_type": "dapo",
            "num_generations": 2,
            "per_device_train_batch_size": 3,
            "gradient_accumulation_steps": 1,
        },
        "silent_rank": None,
        "echo": {"coeff": 0.37, "zero_variance_groups": "refill"},
    },
}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What came out of every case on two ranks: one start of the processes costs more than all of them."""
    folder = tmp_path_factory.mktemp("ranks")
    cases = CASES | {"guard": {"guard": {"k": 1, "share": 0.999}}, "predictions": {"predictions": True}}
    dumped = {"log_completions": True, "num_completions_to_print": 0, "output_dir": str(folder / "run")}
    cases[SILENT] = {**CASES[SILENT], "fields": {**CASES[SILENT]["fields"], **dumped}}
    Writer(folder / "run" / "completions").declare([(EVERY, Shown())])  # of an earlier run, with other tools
    results = launch("ranks_on_trl.py", [*cases.values()], folder)["cases"]
    return {"folder": folder, **dict(zip(cases, results, strict=True))}


def launch(script, cases, folder):
    """What a script of `support` writes when it runs on two ranks."""
    out = folder / "result.json"
    switches = ("ACCELERATE_", "FSDP_", "CUDA_VISIBLE_DEVICES")  # of a launcher around the tests
    environment = {name: value for name, value in os.environ.items() if not name.startswith(switches)}
    path = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH")]
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    arguments = [str(TESTS / "support" / script), str(out), json.dumps(cases)]
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", CASES)
def test_two_ranks(two_ranks, name):
    result, case = two_ranks[name], CASES[name]
    check(result, case, tolerance=1e-6)
    (metrics, _), _ = result["logged"]
    refilled = case["echo"].get("zero_variance_groups") == "refill"
    assert metrics.get("echo/refill/unfilled") == (0.0 if refilled else None)
    if refilled:
        assert result["with_advantage"]
        assert metrics["echo/refill/prompts"] > 0
        return  # the figures of episodes are of all rounds
    assert metrics["wm/env/environment_tokens"] == pytest.approx(result["environment_tokens"])
    information = case["echo"].get("turn_information")
    assert metrics.get("echo/information") == (pytest.approx(0.3) if information else None)


def test_a_dump_has_the_tools_of_all_ranks_rows(two_ranks):
    (dump,) = (two_ranks["folder"] / "run" / "completions").glob("*.parquet")
    rows = list(read(dump))
    assert [row.metadata["wm_tools"] for row in rows] == [f"{EVERY}~2"] * 8
    assert {len(row.context.action_space) for row in rows} == {2}


def test_the_guard_is_the_same_on_two_ranks(two_ranks):
    first, second = two_ranks["guard"]["ranks"]
    assert first == second
    assert first["state"]["state"]["multiplier"] < 1
    assert first["coefficients"][0] == 0.5 > first["coefficients"][-1]


def test_a_group_on_two_ranks_has_one_mean_of_predictions(two_ranks):
    ranks = two_ranks["predictions"]["ranks"]
    added = by_hand([dialogue for rank in ranks for dialogue in rank["dialogues"]])
    alone = [by_hand(rank["dialogues"] * 2)[:2] for rank in ranks]
    assert added != [*alone[0], *alone[1]]
    assert any(value for values in added for value in values)
    for number, rank in enumerate(ranks):
        expected = dict(zip(map(tuple, rank["ids"]), added[2 * number : 2 * number + 2], strict=True))
        assert len(expected) == 2
        for ids, sampled, found in zip(rank["completions"], rank["sampled"], rank["added"], strict=True):
            values = [*expected[tuple(ids)], 0.0]
            turns = [
                bool(mask and (place == 0 or not sampled[place - 1])) for place, mask in enumerate(sampled[: len(ids)])
            ]
            by_token = [values[sum(turns[: place + 1]) - 1] if sampled[place] else 0.0 for place in range(len(ids))]
            assert found[: len(ids)] == pytest.approx(by_token)


SHARDED_CASES = {
    "accumulation": {"fields": {"loss_type": "dapo"}, "silent_rank": None},
    "a rank without environment tokens": {
        "fields": {"loss_type": "grpo", "gradient_accumulation_steps": 1},
        "silent_rank": 1,
    },
    "clipping, accumulation and a rank without environment tokens": {
        "fields": {"loss_type": "dapo", "max_grad_norm": 0.05},
        "silent_rank": 1,
    },
}


@pytest.fixture(scope="module")
def on_fsdp2(tmp_path_factory):
    cases = [{"engine": "fsdp2", "dtype": "float64", **case} for case in SHARDED_CASES.values()]
    return launch("ranks_on_trl.py", cases, tmp_path_factory.mktemp("fsdp2"))


@pytest.mark.parametrize("name", SHARDED_CASES)
def test_fsdp2_trains_as_ddp_does(on_fsdp2, name):
    result = dict(zip(SHARDED_CASES, on_fsdp2["cases"], strict=True))[name]
    check(result, SHARDED_CASES[name], tolerance=1e-6)
    for facts in result["facts"]:
        assert facts["distributed_type"] == "FSDP"
        assert facts["kinds"] == ["DTensor"]
        assert facts["sharded"] == ["(Shard(dim=0),)"]
    shares = [facts["numbers_here"] for facts in result["facts"]]
    assert sum(shares) == result["facts"][0]["numbers"]
    assert min(shares) > 0


def test_fsdp_that_is_left_out_on_a_cpu_is_told(on_fsdp2):
    as_ddp, alone = on_fsdp2["left_out"]
    assert as_ddp["distributed_type"] == "MULTI_CPU"
    assert [text.partition(":")[0] for text in as_ddp["messages"]] == ["FSDP was asked for, DDP runs"]
    assert alone["distributed_type"] == "NO"
    head = "FSDP was asked for, 2 processes run, and each trains alone"
    assert [text.partition(":")[0] for text in alone["messages"]] == [head]


@pytest.mark.nightly
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_trains_as_ddp_does(stage, tmp_path):
    pytest.importorskip("deepspeed")
    cases = [{"engine": f"zero{stage}", "dtype": "float32", **case} for case in SHARDED_CASES.values()]
    results = launch("ranks_on_trl.py", cases, tmp_path)["cases"]
    for result, case in zip(results, SHARDED_CASES.values(), strict=True):
        check(result, case, tolerance=5e-5)  # DeepSpeed has no float64, and clipping makes updates small
        for facts in result["facts"]:
            assert facts["distributed_type"] == "DEEPSPEED"
            assert facts["stage"] == stage
            assert (facts["numbers_here"] == 0) == (stage == 3)  # between steps each rank keeps its part elsewhere


@pytest.mark.nightly
def test_the_asynchronous_trainer_on_two_ranks(tmp_path):
    """One rank collates for both."""
    pytest.importorskip("trl", minversion="1.16")
    (result,) = launch("ranks_on_trl.py", [{"asynchronous": True}], tmp_path)["cases"]
    first, second = result["tokens_by_rank"]
    assert first != second
    assert first + second == result["tokens"] == result["logged"][0]["echo/tokens"]
    assert result["logged"][0] == result["logged"][1]
    assert result["relative_error"] <= 1e-5  # in float32


def check(result, case, *, tolerance):
    """The term is plain transformers', and a step on an engine that shards is DDP's; both ranks log the same."""
    assert result["same_batches"]
    assert all(facts["processes"] == 2 and facts["tied"] for facts in [*result["facts"], result["ddp_facts"]])
    assert result["ddp_facts"]["distributed_type"] == "MULTI_CPU"
    assert result["ddp_facts"]["kinds"] == ["Parameter"]
    first, second = result["tokens_by_rank"]
    assert first != second
    assert (second == 0) == (case["silent_rank"] == 1)
    assert result["counted"] == result["tokens"] == first + second
    assert result["term_error"] <= tolerance
    assert result["update_error"] <= tolerance
    ours, ddp = result["losses"]
    assert [len(losses) for losses in ours] == [case["fields"].get("gradient_accumulation_steps", 2)] * 2
    for losses, expected in zip(ours, ddp, strict=True):
        assert losses == pytest.approx(expected, rel=tolerance)
    ours, ddp = result["logged"]
    for figures, expected in zip(ours, ddp, strict=True):
        assert figures == pytest.approx(expected, rel=tolerance)
        assert figures == ours[0]
        assert figures["echo/tokens"] == result["tokens"]
    clipped = case["fields"].get("max_grad_norm")
    if clipped:
        assert ours[0]["grad_norm"] > 10 * clipped
        assert result["update_norm"] == pytest.approx(clipped, rel=1e-4)
