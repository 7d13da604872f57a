"""The figures of a step's episodes for a trainer's log, the same on both hosts.

Shares are ratios of sums over all episodes of the step, those of every rank and worker.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

PREFIX = "wm/env"
CONTROL, CONTROLLED = "control/", "control/calls"  # counts of what control perturbed, and of all that it could have
SHARES = {  # a part of a whole
    "effective_share": ("effective", "actions"),
    "invalid_share": ("invalid", "actions"),
    "compile_error_share": ("compile_errors", "submissions"),
    "prediction/score": ("prediction/total", "prediction/turns"),
    "prediction/share": ("prediction/written", "prediction/turns"),
}
OF_SUCCESSES = {"turns", "actions"}  # logged for successful episodes alone, too
BINS = (1, 2, 4, 8, 16, 32)  # upper ends of the bins of turns: 1, 2, 3-4, 5-8, ..., 33+


def summary(episodes: Iterable[Mapping[str, float]], prefix: str = PREFIX) -> dict[str, float]:
    """Return the figures of a step by their names in a log (`<prefix>/<name>`). NaN is left out.

    * Means over the episodes that have the figure: `success`, `turns`, `budget` (the turns that were allowed), `actions`,
      `truncated`, `policy_tokens`, `environment_tokens`, `calls/<tool>` (`calls/unknown`: calls of no tool), and whatever else
      an environment reports.
    * `effective_share` and `invalid_share`: of all actions (WMAct). `compile_error_share`: of all code that was submitted (ECHO).
    * `prediction/score` and `prediction/share`: the mean score of the turns that were scored by predictions, and the share of
      them that had one.
    * `control/<name>`: the share of all calls under control whose observations were perturbed so; `control/calls` is a mean.
    * `success/turns_3-4`: the success of the episodes that took 3 or 4 turns.
    * `single_turn_success`: the share of episodes that succeeded in one turn.
    * `turns_of_successes`, `actions_of_successes`: means over the successful episodes.
    """
    episodes = [{name: value for name, value in figures.items() if not math.isnan(value)} for figures in episodes]
    values: dict[str, list[float]] = {}
    for figures in episodes:
        for name, value in figures.items():
            values.setdefault(name, []).append(value)
        if "success" in figures and "turns" in figures:
            values.setdefault(f"success/turns_{_bin(figures['turns'])}", []).append(figures["success"])
            single_turn = float(figures["success"] > 0 and figures["turns"] == 1)
            values.setdefault("single_turn_success", []).append(single_turn)
        if figures.get("success", 0) > 0:
            for name in OF_SUCCESSES & figures.keys():
                values.setdefault(f"{name}_of_successes", []).append(figures[name])
    means = {name: math.fsum(numbers) / len(numbers) for name, numbers in sorted(values.items())}
    if observed := math.fsum(values.get(CONTROLLED, ())):  # shares of all observations, in the place of counts
        means |= {name: math.fsum(values[name]) / observed for name in values if name.startswith(CONTROL)}
        means[CONTROLLED] = observed / len(values[CONTROLLED])
    for share, (part, whole) in SHARES.items():
        counts = [(figures[part], figures[whole]) for figures in episodes if part in figures and whole in figures]
        if total := math.fsum(number for _, number in counts):
            means[share] = math.fsum(count for count, _ in counts) / total
    return {f"{prefix}/{name}": value for name, value in means.items()}


def check_lost(episodes: Sequence[Mapping[str, float]], most: float, option: str = "max_lost") -> None:
    """Stop a run that would train on episodes that say nothing of the policy.

    Args:
        episodes: the figures of all of a step's episodes.
        most: the share of them that may have lost their world.
        option: where the user writes it.

    Raises:
        RuntimeError: more of them did.
    """
    lost = sum(bool(episode.get("lost")) for episode in episodes)
    if lost > most * len(episodes):
        raise RuntimeError(
            f"wm: {lost} of {len(episodes)} episodes lost their world (the log says why); fix it, or the world model's "
            f"server, or allow more with {option}"
        )


def _bin(turns: float) -> str:
    lower = 0
    for upper in BINS:
        if turns <= upper:
            return str(upper) if upper - lower <= 1 else f"{lower + 1}-{upper}"
        lower = upper
    return f"{lower + 1}+"
