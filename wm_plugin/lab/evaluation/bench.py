"""AgentWorldBench (Qwen-AgentWorld, section 4): judges score what a world model predicts in seven domains.

A judge gives five scores from 1 to 5 with the real observation in view; their mean is shown as points, (mean - 1) / 4 · 100. Our
reading is strict: a row has five scores, or it failed, and every mean is there without the failed rows and with them as 0 points.
`published` has the benchmark's own evaluator; where a checkout of it is given, its requests are asked, and its figures stand
beside ours, both of the same replies.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

from wm_plugin.client.answers import Answer, ask_again
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import published as theirs
from wm_plugin.lab.evaluation.bench_judges import Judge, KeptTuring, call_in_parts, columns_of, of_judge, rubric_scores
from wm_plugin.lab.evaluation.bench_rows import GUI, TEXT, Row
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, interval, interval_of_means
from wm_plugin.lab.evaluation.published_replies import Verdict
from wm_plugin.rewards.rubric import DIMENSIONS, parse
from wm_plugin.rewards.verdict import is_forged
from wm_plugin.tokens.message import Message

NAME = "bench"
_SHOWN = 4_000  # characters of a text in `rows.jsonl`
_FEWEST = 3  # models whose ranks say anything
Cell = Sequence[tuple[float | None, Hashable]]  # values, None where a row failed, and their clusters


@dataclass(frozen=True)
class Output:
    """What the model wrote for a row.

    Attributes:
        text: All of it.
        prediction: By our rules; None where there is none, and `failure` says why.
    """

    row: Row
    text: str
    prediction: str | None
    failure: str = ""


@dataclass(frozen=True)
class Judgement:
    """A judge on a row: five scores from 1 to 5, or a failure; and the published evaluator's reading of the same reply."""

    scores: Mapping[str, float] | None = None
    failure: str = ""
    published: Verdict | None = None

    @property
    def points(self) -> float | None:
        return None if self.scores is None else theirs.points(fmean(self.scores.values()))


@dataclass
class Table:
    """Measures, failures by reason, and the rows that they are of."""

    measures: list[Measure] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def outputs(rows: Sequence[Row], answers: Sequence[Answer]) -> list[Output]:
    """The model's answers to the rows."""
    made = []
    for row, answer in zip(rows, answers, strict=True):
        prediction = None if answer.trouble else row.prediction(answer.text)
        failure = answer.trouble or ("no prediction" if prediction is None else "")
        made.append(Output(row, answer.text, prediction, failure))
    return made


def evaluate(
    made: Sequence[Output],
    judges: Sequence[Judge],
    *,
    published: theirs.Published | None = None,
    turing: Sequence[str] = (),
    seed: int = 0,
) -> Table:
    """What all judges say of all outputs.

    Args:
        published: ask as the published evaluator does, and give its figures, too.
        turing: judges' prompts, by name or path, with each of which every judge also tells the prediction from the real
            observation, in a seeded order, where they differ.
    """
    table = Table(rows=[_row(one) for one in made])
    table.failures.update(one.failure for one in made if one.failure)
    for judge in judges:
        with judge.answers:  # their file is read once, not for each chunk
            judgements = ask_published(made, judge, published, seed) if published else ask(made, judge)
            turned = [
                measure
                for prompt in turing
                for measure in tell_apart(made, judge, prompt, named=len(turing) > 1, seed=seed)
            ]
        table.failures.update(
            one.failure for one, out in zip(judgements, made, strict=True) if one.failure and not out.failure
        )
        table.measures += measures(made, judgements, judge.label, alone=len(judges) == 1, seed=seed)
        if published:
            table.measures += published_measures(made, judgements, judge.label, alone=len(judges) == 1)
        table.measures += turned
        for row, one in zip(table.rows, judgements, strict=True):
            row["failure"] = row["failure"] or one.failure
            row["scores"] |= {f"{judge.label}/{name}": value for name, value in (one.scores or {}).items()}
    return table


def ask(made: Sequence[Output], judge: Judge) -> list[Judgement]:
    """The rubric of this package on every output that has a prediction."""
    asked = [number for number, one in enumerate(made) if one.prediction is not None]
    scores, kinds = rubric_scores(
        judge, [made[n].prediction or "" for n in asked], **columns_of([made[n].row for n in asked])
    )
    by_number = {number: (scores.get(place), kinds.get(place, "")) for place, number in enumerate(asked)}
    judgements = []
    for number, one in enumerate(made):
        values, kind = by_number.get(number, (None, ""))
        judgements.append(Judgement(values, one.failure or ("" if values else kind)))
    return judgements


def ask_published(made: Sequence[Output], judge: Judge, published: theirs.Published, seed: int = 0) -> list[Judgement]:
    """The published evaluator's questions, each up to three times until it finds scores in the reply; read in both ways."""
    verdicts: dict[int, Verdict] = {}
    replies: dict[int, Answer] = {}

    def question(number: int, _: int) -> list[Message]:
        one = made[number]
        return published.question(one.row, published.output(one.row, one.text))

    def settle(number: int, reply: Answer) -> bool:
        replies[number] = reply
        verdict = published.verdict(made[number].row, reply.text)
        if verdict is not None:
            verdicts[number] = verdict
        return verdict is not None

    asked = [number for number, one in enumerate(made) if one.text]
    ask_again(judge.answers, asked, question, settle, tries=theirs.TRIES, seed=seed)
    return [
        _both(one, published.output(one.row, one.text), replies.get(number), verdicts.get(number))
        for number, one in enumerate(made)
    ]


def _both(one: Output, judged: str, reply: Answer | None, verdict: Verdict | None) -> Judgement:
    if one.failure or reply is None or one.prediction is None:
        return Judgement(None, one.failure or "no prediction", verdict)
    # the published evaluator may have shown more of the output than our prediction
    if is_forged(one.prediction, one.row.real) or is_forged(judged, one.row.real):
        return Judgement(None, "forged verdict", verdict)
    scores = None if reply.trouble else parse(reply.text, one.row.real)
    failure = "" if scores else of_judge(reply.trouble or "no verdict")
    return Judgement(scores, failure, verdict)


def measures(
    made: Sequence[Output], judgements: Sequence[Judgement], label: str, *, alone: bool, seed: int = 0
) -> list[Measure]:
    """Micro and macro means, those of the text and the GUI domains, and each domain's, of the points and each dimension."""
    domains: dict[str, list[tuple[Judgement, str]]] = defaultdict(list)
    for one, judgement in zip(made, judgements, strict=True):
        domains[one.row.domain].append((judgement, one.row.trajectory))
    cells = {name: [(one.points, cluster) for one, cluster in rows] for name, rows in domains.items()}
    table = [macro("micro", [[[item for cell in cells.values() for item in cell]]], "judge", label, seed)]
    for name, members in (("macro", (*TEXT, *GUI, *cells)), ("text", TEXT), ("gui", GUI)):
        there = [domain for domain in sorted({*members}) if domain in cells]
        if there:
            note = "" if cells.keys() >= {*members} else f"of {', '.join(there)} alone"
            table.append(macro(name, [[cells[domain]] for domain in there], "judge", label, seed, note))
    for domain in sorted(cells):
        group = domain if alone else f"{label}/{domain}"
        table.append(macro("score", [[cells[domain]]], "domain", group, seed))
        for name in DIMENSIONS:
            values = [
                (theirs.points(one.scores[name]) if one.scores else None, cluster) for one, cluster in domains[domain]
            ]
            table.append(macro(name, [[values]], "domain", group, seed))
    return table


def published_measures(
    made: Sequence[Output], judgements: Sequence[Judgement], label: str, *, alone: bool
) -> list[Measure]:
    """The figures that the published evaluator prints."""
    pairs = [(one.row.domain, judgement.published) for one, judgement in zip(made, judgements, strict=True)]
    by_domain, overall, counted = theirs.figures(pairs)
    totals = [theirs.points(verdict.total) for _, verdict in pairs if verdict and verdict.total]
    lowest = sum(totals) / len(pairs) if pairs else None
    failed = len(pairs) - counted
    table = [Measure("published micro", overall, "points", counted, "judge", label, None, None, failed, lowest)]
    for domain, values in by_domain.items():
        of_domain = [verdict for name, verdict in pairs if name == domain]
        valid = sum(verdict is not None for verdict in of_domain)
        group = domain if alone else f"{label}/{domain}"
        for name, value in values.items():
            name = "score" if name == "total_score" else name
            table.append(
                Measure(f"published {name}", value, "points", valid, "domain", group, failed=len(of_domain) - valid)
            )
    return table


def macro(
    name: str,
    groups: Sequence[Sequence[Cell]],
    by: str = "",
    group: str = "",
    seed: int = 0,
    note: str = "",
) -> Measure:
    """A mean over groups of means over their cells, in points. What failed is left out, and then counts as 0.

    A cell in which all failed is left out of the first of these values, and so is a group of such cells.
    """
    scored = [[cell for cell in cells if any(value is not None for value, _ in cell)] for cells in groups]
    scored = [cells for cells in scored if cells]
    rows = [value for cells in groups for cell in cells for value, _ in cell]
    failed = sum(value is None for value in rows)
    if not scored:
        return Measure(name, None, "points", 0, by, group, failed=failed, with_failed=0.0 if rows else None, note=note)
    weighted = []
    for cells in scored:
        for cell in cells:
            values = [(value, cluster) for value, cluster in cell if value is not None]
            weighted.append((1 / len(scored) / len(cells), [v for v, _ in values], [c for _, c in values]))
    value = fmean(fmean(fmean(v for v, _ in cell if v is not None) for cell in cells) for cells in scored)
    low, high = interval_of_means(weighted, seed=seed)
    lowest = fmean(fmean(fmean(value or 0.0 for value, _ in cell) for cell in cells if cell) for cells in groups)
    return Measure(name, value, "points", len(rows) - failed, by, group, low, high, failed, lowest, note)


def tell_apart(
    made: Sequence[Output], judge: Judge, prompt: str = "turing", *, named: bool = False, seed: int = 0
) -> list[Measure]:
    """The judge's Turing test (section 4.2): how often it picks the real observation, of rows whose prediction is another text.

    The paper chooses judges and their prompts by it: the one that tells best sees the differences that a rubric is about.

    A row without a prediction or without a verdict failed; with these, the prediction counts as told apart, the worst that it can
    be. Also by the place of the real one, and how often it picks the first of the two: without a bias, half of the time.

    Args:
        prompt: the judge's, by name or path. named: whether the measures' groups have its name beside the judge's.
    """
    label = f"{judge.label}, {Path(prompt).stem}" if named else judge.label
    reward = KeptTuring(judge.answers, judge.server, prompt=prompt, seed=seed)
    there = [one for one in made if one.prediction is not None]
    pairs = [one for one in there if (one.prediction or "").strip() != one.row.real]
    columns = columns_of([one.row for one in pairs])
    del columns["domain"]
    call_in_parts(reward, [one.prediction or "" for one in pairs], **columns)
    asked, equal = len(pairs), len(there) - len(pairs)
    lost = len(made) - len(there)
    picked = [(*reward.values[number], pairs[number].row.trajectory) for number in sorted(reward.values)]
    every = [(right, cluster) for right, _, cluster in picked]
    first = [(right, cluster) for right, real_first, cluster in picked if real_first]
    second = [(right, cluster) for right, real_first, cluster in picked if not real_first]
    position = [(right == real_first, cluster) for right, real_first, cluster in picked]
    failed = asked - len(every) + lost
    note = "; ".join(
        [f"{equal} equal pairs are left out"] * bool(equal) + ["failed rows count as told apart"] * bool(failed)
    )
    return [
        _share("turing", every, failed, label, seed, note, worst=1.0),
        _share("turing, real first", first, 0, label, seed),
        _share("turing, real second", second, 0, label, seed),
        _share("turing, first picked", position, 0, label, seed, "0.5 without a bias of position"),
    ]


def _share(
    name: str,
    rows: Sequence[tuple[bool, Hashable]],
    failed: int,
    label: str,
    seed: int,
    note: str = "",
    worst: float = 0.0,
) -> Measure:
    values = [float(value) for value, _ in rows]
    low, high = interval(values, [1.0] * len(values), [cluster for _, cluster in rows], seed=seed)
    value = fmean(values) if values else None
    every = len(values) + failed
    lowest = (sum(values) + worst * failed) / every if every else None
    return Measure(name, value, "share", len(values), "judge", label, low, high, failed, lowest, note)


def agreement(evaluations: Sequence[Evaluation]) -> list[Measure]:
    """Spearman's correlation of each two judges over the models of several results, by their macro means.

    Raises:
        UserError: a result is of another step or of other data, or there are fewer than three models.
    """
    for one in evaluations:
        if one.name != NAME:
            raise UserError(f"--against: a result of wm eval {one.name}, not of wm eval {NAME}; leave it out")
        if one.data != evaluations[0].data:
            raise UserError(f"--against: a result on {one.data}, not on {evaluations[0].data}; leave it out")
    if len({one.subject for one in evaluations}) < _FEWEST:
        raise UserError(f"--against: ranks need {_FEWEST} models, this one among them; name more folders")
    scores = [
        {one.group: one.value for one in result.measures if (one.name, one.by) == ("macro", "judge")}
        for result in evaluations
    ]
    shared = sorted(set.intersection(*(set(one) for one in scores)))
    table = []
    for first, second in combinations(shared, 2):
        pairs = [(a, b) for one in scores if (a := one[first]) is not None and (b := one[second]) is not None]
        value = spearman([a for a, _ in pairs], [b for _, b in pairs])
        note = "" if value is not None else "all ranks of a judge are the same"
        failed = len(scores) - len(pairs)
        group = f"{first} / {second}"
        table.append(Measure("spearman", value, "correlation", len(pairs), "judges", group, failed=failed, note=note))
    return table


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The correlation of ranks, where equal values share the mean of theirs; None where all are equal, or fewer than two."""
    a, b = _ranks(one), _ranks(other)
    return None if len(set(a)) < 2 or len(set(b)) < 2 else correlation(a, b)


def _ranks(values: Sequence[float]) -> list[float]:
    places: dict[float, list[int]] = defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [fmean(places[value]) for value in values]


def _row(one: Output) -> dict[str, Any]:
    row = one.row
    before = "\n\n".join(f"{action}\n{observed}" for action, observed in row.history[-3:])
    return {
        "name": f"{row.trajectory}/{row.turn}",
        "domain": row.domain,
        "context": before[-_SHOWN:],
        "action": row.action[-_SHOWN:],
        "real": row.real[:_SHOWN],
        "predicted": None if one.prediction is None else one.prediction[:_SHOWN],
        "scores": {},
        "failure": one.failure,
    }
