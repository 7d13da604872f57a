"""A file of prompts: what stands in it, and how it is checked. It is YAML:

    tag: next_state              # the prediction stands between <next_state> and </next_state>; "": it is the whole answer
    history: text                # earlier turns as `$history`, or as `messages` (user: action, assistant: observation)
    omits: []                    # `context` or `history`, where the templates are to do without; else a missing one is a mistake
    success: false               # mark an observation that ends a won task with " [SUCCESS]"
    think: ...                   # $answer where the model is to reason first
    direct: ...                  # $answer where it is not
    masked: ...                  # $masked where values of a tool's result were replaced by their schema; else it is empty
    dialogue: ...                # ends the system prompt where turns are messages
    fields: {state: ..., exact: [..., ...]}       # placeholders of the file's own; a list becomes lines that begin with "- "
    stages: {rl: [v0], cpt: [v1], sft: [v2, v3]}  # which variants a stage draws from; one that is left out draws from all
    styles: agentworld           # a file for what is not said here, above all variants: one of ours, or a path beside this one
    variants:
      v0: {system: ..., user: ..., think: ..., direct: ...}   # the last two only where they differ from the file's

`system` and `user` are templates of `string.Template`, where `$$` is a dollar sign: `$context` (the five parts, with headings),
`$history`, `$action`, `$observer` ("the result of search"), `$answer`, `$masked` and the file's fields. They are filled once:
nothing of a trajectory is read as a template. A paragraph with an empty placeholder is left out, heading and all. `$action`
belongs into `user`, `$context` into either, `$history` too where it is text, `$answer` where there is a tag.
"""

import re
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wm_plugin.errors import UserError, nearest
from wm_plugin.trajectories.draws import whole_number

FAMILIES = ("rwml", "word2world", "mcp", "search", "terminal", "swe", "android", "web", "os")
STAGES = ("rl", "sft", "cpt")
PLACEHOLDERS = ("context", "history", "action", "observer", "answer", "masked")
_DIALOGUE = """
Each message of the user's is what the agent does next. Each of your replies is what the agent then observes, and nothing else.
"""


class Variant(BaseModel):
    """The two templates of one way to ask."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str
    system: str = ""
    think: str | None = None
    direct: str | None = None


class Prompts(BaseModel):
    """A file of prompts. `load` makes these; the docstring of this module says what each field is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    variants: dict[str, Variant] = Field(min_length=1)
    tag: str = Field("", pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")
    history: Literal["text", "messages"] = "text"
    omits: list[Literal["context", "history"]] = Field(default_factory=list)
    success: bool = False
    think: str = ""
    direct: str = ""
    masked: str = ""
    dialogue: str = _DIALOGUE
    fields: dict[str, str | list[str]] = Field(default_factory=dict)
    stages: dict[Literal["rl", "sft", "cpt"], list[str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> "Prompts":
        for field in self.fields:
            if field in PLACEHOLDERS or not re.fullmatch("[a-z_]+", field):
                raise ValueError(
                    f"fields: {field!r} cannot be a placeholder of your own; write another name, of a-z and _"
                )
        for stage, names in self.stages.items():
            for name in names:
                if name not in self.variants:
                    raise ValueError(f"stages, {stage}: there is no variant {name!r}{nearest(name, self.variants)}")
            if not names:
                raise ValueError(f"stages, {stage}: names no variant; leave the stage out for all of them")
        for name, variant in self.variants.items():
            self._check(name, variant)
        return self

    def _check(self, name: str, variant: Variant) -> None:
        used: set[str] = set()
        for part, text in (("system", variant.system), ("user", variant.user)):
            template = Template(text)
            if not template.is_valid():
                raise ValueError(f"variant {name}, {part}: a $ that begins no placeholder; write $$ for a dollar sign")
            for placeholder in template.get_identifiers():
                known = (*PLACEHOLDERS, *self.fields)
                if placeholder not in known:
                    raise ValueError(
                        f"variant {name}, {part}: unknown placeholder ${placeholder}{nearest(placeholder, known)}"
                    )
                used.add(placeholder)
        if "action" not in Template(variant.user).get_identifiers():
            raise ValueError(f"variant {name}, user: the placeholder $action is missing")
        needed = ["context", *(["history"] if self.history == "text" else []), *(["answer"] if self.tag else [])]
        for placeholder in needed:
            if placeholder not in used and placeholder not in self.omits:
                hint = f"; or write omits: [{placeholder}]" if placeholder != "answer" else ""
                raise ValueError(f"variant {name}: the placeholder ${placeholder} is missing{hint}")
        for part, thinking in (("think", True), ("direct", False)):
            if self.tag and f"<{self.tag}>" not in self.answer(name, thinking):
                raise ValueError(f"variant {name}, {part}: does not say that the prediction goes into <{self.tag}>")

    def answer(self, variant: str, thinking: bool) -> str:
        """How a variant asks for the answer."""
        own = self.variants[variant]
        text = own.think if thinking else own.direct
        return text if text is not None else self.think if thinking else self.direct

    def names(self, stage: str) -> list[str]:
        """The variants that a stage draws from.

        Raises:
            UserError: there is no such stage.
        """
        if stage not in STAGES:
            raise UserError(f"stage is {stage!r}{nearest(stage, STAGES)}")
        return self.stages.get(stage) or list(self.variants)  # type: ignore[call-overload]

    def choose(self, trajectory: str, stage: str, seed: int) -> str:
        """The variant for a trajectory: uniform, and a fixed function of the seed and the trajectory's identity."""
        names = self.names(stage)
        return names[whole_number(f"prompt/{seed}/{trajectory}") % len(names)]


def load(name_or_path: str) -> Prompts:
    """Ours by name, or a user's own by path (with a `/`, or ending in `.yaml`).

    Raises:
        UserError: there is no such family or file, or the file has a mistake: which file, variant and placeholder.
    """
    name = Path(name_or_path).stem if _is_path(name_or_path) else name_or_path
    if not _is_path(name_or_path) and name not in FAMILIES:
        raise UserError(f"there are no prompts {name!r}{nearest(name, FAMILIES)}; your own go by path: ./{name}.yaml")
    values = _read(name_or_path)
    if "name" in values:
        raise UserError(f"{name_or_path}: name: the file's own name is taken; leave it out")
    styles = values.pop("styles", None)
    if styles is not None:
        if not isinstance(styles, str):
            raise UserError(f"{name_or_path}: styles is {styles!r}; write one of our names, or a path")
        values = _read(str(Path(name_or_path).parent / styles) if _is_path(styles) else styles, name_or_path) | values
        if "styles" in values:
            raise UserError(f"{name_or_path}: styles: {styles} has styles itself; name those")
    try:
        return Prompts(**{**values, "name": name})
    except ValidationError as error:
        raise UserError(f"{name_or_path}: {_first(error)}") from None


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(".yaml")


def _read(name: str, asked_by: str = "") -> dict[str, Any]:
    """A file's values. `asked_by` is the file that names this one."""
    source = Path(name) if _is_path(name) else resources.files(__package__) / f"{name}.yaml"
    where = f"{asked_by}: styles: " if asked_by else ""
    try:
        values = yaml.safe_load(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{where}{name}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}{name}: not UTF-8 at byte {error.start}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{where}{name}: not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UserError(f"{where}{name}: the file is no mapping; write tag, variants, ... at its top level")
    return values


def _first(error: ValidationError) -> str:
    """The first mistake, in one line."""
    found = error.errors(include_url=False)[0]
    place = [str(part) for part in found["loc"]]
    if found["type"] == "extra_forbidden":
        known = Variant.model_fields if place[0] == "variants" else Prompts.model_fields
        message = f"unknown{nearest(place[-1], set(known) | {'styles'} - {'name'})}"
    else:
        message = found["msg"].removeprefix("Value error, ")
    return ": ".join(filter(None, [", ".join(place), message]))
