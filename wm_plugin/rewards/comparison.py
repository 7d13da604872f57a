"""Judges that compare two texts: the baselines that lose in Qwen-AgentWorld (section 3.4.1).

A hash of the texts and a seed decides which text comes first. A judge that prefers one position therefore favours neither side,
and the same pair has the same order in every run, which the cache needs.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from wm_plugin.client.server import Server
from wm_plugin.errors import UserError
from wm_plugin.rewards.judge import JudgedReward, Notes, Row
from wm_plugin.rewards.verdict import fields


class _Pairwise(JudgedReward):
    """A judge that chooses between `first` and `second`.

    Args:
        seed: seed of the order.
        settings: the other arguments of `JudgedReward`.
    """

    verdict: ClassVar[str]  # the key in the judge's reply
    choices: ClassVar[tuple[str, ...]]

    def __init__(self, server: Server | Mapping[str, Any], *, seed: int = 0, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.seed = seed

    def _values(self) -> dict[str, str]:
        return {self.verdict: f'"({"|".join(self.choices)})"'}

    def _prediction_is_first(self, row: Row) -> bool:
        text = json.dumps([self.seed, row.prediction, row.target, row.columns.get("reference")])
        return hashlib.sha256(text.encode()).digest()[0] % 2 == 0

    def _ordered(self, row: Row, other: str) -> dict[str, str]:
        first, second = (row.prediction, other) if self._prediction_is_first(row) else (other, row.prediction)
        return {"first": first, "second": second}

    def _read(self, row: Row, reply: str, notes: Notes) -> float | None:  # noqa: ARG002
        value = fields(reply, [self.verdict], row.target).get(self.verdict)
        choice = value.strip().strip(".*").lower() if isinstance(value, str) else None
        if choice not in self.choices:
            return None
        return 0.5 if choice == "tie" else float((choice == "first") == self._prediction_is_first(row))


class ReferenceReward(_Pairwise):
    """1 if the prediction is closer to the observation than a reference prediction, 0 if the reference is, 0.5 for a tie.

    Columns: `reference`, another prediction for each row; in the paper the initial policy's. A row with None scores 1 without a
    call, and equal texts tie without a call.
    """

    default_prompt = "reference"
    uses: ClassVar[tuple[str, ...]] = ("action", "context", "reference")
    verdict, choices = "closer", ("first", "second", "tie")

    def _without_judge(self, row: Row, notes: Notes) -> float | None:  # noqa: ARG002
        if "reference" not in row.columns:
            raise UserError(
                "ReferenceReward needs the column 'reference': the prediction of the initial model for each row"
            )
        reference = row.columns["reference"]
        if reference is None:
            return 1.0
        if not isinstance(reference, str):
            raise UserError(f"a reference is of type {type(reference).__name__}; write a text, or None for none")
        return 0.5 if reference.strip() == row.prediction.strip() else None

    def _texts(self, row: Row) -> dict[str, str]:
        return {"observed": row.target, **self._ordered(row, row.columns["reference"])}


class TuringReward(_Pairwise):
    """1 if the judge takes the prediction for the real observation, 0 if it picks the real one.

    A prediction that equals the observation scores 1 without a call, because no judge can tell them apart. The paper asks even
    then, and blames the reward's failure on the noise of these answers; `ask_equal` does the same.

    Args:
        ask_equal: also ask about equal texts.
        settings: the other arguments, `seed` and those of `JudgedReward`.
    """

    default_prompt = "turing"
    verdict, choices = "real", ("first", "second")

    def __init__(self, server: Server | Mapping[str, Any], *, ask_equal: bool = False, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.ask_equal = ask_equal

    def _without_judge(self, row: Row, notes: Notes) -> float | None:  # noqa: ARG002
        return None if self.ask_equal or row.prediction.strip() != row.target.strip() else 1.0

    def _texts(self, row: Row) -> dict[str, str]:
        return self._ordered(row, row.target)
