"""Rollouts on a page: which tools were called, how many turns episodes take, and samples as coloured pieces."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from wm_plugin.evaluation.report.chart import Curve, Series
from wm_plugin.evaluation.report.document import Sample, Section, Table
from wm_plugin.evaluation.report.plots import Intervals, Value
from wm_plugin.evaluation.report.sources import Rollouts
from wm_plugin.tokens.view import Token
from wm_plugin.trajectories.chat import chat
from wm_plugin.trajectories.readers import read as read_trajectories
from wm_plugin.trajectories.readers.base import Reject
from wm_plugin.trajectories.schema import Trajectory
from wm_plugin.trajectories.summary import Summary
from wm_plugin.trajectories.summary_page import rows as rows_of
from wm_plugin.trajectories.turn_texts import action_text

_MOST = 20_000  # rollouts of a file
_TOOLS = 10  # in a figure


def read(rollouts: Sequence[Rollouts]) -> tuple[list[tuple[str, Summary]], list[str]]:
    """The summary of each file, by name, and notes of what was left out.

    Raises:
        UserError: a file is of no known format.
    """
    summaries, notes = [], []
    for one in rollouts:
        summary = Summary(samples=0)
        rejects: list[Reject] = []
        trajectories = read_trajectories(one.place, on_reject=rejects.append)
        for trajectory in islice(trajectories, _MOST):
            summary.add(trajectory)
        if next(trajectories, None) is not None:
            notes.append(f"{one.place}: only the first {_MOST:,} rollouts are read")
        if rejects:
            notes.append(f"{one.place}: {len(rejects):,} rows are left out; the first: {rejects[0].reason}")
        summaries.append((one.name, summary))
    return summaries, notes


def sections(summaries: Sequence[tuple[str, Summary]]) -> list[Section]:
    """Tools and budgets of rollouts."""
    if not summaries:
        return []
    figures = [figure for figure in (_tools(summaries), _turns(summaries)) if figure is not None]
    tables = {name: dict(rows_of(summary.as_dict())) for name, summary in summaries}
    labels = dict.fromkeys(label for table in tables.values() for label in table)
    rows = [[label, *(table.get(label, "–") for table in tables.values())] for label in labels]
    return [Section("Rollouts: tools and budgets", figures=figures, tables=[Table(("", *tables), rows)])]


def samples(rollouts: Iterable[Rollouts], most: int = 2) -> list[Sample]:
    """The first rollouts of each file, coloured by who wrote what. Which tokens count is known with a tokenizer alone."""
    made = []
    for one in rollouts:
        for number, trajectory in enumerate(islice(read_trajectories(one.place, on_reject=_leave_out), most), 1):
            made.append(Sample(f"{one.name}, rollout {number}", _pieces(trajectory)))
    return made


def _leave_out(_reject: object) -> None:
    """`read` has counted it."""


def _pieces(trajectory: Trajectory) -> list[Token]:
    """A message is one piece."""
    tokens = [Token(f"{message['content']}\n", "prompt") for message in chat(trajectory.context)]
    for turn in trajectory.turns:
        tokens.append(Token(f"{action_text(turn.action)}\n", "policy"))
        tokens += [Token(f"{one.text}\n", "content", one.tool, None) for one in turn.observations]
    return tokens


def _tools(summaries: Sequence[tuple[str, Summary]]) -> Intervals | None:
    counts: Counter[str] = Counter()
    for _, summary in summaries:
        counts.update({name: tool.observations for name, tool in summary.tools.items()})
    rows = []
    for name, _ in counts.most_common(_TOOLS):
        values = [
            Value(arm, summary.tools[name].observations / summary.transitions)
            for arm, summary in summaries
            if name in summary.tools
        ]
        rows.append((name, values))
    return Intervals("Tools and other sources", rows, "share", "share of all observations", True) if rows else None


def _turns(summaries: Sequence[tuple[str, Summary]]) -> Curve | None:
    """The share of episodes that have ended after so many turns: what a budget of turns would cut."""
    series = []
    for arm, summary in summaries:
        if not summary.turns:
            continue
        counts, ended = Counter(summary.turns), 0
        x, y = [0], [0.0]
        for turns in range(1, min(max(counts), _MOST) + 1):
            ended += counts[turns]
            x.append(turns)
            y.append((ended + counts[0]) / len(summary.turns))
        series.append(Series(arm, x, y))
    return Curve("Episodes that have ended", series, "share", "turns", True) if series else None
