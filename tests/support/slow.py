"""Work that takes long, in a module that other processes can import."""

import time
from typing import Any

SLOW = 120  # seconds


def slowly(trajectory: Any) -> Any:
    """Return a trajectory, later."""
    time.sleep(SLOW)
    return trajectory
