"""TEST-ONLY: verl on a CPU, so that its stock `main_ppo` runs where there is no GPU. It is not part of the package.

    PYTHONPATH=tests VERL_USE_EXTERNAL_MODULES=wm_plugin.verl,support.verl_cpu python -m verl.trainer.main_ppo ...

verl imports it in each of its processes. It brings the platform `cpu`, the rollout `hf_cpu` (plain transformers), the tool
parser `wm_tiny` and what verl's FSDP workers need on a CPU. `recipes/verl/*_tiny.yaml` hold the settings that go with it: FSDP2,
and GPUs that Ray is told of and that do not exist. Imports nothing of verl by itself.
"""

import os

from support.verl_cpu import shims

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")  # the engines are registered for CUDA; nothing in them asks for it
shims.arm()
