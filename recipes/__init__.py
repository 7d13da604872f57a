"""The recipes, by the lines at the heads of their YAML files."""

import re
from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).parent
_START = """# Recipes

`recipes/HOST/run.sh NAME` makes what a recipe needs and trains it. `wm lab pipeline NAME` runs one of several steps
([pipelines](../docs/pipelines.md)). Any other argument goes to the trainer and overrides the YAML;
[launch.sh](launch.sh) lists those that both hosts share. Without a checkout, write `python -m wm_plugin.recipes HOST NAME`.
Recipes for several GPUs generate with vLLM.

| recipe | system | host | algorithm | needs | run here |
|---|---|---|---|---|---|"""


class Recipe(NamedTuple):
    """A recipe: of a host, or of `pipelines`."""

    name: str
    system: str
    host: str
    algorithm: str
    needs: str
    run_here: str
    config: Path
    flags: str = ""  # of the launcher, after which the user's come


def read() -> list[Recipe]:
    """All recipes: first those of TRL, then verl's, then the pipelines."""
    found = []
    for host in ("trl", "verl"):
        for config in sorted((HERE / host).glob("*.yaml")):
            for line in re.findall(r"^#: (.*)$", config.read_text(encoding="utf-8"), re.M):
                name, system, algorithm, needs, run_here, flags = (part.strip() for part in line.split("|", 5))
                found.append(Recipe(name, system, host, algorithm, needs, run_here, config, flags))
    for config in sorted((HERE / "pipelines").glob("*.yaml")):
        top = yaml.safe_load(config.read_text(encoding="utf-8"))
        if isinstance(top, dict) and "steps" in top:
            hosts = "both" if "host" in top["settings"] else "trl"
            found.append(Recipe(config.stem, *top["table"][:1], hosts, *top["table"][1:], config))
    return found


def page() -> str:
    """README.md."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for one in read():
        place = one.config.relative_to(HERE).as_posix()
        name = f"`wm lab pipeline {one.name}`" if place.startswith("pipelines") else f"`{one.name}`"
        key = (name, one.system, one.algorithm, one.needs, one.run_here)
        rows.setdefault(key, []).append(f"[{one.host}]({place})")
    lines = (
        f"| {name} | {system} | {', '.join(hosts)} | {algorithm} | {needs} | {run_here} |"
        for (name, system, algorithm, needs, run_here), hosts in rows.items()
    )
    return "\n".join([_START, *lines]) + "\n"
