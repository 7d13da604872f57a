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

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.bench_rows import Row
from wm_plugin.lab.evaluation.published_replies import Verdict, prediction, verdict
from wm_plugin.rewards.rubric import DIMENSIONS
from wm_plugin.runtime.texts import read_text
from wm_plugin.tokens.message import Message

TEMPERATURE, MAX_TOKENS, TRIES = 0.6, 32_768, 3  # of the published evaluator, for models and judges
_CONFIG, _EVALUATOR = "eval/lwm_eval_utils/task_configs.py", "eval/eval.py"
_BUILDER, _TEMPLATE, _DOMAINS = "build_judge_messages", "JUDGE_USER_PROMPT", "TASK_CONFIGS"
_FALLBACK = "mcp"  # whose tags an unknown domain has
_PARTS = ("context", "world_model_input", "predicted_observation", "ground_truth")  # of the template
_VALUES = ("context", "current_prompt", "model_output_clean", "ground_truth_clean")  # of these parts
_TOTAL = "total_score"


class Domain(BaseModel):
    """What the evaluator does in a domain."""

    # the judge's instructions; read from the path in the checkout
    prompt: str = Field("", alias="judge_system_prompt_path")
    marker: str = Field("", alias="response_marker")  # the heading of an observation, which is removed
    # the tags around predictions and verdicts
    tag: str = Field("predicted_observation", alias="response_tag")
    verdict_tag: str = Field("final_evaluation", alias="judge_response_tag")


@dataclass(frozen=True)
class Published:
    """The published evaluator, as a checkout describes it."""

    domains: Mapping[str, Domain]
    template: str  # for `str.format`, and so are the parts that it takes
    parts: Mapping[str, str]

    def output(self, row: Row, text: str) -> str:
        """Return the part of a model's output that the judge is to score."""
        return prediction(text, self._domain(row).tag)

    def question(self, row: Row, output: str) -> list[Message]:
        """Return the question to the judge about `output`."""
        known = self.domains.get(row.domain)
        marker = known.marker if known else ""
        context = "".join(f"{action}\n{observed}\n\n" for action, observed in row.history)
        values = {
            "context": context,
            "current_prompt": row.current or row.action,
            "model_output_clean": _unmarked(output, marker),
            "ground_truth_clean": _unmarked(row.response, marker),
        }
        filled = {name: part.format(**values) for name, part in self.parts.items()}
        if not context:
            filled["context"] = ""
        return [
            {"role": "system", "content": known.prompt if known else ""},
            {"role": "user", "content": self.template.format(**filled).strip()},
        ]

    def verdict(self, row: Row, reply: str) -> Verdict | None:
        """Return the scores in a judge's reply, None if there are none."""
        return verdict(reply, self._domain(row).verdict_tag)

    def _domain(self, row: Row) -> Domain:
        return self.domains.get(row.domain) or self.domains[_FALLBACK]


def read(folder: str | Path) -> Published:
    """Read the evaluator of a checkout."""
    root = Path(folder)
    path = root / _CONFIG
    if not path.is_file():
        raise UserError(f"{root}: no checkout of github.com/QwenLM/Qwen-AgentWorld; {_CONFIG} is not there")
    constants: dict[str, ast.expr] = {}
    for node in _tree(path).body:
        if isinstance(node, ast.Assign):
            constants |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
    try:
        template, configs = (ast.literal_eval(constants[name]) for name in (_TEMPLATE, _DOMAINS))
        template = TypeAdapter(str).validate_python(template)
        domains = TypeAdapter(dict[str, Domain]).validate_python(configs)
    except KeyError as error:
        raise _unknown(path, f"there is no {error.args[0]}") from None
    except (ValueError, TypeError) as error:
        reason = f"{_TEMPLATE} is no text, or {_DOMAINS} no domains"
        raise _unknown(path, reason if isinstance(error, ValidationError) else "a value is no constant") from None
    if _FALLBACK not in domains:
        raise _unknown(path, f"{_DOMAINS} has no {_FALLBACK!r}")
    for domain in domains.values():
        domain.prompt = read_text(root / domain.prompt)
    try:
        template.format(**dict.fromkeys(_PARTS, ""))
    except (KeyError, IndexError, ValueError) as error:
        raise _unknown(path, f"{_TEMPLATE} cannot be filled in: {error}") from None
    return Published(domains, template, _parts(root / _EVALUATOR))


def _parts(path: Path) -> dict[str, str]:
    """Read the texts around a question's values, which are formatted strings of the evaluator's code, as templates."""
    builders = [node for node in _tree(path).body if isinstance(node, ast.FunctionDef) and node.name == _BUILDER]
    parts: dict[str, str] = {}
    for node in ast.walk(builders[0]) if builders else ():
        value = getattr(node, "value", None)
        if not isinstance(value, ast.JoinedStr):
            continue
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "context":
            parts["context"] = _joined(path, value)
        elif isinstance(node, ast.keyword) and node.arg in _PARTS:
            parts[node.arg] = _joined(path, value)
    if missing := [name for name in _PARTS if name not in parts]:
        raise _unknown(path, f"{_BUILDER} has no formatted string of {', '.join(missing)}")
    return parts


def _joined(path: Path, node: ast.JoinedStr) -> str:
    parts = []
    for piece in node.values:
        match piece:
            case ast.Constant(value=str(text)):
                parts.append(text.replace("{", "{{").replace("}", "}}"))
            case ast.FormattedValue(value=ast.Name(id=name), conversion=-1, format_spec=None) if name in _VALUES:
                parts.append(f"{{{name}}}")
            case _:
                raise _unknown(path, f"a formatted string of {_BUILDER} has another value than {', '.join(_VALUES)}")
    return "".join(parts)


def _tree(path: Path) -> ast.Module:
    text = read_text(path)
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        raise UserError(f"{path}: no Python that can be read") from None


def _unknown(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: written in a way that is not known ({reason}); commit cd0aa83 of the repository is")


def _unmarked(text: str, marker: str) -> str:
    if marker and text.startswith(marker):
        return text[len(marker) :].strip()
    return (text.replace(marker, "") if marker else text).strip()


def figures(judged: Iterable[tuple[str, Verdict | None]]) -> tuple[dict[str, dict[str, float]], float | None, int]:
    """Return the printed figures, from 0 to 100: by domain and dimension, the overall one, and its number of rows.

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
    """Return a score from 1 to 5 as points from 0 to 100."""
    return (score - 1) / 4 * 100
