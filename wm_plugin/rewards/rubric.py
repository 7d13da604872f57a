"""The five-dimension rubric of Qwen-AgentWorld (sections 3.4.1 and 4.2): the mean of five scores from 1 to 5, times 5.

The judge distinguishes deterministic, pre-existing and runtime content, with guidance for the domain; in search the real
observation is the absolute reference (appendix D.3). A row marked as deterministic needs no judge: the prediction equals the
observation or it does not.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from wm_plugin.client.server import Server
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.rewards import prompts
from wm_plugin.rewards.base import check_choice
from wm_plugin.rewards.judge import JudgedReward, Notes, Row
from wm_plugin.rewards.verdict import fields, number

DIMENSIONS = ("format", "factuality", "consistency", "realism", "quality")
_MATCHING = "{matching}"  # placeholder in the prompt: what has to match in the row's domain
Scale = Literal["paper", "unit"]
_CONTENT = {
    "deterministic": "",  # not sent to the judge
    "pre_existing": "All of this observation is pre-existing content: form and plausibility decide, not the values.",
    "runtime": "All of this observation is runtime metadata: form and possible ranges decide, not the values.",
    "mixed": "",
}


class RubricReward(JudgedReward):
    """Five scores of a judge as one reward.

    Optional columns besides `action` and `context`: `domain` (one of `wm_plugin.rewards.prompts.DOMAINS`, or a key of
    `guidance`) and `content_type` ("deterministic", "pre_existing", "runtime", or "mixed", the default, where the judge decides).

    A deterministic observation is compared by match, ignoring surrounding white space: 5 in every dimension, or 1. Self-praise
    earns nothing there.

    Args:
        scale: "paper" gives mean · 5, from 5 to 25; "unit" gives (mean − 1) / 4, from 0 to 1. A row that could not be judged
            gets 0 on both scales; on "unit" that is also the lowest score, and only the figures show the difference.
        domain: for rows without the column.
        guidance: Markdown files by domain, instead of those in this package or for further domains.
        settings: the other arguments of `JudgedReward`.

    Attributes:
        figures: those of `JudgedReward`, and `rubric/<dimension>`, the mean over judged rows; `deterministic`, the share of
            predictions compared by match; and `matched`, the share of these that matched.
    """

    default_prompt = "rubric"
    uses: ClassVar[tuple[str, ...]] = ("action", "context", "domain", "content_type")
    measures: ClassVar[tuple[str, ...]] = (*(f"rubric/{name}" for name in DIMENSIONS), "deterministic", "matched")

    def __init__(
        self,
        server: Server | Mapping[str, Any],
        *,
        scale: Scale = "paper",
        domain: str = "general",
        guidance: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        check_choice("scale", scale, get_args(Scale))
        super().__init__(server, **settings)
        self.scale, self.domain = scale, domain
        self.guidance = {name: prompts.packaged(f"domain_{name}") for name in prompts.DOMAINS}
        if not isinstance(guidance, Mapping | None):
            raise UserError(f"guidance is {shown(guidance)}; write a mapping of domains to files")
        self.guidance |= {name: prompts.load(path) for name, path in (guidance or {}).items()}
        self._guide(domain)

    def reward(self, mean: float) -> float:
        """Return the reward for a mean score from 1 to 5."""
        return mean * 5 if self.scale == "paper" else (mean - 1) / 4

    def _without_judge(self, row: Row, notes: Notes) -> float | None:
        kind = _given(row, "content_type", "mixed")
        if not isinstance(kind, str) or kind not in _CONTENT:
            name = shown(kind)
            raise UserError(f"content_type is {name}{nearest(name.strip(repr('')), _CONTENT)}")
        notes["deterministic"].append(kind == "deterministic")
        if kind != "deterministic":
            return None
        match = row.prediction.strip() == row.target.strip()
        notes["matched"].append(match)
        return self.reward(5.0 if match else 1.0)

    def _system(self, row: Row) -> str:
        domain = _given(row, "domain", self.domain)
        guidance = self._guide(domain)
        content = "" if domain in prompts.ABSOLUTE else _CONTENT[_given(row, "content_type", "mixed")]
        prompt = self.prompt.replace(_MATCHING, prompts.matching(domain))
        return "\n\n".join(filter(None, (prompt, guidance, content)))

    def _guide(self, domain: Any) -> str:
        if not isinstance(domain, str) or domain not in self.guidance:
            name = shown(domain)
            hint = nearest(name.strip(repr("")), self.guidance)
            raise UserError(f"domain is {name}{hint}; guidance={{{name}: 'FILE.md'}} adds your own")
        return self.guidance[domain]

    def _texts(self, row: Row) -> dict[str, str]:
        return {"observed": row.target, "predicted": row.prediction}

    def _values(self) -> dict[str, str]:
        return dict.fromkeys(DIMENSIONS, "[1-5]")

    def _read(self, row: Row, reply: str, notes: Notes) -> float | None:
        scores = parse(reply, row.target)
        if scores is None:
            return None
        for name, score in scores.items():
            notes[f"rubric/{name}"].append(score)
        return self.reward(sum(scores.values()) / len(scores))


def _given(row: Row, column: str, default: str) -> Any:
    """Return what a row has in a column; the default for nothing and an empty text."""
    value = row.columns.get(column)
    return default if value is None or (isinstance(value, str) and not value) else value


def parse(reply: str, observed: str = "") -> dict[str, float] | None:
    """Read the five scores in a judge's reply; None if one is missing or no number from 1 to 5. See `verdict.fields`."""
    values = fields(reply, DIMENSIONS, observed)
    scores = {name: score for name in DIMENSIONS if (score := number(values.get(name), 1.0, 5.0)) is not None}
    return scores if len(scores) == len(DIMENSIONS) else None
