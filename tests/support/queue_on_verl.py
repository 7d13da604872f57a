"""A double of TransferQueue for tests of verl's own replay buffers: prompts end as soon as they are added."""

from typing import Any


class Store:
    """What verl's replay buffer calls of TransferQueue. A subclass adds prompts: `u<number>`, and `u<number>_<session>_0`."""

    def __init__(self, outcome: Any) -> None:
        self.outcome, self.added = outcome, 0
        self.items: dict[str, dict[str, Any]] = {}

    def kv_list(self) -> dict[str, dict[str, Any]]:
        return {"train": dict(self.items)}

    def kv_clear(self, partition_id: str, keys: list[str]) -> None:
        for key in keys:
            self.items.pop(key)
