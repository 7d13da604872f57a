"""What tests of building samples share: rollouts of the grid, a tokenizer, and the rows that were written."""

import json

import pyarrow.parquet
import pytest

from wm_plugin.data.write import write
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.lab.tiny.rollouts import rollouts


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "grid.jsonl"
    write(rollouts(12, 0), path)
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer().save_pretrained(path)
    return path


def rows(path):
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]
