"""Rollouts on a page: how they end, which tools they call, how many turns episodes take, and samples as coloured pieces."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from wm_plugin.data.chat import chat
from wm_plugin.data.readers import read_rows
from wm_plugin.data.readers.base import Reject
from wm_plugin.data.schema import Trajectory
from wm_plugin.data.summary import Summary
from wm_plugin.data.summary_page import rows as rows_of
from wm_plugin.data.transitions import identity
from wm_plugin.data.turn_texts import action_text
from wm_plugin.lab.evaluation.measures import Evaluation, Key, Measure, Sums
from wm_plugin.lab.report.chart import Curve, Intervals, Series, Value
from wm_plugin.lab.report.document import Sample, Section, Table
from wm_plugin.lab.report.sources import Measured, Rollouts
from wm_plugin.runtime.page import cut, short
from wm_plugin.tokens.view import Token
from wm_plugin.untrusted import without_nan

_MOST = 20_000  # rollouts of a file
_REASONS = 3  # why rows are left out
_TOOLS = 10  # in a figure
_SUCCESS, _REWARD, _TURNS = Key("success"), Key("reward", "score"), Key("turns", "count")


@dataclass(frozen=True)
class Played:
    """An arm's rollouts of a split, in all its files."""

    arm: str
    split: str
    summary: Summary = field(default_factory=lambda: Summary(samples=0))
    places: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.split}" if self.split else self.arm


def evaluation_name(split: str) -> str:
    """Return the name of the evaluation that measures a split's rollouts."""
    return f"rollouts, {split}" if split else "rollouts"


def read(rollouts: Sequence[Rollouts]) -> tuple[list[Played], list[Measured], list[str]]:
    """Read the rollouts of each arm and split; measure each file; and note what was left out.

    Raises:
        UserError: a file has no known format.
    """
    table: dict[tuple[str, str], Played] = {}
    measured, notes = [], []
    for one in rollouts:
        played = table.setdefault((one.arm, one.split), Played(one.arm, one.split))
        played.places.append(one.place)
        outcomes = _Outcomes()
        left_out, reasons = 0, dict[str, None]()
        rows = read_rows(Path(one.place))
        for row in islice(rows, _MOST):
            if isinstance(row, Trajectory):
                played.summary.add(row)
                outcomes.add(row)
            elif isinstance(row, Reject):
                left_out += 1
                if len(reasons) < _REASONS:
                    reasons[row.reason] = None
        if next(rows, None) is not None:
            notes.append(f"{one.place}: only the first {_MOST:,} rollouts are read")
        if left_out:
            notes.append(f"{one.place}: {left_out:,} rows are left out; the first: {'; '.join(reasons)}")
        measured.append(Measured(one.name, one.place, outcomes.evaluation(one.arm, one.split), one.arm))
    return list(table.values()), measured, notes


class _Outcomes:
    """Counts how a file's rollouts end. Rollouts of a task are not independent: intervals are over tasks."""

    def __init__(self) -> None:
        self.rollouts = self.unknown = 0
        self.tasks: set[str] = set()
        self.sums = Sums({key: {} for key in (_SUCCESS, _REWARD, _TURNS)})

    def add(self, trajectory: Trajectory) -> None:
        task = trajectory.task_id or identity(trajectory)
        self.tasks.add(task)
        self.rollouts += 1
        self.sums.add(_TURNS, task, sum(turn.actor == "agent" for turn in trajectory.turns))
        if trajectory.success is None:
            self.unknown += 1
        else:
            self.sums.add(_SUCCESS, task, float(trajectory.success))
        if trajectory.reward is not None and math.isfinite(trajectory.reward):
            self.sums.add(_REWARD, task, trajectory.reward)

    def evaluation(self, subject: str, split: str) -> Evaluation:
        """Measure success and reward of the rollouts that have one, and turns. A reward may be larger than any float."""
        measured = Sums({key: sums for key, sums in self.sums.of.items() if sums}).measures()
        measures = [Measure(**without_nan(vars(m))) for m in measured]
        data = f"{self.rollouts:,} rollouts of {len(self.tasks):,} tasks"
        unknown = {"success is not known": self.unknown} if self.unknown else {}
        return Evaluation(evaluation_name(split), subject, data, measures=measures, failures=unknown)


def sections(rollouts: Sequence[Played]) -> list[Section]:
    """Return tools and budgets of rollouts, split by split."""
    figures: list[Intervals | Curve] = []
    tables = []
    for split in dict.fromkeys(one.split for one in rollouts):
        same = {one.arm: one.summary for one in rollouts if one.split == split}
        figures += [figure for figure in (_tools(split, same), _turns(split, same)) if figure is not None]
        columns = {arm: dict(rows_of(summary.as_dict())) for arm, summary in same.items()}
        labels = dict.fromkeys(label for column in columns.values() for label in column)
        rows = [[label, *(column.get(label, "–") for column in columns.values())] for label in labels]
        tables.append(Table((split, *columns), rows))
    return [Section("Rollouts: tools and budgets", figures=figures, tables=tables)] if rollouts else []


def first(files: Iterable[Rollouts]) -> list[Rollouts]:
    """Return the first file of each arm and split, named by these."""
    table: dict[tuple[str, str], Rollouts] = {}
    for one in files:
        table.setdefault((one.arm, one.split), replace(one, name=Played(one.arm, one.split).name))
    return list(table.values())


def samples(rollouts: Iterable[Rollouts], most: int = 2) -> list[Sample]:
    """Return each file's first rollouts, coloured by who wrote what. Only a tokenizer tells which tokens count."""
    made = []
    for one in rollouts:
        rows = islice(read_rows(Path(one.place)), _MOST)  # `read` has counted those that are left out
        trajectories = (row for row in rows if isinstance(row, Trajectory))
        for number, trajectory in enumerate(islice(trajectories, most), 1):
            made.append(Sample(f"{one.name}, rollout {number}", _pieces(trajectory)))
    return made


def _pieces(trajectory: Trajectory) -> list[Token]:
    """Turn each message into one piece, cut as a page's texts are."""
    tokens = [Token(_cut(message["content"]), "prompt") for message in chat(trajectory.context)]
    for turn in trajectory.turns:
        tokens.append(Token(_cut(action_text(turn.action)), "policy"))
        tokens += [Token(_cut(one.text), "content", one.tool and short(one.tool), None) for one in turn.observations]
    return tokens


def _cut(text: str) -> str:
    beginning, hidden, end = cut(text)
    return f"{beginning}\n[{hidden}]\n{end}\n" if hidden else f"{text}\n"


def _tools(split: str, summaries: Mapping[str, Summary]) -> Intervals | None:
    counts: Counter[str] = Counter()
    for summary in summaries.values():
        counts.update({name: tool.observations for name, tool in summary.tools.items()})
    rows = []
    for name, _ in counts.most_common(_TOOLS):
        having = {arm: summary for arm, summary in summaries.items() if name in summary.tools}
        rows.append((name, [Value(arm, s.tools[name].observations / s.transitions) for arm, s in having.items()]))
    title = _of("Tools and other sources", split)
    return Intervals(title, rows, "share", "share of all observations", True) if rows else None


def _turns(split: str, summaries: Mapping[str, Summary]) -> Curve | None:
    """Draw the share of episodes that have ended after so many turns: what a budget of turns would cut."""
    series = []
    for arm, summary in summaries.items():
        if not summary.turns:
            continue
        counts, ended = Counter(summary.turns), 0
        x, y = [0], [0.0]
        for turns in range(1, min(max(counts), _MOST) + 1):
            ended += counts[turns]
            x.append(turns)
            y.append((ended + counts[0]) / len(summary.turns))
        series.append(Series(arm, x, y))
    return Curve(_of("Episodes that have ended", split), series, "share", "turns", True) if series else None


def _of(title: str, split: str) -> str:
    return f"{title}: {split}" if split else title
