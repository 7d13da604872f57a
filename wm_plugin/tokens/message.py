"""A chat message, and the calls that wait for results."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

Message = dict[str, Any]  # {"role", "content", "tool_calls"?, "name"?}, as OpenAI's API has it


class Waiting:
    """Calls without a result, by their place. Each result takes constant time, however many calls there are.

    Args:
        names: the calls' names or ids, in order, by which a result may name its call; anything but a text or a number names none.
    """

    def __init__(self, names: Iterable[Any]) -> None:
        # An OrderedDict, since a dict would skip over all the entries removed from its beginning.
        self._places: OrderedDict[int, None] = OrderedDict()
        self._by_name: dict[str | int, deque[int]] = {}
        for place, name in enumerate(names):
            self._places[place] = None
            if isinstance(name, str | int):
                self._by_name.setdefault(name, deque()).append(place)

    def take(self, name: Any) -> int | None:
        """Remove and return the first call of this name, or the first of all; None if all have their results."""
        named = self._by_name.get(name, deque()) if isinstance(name, str | int) else deque()
        while named and named[0] not in self._places:
            named.popleft()
        place = named[0] if named else next(iter(self._places), None)
        if place is not None:
            del self._places[place]
        return place


def as_text(content: Any) -> str:
    """Return a result as a text: of content parts the texts, one after the other; of what is no text, its representation."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content and all(isinstance(part, dict) and "text" in part for part in content):
        return "".join(str(part["text"]) for part in content)
    return str(content)
