"""verl's recipes as Hydra composes them, and the keys of a file that verl does not have."""

import copy
import functools
from collections.abc import Container, Iterator, Mapping
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from support.scripts import verl_words
from wm_plugin.verl.names import SEARCH_PATH


@functools.cache
def composed(name: str, *overrides: str, module: str = "wm_plugin.recipes.verl") -> Any:
    with initialize_config_module(module, version_base=None):
        return compose(name, overrides=list(overrides))


def stock(*overrides: str, groups: str | None = "echo") -> Any:
    """verl's own config with groups of ours on top, as a user composes it; a copy, which a test may change."""
    ours = [f"+wm={groups}"] if groups else []
    search = f"hydra.searchpath=[{SEARCH_PATH}]"
    return copy.deepcopy(composed("ppo_trainer", search, *ours, *overrides, module="verl.trainer.config"))


@functools.cache
def of_recipe(name: str, *settings: str, **variables: str) -> Any:
    """A recipe's config as its launcher has Hydra compose it."""
    return composed(*verl_words(name, *settings, **variables))


def unknown_keys(
    values: Mapping[str, Any], stock: Any, *, closed: Container[str] = (), group: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """The paths in a recipe that verl's own config does not have: Hydra adds them, and verl never reads them.

    Args:
        stock: verl's config.
        closed: paths of mappings whose keys are not looked at.
        group: what `wm` may have; None: anything.
    """
    left = {key: value for key, value in values.items() if key not in ("hydra", "defaults")}
    if group is None:
        left.pop("wm", None)
    for path in _paths(left, closed):
        parent, _, key = path.rpartition(".")
        known = group if parent == "wm" else OmegaConf.select(stock, parent) if parent else stock
        if path not in closed and (known is None or key not in list(known)):  # a list, because ??? counts as missing
            yield path


def _paths(values: Mapping[str, Any], closed: Container[str], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value and path not in closed:
            yield from _paths(value, closed, f"{path}.")
        else:
            yield path
