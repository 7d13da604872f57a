"""The demo gives the same digits on every x86 processor: those below, whatever the processor and the user's settings are."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata

import pytest

pytest.importorskip("trl", minversion="1.10")
pytest.importorskip("jinja2")

from wm_plugin.runtime.arithmetic import PLAIN

TORCH = "2.13.0+cpu"  # as constraints/cpu.txt has it; another release may compute in another order
# environment NLL: of the start, of both arms, and of what both train on in their third step
DIGITS = [4.295478928089142, 4.356743413209915, 4.127190467289516, 4.318091265360514, 4.230590957403183]
RUN = """
import json, sys
from wm_plugin.runtime.arithmetic import use_plain_kernels
assert use_plain_kernels()
import torch
assert torch.backends.cpu.get_cpu_capability() == "DEFAULT"
from wm_plugin.trl.demo import run_demo
result = run_demo(3, 0, sys.argv[1], warm_steps=3, boards=16)
arms = result["arms"]
ends, trained = ([arm["env_nll_end"] for arm in arms], [arm["training"][2]["echo/nll"] for arm in arms])
print(json.dumps([arms[0]["env_nll_start"], *ends, *trained]))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="ARM has other kernels")
def test_the_digits_are_those_of_every_x86_processor(tmp_path) -> None:
    if metadata.version("torch") != TORCH:
        pytest.skip(f"the digits are those of torch {TORCH}")
    settings = dict.fromkeys(PLAIN, "AVX2") | {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    with_releases = {name: metadata.version(name) for name in ("transformers", "trl")}
    # transformers 5.24.0 and trl 1.16.0: if these are others, they may have changed a computation rather than the processor
    assert json.loads(done.stdout.splitlines()[-1]) == DIGITS, with_releases
