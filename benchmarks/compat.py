"""Do old and new releases of the hosts work? Tests of the hooks and two training steps, each in an environment of its own.

    python benchmarks/compat.py --constraint constraints/cpu.txt                    # all
    python benchmarks/compat.py --constraint constraints/cpu.txt trl-1.9 verl-newest

Writes the rows into wm_plugin/hosting/tried.yaml, and leaves those of other releases there. The environments stay in
.venv-compat/, each with a log beside it; the newest release is looked up anew each time. Exit code 1 if anything failed. Needs
only the standard library.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".venv-compat"
RESULT = ROOT / "wm_plugin/hosting/tried.yaml"
SECONDS = 1200  # for one command

# Two steps each; the metrics of each step are printed. `python` is the environment's.
RECIPE_TRL = """
python -m wm_plugin.lab.tiny --out runs/tiny --random
bash "$ROOT/recipes/trl/run.sh" echo_grpo_tiny --max_steps 2
"""
# trl 1.0 knows no environments that give a reward, which the recipe needs: tools, called by a script in the policy's place
SCRIPTED_TRL = """
python -c '
import os, sys
sys.path.insert(0, os.environ["ROOT"] + "/tests")
from support.on_trl import Scripted, config, run
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer
class Trainer(Scripted, WorldModelGRPOTrainer): pass
run(Trainer, args=config(max_steps=2), world_model=EchoConfig(0.5))'
"""
RECIPE_VERL = 'bash "$ROOT/recipes/verl/run.sh" echo_grpo_tiny trainer.total_training_steps=2'


@dataclass
class Cell:
    host: str
    which: str
    pins: tuple[str, ...]
    what: str  # is trained
    script: str
    versions: dict[str, str] = field(default_factory=dict)
    tests: str = "not run"
    trained: str = "not run"
    ok: bool = False

    @property
    def name(self) -> str:
        return f"{self.host}-{self.which}"

    @property
    def environment(self) -> Path:
        return ENVIRONMENTS / self.name

    @property
    def log(self) -> Path:
        return ENVIRONMENTS / f"{self.name}.log"

    def run(self, *command: str, cwd: Path = ROOT) -> tuple[int, str]:
        path = f"{self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "ROOT": str(ROOT), "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        with tempfile.TemporaryFile("w+") as output:  # not a pipe, which Ray's daemons would keep open
            try:
                code = subprocess.run(
                    command,
                    cwd=cwd,
                    env={**os.environ, **variables},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=SECONDS,
                ).returncode
            except subprocess.TimeoutExpired:
                code = 124
            output.seek(0)
            text = output.read()
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(command)}\n{text}\nexit code {code}\n\n")
        return code, text

    def check(self, constraint: list[str], before: "list[Cell]") -> bool:
        """False if one of `before` is the same release: the oldest may be the newest."""
        self.log.unlink(missing_ok=True)
        self.ok = self.install(constraint)
        if self.ok and any(self.versions == other.versions for other in before):
            return False
        self.ok = self.ok and all([self.contract(), self.train()])
        return True

    def install(self, constraint: list[str]) -> bool:
        if not self.environment.exists():
            subprocess.run([sys.executable, "-m", "venv", self.environment], check=True)
        pip = ["python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraint]
        wanted = ["--editable", f".[{self.host}]", *self.pins, "hypothesis", "pytest", "pytest-timeout"]
        if self.run(*pip, "torch")[0] or self.run(*pip, "--upgrade", *wanted)[0]:
            self.tests = self.trained = "not installed"
            return False
        code = f"import json, sys; from importlib.metadata import version; names = {self.host!r}, 'transformers', 'torch'\n"
        code += "python = '.'.join(map(str, sys.version_info[:2]))\n"
        code += "print(json.dumps({name: version(name).partition('+')[0] for name in names} | {'python': python}))"
        _, printed = self.run("python", "-c", code)
        self.versions = json.loads(printed)
        return True

    def contract(self) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            tests = f"tests/on_{self.host}/test_support.py"
            code, _ = self.run("python", "-m", "pytest", tests, f"--junitxml={report}")
            if not report.exists():
                self.tests = f"stopped, exit code {code}"
                return False
            counts = next(ET.parse(report).iter("testsuite")).attrib
        total, skipped = int(counts["tests"]), int(counts["skipped"])
        failed = int(counts["failures"]) + int(counts["errors"])
        self.tests = f"{total - failed - skipped} passed" + (f", {failed} failed" if failed else "")
        self.tests += f", {skipped} skipped" if skipped else ""
        return code == 0

    def train(self) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            code, printed = self.run("bash", "-euc", self.script, cwd=Path(folder))
        done = code == 0 and printed.count("echo/nll") >= 2
        self.trained = self.what + ("" if done else f", exit code {code}")
        return done

    def row(self, date: str) -> str:
        versions = ", ".join(f"{name}: {self.versions[name]}" for name in ("transformers", "torch"))
        return (
            f'- {{host: {self.host}, release: {self.versions[self.host]}, {versions}, python: "{self.versions["python"]}", '
            f'hooks: "{self.tests}", steps: "{self.trained}", ok: {json.dumps(self.ok)}, date: {date}}}'
        )


def cells() -> list[Cell]:
    return [
        Cell("trl", "1.0", ("trl==1.0.0", "transformers<5.13"), "scripted tools", SCRIPTED_TRL),
        Cell("trl", "1.9", ("trl==1.9.2",), "tiny recipe", RECIPE_TRL),
        Cell("trl", "1.14", ("trl==1.14.2",), "tiny recipe", RECIPE_TRL),
        Cell("trl", "1.16", ("trl==1.16.0",), "tiny recipe", RECIPE_TRL),
        Cell("trl", "newest", ("trl",), "tiny recipe", RECIPE_TRL),
        Cell("verl", "0.9.1", ("verl==0.9.1",), "tiny recipe", RECIPE_VERL),
        Cell("verl", "newest", ("verl",), "tiny recipe", RECIPE_VERL),
    ]


def merged(text: str, rows: list[str]) -> str:
    """The file with these rows in the place of those of the same releases, by host and release."""

    def release(line: str) -> tuple[str, list[int]]:
        host, version = re.match(r"- \{host: (\w+), release: ([\d.]+)", line).groups()  # type: ignore[union-attr]
        return host, [int(part) for part in version.split(".")]

    lines = text.splitlines()
    found = {tuple(map(str, release(line))): line for line in [*lines, *rows] if line.startswith("- ")}
    return "\n".join([line for line in lines if line.startswith("#")] + sorted(found.values(), key=release)) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(cell.name for cell in cells())}; default: all")
    parser.add_argument("--constraint", help="a file for pip")
    args = parser.parse_args()
    constraint = ["--constraint", args.constraint] if args.constraint else []
    ENVIRONMENTS.mkdir(exist_ok=True)
    checked: list[Cell] = []
    failed = False
    for cell in cells():
        if args.names and cell.name not in args.names:
            continue
        print(f"{cell.name} …", flush=True)
        if cell.check(constraint, checked) and cell.versions:
            checked.append(cell)
        if not cell.ok:
            failed = True
            print("\n".join(cell.log.read_text().splitlines()[-40:]))
    rows = [cell.row(datetime.date.today().isoformat()) for cell in checked]
    print("\n".join(rows))
    RESULT.write_text(merged(RESULT.read_text(), rows))
    return failed


if __name__ == "__main__":
    sys.exit(main())
