"""What a world says of its rollouts, for dumps of hosts, which write every answer to a call as a tool's result and no schemas.

Which answers are a user's or the environment's, which ones answer an invalid action, and which tools there are, is what the
environment's class declares (`environments.kit.protocol`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.data.fields import Fields, check
from wm_plugin.data.filter import SOME
from wm_plugin.data.host_dumps import name_of, with_tools
from wm_plugin.data.schema import Kind, Trajectory


@dataclass(frozen=True)
class Observed:
    """Checks fields as `fields.check` does, and completes every answer to the agent's call of a tool in `kinds`.

    Args:
        kinds: who is observed, by tool.
        refusals: by tool, how answers to an invalid action begin. Such an answer gets the counts that our own rollouts have,
            `data["invalid"]` of `data["actions"]`, and so does every other answer of these tools. One that counts its invalid
            actions itself ("Invalid: 1 of 2") is left to `Filter`.
        tools: the schemas of each world, for a context without any. Of several worlds, those that have the most of the tools
            that the agent calls.
    """

    kinds: Mapping[str, Kind]
    refusals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tools: Sequence[Sequence[Mapping[str, Any]]] = ()

    def __call__(self, fields: Any) -> Fields:
        complete: Fields = check(fields.model_dump() if isinstance(fields, Trajectory) else fields)
        for turn in complete["turns"]:
            if turn["actor"] == "agent":
                for observation in turn["observations"]:
                    if observation["call"] is not None and observation["tool"] in self.kinds:
                        self._complete(observation)
        return with_tools(complete, self._tools(complete)) if self.tools else complete

    def _tools(self, complete: Fields) -> Sequence[Mapping[str, Any]]:
        if len(self.tools) == 1:
            return self.tools[0]
        called = {call["name"] for turn in complete["turns"] for call in turn["action"]["calls"]}
        met = [len(called.intersection(map(name_of, tools))) for tools in self.tools]
        return self.tools[met.index(max(met))] if max(met) else ()

    def _complete(self, observation: Fields) -> None:
        tool = observation["tool"]
        observation["kind"] = self.kinds[tool]
        if tool in self.refusals and not SOME.match(observation["text"]):
            invalid = observation["error"] or observation["text"].startswith(self.refusals[tool])
            observation["data"] = {**observation["data"], "actions": 1, "invalid": int(invalid)}
