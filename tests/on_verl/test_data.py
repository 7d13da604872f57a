"""Dataset rows as verl's parquet: what goes where, what verl reads back, and one line for what does not fit."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pyarrow.parquet
import pytest

from wm_plugin.verl import data
from wm_plugin.worlds.grid import dataset_rows

ROWS = "wm_plugin.worlds.grid:dataset_rows"


def test_columns_go_where_verl_and_the_environment_look_for_them(tmp_path, capsys):
    path = tmp_path / "new" / "train.parquet"
    assert data.main(["--rows", ROWS, "--kwargs", '{"count": 5, "seed": 3}', "--out", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 5 rows\n"
    rows = pyarrow.parquet.read_table(path).to_pylist()
    for index, (row, made) in enumerate(zip(rows, dataset_rows(5, seed=3), strict=True)):
        assert row == {
            "prompt": [{"role": "user", "content": ""}],
            "data_source": "wm_plugin.worlds.grid",
            "ability": "agent",
            "reward_model": {"style": "environment", "ground_truth": ""},
            "extra_info": {"index": index, "board": made["board"]},
        }
    # a path may have no colon, and the source a name of its own
    words = ["--rows", ROWS.replace(":", "."), "--kwargs", '{"count": 1}', "--out", str(path)]
    assert data.main([*words, "--data-source", "mine"]) == 0
    assert pyarrow.parquet.read_table(path).to_pylist()[0]["data_source"] == "mine"


def test_verls_dataset_reads_it(tmp_path):
    pytest.importorskip("verl")
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    path = tmp_path / "train.parquet"
    data.write(data.verl_rows(dataset_rows(3), "grid"), path)
    config = OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts": False})
    row = RLHFDataset(str(path), tokenizer=None, config=config)[2]
    assert row["raw_prompt"] == [{"role": "user", "content": ""}]
    assert row["extra_info"] == {"index": 2, "board": dataset_rows(3)[2]["board"]}
    assert row["index"] == 2


PROMPT = [{"role": "user", "content": ""}]
MADE = SimpleNamespace(  # a module, of whose functions none returns rows
    number=3,
    no_rows=list,
    not_rows=lambda: 7,
    texts=lambda: ["a row"],
    without_prompt=lambda: [{"board": "x"}],
    text_prompt=lambda: [{"prompt": "go"}],
    fails=lambda: [{"prompt": 1 / 0}],
    own_index=lambda: [{"prompt": PROMPT, "index": 4}],
    mixed=lambda: [{"prompt": PROMPT, "x": value} for value in (1, "one")],
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "no.such:rows"], "--rows: there is no module 'no.such'"),
        (["--rows", "wm_plugin.worlds.grid:dataset_row"], "did you mean 'dataset_rows'?"),
        (["--rows", "made:number"], "made:number is no function"),
        (["--rows", ROWS, "--kwargs", '{"amount": 3}'], "--kwargs do not fit wm_plugin.worlds.grid:dataset_rows"),
        (["--rows", ROWS, "--kwargs", "{count: 3}"], "--kwargs is not JSON"),
        (["--rows", ROWS, "--kwargs", "3"], "--kwargs is 3; write a mapping"),
        (["--rows", "made:no_rows"], "returned no rows"),
        (["--rows", "made:not_rows"], "returned int, not a list of rows"),
        (["--rows", "made:texts"], "row 0 of made:texts is str, not a mapping of columns"),
        (["--rows", "made:fails"], "made:fails raised ZeroDivisionError: division by zero"),
        (["--rows", "rows.parquet"], "--rows is 'rows.parquet', a file"),
        (["--rows", "made:without_prompt"], "row 0 has no prompt"),
        (["--rows", "made:text_prompt"], "row 0 has no prompt"),
        (["--rows", "made:own_index"], "row 0 has a column 'index'"),
        (["--rows", "made:mixed"], "a column has values of different types"),
        (["--rows", ROWS, "--kwargs", '{"count": 1}', "--out", "x.json"], "write one that ends in .parquet"),
        (
            ["--rows", ROWS, "--kwargs", '{"count": 1}', "--out", "/dev/null/x.parquet"],
            "cannot write /dev/null/x.parquet",
        ),
        ([], "--rows"),
        (["--rows", ROWS, "--sead", "3"], "--sead"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.setitem(sys.modules, "made", MADE)
    path = tmp_path / "x.parquet"
    assert data.main(["--out", str(path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not path.exists()


def test_an_output_is_no_input(tmp_path, capsys):
    for path in (tmp_path / "in.parquet", tmp_path / "link.parquet"):
        (tmp_path / "in.parquet").write_text("mine")
        (tmp_path / "link.parquet").is_symlink() or (tmp_path / "link.parquet").symlink_to(tmp_path / "in.parquet")
        arguments = ["--rows", ROWS, "--kwargs", json.dumps({"files": [str(tmp_path / "in.parquet")]})]
        assert data.main([*arguments, "--out", str(path)]) == 2
        assert "name another file" in capsys.readouterr().err
        assert (tmp_path / "in.parquet").read_text() == "mine"


def test_it_imports_no_ray_and_runs_as_a_module(tmp_path):
    path = tmp_path / "train.parquet"
    code = (
        "import sys; from wm_plugin.verl.data import main; "
        f"assert main(['--rows', {ROWS!r}, '--kwargs', '{{\"count\": 2}}', '--out', {str(path)!r}]) == 0; "
        "assert 'ray' not in sys.modules and 'verl' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert pyarrow.parquet.read_table(path).num_rows == 2
    assert subprocess.run([sys.executable, "-m", "wm_plugin.verl.data"], capture_output=True).returncode == 2
