"""JSON values that become a record's fields: checked, so that they come back from a file as they were."""

import math
from typing import Any

from wm_plugin.untrusted import deeper, measure

DEEPEST = 200  # levels of a JSON value: pydantic writes 255, and a record has levels of its own
_SIMPLE = frozenset({str, int, bool, type(None)})


def checked(value: Any) -> Any:
    """Return a JSON value that files can hold: infinities and NaN become the strings as which they are written."""
    if not value or type(value) in _SIMPLE:
        return value
    if type(value) is dict and _SIMPLE.issuperset(map(type, value.values())):
        return value
    deep, is_finite = measure(value, DEEPEST)
    if deep:
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    return value if is_finite else finite(value)


def too_deep(value: Any) -> bool:
    """Tell whether a value has more than `DEEPEST` levels."""
    return deeper(value, DEEPEST)


def finite(value: Any) -> Any:
    """Return a value with "NaN", "Infinity" and "-Infinity" in place of such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value
