"""AgentWorldBench's own evaluator: what it asks a judge, and its figures, bug for bug.

The prompts, templates and tags come from a checkout of the benchmark's repository (github.com/QwenLM/Qwen-AgentWorld), which is
read as data and never run: `eval/lwm_eval_utils/task_configs.py`, the texts of `build_judge_messages` in `eval/eval.py`, and the
files `prompts/<domain>/judge_system_prompt.txt`. Nothing of them is in this package.

`published_replies` reads the replies. Rows without a verdict are left out of all means.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from string import Formatter
from typing import Any

from wm_plugin.errors import UserError, shown
from wm_plugin.lab.evaluation.bench_rows import Row
from wm_plugin.lab.evaluation.published_replies import Verdict, prediction, verdict
from wm_plugin.rewards.rubric import DIMENSIONS
from wm_plugin.tokens.message import Message

TEMPERATURE, MAX_TOKENS, TRIES = 0.6, 32_768, 3  # of the published evaluator, for models and judges
_CONFIG, _EVALUATOR = "eval/lwm_eval_utils/task_configs.py", "eval/eval.py"
_BUILDER, _TEMPLATE, _DOMAINS = "build_judge_messages", "JUDGE_USER_PROMPT", "TASK_CONFIGS"
_FALLBACK = "mcp"  # whose tags a domain has that is not known
_PARTS = ("context", "world_model_input", "predicted_observation", "ground_truth")  # of the template
_VALUES = ("context", "current_prompt", "model_output_clean", "ground_truth_clean")  # of these parts
_LARGEST = 1 << 20  # bytes of a file of the checkout
_TOTAL = "total_score"

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
