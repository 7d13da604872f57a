"""The fields of a trajectory that a reader made, before they are validated."""

from typing import Any

from wm_plugin.data.schema import Trajectory

Fields = dict[str, Any]  # of a record; the records in it are dicts too


def check(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory as it is."""
    return trajectory
