"""Write what follows from the options (docs/reference.md, verl's Hydra groups), docs/compatibility.md and recipes/README.md:
make generate.
"""

import inspect
import json
import re
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined
from wm_plugin.recipes import page

from wm_plugin.client.server import ServerOptions
from wm_plugin.hosting import tried
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
from wm_plugin.objectives import EchoConfig, GuardConfig
from wm_plugin.objectives.echo import PRESET_FIELDS
from wm_plugin.options import Options
from wm_plugin.verl.config import COEFF, SFT_COEFF, WorldModelConfig
from wm_plugin.verl.names import AGENT_LOOP, TRAINER_MODE
from wm_plugin.verl.sft import ASKED, TokenisedSFTDataset
from wm_plugin.worlds.wrappers.control.config import ControlConfig
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig
from wm_plugin.worlds.wrappers.verify_config import VerifyConfig

ROOT = Path(__file__).resolve().parents[1]
REWARD = {  # of the block wm, read by wm_plugin.verl.rewards
    "reward": (
        None,
        "A name (rouge, rwml, ...), package.module:Name of a function or a class, or {path: either, kwargs: {...}}.",
    ),
    "reward_batch": (32, "Trajectories of one call, at most; for a judge more than its server's concurrency."),
    "reward_wait_ms": (20, "How long the first of them waits, at most."),
}
MODELS: tuple[tuple[str, type[Options]], ...] = (
    ("objective", EchoConfig),
    ("guard", GuardConfig),
    ("run", WorldModelConfig),
    ("server", ServerOptions),
    ("simulation", SimulationConfig),
    ("control", ControlConfig),
    ("verify", VerifyConfig),
    ("look_ahead", LookAheadConfig),
)
OF_ROLLOUTS = ("guard", "zero_variance_groups", "max_refills", "tempered")  # what verl's SFT trainer does not take
WHERE = {
    "objective": "`EchoConfig(...)` in Python, `echo_<field>` in TRL's config and YAML, `wm.<field>` on verl.",
    "guard": "The field `guard` of the objective.",
    "run": "`<field>` in a file for `wm train` and `wm.<field>` on verl. `max_turns`, `max_turn_tokens` and "
    "`validation_nll` are verl's alone.",
    "server": "Wherever a server is named: judges, world models, agents.",
    "simulation": "The block `simulation` of a run, and the file of `--simulation` ([its page](agentworld.md)).",
    "control": "The block `control` of a run.",
    "verify": "The block `verify` of a run ([checks](word2world.md#checks-before-irreversible-actions)).",
    "look_ahead": "Each set in the block `look_ahead` of a run, and flags of `wm eval lookahead` "
    "([look-ahead](evaluation.md#look-ahead)).",
}


def rows(model: type[Options]) -> dict[str, tuple[Any, str]]:
    """The default and the help of each field."""
    fields = {name: one for name, one in model.model_fields.items() if name != "objective"}
    return {name: (one.default, one.description or "") for name, one in fields.items()}


def reference() -> str:
    parts = ["# Every field\n\nMade by `make generate` from the options models; change a field there.\n"]
    for name, model in MODELS:
        summary = (inspect.getdoc(model) or "").partition("\n")[0]
        lines = [
            f"\n## {name.replace('_', '-').capitalize()}\n\n{summary} {WHERE[name]}\n\n| field | default | |\n|---|---|---|\n"
        ]
        lines += [
            f"| `{field}` | {_default(default)} | {_cell(text)} |\n" for field, (default, text) in rows(model).items()
        ]
        parts.append("".join(lines))
    return "".join(parts)


def _objective(coeff: float) -> dict[str, tuple[Any, str]]:
    """The objective's fields in a group, whose nulls stand for a preset's value."""
    fields = rows(EchoConfig)
    for name in PRESET_FIELDS - {"roles"}:  # whose null is all of them
        value = coeff if name == "coeff" else json.dumps(fields[name][0])
        fields[name] = (None, f"{_first(fields[name][1])} (null: the preset's, or {value})")
    return fields


def sft_group() -> str:
    own = {name: one for name, one in _objective(SFT_COEFF).items() if name not in OF_ROLLOUTS}
    several = {"world_model": rows(WorldModelConfig)["world_model"]}
    return f"""# @package _global_
# The world-model objective on top of any config of verl's SFT trainer, on rows of wm data build --as imitation --tokenizer:
#   torchrun ... -m wm_plugin.verl.sft_trainer <your overrides> 'hydra.searchpath=[pkg://wm_plugin.recipes.verl]' +wm=sft
# Made by `make generate` from EchoConfig; docs/sft.md says more.
wm:
{_block(own | several)}data:
  custom_cls: {{path: pkg://{TokenisedSFTDataset.__module__}, name: {TokenisedSFTDataset.__name__}}}
  {ASKED}: true  # stops verl.trainer.sft_trainer, which would train without the term
"""


def echo_group() -> str:
    fields = _objective(COEFF) | rows(WorldModelConfig)
    return f"""# @package _global_
# The world-model objective on top of any config of verl's main_ppo:
#   python -m verl.trainer.main_ppo <your overrides> 'hydra.searchpath=[pkg://wm_plugin.recipes.verl]' +wm=echo wm.coeff=0.05
# Made by `make generate` from EchoConfig and WorldModelConfig; docs/reference.md says more of each field.
wm:
{_block(fields | REWARD)}trainer:
  v1:
    trainer_mode: {TRAINER_MODE}  # verl's sync with the term; colocate_async and separate_async in its place have it too
actor_rollout_ref:
  rollout:
    agent:
      default_agent_loop: {AGENT_LOOP}
    multi_turn:
      enable: true
      # verl cuts a tool's result to 256 characters, in its middle, and runs one call of a turn: the objective would learn the cut
      max_tool_response_length: 8192  # characters
      tool_response_truncate_side: right
      max_parallel_calls: 4
"""


def _block(fields: dict[str, tuple[Any, str]]) -> str:
    """Each field with its default and the first sentence of its help; docs/reference.md has all of it."""
    return "".join(f"  {name}: {json.dumps(default)}  # {_first(text)}\n" for name, (default, text) in fields.items())


def _first(text: str) -> str:
    return re.split(r"(?<!e\.g)\. ", text)[0].rstrip(".")


def _default(value: Any) -> str:
    if isinstance(value, Options):
        value = value.model_dump(exclude_defaults=True)
    return "required" if value is PydanticUndefined else f"`{json.dumps(value, default=str)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def generated() -> dict[Path, str]:
    """The text of each file that is made."""
    return {
        ROOT / "docs" / "compatibility.md": tried.page(),
        ROOT / "docs" / "reference.md": reference(),
        ROOT / "recipes" / "README.md": page(),
        ROOT / "recipes" / "verl" / "wm" / "echo.yaml": echo_group(),
        ROOT / "recipes" / "verl" / "wm" / "sft.yaml": sft_group(),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
