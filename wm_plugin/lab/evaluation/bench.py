"""AgentWorldBench (Qwen-AgentWorld, section 4): judges score what a world model predicts in seven domains.

A judge gives five scores from 1 to 5 with the real observation in view; their mean is shown as points, (mean - 1) / 4 · 100. Our
reading is strict: a row has five scores, or it failed, and every mean is given without the failed rows and with them as 0 points.
`published` has the benchmark's own evaluator; with a checkout of it, its questions are asked, and its figures stand beside ours,
both from the same replies.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

from wm_plugin.client.answers import Answer, Answers, ask_again
from wm_plugin.client.server import Completion, Failure, Server
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import published as theirs
from wm_plugin.lab.evaluation.bench_rows import GUI, TEXT, Row
from wm_plugin.lab.evaluation.intervals import interval_of_means
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, mean_of
from wm_plugin.lab.evaluation.published_replies import Verdict
from wm_plugin.rewards import prompts
from wm_plugin.rewards.comparison import TuringReward
from wm_plugin.rewards.judge import JudgedReward
from wm_plugin.rewards.judge import Row as Judged
from wm_plugin.rewards.rubric import DIMENSIONS, RubricReward, parse
from wm_plugin.rewards.verdict import TAG, is_forged
from wm_plugin.tokens.message import Message

NAME = "bench"
_AT_ONCE = 256  # rows whose questions are in memory
_SHOWN = 4_000  # characters of a text in `rows.jsonl`
_FEWEST = 3  # models whose ranks say anything
Cell = Sequence[tuple[float | None, Hashable]]  # values, None for a failed row, and their clusters


@dataclass(frozen=True)
class Judge:
    """A model that scores, with its name in the tables. `server` only gives its settings: `answers` asks it."""

    label: str
    server: Server
    answers: Answers


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

    def points(self, dimension: str = "") -> float | None:
        """Return a dimension's points, or those of the mean of all; None without scores."""
        if self.scores is None:
            return None
        return theirs.points(self.scores[dimension] if dimension else fmean(self.scores.values()))


@dataclass
class Table:
    """Measures, failures by reason, and the rows behind them."""

    measures: list[Measure] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def turing_prompts(ours: bool, others: Sequence[str]) -> list[str]:
    """Return the prompts that let judges tell predictions from observations."""
    chosen = [*(["turing"] if ours else []), *(str(Path(one).resolve()) for one in others)]
    for prompt in chosen:
        if f"<{TAG}>" not in prompts.load(prompt):
            raise UserError(
                f'--turing-prompt {prompt}: ask for the verdict in our form, {{"real": "first"}} in <{TAG}>'
            )
    return chosen


def file_name(label: str) -> str:
    """Return a file name for a judge's answers; a hash tells names apart that a file cannot."""
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in ".-") else "-" for sign in label)[:40]
    return f"{plain}-{hashlib.sha256(label.encode(errors='replace')).hexdigest()[:8]}"


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
    judgements = [Judgement(None, one.failure) for one in made]
    there = [number for number, one in enumerate(made) if one.prediction is not None]
    scores, kinds = rubric_scores(judge, **_columns([made[number] for number in there]))
    for place, number in enumerate(there):
        judgements[number] = Judgement(scores.get(place), kinds.get(place, ""))
    return judgements


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
    return Judgement(scores, "" if scores else f"judge: {reply.trouble or 'no verdict'}", verdict)


class _Kept(JudgedReward):
    """A judge whose answers are kept, with what it said of each row by the column `number`."""

    def __init__(self, judge: Judge, **settings: Any) -> None:
        super().__init__(judge.server, max_failure_share=1.0, **settings)
        self.answers = judge.answers
        self.values: dict[int, Any] = {}
        self.kinds: dict[int, str] = {}  # why a row that was asked has no value
        self.round = 0

    def ask(self, predictions: Sequence[str], targets: Sequence[str], **columns: Sequence[Any]) -> None:
        """Ask about predictions, some at a time; their places are their numbers."""
        columns = {**columns, "number": list(range(len(predictions)))}
        for start in range(0, len(predictions), _AT_ONCE):
            chunk = slice(start, start + _AT_ONCE)
            self.round = 0
            self(predictions[chunk], targets[chunk], **{name: values[chunk] for name, values in columns.items()})

    def _ask(self, questions: Iterable[list[Message]], seeds: list[int] | None) -> list[Completion | Failure]:  # noqa: ARG002
        kept = self.answers(questions, seed=self.round)
        self.round += 1
        return [Failure(one.failure, "") if one.failure else Completion(one.text, one.cut) for one in kept]

    def _end(self, batch: Any) -> list[float]:
        for name, answer in batch.replies.items():
            kind = answer.kind if isinstance(answer, Failure) else "cut" if answer.cut else "no verdict"
            self.kinds |= {row.columns["number"]: f"judge: {kind}" for _, row in batch.rows[name]}
        return super()._end(batch)


class _Rubric(_Kept, RubricReward):
    uses = (*RubricReward.uses, "number")

    def _read(self, row: Judged, reply: str, notes: Any) -> float | None:  # noqa: ARG002
        scores = parse(reply, row.target)
        if scores is None:
            return None
        self.values[row.columns["number"]] = scores
        return self.reward(fmean(scores.values()))


class _Turing(_Kept, TuringReward):
    """A value is (whether the real one was picked, whether it came first)."""

    uses = (*TuringReward.uses, "number")

    def _read(self, row: Judged, reply: str, notes: Any) -> float | None:
        score = super()._read(row, reply, notes)
        if score is not None:
            self.values[row.columns["number"]] = (score == 0.0, not self._prediction_is_first(row))
        return score


def rubric_scores(
    judge: Judge, predictions: Sequence[str], targets: Sequence[str], **columns: Sequence[Any]
) -> tuple[dict[int, dict[str, float]], dict[int, str]]:
    """Return a judge's five scores by the prediction's number, and why the others have none.

    Args:
        columns: as `RubricReward` takes them: `action`, `context`, `domain`. A domain without guidance is a general one.
    """
    reward = _Rubric(judge)
    domains = [name if name in prompts.DOMAINS else "general" for name in columns.pop("domain")]
    reward.ask(predictions, targets, **columns, domain=domains)
    failed = [number for number in range(len(predictions)) if number not in reward.values]
    return reward.values, {number: reward.kinds.get(number, "forged verdict") for number in failed}


def _columns(made: Sequence[Output]) -> dict[str, list[Any]]:
    return {
        "predictions": [one.prediction or "" for one in made],
        "targets": [one.row.real for one in made],
        "action": [one.row.action for one in made],
        "context": [one.row.conversation()[:-1] for one in made],
        "domain": [one.row.domain for one in made],
    }


def measures(
    made: Sequence[Output], judgements: Sequence[Judgement], label: str, *, alone: bool, seed: int = 0
) -> list[Measure]:
    """Return micro and macro means, those of the text and the GUI domains, and each domain's points and dimensions."""
    domains: dict[str, list[tuple[Judgement, str]]] = defaultdict(list)
    for one, judgement in zip(made, judgements, strict=True):
        domains[one.row.domain].append((judgement, one.row.trajectory))

    def cell(domain: str, dimension: str = "") -> Cell:
        return [(one.points(dimension), cluster) for one, cluster in domains[domain]]

    table = [macro("micro", [[[item for domain in domains for item in cell(domain)]]], "judge", label, seed)]
    for name, members in (("macro", {*TEXT, *GUI, *domains}), ("text", {*TEXT}), ("gui", {*GUI})):
        if there := sorted(members & domains.keys()):
            note = "" if domains.keys() >= members else f"of {', '.join(there)} alone"
            table.append(macro(name, [[cell(domain)] for domain in there], "judge", label, seed, note))
    for domain in sorted(domains):
        group = domain if alone else f"{label}/{domain}"
        for name, dimension in (("score", ""), *zip(DIMENSIONS, DIMENSIONS, strict=True)):
            table.append(macro(name, [[cell(domain, dimension)]], "domain", group, seed))
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
    reward = _Turing(judge, prompt=prompt, seed=seed)
    there = [one for one in made if one.prediction is not None]
    pairs = [one for one in there if (one.prediction or "").strip() != one.row.real]
    columns = _columns(pairs)
    del columns["domain"]
    reward.ask(**columns)
    picked = [(*value, pairs[number].row.trajectory) for number, value in sorted(reward.values.items())]
    equal, failed = len(there) - len(pairs), len(pairs) - len(picked) + len(made) - len(there)
    notes = [f"{equal} equal pairs are left out"] * bool(equal) + ["failed rows count as told apart"] * bool(failed)
    label = f"{judge.label}, {Path(prompt).stem}" if named else judge.label
    of: dict[str, Any] = {"by": "judge", "group": label, "seed": seed}

    def share(name: str, rows: Cell, **more: Any) -> Measure:
        return mean_of(name, "share", rows, worst=1, **of, **more)

    right: Cell = [(float(right), cluster) for right, _, cluster in picked]
    return [
        share("turing", [*right, *[(None, None)] * failed], note="; ".join(notes)),
        share("turing, real first", [(float(right), cluster) for right, first, cluster in picked if first]),
        share("turing, real second", [(float(right), cluster) for right, first, cluster in picked if not first]),
        share(
            "turing, first picked",
            [(float(right == first), cluster) for right, first, cluster in picked],
            note="0.5 without a bias of position",
        ),
    ]


def agreement(evaluations: Sequence[Evaluation]) -> list[Measure]:
    """Return Spearman's correlation of each two judges over the models of several results, by their macro means."""
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
