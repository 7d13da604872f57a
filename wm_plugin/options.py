"""The base of every set of options: a field's type, bounds, default and help are declared once, in a pydantic model.

From the same fields come a config file's validation, TRL's `echo_*` fields, verl's group files, the flags of `wm`, and the tables
in the docs. A value that does not fit is one line: the field, the value, and what to write instead.
"""

import copy
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, Union, dataclass_transform, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.untrusted import loads


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic takes true for 1
        raise ValueError
    return value


def parsed(value: Any) -> Any:
    """A mapping, list or flag that a command line or TRL's parser hands over as JSON."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false", "null", "none"):
        return {"true": True, "false": False}.get(value.lower())
    return loads(value) if value.lstrip().startswith(("{", "[")) else value


def mapping(value: Any, name: str) -> dict[str, Any]:
    """Return the mapping of a file's setting or of a flag's JSON; `name` names it in errors."""
    try:
        value = loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise UserError(f"{name} is not JSON ({error}); write '{{\"count\": 100}}'") from None
    if not isinstance(value, dict):
        raise UserError(f"{name} is {shown(value)}; write a mapping, such as '{{\"count\": 100}}'")
    return value


def names(value: Any) -> Any:
    """Names as a list, as JSON, or separated by commas."""
    value = parsed(value)
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


Number = Annotated[float, BeforeValidator(_no_flag), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_no_flag)]
Names = Annotated[tuple[str, ...], BeforeValidator(names)]  # a list, or names separated by commas
Parsed = BeforeValidator(parsed)  # for fields of mappings: JSON, too


def option(help: str, *, default: Any = ..., write: str = "", **bounds: Any) -> Any:
    """A field with its help.

    Args:
        help: one sentence for `--help`, the group files and the docs.
        default: left out for a field that must be given.
        write: what an error tells to write; by default it follows from the type and the bounds.
        bounds: pydantic's, such as `ge=0`.
    """
    return Field(default, description=help, json_schema_extra={"write": write} if write else None, **bounds)


def default(model: "type[Options]", name: str, value: Any) -> Any:
    """A field of a model with another default, for a subclass."""
    field = copy.copy(model.model_fields[name])
    field.default = value
    return field


@dataclass_transform(kw_only_default=False, field_specifiers=(option, Field))
class Options(BaseModel):
    """A frozen set of options. The constructor takes fields by position, too, and raises a `UserError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    aliases: ClassVar[Mapping[str, str]] = {}  # other names of fields that are accepted
    example: ClassVar[str] = ""  # what an error tells to write in the place of something that is no mapping

    def __init__(self, *args: Any, **values: Any) -> None:
        name, fields = type(self).__name__, list(type(self).model_fields)
        if len(args) > len(fields):
            raise UserError(f"{name} has {len(fields)} fields and gets {len(args)} values")
        values = _without_aliases(type(self), [*zip(fields, args, strict=False), *values.items()], name)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise user_error(type(self), error, values, "") from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # nested models are validated without it

    @classmethod
    def read(cls, values: Any, where: str = "") -> Self:
        """The options that a file's block, a Hydra node or a flag's JSON describes.

        Args:
            where: the block's name, for errors.

        Raises:
            UserError: it is no mapping, a key does not exist, or a value does not fit.
        """
        if isinstance(values, cls):
            return values
        try:
            values = parsed(values)
        except ValueError as error:
            raise UserError(f"{where or cls.__name__} is not JSON: {error}") from None
        if not isinstance(values, Mapping):
            raise UserError(f"{where or cls.__name__} is {shown(values)}; write fields, e.g. {_example(cls)}")
        values = _without_aliases(cls, values.items(), where or cls.__name__)
        for key in values:  # YAML has keys that are no texts, which pydantic does not take
            if not isinstance(key, str):
                raise UserError(f"{where or cls.__name__} has no field {shown(key)}{nearest(key, cls.model_fields)}")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise user_error(cls, error, values, where) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, which are checked."""
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **changes})

    def changed(self) -> dict[str, Any]:
        """The values that differ from their defaults, as JSON values; `read` takes them back."""
        return self.model_dump(mode="json", exclude_defaults=True, fallback=repr)

    def __hash__(self) -> int:
        return hash(repr(self))


def _without_aliases(model: type[Options], values: Iterable[tuple[str, Any]], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values:
        name = model.aliases.get(key, key)
        if name in found:
            same = "".join(f" ({alias} is the same)" for alias, field in model.aliases.items() if field == name)
            raise UserError(f"{where} gets {name} twice{same}; keep one")
        found[name] = value
    return found


def user_error(model: type[Options], error: ValidationError, values: Any, where: str) -> UserError:
    """The first mistake that pydantic found, in one line."""
    found_errors = error.errors(include_url=False)
    # a misspelt field explains why another one is missing
    first = next((one for one in found_errors if one["type"] == "extra_forbidden"), found_errors[0])
    path, field = where, None  # what the error is in: its name, and the field that it is of
    owner: type[Options] | None = model
    parent, found, consumed = where, values, False
    unknown = first["type"] == "extra_forbidden"
    for part in first["loc"][:-1] if unknown else first["loc"]:
        consumed = True
        if isinstance(part, int) and isinstance(found, Sequence) and part < len(found):
            path, found = f"{path}[{part}]", found[part]
        elif isinstance(part, str) and owner is not None and part in owner.model_fields:
            parent, field = path, owner.model_fields[part]
            path = f"{path}.{part}" if path else part
            found = found.get(part) if isinstance(found, Mapping) else getattr(found, part, None)
            owner = _model_of(field.annotation, found)
        elif isinstance(found, Mapping) and part in found:
            path, found = f"{path}[{part!r}]", found[part]
        else:
            owner = _model_of(field.annotation if field else None, found) or owner  # the tag of a union
            consumed = False
    if unknown:
        model = owner or model
        key = first["loc"][-1]
        return UserError(
            f"{path or model.__name__} has no field {shown(key)}{nearest(key, [*model.model_fields, *model.aliases])}"
        )
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):  # of the models in a list, by a field of theirs
        name = first["ctx"]["discriminator"].strip("'")
        tags = _tags(field.annotation, name) if field is not None else ()
        found = found.get(name) if isinstance(found, Mapping) else None
        return UserError(f"{path}.{name} is {shown(found)}{nearest(found, tags)}")
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, UserError):  # raised by a validator: the message begins with the field's name in its model
        prefix = path if owner is not None else parent
        return type(reason)(*reason.args) if not prefix else UserError(f"{prefix}.{reason}")
    if first["type"] == "missing":
        return UserError(f"{path} is missing; {_write(field)}")
    if consumed:  # else of one member of a union, which may show its own reading
        found = first["input"]
    choices = _choices(field.annotation) if field is not None else ()
    if choices and not isinstance(found, Mapping | bool):
        return UserError(f"{path} is {shown(found)}{nearest(found, choices)}")
    return UserError(f"{path or model.__name__} is {shown(found)}; {_write(field)}")


def members(annotation: Any) -> list[Any]:
    """The members of a union, or the annotation itself."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [part for member in get_args(annotation) for part in members(member)]
    return [annotation]


def _model_of(annotation: Any, found: Any) -> type[Options] | None:
    """The model of a nested block; of several, the one whose discriminator the block has."""
    models = _models(annotation)
    if len(models) > 1 and isinstance(found, Mapping):
        tags = set(map(str, found.values()))
        models = [one for one in models if any(tags & set(_choices(f.annotation)) for f in one.model_fields.values())]
    return models[0] if models else None


def _models(annotation: Any) -> list[type[Options]]:
    """The models in a union, and in lists and mappings of it."""
    parts = members(annotation)
    inner = [one for part in parts for item in get_args(part) for one in members(item)]
    return [one for one in (*parts, *inner) if isinstance(one, type) and issubclass(one, Options)]


def _tags(annotation: Any, name: str) -> list[str]:
    """The values of the field that tells models apart."""
    return [tag for model in _models(annotation) for tag in _choices(model.model_fields[name].annotation)]


def _choices(annotation: Any) -> tuple[str, ...]:
    """The values of a literal, or of the literals in a list."""
    found: tuple[str, ...] = ()
    for part in members(annotation):
        found += get_args(part) if get_origin(part) is Literal else ()
        found += _choices(get_args(part)[0]) if get_origin(part) is tuple else ()
    return found


def _write(field: FieldInfo | None) -> str:
    """What to write into a field."""
    if field is None:
        return "write fields"
    extra = field.json_schema_extra
    if isinstance(extra, dict) and extra.get("write"):
        return f"write {extra['write']}"
    parts = members(field.annotation)
    kinds = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a text",
        tuple: "a list",
        dict: "a mapping",
    }
    words = [kinds[kind] for part in parts if (kind := get_origin(part) or part) in kinds]
    bounds = [
        f"{sign} {bound}"
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
        for metadata in field.metadata
        if (bound := getattr(metadata, name, None)) is not None
    ]
    if bounds:
        words = [f"{' or '.join(words) or 'a number'} {' and '.join(bounds)}"]
    words += [
        f"fields, e.g. {_example(part)}" for part in parts if isinstance(part, type) and issubclass(part, Options)
    ]
    if type(None) in parts:
        words.append("null")
    return f"write {' or '.join(words) or 'another value'}"


def _example(model: type[Options]) -> str:
    return model.example or f"{{{next(iter(model.model_fields))}: ...}}"
