"""Trajectories as plain dicts, for `wm data convert`: validated like the records and written as the same bytes, but faster.

A row has some fifty records. Conversion writes them and never reads them, so it need not build them as objects.
"""

import math
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import SchemaValidator

from wm_plugin.data.schema import Trajectory

Fields = dict[str, Any]  # of a record; the records in it are dicts too


def _as_dicts(schema: Any) -> Any:
    """pydantic's core schema of a record, with a dict in place of every record."""
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
    result = {key: _as_dicts(value) for key, value in schema.items() if key != "metadata"}
    if isinstance(result.get("default"), BaseModel):
        result["default"] = result["default"].model_dump()
    return result


_VALIDATOR = SchemaValidator(_as_dicts(Trajectory.__pydantic_core_schema__))


def check(fields: Any) -> Any:
    """A trajectory's fields, validated and completed with defaults as by `Trajectory.model_validate`. A trajectory stays one.

    Raises:
        pydantic.ValidationError: they do not fit the schema.
    """
    return fields if isinstance(fields, Trajectory) else _VALIDATOR.validate_python(fields)


def to_bytes(fields: Fields) -> bytes:
    """The same bytes as `Trajectory.to_bytes` of these fields."""
    try:
        if math.isfinite(fields["reward"] or 0.0):  # orjson writes an infinite number as null
            return orjson.dumps(fields)
    except TypeError:
        pass
    return Trajectory.model_validate(fields).to_bytes()
