"""What a world says of its rollouts, for dumps of hosts, which write every answer to a call as a tool's result and no schemas.

An environment's class declares which answers are a user's or the environment's, which ones answer an invalid action, and which
tools there are (`worlds.kit.protocol`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.data.filter import SOME
from wm_plugin.data.host_dumps import name_of, with_tools
from wm_plugin.data.schema import Kind, Observation, Trajectory


@dataclass(frozen=True)
class Observed:
    """Completes every answer to the agent's call of a tool in `kinds`.

    Args:
        kinds: who is observed, by tool.
        refusals: by tool, how answers to an invalid action begin. Every answer of these tools gets the counts that
            `wm env rollout` writes, `data["invalid"]` of `data["actions"]`. One that counts its invalid actions itself
            ("Invalid: 1 of 2") is left to `Filter`.
        tools: the schemas of each world, for a context without any. Of several worlds, those that have the most of the tools
            that the agent calls.
    """

    kinds: Mapping[str, Kind]
    refusals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tools: Sequence[Sequence[Mapping[str, Any]]] = ()

    def __call__(self, trajectory: Trajectory) -> Trajectory:
        turns = tuple(
            turn.model_copy(update={"observations": tuple(map(self._complete, turn.observations))})
            if turn.actor == "agent"
            else turn
            for turn in trajectory.turns
        )
        completed = trajectory.model_copy(update={"turns": turns})
        called = {call.name for turn in trajectory.turns for call in turn.action.calls}
        return with_tools(completed, self.tools_for(called)) if self.tools else completed

    def tools_for(self, called: set[str]) -> Sequence[Mapping[str, Any]]:
        """Return the schemas of the world that an agent played which called tools of these names; empty if none has them."""
        met = [len(called.intersection(map(name_of, tools))) for tools in self.tools]
        return self.tools[met.index(max(met))] if max(met) or len(met) == 1 else ()

    def _complete(self, observation: Observation) -> Observation:
        tool = observation.tool
        if observation.call is None or tool is None or tool not in self.kinds:
            return observation
        update: dict[str, Any] = {"kind": self.kinds[tool]}
        if tool in self.refusals and not SOME.match(observation.text):
            invalid = observation.error or observation.text.startswith(self.refusals[tool])
            update["data"] = {**observation.data, "actions": 1, "invalid": int(invalid)}
        return observation.model_copy(update=update)
