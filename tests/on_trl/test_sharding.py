"""FSDP that accelerate leaves out is told of: when a trainer is made, and by `wm doctor`."""

import logging
import re
from types import SimpleNamespace

import pytest
from transformers import TrainingArguments

from support.on_trl import make
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer, doctor, sharding

LAUNCHER = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "LOCAL_RANK", "RANK", "WORLD_SIZE")
NEITHER = SimpleNamespace(fsdp=None, deepspeed=None)


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Sets the environment as a launcher does; nothing of it is set before."""
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)

    def launch(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return launch


@pytest.mark.parametrize("echo", [None, EchoConfig(0.5)])
def test_a_trainer_that_runs_without_the_fsdp_asked_for_says_so(launched, caplog, echo):
    make(WorldModelGRPOTrainer, world_model=echo)
    assert "asked for" not in caplog.text
    launched(ACCELERATE_USE_FSDP="true", FSDP_VERSION="2")
    make(WorldModelGRPOTrainer, world_model=echo)
    (record,) = (record for record in caplog.records if "asked for" in record.message)
    assert record.levelno == logging.WARNING
    assert record.message.startswith("FSDP was asked for, one process runs without it; start it by accelerate launch")


def test_only_the_first_process_says_so(launched, caplog):
    trainer = SimpleNamespace(args=NEITHER, accelerator=SimpleNamespace(distributed_type=SimpleNamespace(value="NO")))
    launched(ACCELERATE_USE_FSDP="true", RANK="1")
    sharding.warn(trainer)
    assert not caplog.records
    launched(RANK="0")
    sharding.warn(trainer)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("environment", "kind", "words"),
    [
        ({}, "NO", None),
        ({}, "MULTI_CPU", None),
        ({}, "MULTI_GPU", None),
        ({"ACCELERATE_USE_FSDP": "false"}, "MULTI_CPU", None),
        ({"ACCELERATE_USE_FSDP": "true"}, "FSDP", None),
        ({"ACCELERATE_USE_FSDP": "true"}, "XLA", None),
        ({"ACCELERATE_USE_FSDP": "True"}, "MULTI_CPU", "FSDP was asked for, DDP runs: accelerate leaves it out on a"),
        ({"ACCELERATE_USE_FSDP": "true"}, "MULTI_GPU", "FSDP was asked for, DDP runs: an Accelerator() was made after"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DEEPSPEED", None),
        (
            {"ACCELERATE_USE_DEEPSPEED": "true"},
            "MULTI_CPU",
            "DeepSpeed was asked for, DDP runs: accelerate leaves it",
        ),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "1"}, "NO", None),
        ({"WORLD_SIZE": "2"}, "NO", None),  # of a scheduler, whose processes accelerate does not join either
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "MULTI_CPU", None),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "NO", "2 processes run, and each trains alone: .*write use_cpu: true"),
        (
            {"LOCAL_RANK": "1", "WORLD_SIZE": "3", "ACCELERATE_USE_FSDP": "true"},
            "NO",
            "FSDP was asked for, 3 processes run, and each trains alone",
        ),
    ],
)
def test_what_runs_is_compared_with_what_the_launcher_asks_for(launched, environment, kind, words):
    launched(**environment)
    text = sharding.problem(NEITHER, kind)
    assert (text is None) == (words is None)
    if words:
        assert re.match(words.replace("()", r"\(\)"), text), text
        assert "\n" not in text


@pytest.mark.parametrize("field", ["fsdp", "deepspeed"])
def test_the_arguments_ask_too(field):
    assert hasattr(TrainingArguments, field)
    args = SimpleNamespace(**{**vars(NEITHER), field: True})
    name = {"fsdp": "FSDP", "deepspeed": "DeepSpeed"}[field]
    assert sharding.problem(args, "MULTI_CPU").startswith(f"{name} was asked for, DDP runs")
    assert sharding.problem(args, name.upper()) is None


@pytest.mark.parametrize(
    ("text", "gpu", "expected"),
    [
        (None, False, None),
        ("distributed_type: MULTI_GPU\n", False, None),
        ("- 1\n", False, None),
        ("{", False, None),
        ("distributed_type: FSDP\n", True, "ok"),
        ("distributed_type: FSDP\n", False, "warn"),
        ("distributed_type: FSDP\nuse_cpu: true\n", True, "warn"),
        ('{"distributed_type": "FSDP", "use_cpu": false}', False, "warn"),
    ],
)
def test_doctor_reads_what_accelerate_launch_would(monkeypatch, tmp_path, text, gpu, expected):
    path = tmp_path / "default_config.yaml"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(doctor, "default_config", lambda: path)
    monkeypatch.setattr(doctor, "_has_gpu", lambda: gpu)
    checks = doctor.check_sharding()
    assert [check.state for check in checks] == ([] if expected is None else [expected])
    if expected == "warn":
        detail = f"FSDP was asked for (in {path}, by which accelerate launch starts), DDP runs: accelerate leaves FSDP"
        assert checks[0].detail.startswith(detail)
        assert "use_cpu: true" in checks[0].mend


def test_doctor_under_a_launcher_goes_by_what_it_set(monkeypatch, launched):
    launched(ACCELERATE_USE_FSDP="true")
    monkeypatch.setattr(doctor, "_has_gpu", lambda: False)
    (check,) = doctor.check_sharding()
    assert check.detail.startswith("FSDP was asked for (ACCELERATE_USE_FSDP is set), DDP runs")


def test_the_file_of_settings_is_accelerates():
    assert doctor.default_config().name == "default_config.yaml"
