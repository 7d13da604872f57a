"""Who is observed, for rollouts whose format does not say: hosts write every answer to a call as a tool's result.

Which answers are a user's or the environment's is what the environment's class declares (`environments.kit.protocol.observers`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wm_plugin.trajectories.fields import Fields, check
from wm_plugin.trajectories.schema import Kind


@dataclass(frozen=True)
class Observed:
    """Checks fields as `fields.check` does, and gives every answer to the agent's call of a tool in `kinds` that tool's kind."""

    kinds: Mapping[str, Kind]

    def __call__(self, fields: Any) -> Fields:
        complete = check(fields)
        for turn in complete["turns"]:
            if turn["actor"] == "agent":
                for observation in turn["observations"]:
                    if observation["call"] is not None and observation["tool"] in self.kinds:
                        observation["kind"] = self.kinds[observation["tool"]]
        return complete
