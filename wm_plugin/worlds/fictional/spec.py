"""The specification of a fictional world: entities, their attributes and relations, and their counts.

A specification is YAML, written by hand and read as data: names of tables and columns are words of a strict form, so its texts
reach SQL only between quotes or as parameters, and every number in it is bounded. docs/agentworld.md has an example.

The four strategies are the paper's (Qwen-AgentWorld, section 6.1.2), which explains only the first, by an example; the meaning of
the others and the rules are ours.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.runtime.texts import load_yaml
from wm_plugin.untrusted import loads
from wm_plugin.worlds.kit.described import described

STRATEGIES = {
    "time-shifted": "every date lies after `known_until`, the day until which models may know the world",
    "long-tail": "one entity has at least 60% of the rows, and at least 5 attributes",
    "private": "an organisation, whose name is generated, has the records; every page says that it is internal",
    "grounded": "every range of numbers or dates is stated by one of the documents",
}
RESERVED = ("id", "name")  # columns of every table
LARGEST = 1 << 16  # of a specification: characters of a file, bytes of a column
ROWS = (50, 1000)  # of a world; the paper's have 300 to 500
_MOST_ENTITIES, _MOST_ATTRIBUTES, _MOST_DOCUMENTS = 8, 12, 40
_LABEL, _SETTING, _DOCUMENT = 60, 200, 4000  # characters
_MARKS = ("|", "<", ">", "{", "}", "[", "]", "`")  # of tables, tags and templates
SHIPPED = ("bells", "handsets", "observatories", "workshops")


def _word(text: str) -> str:
    if not (text.isascii() and text.isidentifier() and text.islower() and text[0] != "_" and len(text) <= 31):
        raise ValueError(f"{shown(text)} is no name; write lower-case letters, digits and _, at most 31")
    return text


def _line(text: str, most: int = _LABEL) -> str:
    text = " ".join(text.split())
    if not text or len(text) > most or not text.isprintable() or any(mark in text for mark in _MARKS):
        raise ValueError(f"{shown(text)}: write one line of 1 to {most} characters, without {' '.join(_MARKS)}")
    return text


def _label(text: str) -> str:
    text = _line(text)
    if " is " in f" {text} " or ":" in text:
        raise ValueError(f"{shown(text)}: leave out `is` and colons, which begin a value on the pages")
    return text


Word = Annotated[str, AfterValidator(_word)]
Label = Annotated[str, AfterValidator(_label)]
Title = Annotated[str, AfterValidator(_line)]
Setting = Annotated[str, AfterValidator(lambda text: _line(text, _SETTING))]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong; only the first is looked at."""
        yield from ()


class Attribute(_Strict):
    """A column beside the name: a whole number, a date, or one of a list of words.

    Attributes:
        low, high: `from` and `to` in the file: the range of a number or a date.
        step: between two values of a number.
        unit: after a number, such as `m`.
        values: of a category.
        page: the one of the entity's two pages that states it.
        follows: a number or date of the same entity that this one rises with.
        not_before: `relation.attribute`: a number or date that is not larger than this one.
        document: the title of the document that states the range.
    """

    label: Label
    type: Literal["integer", "date", "category"]
    low: int | datetime.date | None = Field(None, alias="from")
    high: int | datetime.date | None = Field(None, alias="to")
    step: Annotated[int, Field(ge=1)] = 1
    unit: Label | None = None
    values: tuple[Label, ...] = ()
    page: Literal["profile", "record"] = "profile"
    follows: Word | None = None
    not_before: str | None = None
    document: Title | None = None

    def _problems(self) -> Iterator[str]:
        low, high = self.low, self.high
        if self.type == "category":
            if not 2 <= len(set(self.values)) == len(self.values) <= 40:
                yield f"{self.label}: a category needs 2 to 40 values, each once"
            if low is not None or high is not None or self.follows or self.not_before or self.document:
                yield f"{self.label}: a category has values, and no range"
            return
        kind, what = (int, "a whole number") if self.type == "integer" else (datetime.date, "a day")
        if type(low) is not kind or type(high) is not kind:
            yield f"{self.label}: write from and to, each {what}"
        if not low < high:  # type: ignore[operator]
            yield f"{self.label}: from must be less than to"
        if isinstance(low, int) and isinstance(high, int) and max(abs(low), abs(high)) > 10**12:
            yield f"{self.label}: write numbers of at most 12 digits"
        if self.values:
            yield f"{self.label}: only a category has values"


class Entity(_Strict):
    """A table. `relations` maps another entity, of which each row has one, to its label.

    Attributes:
        record: the title of the page that states the attributes of the page `record`.
    """

    singular: Label
    plural: Label
    names: Literal["place", "company", "person", "model", "code"]
    count: Annotated[int, Field(ge=1, le=ROWS[1])]
    record: Label = "data sheet"
    relations: dict[Word, Label] = Field(default_factory=dict)
    attributes: dict[Word, Attribute] = Field(default_factory=dict)


class Document(_Strict):
    """A page about the subject as such, written by hand, which all worlds of the specification have."""

    title: Title
    text: Annotated[str, Field(min_length=1, max_length=_DOCUMENT)]


class Spec(_Strict):
    """A specification. `vary` lets each world leave some attributes out and have other counts, by its seed."""

    strategy: Literal["time-shifted", "long-tail", "private", "grounded"]
    setting: Setting
    known_until: datetime.date = datetime.date(2027, 12, 31)
    vary: bool = False
    entities: dict[Word, Entity]
    documents: tuple[Document, ...] = ()

    @property
    def rows(self) -> int:
        """The rows of all tables."""
        return sum(entity.count for entity in self.entities.values())

    def _problems(self) -> Iterator[str]:
        if not 1 <= len(self.entities) <= _MOST_ENTITIES or len(self.documents) > _MOST_DOCUMENTS:
            yield f"write 1 to {_MOST_ENTITIES} entities and at most {_MOST_DOCUMENTS} documents"
        if not ROWS[0] <= self.rows <= ROWS[1]:
            yield f"the counts of the entities make {self.rows} rows; write {ROWS[0]} to {ROWS[1]}"
        for place, (name, entity) in enumerate(self.entities.items()):
            yield from self._problems_of(name, entity, list(self.entities)[:place])
        for words in ("singular", "plural"):
            if not _differ(getattr(entity, words) for entity in self.entities.values()):
                yield f"two entities have the same {words}"
        if problem := broken_rule(self):
            yield problem

    def _problems_of(self, name: str, entity: Entity, earlier: list[str]) -> Iterator[str]:
        if not _differ([*RESERVED, *entity.relations, *entity.attributes]):
            yield f"{name}: a column's name is taken: {', '.join(RESERVED)}, a relation's or an attribute's"
        if len(entity.attributes) > _MOST_ATTRIBUTES:
            yield f"{name}: write at most {_MOST_ATTRIBUTES} attributes"
        if not _differ([*entity.relations.values(), *(attribute.label for attribute in entity.attributes.values())]):
            yield f"{name}: two labels are the same"
        for other in entity.relations:
            if other not in earlier:
                yield f"{name}: relations: {other} is no entity above it{nearest(other, earlier)}"
        numbers: list[str] = []
        titles = [document.title for document in self.documents]
        for column, attribute in entity.attributes.items():
            where, follows, document = f"{name}.{column}", attribute.follows, attribute.document
            if follows is not None and follows not in numbers:
                yield f"{where}: follows {follows}, no number or date above it{nearest(follows, numbers)}"
            if document is not None and document not in titles:
                yield f"{where}: there is no document {document!r}{nearest(document, titles)}"
            if attribute.not_before is not None:
                other, _, bound = attribute.not_before.partition(".")
                if other not in entity.relations or bound not in self.entities[other].attributes:
                    yield f"{where}: not_before is {attribute.not_before}; write RELATION.ATTRIBUTE"
                if self.entities[other].attributes[bound].type != attribute.type:
                    yield f"{where}: not_before {attribute.not_before}, which has another type"
            if attribute.type != "category":
                numbers.append(column)


def _differ(texts: Iterable[str]) -> bool:
    texts = list(texts)
    return len(set(texts)) == len(texts)


def broken_rule(spec: Spec) -> str:
    """Return what the specification lacks by the rule of its strategy (see `STRATEGIES`); "" if nothing."""
    rule = f"{spec.strategy}: {STRATEGIES[spec.strategy]}"
    ranged = [one for entity in spec.entities.values() for one in entity.attributes.values() if one.type != "category"]
    if spec.strategy == "time-shifted":
        days = [one.low for one in ranged if isinstance(one.low, datetime.date)]
        return "" if days and min(days) > spec.known_until else f"{rule}; write dates from a later day on"
    if spec.strategy == "long-tail":
        largest = max(spec.entities.values(), key=lambda entity: entity.count)
        fits = largest.count >= 0.6 * spec.rows and len(largest.attributes) >= 5
        return "" if fits else f"{rule}; {largest.plural} have {largest.count} of {spec.rows} rows"
    if spec.strategy == "grounded":
        # words without the signs around them and without commas in numbers
        texts = {
            document.title: {word.strip(".,;:()").replace(",", "") for word in document.text.split()}
            for document in spec.documents
        }
        for one in ranged:
            if not {str(one.low), str(one.high)} <= texts.get(one.document or "", set()):
                return f"{rule}; the document of {one.label!r} does not state {one.low} and {one.high}"
    return ""


def load(name_or_path: str) -> Spec:
    """Load one of `SHIPPED` by name, or the user's own file by path (with a `/`, or ending in .yaml or .yml)."""
    if name_or_path in SHIPPED:
        return shipped(name_or_path)
    if not ("/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))):
        hint = f"{nearest(name_or_path, SHIPPED)}; your own go by path: ./mine.yaml"
        raise UserError(f"there is no specification {shown(name_or_path)}{hint}")
    path = Path(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > LARGEST:  # it becomes a column of each row
            raise UserError(f"{path}: a specification has at most {LARGEST:,} characters")
        values = load_yaml(text)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also of a date or a number
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from None
    return made_of(values, str(path))


@lru_cache
def shipped(name: str) -> Spec:
    """Return a specification of this package."""
    return made_of(described(f"fictional/{name}.yaml"), name)


@lru_cache(64)
def of_column(text: str) -> Spec:
    """Return the specification in a row's column `spec`: one of `SHIPPED`, or JSON as `column_of` writes it."""
    if text in SHIPPED:
        return shipped(text)
    try:
        value = loads(text, strict=True, largest=LARGEST, levels=12)
    except ValueError:
        name = shown(text)
        raise UserError(f"fictional: a row's column `spec` is {name}{nearest(text[:40], SHIPPED)}") from None
    return made_of(value, "fictional: a row's column `spec`")


def column_of(spec: Spec, name: str) -> str:
    """Write a row's column `spec`: the name of a shipped one, else all of it as JSON, so that a row needs no file."""
    return name if name in SHIPPED else spec.model_dump_json(by_alias=True, exclude_defaults=True)


def made_of(values: Any, where: str) -> Spec:
    """Make a specification of parsed values."""
    if not isinstance(values, Mapping):
        raise UserError(f"{where}: no mapping; write strategy, setting and entities at its top level")
    try:
        return Spec.model_validate(dict(values))
    except ValidationError as error:
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        place = ".".join(str(part) for part in first["loc"] if part != "[key]")[:100]
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "there is no such setting"
        parts = " ".join(": ".join(filter(None, (place, message))).split())
        raise UserError(f"{where}: {parts[:400]}") from None
