"""YAML of texts, lists and mappings that others may have written, within bounds.

Every scalar is a text: `no` is "no" and `1.0` is "1.0". There are no anchors and aliases, which can make gigabytes of a page, no
tags, which name types, no merge keys, no second document and no key twice. Time and memory are linear in the text.
"""

from typing import Any

import yaml

from wm_plugin.untrusted import BoundsError

LARGEST = 1 << 22  # characters of a text
LEVELS = 16
VALUES = 200_000  # scalars, lists and mappings
_NULL = ("", "~", "null")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast; both read the same


def loads(text: str, *, largest: int = LARGEST, levels: int = LEVELS, values: int = VALUES) -> Any:
    """The value of a text; "" if it holds none.

    Raises:
        BoundsError: larger, deeper or of more values than that.
        ValueError: not YAML, or more of YAML than is read here. The message is one line.
    """
    if len(text) > largest:
        raise BoundsError(f"larger than {largest:,} characters; write it as .json")
    try:
        return _built(text, levels, values)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(
            f"no YAML{where} ({' '.join(str(getattr(error, 'problem', None) or error).split())[:120]})"
        ) from None


def _built(text: str, levels: int, values: int) -> Any:
    root: list[Any] = []
    stack: list[Any] = [root]
    keys: list[str | None] = [None]  # of each mapping on the stack, the key whose value comes next
    documents = count = 0
    for parsed in yaml.parse(text, Loader=_LOADER):
        event: Any = parsed
        if isinstance(parsed, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise ValueError(f"a second document in line {event.start_mark.line + 1}")
        if isinstance(parsed, yaml.CollectionEndEvent):
            stack.pop()
            keys.pop()
        if not isinstance(parsed, yaml.NodeEvent):
            continue
        line = event.start_mark.line + 1
        if event.anchor is not None:  # an alias has one, too
            raise ValueError(
                f"an anchor or an alias in line {line} (&name or *name); write the text itself, in quotes if it begins so"
            )
        if event.tag is not None:
            raise ValueError(f"a tag in line {line} (!name); write the text itself, in quotes if it begins so")
        count += 1
        if count > values:
            raise BoundsError(f"more than {values:,} values")
        value: Any = (
            _scalar(event)
            if isinstance(event, yaml.ScalarEvent)
            else {}
            if isinstance(event, yaml.MappingStartEvent)
            else []
        )
        around = stack[-1]
        if isinstance(around, list):
            around.append(value)
        elif (key := keys[-1]) is not None:
            around[key], keys[-1] = value, None
        elif not isinstance(value, str):
            raise ValueError(f"a key that is no text in line {line}")
        elif value in around or value == "<<":
            raise ValueError(
                f"the key {value[:40]!r} in line {line} " + ("merges" if value == "<<" else "appears twice")
            )
        else:
            keys[-1] = value
        if not isinstance(value, str):
            if len(stack) > levels:
                raise BoundsError(f"nested more than {levels} levels deep")
            stack.append(value)
            keys.append(None)
    return root[0] if root else ""


def _scalar(event: Any) -> str:
    plain = event.implicit[0] and event.value in _NULL
    return "" if plain else str(event.value)
