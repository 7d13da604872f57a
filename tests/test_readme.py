"""The README's first example runs as it stands and prints what the README says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.host
def test_the_first_example_prints_what_it_says(tmp_path):
    pytest.importorskip("trl", minversion="1.8")
    code = re.search(r"```python\n(.*?)```", README, re.S).group(1)
    promised = re.search(r"it prints:\n\n```\n(.*?)```", README, re.S).group(1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1"}
    environment["OMP_NUM_THREADS"] = "1"  # a model of this size is three times as fast
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    printed = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in printed] == [line.split(":")[0] for line in promised.splitlines()]
    nll = [float(re.search(r"nll ([\d.]+)", line).group(1)) for line in printed]
    assert nll == sorted(nll, reverse=True)
    # another machine's arithmetic may differ in the last digits, and so in what is sampled
    first = [float(re.search(r"nll ([\d.]+)", line).group(1)) for line in (printed[0], promised.splitlines()[0])]
    assert first[0] == pytest.approx(first[1], rel=0.1)


def test_fields_of_the_table_are_those_of_the_config():
    import dataclasses

    from wm_plugin import EchoConfig

    table = re.search(r"\| field \| default.*?\n\n", README, re.S).group(0)
    named = set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row)))
    assert named == {field.name for field in dataclasses.fields(EchoConfig)} - {"guard"}


@pytest.mark.host
@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_the_examples_of_the_docs_run(path, tmp_path):
    pytest.importorskip("transformers")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for code in re.findall(r"```python\n(.*?)```", path.read_text(), re.S):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_the_commands_in_the_docs_exist(path):
    """Every `wm VERB STEP --flag` that stands in a block of shell is taken by the parser."""
    from wm_plugin.cli.main import make_parser

    blocks = re.findall(r"```bash\n(.*?)```", path.read_text(), re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("wm ")]
    parser, _ = make_parser()
    for command in commands:
        parser.parse_args([argument for argument in command if argument != "..."])
    assert commands
