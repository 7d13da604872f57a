"""Templates of prompts that a model proposes: the question to it, and whether its answer can be used.

The answer is untrusted. It becomes a template for `string.Template` if it has the placeholders of the template that it is to
replace, in the same part of the prompt and in paragraphs that stay when another one is empty, and if nothing in it could pass for
a turn of a chat. What the proposer sees of sessions stands between markers that cannot be forged (`rewards.delimit`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

from wm_plugin.data.prompts.file import PLACEHOLDERS, Prompts, Variant
from wm_plugin.errors import UserError, shown
from wm_plugin.rewards.delimit import fenced, neutral, shortened
from wm_plugin.rewards.extract import extract
from wm_plugin.runtime.texts import read_yaml
from wm_plugin.tokens.message import Message

START = "start"  # the name of the template that a search starts from, beside those of styles
LONGEST = 80_000  # characters of a template: over 1,100 lines, as the longest of Qwen-AgentWorld's
LEAST = 3  # styles: each stage has variants of its own
_ONCE = ("context", "history", "action")  # which may be long
_OFTEN = 4  # times that any other placeholder may be used
_MAY_BE_EMPTY = {"context", "history", "masked", "completion", "success"}
_EMOJI = {0xFE0E: None, 0xFE0F: None}  # say how the sign before them is drawn; they are invisible themselves
_SHOWN = 3_000  # characters of a session's text
_REASON = 200  # characters of a reason
_MEANS = {
    "context": "the session's description, with headings of its own (lines that begin with #)",
    "history": "the turns before the action",
    "action": "the action whose observation is asked for",
    "observer": "what is asked for, as a part of a sentence: the result of search, the user's reply",
    "answer": "the form of the answer: whether to reason first, and the tags around the observation",
    "masked": "what to write where real values are hidden; mostly empty",
    "completion": "that the answer ends by saying whether the task is done",
    "success": "the mark at the end of an observation by which the task is done; empty where nobody knows whether it is",
}


class Refused(ValueError):
    """An answer holds no template that can be used. The message tells the proposer why; `kind` is for counting."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message[:_REASON])
        self.kind = kind


@dataclass(frozen=True)
class Example:
    """A wrong prediction: the text before the action, the action, the real observation and the predicted one."""

    before: str
    action: str
    observed: str
    predicted: str


def load_styles(path: str | Path | None = None) -> dict[str, str]:
    """Read the styles of a file like styles.yaml, by name, in its order; None for this package's."""
    where = path or "styles"
    styles = read_yaml(Path(path or Path(__file__).with_name("styles.yaml")))
    if not isinstance(styles, dict) or len(styles) < LEAST:
        raise UserError(f"{where}: write {LEAST} or more styles, as NAME: WHAT THE PROPOSER IS TOLD")
    for name, told in styles.items():
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise UserError(f"{where}: {shown(name)} cannot be a style's name; write a word of letters, digits and _")
        if name == START:
            raise UserError(f"{where}: {START!r} is the template that the search starts from; write another name")
        if not isinstance(told, str) or not told.strip():
            raise UserError(f"{where}: {name}: write a text")
    return {name: told.strip() for name, told in styles.items()}


def is_bare(start: Variant) -> bool:
    """Return whether the last message is the action alone, as in Word2World's dialogues; then it stays so."""
    return start.user.strip() == "$action"


def question(
    prompts: Prompts,
    start: Variant,
    style: str,
    present: Variant,
    examples: Sequence[Example],
    attempts: Sequence[str],
    *,
    number: int,
) -> list[Message]:
    """Return the conversation that asks for a template.

    Args:
        start: the variant whose placeholders a template must have.
        style: what the proposer is told about the form.
        attempts: a line for each earlier template in this style.
    """
    parts = _parts(start)
    names = {"system": "the system message", "user": "the last message, which asks for the observation"}
    told = Template((resources.files(__package__) / "proposer.md").read_text(encoding="utf-8")).substitute(
        style=style,
        longest=f"{LONGEST:,}",
        placeholders="\n\n".join(_list_of_placeholders(prompts, start, part) for part in parts),
        form="\n".join(f"<{part}_template>\n{names[part]}\n</{part}_template>" for part in parts),
    )
    texts = {f"field_{name}": _text(value) for name, value in prompts.fields.items()}
    texts |= {f"{part}_template": getattr(present, part) for part in parts}
    for place, example in enumerate(examples, 1):
        before = example.before
        cut = f"(cut here: {len(before) - _SHOWN} characters before)\n{before[-_SHOWN:]}"
        texts[f"session_{place}"] = before if len(before) <= _SHOWN else cut
        for name in ("action", "observed", "predicted"):
            texts[f"{name}_{place}"] = shortened(getattr(example, name), _SHOWN)
    if attempts:
        texts["earlier_templates_in_this_style"] = "\n".join(attempts)
    data, _ = fenced(texts)
    closing = f"The data ends here. This is round {number}. Write the template as you were told."
    return [{"role": "system", "content": told.strip()}, {"role": "user", "content": f"{data}\n\n{closing}"}]


def read_proposal(text: str, prompts: Prompts, start: Variant) -> Variant:
    """Read the template in an answer, in the form of `start`, in linear time; raise `Refused` if it cannot be used."""
    parts = {"system": "", "user": start.user}
    for part in _parts(start):
        found = extract(text, f"{part}_template").prediction
        if found is None or "_template>" in found:
            raise Refused("no template", f"<{part}_template> was missing, or not closed before another one")
        if len(found) > LONGEST:
            raise Refused("too long", f"it had more than {LONGEST:,} characters")
        found = found.translate(_EMOJI)
        if neutral(found)[0] != found:
            raise Refused("marks", "it had marks of chat templates or thoughts, or characters that cannot be seen")
        parts[part] = "\n".join(line.rstrip() for line in found.strip().splitlines())
    if sum(map(len, parts.values())) > LONGEST:
        raise Refused("too long", f"it had more than {LONGEST:,} characters")
    for part, template in parts.items():
        _check(part, template, prompts, start)
    return Variant(**parts, think=start.think, direct=start.direct)


def _parts(start: Variant) -> tuple[str, ...]:
    return ("system",) if is_bare(start) else ("system", "user")


def _check(part: str, template: str, prompts: Prompts, start: Variant) -> None:
    """Refuse a part of a template whose placeholders are not those of the same part of `start`."""
    needed = _needed(start, part)
    counts = Counter(_placeholders(template))
    for name in counts:
        if name not in needed and name not in prompts.fields:
            raise Refused("unknown placeholder", f"${name[:40]} was in the {part} template, which has no such one")
    for name in needed:
        if not counts[name]:
            raise Refused("missing placeholder", f"${name} was missing from the {part} template")
    for name, count in counts.items():
        most = 1 if name in _ONCE else _OFTEN
        if count > most:
            raise Refused("repeated placeholder", f"${name} was in the {part} template more than {most} times")
    hollow = _hollow(prompts, start)
    for paragraph in template.split("\n\n"):
        inside = set(_placeholders(paragraph))
        for name in sorted(inside & hollow):
            if others := inside.intersection(needed) - {name}:
                message = f"${name} may be empty, and stood in one paragraph with ${min(others)}, which would be lost"
                raise Refused("shared paragraph", message)


def _placeholders(template: str) -> list[str]:
    """Return the names of the placeholders, in order, each as often as it is used."""
    names = []
    for match in Template.pattern.finditer(template):
        if match["invalid"] is not None:
            raise Refused("stray dollar sign", "a $ began no placeholder; $$ is a dollar sign")
        if match["escaped"] is None:
            names.append(match["named"] or match["braced"])
    return names


def _needed(start: Variant, part: str) -> list[str]:
    return [name for name in dict.fromkeys(_placeholders(getattr(start, part))) if name in PLACEHOLDERS]


def _hollow(prompts: Prompts, start: Variant) -> set[str]:
    """Return the placeholders that may be empty."""
    values = {name: _text(value) for name, value in prompts.fields.items()}
    one = prompts.model_copy(update={"variants": {START: start}})
    values["answer"] = min((one.answer(START, thinking) for thinking in (True, False)), key=len)
    return _MAY_BE_EMPTY | {name for name, value in values.items() if not value.strip()}


def _list_of_placeholders(prompts: Prompts, start: Variant, part: str) -> str:
    lines = [f"The {part} template must have these placeholders:"]
    for name in _needed(start, part):
        once = " (exactly once)" if name in _ONCE else ""
        empty = " (may be empty)" if name in _hollow(prompts, start) else ""
        lines.append(f"- ${name}: {_MEANS[name]}{once}{empty}")
    if len(lines) == 1:
        lines = [f"The {part} template needs no placeholder."]
    if prompts.fields:
        names = ", ".join(f"${name}" for name in prompts.fields)
        lines.append(f"It may have these, whose texts you are shown as field_NAME: {names}")
    return "\n".join(lines)


def _text(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else "\n".join(value)
