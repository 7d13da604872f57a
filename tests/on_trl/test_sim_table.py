"""The table of the real world, a world model, control and both: from nothing, by the recipe's script and a real server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "recipes" / "trl" / "run_sim_table_tiny.sh"


@pytest.mark.nightly
def test_the_table_comes_from_one_command_and_is_not_made_again(tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [SCRIPT, "--seeds", "1", "--steps", "1", "--quick"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    folder = tmp_path / "runs" / "sim_table_tiny" / "trl"
    found = json.loads((folder / "table.json").read_text())
    assert [row["arm"] for row in found["arms"]] == ["start", "real", "sim", "controlled", "mixed"]
    assert [row["steps"] for row in found["arms"]] == [[0], [1], [1], [1], [1]]
    assert (folder / "table.md").read_text() in done.stdout
    assert (folder / "report.html").exists()
    trained = {path: path.stat().st_mtime_ns for path in folder.glob("arms/*/training_args.bin")}
    assert len(trained) == 4
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr[-3000:]
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert json.loads((folder / "table.json").read_text()) == found
