"""AgentWorldBench (Qwen-AgentWorld, section 4): judges score what a world model predicts in seven domains.

A judge gives five scores from 1 to 5 with the real observation in view; their mean is shown as points, (mean - 1) / 4 · 100. Our
reading is strict: a row has five scores, or it failed, and every mean is given without the failed rows and with them as 0 points.
`published` has the benchmark's own evaluator; with a checkout of it, its questions are asked, and its figures stand beside ours,
both from the same replies.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

from wm_plugin.client.answers import Answer, ask_again
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import published as theirs
from wm_plugin.lab.evaluation.bench_judges import Judge, KeptTuring, call_in_parts, columns_of, of_judge, rubric_scores
from wm_plugin.lab.evaluation.bench_rows import GUI, TEXT, Row
from wm_plugin.lab.evaluation.bootstrap import interval_of_means
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, ratio
from wm_plugin.lab.evaluation.published_replies import Verdict
from wm_plugin.rewards.rubric import DIMENSIONS, parse
from wm_plugin.rewards.verdict import is_forged
from wm_plugin.tokens.message import Message

NAME = "bench"
_SHOWN = 4_000  # characters of a text in `rows.jsonl`
_FEWEST = 3  # models whose ranks say anything
Cell = Sequence[tuple[float | None, Hashable]]  # values, None for a failed row, and their clusters


@dataclass(frozen=True)
class Output:
    """What the model wrote for a row."""

    row: Row
    text: str  # all of it
    prediction: str | None  # by our rules; None if there is none, and `failure` says why
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
    """Measures, failures by reason, and the rows behind them."""

    measures: list[Measure] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def outputs(rows: Sequence[Row], answers: Sequence[Answer]) -> list[Output]:
    """Read the predictions from the model's answers."""
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
    """Let all judges score all outputs.

    Args:
        published: ask as the published evaluator does, and give its figures, too.
        turing: judges' prompts, by name or path. With each of them every judge also tells the prediction from the real
            observation where they differ, in a seeded order.
    """
    table = Table(rows=[_row(one) for one in made])
    table.failures.update(one.failure for one in made if one.failure)
    alone = len(judges) == 1
    for judge in judges:
        with judge.answers:  # their file is read once, not for each chunk
            judgements = ask_published(made, judge, published, seed) if published else ask(made, judge)
            named = len(turing) > 1
            turned = [tell_apart(made, judge, prompt, named=named, seed=seed) for prompt in turing]
        table.measures += measures(made, judgements, judge.label, alone=alone, seed=seed)
        if published:
            table.measures += published_measures(made, judgements, judge.label, alone=alone)
        table.measures += [measure for found in turned for measure in found]
        for one, output, row in zip(judgements, made, table.rows, strict=True):
            if one.failure and not output.failure:
                table.failures[one.failure] += 1
            row["failure"] = row["failure"] or one.failure
            row["scores"] |= {f"{judge.label}/{name}": value for name, value in (one.scores or {}).items()}
    return table


def ask(made: Sequence[Output], judge: Judge) -> list[Judgement]:
    """Score every output that has a prediction by this package's rubric."""
    asked = [one for one in made if one.prediction is not None]
    predictions = [one.prediction or "" for one in asked]
    scores, kinds = rubric_scores(judge, predictions, **columns_of([one.row for one in asked]))
    by_output = {
        id(one): Judgement(scores.get(n), "" if n in scores else kinds.get(n, "")) for n, one in enumerate(asked)
    }
    return [by_output.get(id(one), Judgement(None, one.failure)) for one in made]


def ask_published(made: Sequence[Output], judge: Judge, published: theirs.Published, seed: int = 0) -> list[Judgement]:
    """Ask the published evaluator's questions, each up to three times until it finds scores; read the replies in both ways."""
    verdicts: dict[int, Verdict | None] = {}
    replies: dict[int, Answer] = {}
    judged = [published.output(one.row, one.text) for one in made]

    def question(number: int, _: int) -> list[Message]:
        return published.question(made[number].row, judged[number])

    def settle(number: int, reply: Answer) -> bool:
        replies[number] = reply
        verdicts[number] = published.verdict(made[number].row, reply.text)
        return verdicts[number] is not None

    asked = [number for number, one in enumerate(made) if one.text]
    ask_again(judge.answers, asked, question, settle, tries=theirs.TRIES, seed=seed)
    numbered = enumerate(zip(made, judged, strict=True))
    return [_both(one, text, replies.get(number), verdicts.get(number)) for number, (one, text) in numbered]


def _both(one: Output, judged: str, reply: Answer | None, verdict: Verdict | None) -> Judgement:
    if one.failure or reply is None or one.prediction is None:
        return Judgement(None, one.failure or "no prediction", verdict)
    # the published evaluator may have shown more of the output than our prediction
    if is_forged(one.prediction, one.row.real) or is_forged(judged, one.row.real):
        return Judgement(None, "forged verdict", verdict)
    scores = None if reply.trouble else parse(reply.text, one.row.real)
    return Judgement(scores, "" if scores else of_judge(reply.trouble or "no verdict"), verdict)


def measures(
    made: Sequence[Output], judgements: Sequence[Judgement], label: str, *, alone: bool, seed: int = 0
) -> list[Measure]:
    """Return micro and macro means, those of the text and the GUI domains, and each domain's points and dimensions."""
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
            rows = domains[domain]
            values = [(theirs.points(one.scores[name]) if one.scores else None, cluster) for one, cluster in rows]
            table.append(macro(name, [[values]], "domain", group, seed))
    return table


def published_measures(
    made: Sequence[Output], judgements: Sequence[Judgement], label: str, *, alone: bool
) -> list[Measure]:
    """Return the figures that the published evaluator prints."""
    pairs = [(one.row.domain, judgement.published) for one, judgement in zip(made, judgements, strict=True)]
    by_domain, overall, counted = theirs.figures(pairs)
    totals = [theirs.points(verdict.total) for _, verdict in pairs if verdict and verdict.total]
    lowest, failed = sum(totals) / len(pairs) if pairs else None, len(pairs) - counted
    table = [Measure("published micro", overall, "points", counted, "judge", label, None, None, failed, lowest)]
    for domain, values in by_domain.items():
        of_domain = [verdict for name, verdict in pairs if name == domain]
        valid = sum(verdict is not None for verdict in of_domain)
        of = (valid, "domain", domain if alone else f"{label}/{domain}")
        for name, value in values.items():
            name = "published score" if name == "total_score" else f"published {name}"
            table.append(Measure(name, value, "points", *of, failed=len(of_domain) - valid))
    return table


def macro(
    name: str,
    groups: Sequence[Sequence[Cell]],
    by: str = "",
    group: str = "",
    seed: int = 0,
    note: str = "",
) -> Measure:
    """Return a mean over groups of means over their cells, in points: without what failed, and with it as 0.

    The first of these values leaves out a cell in which all failed, and a group of such cells.
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
    """Measure how often the judge picks the real observation (section 4.2), of rows whose prediction is another text.

    The paper chooses judges and their prompts by this Turing test: the one that tells best sees what a rubric is about.

    A row without a prediction or a verdict failed; `with_failed` counts its prediction as told apart, the worst that it can be.
    There are also the shares by the place of the real one, and how often the judge picks the first of the two: half of the time
    without a bias.

    Args:
        prompt: the judge's, by name or path.
        named: whether the measures' groups have its name beside the judge's.
    """
    label = f"{judge.label}, {Path(prompt).stem}" if named else judge.label
    reward = KeptTuring(judge.answers, judge.server, prompt=prompt, seed=seed)
    there = [one for one in made if one.prediction is not None]
    pairs = [one for one in there if (one.prediction or "").strip() != one.row.real]
    columns = columns_of([one.row for one in pairs])
    del columns["domain"]
    call_in_parts(reward, [one.prediction or "" for one in pairs], **columns)
    picked = [(*reward.values[number], pairs[number].row.trajectory) for number in sorted(reward.values)]
    equal, failed = len(there) - len(pairs), len(pairs) - len(picked) + len(made) - len(there)
    equals = [f"{equal} equal pairs are left out"] if equal else []
    note = "; ".join([*equals, "failed rows count as told apart"] if failed else equals)

    def share(name: str, rows: Sequence[tuple[bool, Hashable]], note: str = "", failed: int = 0) -> Measure:
        values, clusters = [float(value) for value, _ in rows], [cluster for _, cluster in rows]
        of: dict[str, Any] = {"by": "judge", "group": label, "failed": failed, "note": note, "seed": seed}
        made = ratio(name, "share", values, [1.0] * len(values), clusters, **of)
        every = len(values) + failed
        return replace(made, with_failed=(sum(values) + failed) / every if every else None)

    first = [(right, cluster) for right, real_first, cluster in picked if real_first]
    second = [(right, cluster) for right, real_first, cluster in picked if not real_first]
    position = [(right == real_first, cluster) for right, real_first, cluster in picked]
    return [
        share("turing", [(right, cluster) for right, _, cluster in picked], note, failed),
        share("turing, real first", first),
        share("turing, real second", second),
        share("turing, first picked", position, "0.5 without a bias of position"),
    ]


def agreement(evaluations: Sequence[Evaluation]) -> list[Measure]:
    """Return Spearman's correlation of each two judges over the models of several results, by their macro means.

    Raises:
        UserError: a result is another evaluation's or on other data, or there are fewer than three models.
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
        of = (len(pairs), "judges", f"{first} / {second}")
        table.append(Measure("spearman", value, "correlation", *of, failed=len(scores) - len(pairs), note=note))
    return table


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Correlate ranks, where equal values share the mean of theirs; None if all are equal, or there are fewer than two."""
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
