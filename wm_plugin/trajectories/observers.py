"""What a world says of its observations, for dumps of hosts, which write every answer to a call as a tool's result.

Which answers are a user's or the environment's, and which ones answer an invalid action, is what the environment's class
declares (`environments.kit.protocol.observers` and `refusals`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.trajectories.fields import Fields, check
from wm_plugin.trajectories.filter import SOME
from wm_plugin.trajectories.schema import Kind


@dataclass(frozen=True)
class Observed:
    """Checks fields as `fields.check` does, and completes every answer to the agent's call of a tool in `kinds`.

    Args:
        kinds: who is observed, by tool.
        refusals: by tool, how answers to an invalid action begin. Such an answer gets the counts that our own rollouts have,
            `data["invalid"]` of `data["actions"]`, and so does every other answer of these tools. One that counts its invalid
            actions itself ("Invalid: 1 of 2") is left to `Filter`.
    """

    kinds: Mapping[str, Kind]
    refusals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __call__(self, fields: Any) -> Fields:
        complete = check(fields)
        for turn in complete["turns"]:
            if turn["actor"] == "agent":
                for observation in turn["observations"]:
                    if observation["call"] is not None and observation["tool"] in self.kinds:
                        self._complete(observation)
        return complete

    def _complete(self, observation: Fields) -> None:
        tool = observation["tool"]
        observation["kind"] = self.kinds[tool]
        if tool in self.refusals and not SOME.match(observation["text"]):
            invalid = observation["error"] or observation["text"].startswith(self.refusals[tool])
            observation["data"] = {**observation["data"], "actions": 1, "invalid": int(invalid)}
