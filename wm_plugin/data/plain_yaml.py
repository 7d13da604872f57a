"""YAML of texts, lists and mappings. Every scalar is a text: `no` is "no" and `1.0` is "1.0"."""

from typing import Any

import yaml

LARGEST = 1 << 22  # characters of a text
_BASE: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # ten times as fast; both read the same


class _Loader(_BASE):  # type: ignore[misc]
    """A loader that leaves scalars as they are, reads nulls as "" and refuses a key that appears twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            where = f"line {key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"a key that is not a text in {where}")
            if key.value in keys:
                raise ValueError(f"the key {key.value[:40]!r} in {where} appears twice")
            keys.add(key.value)
        mapping: dict[str, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_scalar(self, node: Any) -> str:
        value = str(super().construct_scalar(node))
        return "" if not node.style and value in ("~", "null") else value


def loads(text: str, *, largest: int = LARGEST) -> Any:
    """Parse a text; "" if it is empty.

    Raises:
        ValueError: too large, not YAML, or a key is not a text or appears twice. The message is one line.
    """
    if len(text) > largest:
        raise ValueError(f"larger than {largest:,} characters; write it as .json")
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = str(getattr(error, "problem", None) or error)
        raise ValueError(f"no YAML{where} ({' '.join(problem.split())[:120]})") from None
    return "" if value is None else value
