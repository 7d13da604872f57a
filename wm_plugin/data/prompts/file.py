"""Files of prompts: their fields, and their validation. A file is YAML:

    tag: next_state              # the prediction stands between <next_state> and </next_state>; "": it is the whole answer
    history: text                # earlier turns as `$history`, or as `messages` (user: action, assistant: observation)
    omits: []                    # `context` or `history`, if the templates leave it out on purpose; else that is an error
    actions: calls               # `text`: a call with one argument, a text, is written as that text alone (`take key`)
    success: false               # mark an observation that ends a won task with " [SUCCESS]"
    think: ...                   # $answer, if the model should reason first
    direct: ...                  # $answer, if it should not
    masked: ...                  # $masked, if a tool's result was replaced by its schema; else it is empty
    completion: ...              # $completion; with it, predictions end with "Task completed: yes" or "Task completed: no"
    dialogue: ...                # the end of the system prompt, if turns are messages
    fields: {state: ..., exact: [..., ...]}       # more placeholders; a list becomes lines that begin with "- "
    stages: {rl: [v0], cpt: [v1], sft: [v2, v3]}  # the variants a stage draws from; a missing stage draws from all
    styles: agentworld           # a file with defaults, above all variants: one of ours, or a path relative to this file
    variants:
      v0: {system: ..., user: ..., think: ..., direct: ...}   # the last two only if they differ from the file's

`system` and `user` are templates of `string.Template`, where `$$` is a dollar sign: `$context` (the five parts, with headings),
`$task`, `$world_context` (the hidden state at the start), `$initial_state` and `$instruction` (parts alone, without headings),
`$history`, `$action`, `$observer` ("the result of search"), `$answer`, `$masked`, `$completion`, `$success` (the mark; empty for
dialogues of which nobody knows whether the task was done, and without `success: true`) and the file's fields.
Placeholders are filled once: text of a trajectory is never read as a template. A paragraph with an empty placeholder is left out
with its heading. `user` must hold `$action`; one of the two must hold `$context`, `$history` if it is text, `$answer` if there is
a tag, and `$completion` if the file has a text for it.
"""

import re
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Literal

from pydantic import Field, model_validator

from wm_plugin.data.draws import whole_number
from wm_plugin.data.failures import DOMAINS
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.options import Options
from wm_plugin.runtime.texts import read_yaml

FAMILIES = ("rwml", "word2world", *DOMAINS)
OPTIONS = ("rwml-completion", "word2world-released")  # a family with an option that it has, or in another layout
STAGES = ("rl", "sft", "cpt")
PARTS = ("task", "world_context", "initial_state", "instruction")  # of the context, alone
PLACEHOLDERS = ("context", *PARTS, "history", "action", "observer", "answer", "masked", "completion", "success")
_DIALOGUE = """
Each message of the user's is what the agent does next. Each of your replies is what the agent then observes, and nothing else.
"""


class Variant(Options):
    """The two templates of one wording of the question."""

    user: str
    system: str = ""
    think: str | None = None
    direct: str | None = None


class Prompts(Options):
    """A file of prompts, from `load`. The docstring of this module documents the fields."""

    name: str
    variants: dict[str, Variant] = Field(
        min_length=1, json_schema_extra={"write": "a mapping with at least one variant"}
    )
    tag: str = Field(
        "",
        pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        json_schema_extra={"write": "letters, digits and _, beginning with no digit"},
    )
    history: Literal["text", "messages"] = "text"
    omits: list[Literal["context", "history"]] = Field(default_factory=list)
    actions: Literal["calls", "text"] = "calls"
    success: bool = False
    think: str = ""
    direct: str = ""
    masked: str = ""
    completion: str = ""
    dialogue: str = _DIALOGUE
    fields: dict[str, str | list[str]] = Field(default_factory=dict)
    stages: dict[Literal["rl", "sft", "cpt"], list[str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> "Prompts":
        for field in self.fields:
            if field in PLACEHOLDERS or not re.fullmatch("[a-z_]+", field):
                raise UserError(
                    f"fields: {field!r} cannot be a placeholder of your own; write another name, of a-z and _"
                )
        for stage, names in self.stages.items():
            if not names:
                raise UserError(f"stages, {stage}: names no variant; leave the stage out for all of them")
            for name in names:
                if name not in self.variants:
                    raise UserError(f"stages, {stage}: there is no variant {name!r}{nearest(name, self.variants)}")
        for name, variant in self.variants.items():
            self._check(f"variant {name}", variant)
        return self

    def _check(self, where: str, variant: Variant) -> None:
        used: set[str] = set()
        for part, text in (("system", variant.system), ("user", variant.user)):
            template = Template(text)
            if not template.is_valid():
                raise UserError(f"{where}, {part}: a $ that begins no placeholder; write $$ for a dollar sign")
            for placeholder in template.get_identifiers():
                known = (*PLACEHOLDERS, *self.fields)
                if placeholder not in known:
                    raise UserError(f"{where}, {part}: unknown placeholder ${placeholder}{nearest(placeholder, known)}")
                used.add(placeholder)
        if "action" not in Template(variant.user).get_identifiers():
            raise UserError(f"{where}, user: the placeholder $action is missing")
        needed = {"context": True, "history": self.history == "text", "answer": self.tag, "completion": self.completion}
        for placeholder in (name for name, is_needed in needed.items() if is_needed):
            if placeholder not in used and placeholder not in self.omits:
                hint = f"; or write omits: [{placeholder}]" if placeholder in ("context", "history") else ""
                raise UserError(f"{where}: the placeholder ${placeholder} is missing{hint}")
        for part in ("think", "direct"):
            if self.tag and f"<{self.tag}>" not in self._answer(variant, part):
                raise UserError(f"{where}, {part}: does not say that the prediction goes into <{self.tag}>")

    @property
    def domain(self) -> str:
        """The domain of Qwen-AgentWorld that the prompts are for; empty for other prompts."""
        return self.name if self.name in DOMAINS else ""

    def answer(self, variant: str, thinking: bool) -> str:
        """Return the `$answer` of a variant: its own, else the file's."""
        return self._answer(self.variants[variant], "think" if thinking else "direct")

    def _answer(self, variant: Variant, part: str) -> str:
        own: str | None = getattr(variant, part)
        return getattr(self, part) if own is None else own

    def names(self, stage: str) -> list[str]:
        """Return the names of the variants that a stage draws from."""
        if stage not in STAGES:
            raise UserError(f"stage is {shown(stage)}{nearest(stage, STAGES)}")
        return self.stages.get(stage) or list(self.variants)  # type: ignore[call-overload]

    def choose(self, trajectory: str, stage: str, seed: int, variant: str | None = None) -> str:
        """Draw the variant for a trajectory uniformly; the draw depends only on the seed and the trajectory's identity."""
        if variant is not None:
            if variant not in self.variants:
                raise UserError(f"{self.name}: there is no variant {variant!r}{nearest(variant, self.variants)}")
            return variant
        names = self.names(stage)
        return names[whole_number(f"prompt/{seed}/{trajectory}") % len(names)]


def load(name_or_path: str) -> Prompts:
    """Load a family of the package by name, or the user's own file by path (with a `/`, or ending in `.yaml`).

    Raises:
        UserError: no such family or file, or a mistake in it; names the file, variant and placeholder.
    """
    name = Path(name_or_path).stem if _is_path(name_or_path) else name_or_path
    ours = (*FAMILIES, *OPTIONS)
    if not _is_path(name_or_path) and name not in ours:
        raise UserError(f"there are no prompts {name!r}{nearest(name, ours)}; your own go by path: ./{name}.yaml")
    values = _read(name_or_path)
    if "name" in values:
        raise UserError(f"{name_or_path}: name: the file's own name is taken; leave it out")
    styles = values.pop("styles", None)
    if styles is not None:
        if not isinstance(styles, str):
            raise UserError(f"{name_or_path}: styles is {shown(styles)}; write one of our names, or a path")
        values = _read(str(Path(name_or_path).parent / styles) if _is_path(styles) else styles) | values
        if "styles" in values:
            raise UserError(f"{name_or_path}: styles: {styles} has styles itself; name those")
    return Prompts.read({**values, "name": name}, name_or_path)


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(".yaml")


def _read(name: str) -> dict[str, Any]:
    values = read_yaml(Path(name) if _is_path(name) else resources.files(__package__) / f"{name}.yaml")
    if not isinstance(values, dict):
        raise UserError(f"{name}: the file is no mapping; write tag, variants, ... at its top level")
    return values
