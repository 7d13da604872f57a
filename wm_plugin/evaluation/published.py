"""AgentWorldBench's own evaluator: what it asks a judge, how it reads replies, and its figures, bug for bug.

The prompts, templates and tags come from a checkout of the benchmark's repository (github.com/QwenLM/Qwen-AgentWorld), which is
read as data and never run: `eval/lwm_eval_utils/task_configs.py`, the texts of `build_judge_messages` in `eval/eval.py`, and the
files `prompts/<domain>/judge_system_prompt.txt`. Nothing of them is in this package.

Its reading of a reply is generous where ours is strict: any JSON in the reply may be the verdict, missing scores are left out of
the mean, and rows without a verdict out of all means. Here it takes linear time. It differs only where there is no verdict: in
replies of over a million characters, and beyond the bounds of `untrusted.loads` (250 levels, integers of 308 digits).
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from string import Formatter
from typing import Any

from wm_plugin.errors import UserError, shown
from wm_plugin.evaluation.bench_rows import Row
from wm_plugin.rewards.rubric import DIMENSIONS
from wm_plugin.tokens.message import Message
from wm_plugin.untrusted import BoundsError, loads

TEMPERATURE, MAX_TOKENS, TRIES = 0.6, 32_768, 3  # of the published evaluator, for models and judges
_CONFIG, _EVALUATOR = "eval/lwm_eval_utils/task_configs.py", "eval/eval.py"
_BUILDER, _TEMPLATE, _DOMAINS = "build_judge_messages", "JUDGE_USER_PROMPT", "TASK_CONFIGS"
_FALLBACK = "mcp"  # whose tags a domain has that is not known
_PARTS = ("context", "world_model_input", "predicted_observation", "ground_truth")  # of the template
_VALUES = ("context", "current_prompt", "model_output_clean", "ground_truth_clean")  # of these parts
_NOTHING = "No output"  # what is judged where there is none
_LARGEST = 1 << 20  # bytes of a file of the checkout
_LONGEST = 1 << 20  # characters of a reply that is read
_TOTAL = "total_score"

_THOUGHT = re.compile("<(/?)think>", re.IGNORECASE)
_SIGN = re.compile(r'[{}"\\]')
_BRACE_OR_QUOTE = re.compile(r'[{}"]')
_COMMA_TOO_MANY = re.compile(r",(\s*+[}\]])")
_QUOTED_KEY = re.compile(r"'(\w++)'(\s*+:)")
_BARE_KEY = re.compile(r"([{,])\s*+(\w++)\s*+:")
_SCORES = re.compile(r'"scores"\s*+:\s*+\{')

Parts = tuple[tuple[str, str], ...]  # (a text, the name of the value after it or "")


@dataclass(frozen=True)
class Domain:
    """What the evaluator does in a domain.

    Attributes:
        prompt: The judge's instructions.
        marker: The heading of an observation, which is taken away.
        tag, verdict_tag: Of predictions, and of verdicts.
    """

    prompt: str
    marker: str
    tag: str
    verdict_tag: str


@dataclass(frozen=True)
class Verdict:
    """Scores of a reply. Those up to 5 are as they were, 0 stands for none; `total` is the mean of those above 0."""

    scores: dict[str, int]
    total: float


@dataclass(frozen=True)
class Published:
    """The published evaluator, as a checkout describes it."""

    domains: Mapping[str, Domain]
    template: Parts
    parts: Mapping[str, Parts]

    def output(self, row: Row, text: str) -> str:
        """What the judge is to score of a model's output."""
        return prediction(text, self._domain(row).tag)

    def question(self, row: Row, output: str) -> list[Message]:
        """What the judge is asked about `output`."""
        known = self.domains.get(row.domain)
        marker = known.marker if known else ""
        context = "".join(f"{action}\n{observed}\n\n" for action, observed in row.history)
        values = {
            "context": context,
            "current_prompt": row.current or row.action,
            "model_output_clean": _unmarked(output, marker),
            "ground_truth_clean": _unmarked(row.response, marker),
        }
        filled = {name: _filled(parts, values) for name, parts in self.parts.items()}
        if not context:
            filled["context"] = ""
        return [
            {"role": "system", "content": known.prompt if known else ""},
            {"role": "user", "content": _filled(self.template, filled).strip()},
        ]

    def verdict(self, row: Row, reply: str) -> Verdict | None:
        """The scores in a judge's reply, None if there are none."""
        return verdict(reply, self._domain(row).verdict_tag)

    def _domain(self, row: Row) -> Domain:
        return self.domains.get(row.domain) or self.domains[_FALLBACK]


def read(folder: str | Path) -> Published:
    """The evaluator of a checkout.

    Raises:
        UserError: the folder has none, or one that is written in another way.
    """
    root = Path(folder)
    if not (root / _CONFIG).is_file():
        raise UserError(f"{root}: no checkout of github.com/QwenLM/Qwen-AgentWorld; {_CONFIG} is not there")
    tree, other = _tree(root / _CONFIG), _tree(root / _EVALUATOR)
    values = {}
    for name in (_DOMAINS, _TEMPLATE):
        nodes = [node for node in tree.body if isinstance(node, ast.Assign) and _assigns(node, name)]
        if not nodes:
            raise _unknown(root / _CONFIG, f"there is no {name}")
        try:
            values[name] = ast.literal_eval(nodes[-1].value)
        except (ValueError, TypeError, MemoryError, RecursionError):
            raise _unknown(root / _CONFIG, f"{name} is no constant") from None
    domains, template = values[_DOMAINS], values[_TEMPLATE]
    if not isinstance(template, str) or not isinstance(domains, dict) or _FALLBACK not in domains:
        raise _unknown(root / _CONFIG, f"{_TEMPLATE} is no text, or {_DOMAINS} no domains with {_FALLBACK!r}")
    return Published(
        {name: _read_domain(root, name, one) for name, one in domains.items()},
        _template(root / _CONFIG, template),
        _parts(root / _EVALUATOR, other),
    )


def _read_domain(root: Path, name: Any, settings: Any) -> Domain:
    keys = ("judge_system_prompt_path", "response_marker", "response_tag", "judge_response_tag")
    if not isinstance(name, str) or not isinstance(settings, dict):
        raise _unknown(root / _CONFIG, f"{_DOMAINS} has a domain that is no mapping")
    defaults = ("", "", "predicted_observation", "final_evaluation")
    path, marker, tag, verdict_tag = (settings.get(key, value) for key, value in zip(keys, defaults, strict=True))
    if not all(isinstance(value, str) for value in (path, marker, tag, verdict_tag)):
        raise _unknown(root / _CONFIG, f"{_DOMAINS} of {shown(name)} has values that are no texts")
    try:
        inside = (root / path).resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, RuntimeError):  # no name of a file; links in a circle
        raise UserError(f"{root / _CONFIG}: the judge's prompt of {shown(name)} cannot be read") from None
    if not inside:
        raise UserError(f"{root / _CONFIG}: the judge's prompt of {shown(name)} is outside of the checkout")
    return Domain(_text(root / path), marker, tag, verdict_tag)


def _template(path: Path, text: str) -> Parts:
    parts = []
    try:
        for literal, name, layout, conversion in Formatter().parse(text):
            if name is not None and (name not in _PARTS or layout or conversion):
                raise ValueError(shown(f"{{{name}}}"))
            parts.append((literal, name or ""))
    except ValueError as error:
        raise _unknown(path, f"{_TEMPLATE} cannot be filled in: {error}") from None
    return tuple(parts)


def _parts(path: Path, tree: ast.Module) -> dict[str, Parts]:
    """The texts around the values of a question, which are formatted strings of the evaluator's code."""
    builders = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == _BUILDER]
    parts: dict[str, Parts] = {}
    for node in ast.walk(builders[0]) if builders else ():
        if isinstance(node, ast.Assign) and _assigns(node, "context") and isinstance(node.value, ast.JoinedStr):
            parts["context"] = _joined(path, node.value)
        elif isinstance(node, ast.keyword) and node.arg in _PARTS and isinstance(node.value, ast.JoinedStr):
            parts[node.arg] = _joined(path, node.value)
    if missing := [name for name in _PARTS if name not in parts]:
        raise _unknown(path, f"{_BUILDER} has no formatted string of {', '.join(missing)}")
    return parts


def _joined(path: Path, node: ast.JoinedStr) -> Parts:
    parts = []
    for piece in node.values:
        if isinstance(piece, ast.Constant) and isinstance(piece.value, str):
            parts.append((piece.value, ""))
            continue
        value = piece.value if isinstance(piece, ast.FormattedValue) else None
        plain = isinstance(piece, ast.FormattedValue) and piece.conversion == -1 and piece.format_spec is None
        if not plain or not isinstance(value, ast.Name) or value.id not in _VALUES:
            raise _unknown(path, f"a formatted string of {_BUILDER} has another value than {', '.join(_VALUES)}")
        parts.append(("", value.id))
    return tuple(parts)


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(_text(path))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise UserError(f"{path}: no Python that can be read") from None


def _text(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            raise UserError(f"{path}: no file of the benchmark's repository; name a whole checkout of it")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _unknown(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: written in a way that is not known ({reason}); commit cd0aa83 of the repository is")


def _filled(parts: Parts, values: Mapping[str, str]) -> str:
    return "".join(text + (values[name] if name else "") for text, name in parts)


def _unmarked(text: str, marker: str) -> str:
    if marker and text.startswith(marker):
        return text[len(marker) :].strip()
    return (text.replace(marker, "") if marker else text).strip()


def prediction(text: str, tag: str) -> str:
    """What the evaluator takes for the prediction: the last block of the tag, or all of a text without one."""
    if not text:
        return _NOTHING
    text = without_thoughts(text, tag)
    block = _last_block(text, tag)
    return text.strip() or _NOTHING if block is None else block


def verdict(reply: str, tag: str) -> Verdict | None:
    """The scores that the evaluator reads from a reply, None if it finds none."""
    if len(reply) > _LONGEST:
        return None
    text = without_thoughts(reply.strip(), tag)
    text = (_last_block(text, tag) if tag else None) or text
    value = _object(_fenced(text) or _last_object(text) or _object_backwards(text))
    scores = value.get("scores") if value else None
    if not isinstance(scores, dict):
        return None
    try:
        read = {name: _score(scores.get(name, 0)) for name in DIMENSIONS}
    except (ValueError, OverflowError):  # NaN, an infinity
        return None
    above = [score for score in read.values() if score > 0]
    return Verdict(read, sum(above) / len(above) if above else 0)


def figures(judged: Iterable[tuple[str, Verdict | None]]) -> tuple[dict[str, dict[str, float]], float | None, int]:
    """The printed figures, from 0 to 100: by domain and dimension, the overall one, and how many rows this is a mean of.

    A verdict without any score above 0 counts as valid in its domain and not overall; a domain of such verdicts gets -25.
    """
    domains: dict[str, list[Verdict]] = defaultdict(list)
    for domain, one in judged:
        domains[domain] += [one] if one else []
    by_domain: dict[str, dict[str, float]] = {}
    totals: list[float] = []
    for domain in sorted(domains):
        valid = domains[domain]
        columns: dict[str, list[float]] = {
            name: [one.scores[name] for one in valid if one.scores[name]] for name in DIMENSIONS
        }
        columns[_TOTAL] = [one.total for one in valid if one.total]
        totals += columns[_TOTAL]
        if valid:
            by_domain[domain] = {name: points(mean(values) if values else 0) for name, values in columns.items()}
    return by_domain, points(mean(totals)) if totals else None, len(totals)


def points(score: float) -> float:
    """A score from 1 to 5 as points from 0 to 100."""
    return (score - 1) / 4 * 100


def without_thoughts(text: str, tag: str) -> str:
    """A text without `<think>` blocks; what is before a closing mark alone goes, too, and what follows an opening one alone.

    An opening mark without a closing one takes what follows only up to the next `<tag>`.
    """
    opening: list[int] = []
    closing: list[int] = []  # where the mark ends
    for mark in _THOUGHT.finditer(text):
        if mark[1]:
            closing.append(mark.end())
        else:
            opening.append(mark.start())
    if not opening and not closing:
        return text
    cuts: list[tuple[int, int]] = []
    used = alone = 0  # closing marks that were looked at; the end of the last one that closes nothing
    left = len(opening)  # the first opening mark that nothing closes
    for number, start in enumerate(opening):
        while used < len(closing) and closing[used] <= start:
            alone = closing[used]
            used += 1
        if used == len(closing):
            left = number
            break
        cuts.append((start, closing[used]))
        used += 1
    alone = closing[-1] if used < len(closing) else alone
    cuts += [(0, alone)] if alone else []
    if left < len(opening):
        tags = [match.start() for match in re.finditer(f"<{re.escape(tag)}>", text, re.IGNORECASE)] if tag else []
        after, first = len(text), len(text)
        for start in reversed(opening[left:]):
            if tags and tags[-1] > start:  # marks behind the tag are done with
                cuts.append((first, after))
                while tags and tags[-1] > start:
                    after = tags.pop()
            first = start
        cuts.append((first, after))
    kept, end = [], 0
    for start, stop in sorted(cuts):
        kept.append(text[end:start] if start > end else "")
        end = max(end, stop)
    return "".join([*kept, text[end:]]).strip()


def _last_block(text: str, tag: str) -> str | None:
    opening = None
    for opening in re.finditer(f"<{re.escape(tag)}>", text, re.IGNORECASE):  # noqa: B007 - the last one
        pass
    if opening is None:
        return None
    closing = re.compile(f"</{re.escape(tag)}>", re.IGNORECASE).search(text, opening.end())
    return text[opening.end() : closing.start() if closing else len(text)].strip()


def _fenced(text: str) -> str | None:
    """The last fenced object, one with scores before others."""
    blocks, place = [], text.find("```")
    while place >= 0:
        start = place + 3
        end = text.find("```", start + 4 if text.startswith("json", start) else start)
        if end < 0:
            break
        block = text[start:end].removeprefix("json").strip()
        blocks += [block] if block.startswith("{") and block.endswith("}") else []
        place = text.find("```", end + 3)
    scored = [block for block in blocks if '"scores"' in block]
    chosen = scored or blocks
    return chosen[-1] if chosen else None


def _last_object(text: str) -> str | None:
    """The last text between matching braces, one with scores before others."""
    ends, start = _ends(text), text.find("{")
    last = scored = None
    while start >= 0:
        end = ends.get(start)
        if end is not None:
            last = text[start:end]
            scored = last if '"scores"' in last else scored
        start = text.find("{", start + 1 if end is None else end)
    return scored or last


def _ends(text: str) -> dict[int, int]:
    """Where the object ends that begins at a brace, if what is before the brace is not looked at.

    Whether a later sign is inside of a string depends on where one begins to read. Readers in the same state are kept together:
    each stack has a level for every brace that is open, with the places of the readers for which it is the only one.
    """
    ends: dict[int, int] = {}
    outside: list[list[int]] = []
    inside: list[list[int]] = []
    escaped = -1  # the sign that is escaped for those inside of a string
    for match in _SIGN.finditer(text):
        place, sign = match.start(), match[0]
        if sign == "{":
            outside.append([place])
        elif sign == "}":
            ends |= dict.fromkeys(outside.pop() if outside else (), place + 1)
        elif sign == "\\":
            escaped = place + 1 if place != escaped else -1
        elif place == escaped:
            outside, inside = [], _together(outside, inside)
        else:
            outside, inside = inside, outside
    return ends


def _together(one: list[list[int]], other: list[list[int]]) -> list[list[int]]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    for level in range(1, len(shorter) + 1):
        more, fewer = sorted((longer[-level], shorter[-level]), key=len, reverse=True)
        more.extend(fewer)
        longer[-level] = more
    return longer


def _object_backwards(text: str) -> str | None:
    """The object that ends at the last brace, read from its end."""
    end = text.rfind("}") + 1
    depth, in_string = 0, False
    for match in reversed(list(_BRACE_OR_QUOTE.finditer(text, 0, end))):
        place, sign = match.start(), match[0]
        if sign == '"':
            in_string ^= place == 0 or text[place - 1] != "\\"
        elif not in_string:
            depth += 1 if sign == "}" else -1
            if sign == "{" and not depth:
                return text[place:end]
    return None


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    text = _BARE_KEY.sub(r'\1"\2":', _QUOTED_KEY.sub(r'"\1"\2', _COMMA_TOO_MANY.sub(r"\1", text)))
    try:
        try:
            value = loads(text)
        except BoundsError:
            return None
        except ValueError:
            scores = _scores_alone(text)
            value = loads(f"{{{scores}}}") if scores else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _scores_alone(text: str) -> str | None:
    place = text.find('"scores"')
    while place >= 0:
        if match := _SCORES.match(text, place):
            end = text.find("}", match.end())
            if end < 0:
                return None
            if end > match.end():
                return text[place : end + 1]
        place = text.find('"scores"', place + 1)
    return None


def _score(value: Any) -> int:
    """A score up to 5; a boolean is one, too, and what is no number is 0."""
    if isinstance(value, float):
        value = round(value)  # half to even
    elif isinstance(value, str):
        try:
            value = int(value.split("/")[0].strip())
        except ValueError:
            value = 0
    return min(int(value), 5) if isinstance(value, int) else 0
