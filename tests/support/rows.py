"""Values that a dataset's row may have in any column by mistake or on purpose."""

from decimal import Decimal
from typing import Any

import numpy as np

BAD: list[Any] = [
    None, True, -1, 0, 10**30, 10**400, 1.5, float("nan"), float("inf"), "", "x", "9" * 5000, "1e9", "\ud800", "\0", "a\nb",
    [], {}, ["a"], [[]], {"a": 1}, b"x", "../../etc/passwd", "\u0661", object(), (1, 2), {1}, 10**5000, -(10**5000),
    np.int64(3), np.float32("nan"), np.array([1, 2]), np.array(["a", "b"]), np.zeros((2, 2)), np.bool_(True), Decimal("sNaN"),
]  # fmt: skip
