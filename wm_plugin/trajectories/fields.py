"""Trajectories as plain dicts, for conversion: checked as the records are and written alike, byte for byte, in half the time.

A row has some fifty records; making them as objects, only to write them, is most of what a conversion would do.
"""

import math
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import SchemaValidator

from wm_plugin.trajectories.schema import Trajectory

Fields = dict[str, Any]  # of a record, and of the records in it


def _as_dicts(schema: Any) -> Any:
    """A record's core schema, with a dict for every record."""
    if isinstance(schema, list):
        return [_as_dicts(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "model":
        fields = schema["schema"]["fields"]
        return {
            "type": "typed-dict",
            "cls_name": schema["cls"].__name__,
            "extra_behavior": "forbid",
            "fields": {
                name: {
                    "type": "typed-dict-field",
                    "schema": _as_dicts(field["schema"]),
                    "required": field["schema"]["type"] != "default",
                }
                for name, field in fields.items()
            },
        }
    found = {key: _as_dicts(value) for key, value in schema.items() if key != "metadata"}
    if isinstance(found.get("default"), BaseModel):
        found["default"] = found["default"].model_dump()
    return found


_VALIDATOR = SchemaValidator(_as_dicts(Trajectory.__pydantic_core_schema__))


def check(fields: Any) -> Fields:
    """A trajectory's fields with all that was left out, as `Trajectory.model_validate` would have them.

    Raises:
        pydantic.ValidationError: they do not fit.
    """
    found: Fields = _VALIDATOR.validate_python(fields)
    return found


def to_bytes(fields: Fields) -> bytes:
    """What `Trajectory.to_bytes` gives of the same fields."""
    try:
        if math.isfinite(fields["reward"] or 0.0):  # orjson writes an infinite number as null
            return orjson.dumps(fields)
    except TypeError:
        pass
    return Trajectory.model_validate(fields).to_bytes()
