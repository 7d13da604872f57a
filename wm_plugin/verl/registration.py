"""Registers our trainer modes and agent loop with verl, and our check of a config with verl's."""

import os
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from wm_plugin.errors import nearest
from wm_plugin.runtime.texts import read_yaml
from wm_plugin.verl.after_import import on_import
from wm_plugin.verl.names import AGENT_LOOP, CPU_ROLLOUT, SEARCH_PATH, TRAINER_MODES

_MAIN = "verl.trainer.main_ppo"
_armed = False


def arm() -> None:
    """Ask for our names to be registered when verl imports its registries. More than once does nothing."""
    global _armed
    if _armed:
        return
    _armed = True
    on_import("verl.trainer.ppo.v1.trainer_base", _register_trainer)
    on_import("verl.experimental.agent_loop.agent_loop", _register_agent_loop)
    on_import("verl.utils.config", _check_with_the_rest)
    if _on_cpu():
        from wm_plugin.verl import cpu

        cpu.arm()


def _on_cpu() -> bool:
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def _make_trainer(config: Any) -> Any:
    from wm_plugin.verl.trainer import TRAINERS

    return TRAINERS[config.trainer.v1.trainer_mode](config)


def _register_trainer(module: ModuleType) -> None:
    for mode in TRAINER_MODES.values():
        module.TRAINER_REGISTRY.setdefault(mode, _make_trainer)  # verl only calls what it finds with config=...


def _register_agent_loop(module: ModuleType) -> None:
    # Hydra imports the target when the first trajectory starts
    target = {"_target_": "wm_plugin.verl.agent_loop.WorldModelToolAgentLoop"}
    module._agent_loop_registry.setdefault(AGENT_LOOP, target)


def _check_with_the_rest(module: Any) -> None:
    """Let verl's own check of a config, which main_ppo calls before Ray starts, begin with the block `wm`."""
    validate = module.validate_config
    if sys.argv[:1] == ["-m"] and _MAIN in sys.orig_argv:  # Python still imports the packages that main_ppo is in
        _check_command(sys.argv[1:])

    def validate_config(config: Any, *args: Any, **kwargs: Any) -> Any:
        if config.actor_rollout_ref.rollout.get("name") == CPU_ROLLOUT and not _on_cpu():
            _stop("the group wm: cpu needs a variable of the environment; write VERL_PLATFORM=cpu before the command")
        if config.get("wm") is not None:
            _check(config)  # first: verl's takes longer, it loads the model's config
        if _on_cpu() and config.trainer.get("device") != "cpu" and _is_main_ppo():
            _stop("VERL_PLATFORM is cpu, and the config is one for GPUs; add the group cpu, as in '+wm=[echo,cpu]'")
        return validate(config, *args, **kwargs)

    module.validate_config = validate_config


def _check(config: Any) -> None:
    from wm_plugin.errors import UserError
    from wm_plugin.verl.rewards import check_truth
    from wm_plugin.verl.rows import check_files, check_rows
    from wm_plugin.verl.support import check_config, check_model_folder, choose_trainer, silence

    try:
        choose_trainer(config)
        wm = check_config(config)
        check_model_folder(config)
        if _is_main_ppo():
            check_files(config)
        check_rows(config)
        for text in filter(None, (silence(config, wm), check_truth(config))):
            print(f"wm: {text}", file=sys.stderr)
    except UserError as error:
        if _is_main_ppo():
            _stop(str(error))
        raise


def _check_command(arguments: Sequence[str]) -> None:
    """Stop where Hydra's message would mislead: a field of `wm` that there is not, or our groups left out or without their path.

    A config, a group or an objective of the user's own may have any field.
    """
    if any(word.startswith("-") or re.match(r"\+{0,2}wm\.objective=", word) for word in arguments):
        return
    groups = [word for word in arguments if word.startswith(("+wm=", "++wm="))]
    chosen = re.findall(r"[\w./-]+", " ".join(word.partition("=")[2] for word in groups))
    if not {*chosen} <= {Path(one.name).stem for one in files("wm_plugin.recipes.verl.wm").iterdir()}:
        return
    known = {group: _fields(group) for group in ("echo", "reward")}
    names = [found[1] for word in arguments if (found := re.match(r"wm\.(\w+)", word))]
    for name in names:
        if not any(name in fields for fields in known.values()):
            _stop(f"wm has no field {name!r}{nearest(name, set().union(*known.values()))}")
    path = f"'hydra.searchpath=[{SEARCH_PATH}]'"
    if groups and not any("hydra.searchpath" in word for word in arguments):
        _stop(f"{groups[0]} is one of our groups, which Hydra does not find without {path}; add that")
    if names and not groups:
        _stop(f"wm.{names[0]} is a field of a group that the command lacks; add {path} +wm=echo")
    for name in names:
        owners = [group for group, fields in known.items() if name in fields]
        if not {*owners} & {*chosen}:
            _stop(f"wm.{name} is a field of the group {owners[0]}; write '+wm=[{','.join([*chosen, owners[0]])}]'")


def _fields(group: str) -> set[str]:
    """Return the fields of `wm` that one of our groups has."""
    return set(read_yaml(files("wm_plugin.recipes.verl.wm") / f"{group}.yaml")["wm"])


def _stop(message: str) -> NoReturn:
    print(f"wm: {message}", file=sys.stderr)
    raise SystemExit(2) from None


def _is_main_ppo() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _MAIN
