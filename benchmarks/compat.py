"""Do the oldest and the newest release of each host work? Contract tests and two training steps, each in its own environment.

    python benchmarks/compat.py --constraint constraints/cpu.txt         # both hosts; writes benchmarks/results/compat.md
    python benchmarks/compat.py --constraint constraints/cpu.txt verl    # one host; prints the table only

The environments stay in .venv-compat/, each with a log beside it; the newest release is looked up anew each time. Exit code 1 if
anything failed. Needs only the standard library.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from stamps import stamp

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".venv-compat"
RESULT = ROOT / "benchmarks/results/compat.md"
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
    def environment(self) -> Path:
        return ENVIRONMENTS / f"{self.host}-{self.which}"

    @property
    def log(self) -> Path:
        return self.environment.with_suffix(".log")

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
        wanted = ["--editable", f".[{self.host}]", *self.pins, "pytest", "pytest-timeout"]
        if self.run(*pip, "torch")[0] or self.run(*pip, "--upgrade", *wanted)[0]:
            self.tests = self.trained = "not installed"
            return False
        code = f"import json; from importlib.metadata import version; names = {self.host!r}, 'transformers', 'torch'\n"
        _, printed = self.run("python", "-c", code + "print(json.dumps({name: version(name) for name in names}))")
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
        self.tests = f"{total - failed - skipped} passed, {failed} failed"
        self.tests += f", {skipped} skipped" if skipped else ""
        return code == 0

    def train(self) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            code, printed = self.run("bash", "-euc", self.script, cwd=Path(folder))
        done = code == 0 and printed.count("echo/nll") >= 2
        self.trained = f"{self.what}: " + ("ok" if done else f"failed, exit code {code}")
        return done

    def row(self, date: str) -> str:
        versions = [self.versions.get(name, "-") for name in (self.host, "transformers", "torch")]
        return f"| {self.host} | {' | '.join(versions)} | {self.tests} | {self.trained} | {date} |"


def cells() -> list[Cell]:
    return [
        Cell("trl", "oldest", ("trl==1.0.0", "transformers<5.13"), "scripted tools", SCRIPTED_TRL),
        Cell("trl", "newest", ("trl",), "tiny recipe", RECIPE_TRL),
        Cell("verl", "oldest", ("verl==0.9.1",), "tiny recipe", RECIPE_VERL),
        Cell("verl", "newest", ("verl",), "tiny recipe", RECIPE_VERL),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", nargs="*", help="default: trl verl")
    parser.add_argument("--constraint", help="a file for pip")
    args = parser.parse_args()
    constraint = ["--constraint", args.constraint] if args.constraint else []
    ENVIRONMENTS.mkdir(exist_ok=True)
    checked: list[Cell] = []
    for cell in cells():
        if args.hosts and cell.host not in args.hosts:
            continue
        print(f"{cell.host}, {cell.which} …", flush=True)
        if cell.check(constraint, checked):
            checked.append(cell)
        if not cell.ok:
            print("\n".join(cell.log.read_text().splitlines()[-40:]))
    date = datetime.date.today().isoformat()
    table = (
        "| host | release | transformers | torch | contract tests | two steps | date |\n|---|---|---|---|---|---|---|\n"
    )
    table += "".join(cell.row(date) + "\n" for cell in checked)
    print(table)
    if not args.hosts:
        RESULT.write_text(
            "The oldest and the newest supported release of each host. `make compat` writes this.\n\n" + table
        )
        stamp(RESULT, vars(args))
    return not all(cell.ok for cell in checked)


if __name__ == "__main__":
    sys.exit(main())
