"""Values that a world model cannot predict: those of a database, and the user's personal facts (RWML, appendix C.1).

A tool's JSON result is replaced by its schema: its structure can be predicted, its values could only be memorised. The user's
personal facts move into the context. The reason for the user's call does not: that is for the world model to predict.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from genson import SchemaBuilder
from genson.schema.strategies import Object

from wm_plugin.data.schema import Observation, Trajectory
from wm_plugin.untrusted import deeper, loads

_IDENTITY = re.compile(r"\d\D*\d\D*\d")  # three digits: `credit_card_4421486`, `2024-05-16`, but not `address1`


class _Object(Object):  # type: ignore[misc]
    """An object's schema without `required`, and without keys that are values, as in a table by id or prices by date."""

    def __init__(self, node_class: Any) -> None:
        super().__init__(node_class)
        self._entries: Any = None

    def add_object(self, obj: dict[str, Any]) -> None:
        if not obj or not all(_IDENTITY.search(key) for key in obj):
            super().add_object(obj)
            return
        self._entries = self._entries or self.node_class()
        for value in obj.values():
            self._entries.add_object(value)

    def to_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = super().to_schema()
        schema.pop("required", None)  # one result does not show which keys every result must have
        if self._entries is not None:
            schema["additionalProperties"] = self._entries.to_schema()
        return schema


class _Builder(SchemaBuilder):  # type: ignore[misc]
    EXTRA_STRATEGIES = (_Object,)


def schema_of(text: str) -> str | None:
    """Return the JSON schema of a JSON object or list, as compact JSON; None for anything else, bare numbers and strings too.

    `{"id": "a1", "size": 3}` is `{"type":"object","properties":{"id":{"type":"string"},"size":{"type":"integer"}}}`. Properties
    keep the order of the text. An object whose keys all have three or more digits is a table by id: its schema has
    `additionalProperties` in place of the ids.
    """
    try:
        value = loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict | list) or deeper(value):
        return None
    builder = _Builder(schema_uri=None)
    builder.add_object(value)
    return json.dumps(builder.to_schema(), ensure_ascii=False, separators=(",", ":"))


def mask_values(trajectory: Trajectory) -> Trajectory:
    """Replace the tools' JSON results by their schemas; `data["schema"]` marks these observations.

    The results of a user's own tools, which are only history, are replaced too. Messages and the arguments of calls stay.
    """
    turns = tuple(
        turn.model_copy(update={"observations": tuple(map(_masked, turn.observations))}) for turn in trajectory.turns
    )
    return trajectory.model_copy(update={"turns": turns})


def masked(trajectory: Trajectory) -> int:
    """Count the results that are schemas."""
    return sum(observation.data.get("schema") is True for turn in trajectory.turns for observation in turn.observations)


def _masked(observation: Observation) -> Observation:
    if observation.kind != "tool" or observation.data.get("schema") is True:  # a schema has no schema
        return observation
    schema = schema_of(observation.text)
    if schema is None:  # `wm env rollout` may write a last line that the episode is over
        result, _, closing = observation.text.rpartition("\n")
        schema = schema_of(result) if schema_of(closing) is None else None
        if schema is None:
            return observation
        schema = f"{schema}\n{closing}"
    return observation.model_copy(update={"text": schema, "data": {**observation.data, "schema": True}})


def profile_to_context(trajectory: Trajectory) -> Trajectory:
    """Move the user's profile into the context's simulation instruction, which only world models read.

    The profile is `metadata["user_profile"]["known_info"]`, from τ²-bench's results or `wm env rollout` at a desk. A trajectory
    without it, or whose instruction has it already, is returned unchanged.
    """
    profile = trajectory.metadata.get("user_profile")
    known = profile.get("known_info") if isinstance(profile, Mapping) else None
    instruction = trajectory.context.simulation_instruction
    if not isinstance(known, str) or not known.strip():
        return trajectory
    facts = f"What the user was told about themselves:\n{known.strip()}"
    if facts in instruction:
        return trajectory
    context = trajectory.context.model_copy(
        update={"simulation_instruction": f"{instruction}\n\n{facts}" if instruction else facts}
    )
    return trajectory.model_copy(update={"context": context})


def changed(
    trajectories: Iterable[Trajectory], *, mask: bool, profile: bool, counts: dict[str, int]
) -> Iterator[Trajectory]:
    """Move profiles into the context, then mask values, in this order."""
    for trajectory in trajectories:
        if profile:
            with_profile = profile_to_context(trajectory)
            counts["profiles"] += with_profile is not trajectory
            trajectory = with_profile
        if mask:
            before = masked(trajectory)
            trajectory = mask_values(trajectory)
            counts["masked"] += masked(trajectory) - before
        yield trajectory
