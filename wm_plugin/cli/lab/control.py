"""`wm lab control`."""

from pathlib import Path
from typing import Any

from wm_plugin.cli.numbers import Share
from wm_plugin.cli.support import progress, read_block
from wm_plugin.data.readers import read
from wm_plugin.data.write import write
from wm_plugin.worlds.wrappers.control import ControlConfig, recorded


def control(source: str, /, *, out: Path, config: str, share: Share = 1.0, seed: int | None = None) -> dict[str, Any]:
    """Perturb recorded observations, and add the instructions that a world model is to obey.

    Errors, pages, withheld answers and other conditions: observations are perturbed by rule, and each trajectory says what a
    world model is told. wm data build renders both. A config, YAML or JSON (docs/agentworld.md lists all perturbations):

    ```
    perturbations:
      - {name: error, rate: 0.1}
      - {name: paginate, tools: [search], size: 5}
      - {name: withhold, column: answer, query: question, rate: 0.5}
    ```

    As JSON: counts of what was written, as from convert; `controlled` trajectories, `turns_put_in`, and figures by perturbation.

    Args:
        source: Trajectories, or any format that convert reads.
        out: X.jsonl or X.parquet.
        config: A file with the perturbations, by themselves or under control: as in a run's config.
        share: Share of the trajectories to change.
        seed: Seed of all draws (default: the file's, or 0).
    """
    settings, figures = read_block(config, "--config", "control", ControlConfig), recorded.Figures()
    if seed is not None:
        settings = settings.replace(seed=seed)
    trajectories = recorded.control(progress(read(source), "trajectories"), settings, share=share, figures=figures)
    counts = write(trajectories, out, sources=[source, config])
    names = dict.fromkeys(one.name for one in settings.perturbations)
    return {**counts.as_dict(), **figures.as_dict(names), "out": str(out)}
