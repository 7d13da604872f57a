"""What a host made of an episode."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Played:
    """An episode: what the policy read of its calls, its reward, and its figures."""

    read: list[str]
    reward: float
    figures: Mapping[str, float]
