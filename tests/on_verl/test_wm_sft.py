"""WM-SFT by verl's own trainer: it reads our rows, trains on the tokens that count and on no others, and every recipe fits."""

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("verl")

import torch
import yaml
from omegaconf import OmegaConf
from verl.trainer.sft_trainer import create_sft_dataset
from verl.utils.dataset.dataset_utils import SFTTensorCollator

from support.papers import SFT
from support.run_on_verl import run_recipe
from support.verl_recipes import composed, of_recipe, unknown_keys
from support.wm_sft import ROWS, expected_loss, make_data
from wm_plugin.data import parquet
from wm_plugin.data.building import build
from wm_plugin.errors import UserError
from wm_plugin.hosting.dialogues import ENVIRONMENT, Dialogues
from wm_plugin.lab.tiny.__main__ import main as tiny
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.objectives.echo import EchoConfig
from wm_plugin.objectives.run import WEIGHTS, RunObjective
from wm_plugin.verl.sft import TokenisedSFTDataset

RECIPES = Path(__file__).parents[2] / "recipes" / "verl"
TINY = [f"{name}_tiny" for name in SFT]
NAMES = [*SFT, *TINY]
OPEN = ("model.override_config", "engine.mixed_precision", "engine.dtype")  # of the classes, and not in verl's YAML


@pytest.mark.parametrize("name", ["sft", "sft_tiny"])
def test_every_key_exists(name):
    stock = composed("sft_trainer_engine", module="verl.trainer.config")
    assert not list(unknown_keys(yaml.safe_load((RECIPES / f"{name}.yaml").read_text()), stock, closed=OPEN))
    assert list(unknown_keys({"optim": {"lrr": 1}, "dta": 1}, stock, closed=OPEN)) == ["optim.lrr", "dta"]


@pytest.mark.parametrize("name", NAMES)
def test_verl_accepts_the_config(name):
    from verl.utils.config import omega_conf_to_dataclass

    config = of_recipe(name)
    for part in ("engine", "optim", "checkpoint"):
        omega_conf_to_dataclass(config[part])
    assert config.data.train_files == f"runs/{name}/verl.parquet"
    assert config.data.custom_cls.name == TokenisedSFTDataset.__name__
    if name in SFT:
        size = config.data.train_batch_size
        assert (config.optim.lr, size, config.trainer.total_epochs, config.model.path) == SFT[name]
        assert config.data.train_batch_size % config.trainer.n_gpus_per_node == 0


@pytest.mark.parametrize("name", [*TINY, "rwml_sft_tiny"])
def test_the_steps_of_a_tiny_recipe_do_not_depend_on_its_rows(name):
    trainer = of_recipe(name).trainer
    assert trainer.total_epochs >= trainer.total_training_steps  # verl ends with the epochs if these are fewer


@pytest.mark.parametrize("name", ["wm_sft_word2world", "agent_sft"])
def test_the_constants_of_word2world(name):
    optim = of_recipe(name).optim
    assert (optim.lr_warmup_steps, optim.clip_grad, optim.lr_scheduler_type) == (10, 100, "constant")
    data = of_recipe(name).data
    assert data.max_length == 12288 <= data.max_token_len_per_gpu


def write(path, rows, mask="loss_mask"):
    pyarrow.parquet.write_table(
        pyarrow.table({"input_ids": [ids for ids, _ in rows], mask: [m for _, m in rows]}), path
    )
    return str(path)


ONE, TWO = ([5, 6, 7, 8], [0, 0, 1, 1]), ([9, 8], [0, 1])


def dataset(files, max_samples=-1, **settings):
    config = OmegaConf.create(
        {"custom_cls": {"path": "pkg://wm_plugin.verl.sft", "name": "TokenisedSFTDataset"}, "max_length": 6, **settings}
    )
    return create_sft_dataset(files, config, make_tokenizer(), None, max_samples=max_samples)


def test_items_by_hand(tmp_path):
    files = [write(tmp_path / f"{name}.parquet", rows) for name, rows in (("a", [ONE, TWO]), ("b", [TWO]))]
    found = dataset(files, pad_mode="no_padding")
    assert len(found) == 3
    item = {"input_ids": ONE[0], "position_ids": [0, 1, 2, 3], "loss_mask": ONE[1]}
    assert {name: value.tolist() for name, value in found[0].items()} == item
    batch = SFTTensorCollator("no_padding")([found[0], found[1]])
    assert batch["input_ids"].offsets().tolist() == [0, 4, 6]
    assert batch["loss_mask"].values().tolist() == ONE[1] + TWO[1]
    padded = {name: [*values, 0, 0] for name, values in item.items()} | {"attention_mask": [1, 1, 1, 1, 0, 0]}
    found = dataset(files[0], pad_mode="right")
    assert {name: value.tolist() for name, value in found[0].items()} == padded


@pytest.mark.parametrize("pad_mode", ["no_padding", "right"])
@pytest.mark.parametrize("truncation", ["left", "right"])
def test_padding_and_truncation_are_verls_own(tmp_path, pad_mode, truncation):
    """Against verl's own class, on conversations where both count the same."""
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    tiny(["rollouts", "--out", str(tmp_path / "grid.jsonl"), "--count", "4"])
    tokenizer = make_tokenizer()
    build(tmp_path / "grid.jsonl", "word2world", "verl", tmp_path / "messages.parquet")
    build(tmp_path / "grid.jsonl", "word2world", "verl", tmp_path / "tokens.parquet", tokenizer=tokenizer)
    lengths = [len(ids) for ids in pyarrow.parquet.read_table(tmp_path / "tokens.parquet")["input_ids"].to_pylist()]
    for max_length in (min(lengths) - 3, max(lengths) + 3):
        config = OmegaConf.create({"max_length": max_length, "truncation": truncation, "pad_mode": pad_mode})
        theirs = MultiTurnSFTDataset(str(tmp_path / "messages.parquet"), tokenizer, config)
        ours = TokenisedSFTDataset(str(tmp_path / "tokens.parquet"), tokenizer, config)
        assert len(theirs) == len(ours) == 4
        for expected, found in zip(theirs, ours, strict=True):
            assert expected.keys() == found.keys()
            for name, value in expected.items():
                assert torch.equal(value, found[name]), name


def test_items_have_the_columns_of_what_the_environment_said(tmp_path):
    path = tmp_path / "rows.parquet"
    spans = [[{"start": 1, "end": 3, "role": "tool", "tool": "look", "content": True}], []]
    columns = {
        "input_ids": [ONE[0], TWO[0]],
        "loss_mask": [[1, 0, 0, 1], TWO[1]],
        "env_spans": spans,
        "reward": [1.0, None],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    found = dataset(str(path), pad_mode="no_padding", max_length=3, truncation="right")
    assert found.tools() == {"look"}
    assert [(len(one.spans), one.reward) for one in found.dialogues()] == [(1, 1.0), (0, None)]
    assert ENVIRONMENT not in found[0]
    running = [RunObjective("", EchoConfig(1.0), limit="data.max_length", tools=["look"])]
    found.measure(Dialogues(running, lambda ids: ""), held_out=False)
    assert [found[row][WEIGHTS].tolist() for row in (0, 1)] == [[0, 1, 1], [0, 0]]
    assert found[0][ENVIRONMENT].tolist() == [0, 1, 1]
    columns["env_spans"][0][0]["end"] = 0
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(UserError, match="row 0: env_spans: .* ends before it starts"):
        dataset(str(path)).tools()


def test_too_long_a_row_is_an_error_unless_it_may_be_cut(tmp_path):
    path = write(tmp_path / "a.parquet", [ONE])
    with pytest.raises(UserError, match="row 0 has 4 tokens, more than data.max_length=3"):
        dataset(path, max_length=3)[0]


def test_a_share_of_the_rows(tmp_path):
    path = write(tmp_path / "a.parquet", [([number, 0], [0, 1]) for number in range(20)])
    first = [int(item["input_ids"][0]) for item in dataset(path, 3)]
    drawn = [int(item["input_ids"][0]) for item in dataset(path, 3, shuffle=True, seed=1)]
    assert first == [0, 1, 2]
    assert len(set(drawn)) == 3
    assert drawn != first
    assert len(dataset(path, 50)) == 20


@pytest.mark.parametrize(
    ("settings", "mask", "message"),
    [
        ({}, "assistant_masks", "has no column 'loss_mask': write it by wm data build --host verl"),
        ({"pad_mode": "left"}, "loss_mask", "data.pad_mode is 'left'"),
        ({"truncation": "middle"}, "loss_mask", "data.truncation is 'middle'"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, settings, mask, message):
    path = write(tmp_path / "a.parquet", [ONE], mask)
    with pytest.raises(UserError, match=message):
        dataset(path, **settings)
    (tmp_path / "broken.parquet").write_text("no parquet")
    with pytest.raises(UserError, match="broken.parquet"):
        dataset(str(tmp_path / "broken.parquet"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(ONE[0], [0, 1])], "row 0 has 4 tokens but a mask of 2"),
        ([], "a.parquet has no rows"),
        *(
            ([row], "a.parquet: input_ids and loss_mask are no lists")
            for row in ((["a"], [1]), ([1.5], [1]), ([1], [300]), (1, 1))
        ),
    ],
)
def test_a_file_of_other_values_is_refused(tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        dataset(write(tmp_path / "a.parquet", rows))[0]


def test_a_file_is_read_within_the_bounds_of_all_parquet_files(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", [ONE] * 5 + [([7] * 2000, [0] * 2000)] + [ONE] * 5)
    assert len(dataset([path, write(tmp_path / "b.parquet", [TWO])])) == 12
    monkeypatch.setattr(parquet, "LARGEST", 20_000)
    with pytest.raises(UserError, match=r"a.parquet, row 5: a row of more than"):
        dataset(path)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "steps"), [(1, 8), (2, 1)])
def test_the_loss_is_that_of_the_tokens_that_count(tmp_path, processes, steps):
    policy, out = make_data(tmp_path, "verl")
    size = (f"data.train_batch_size={ROWS}", f"data.micro_batch_size_per_gpu={ROWS // 2}", "trainer.total_epochs=8")
    ranks = {"PROCESSES": str(processes)} if processes > 1 else None
    length = f"trainer.total_training_steps={steps}"
    done = run_recipe("wm_sft_word2world_tiny", tmp_path, *size, length, environment=ranks)
    assert done.code == 0, done.output[-3000:]
    losses = done.series("train/loss")
    assert len(losses) == steps
    assert losses[0] == pytest.approx(expected_loss(policy, out, "verl"), rel=1e-5)
    assert steps == 1 or losses[-1] < losses[0] - 0.5


@pytest.mark.nightly
@pytest.mark.parametrize("name", TINY)
def test_every_tiny_recipe_learns_by_its_script(name, tmp_path):
    done = run_recipe(name, tmp_path)
    assert done.code == 0, done.output[-3000:]
    losses = done.series("train/loss")
    assert sum(losses[-5:]) / 5 < losses[0] - 1
