"""Rule-based verification of a world model (Qwen-AgentWorld, appendix C): checks that no judge decides.

Cases are built from trajectories (`rule_cases`), on the paper's three axes:

- controllability: an instruction changes what the next observation holds (it fails with a code, withholds a value, or has another
  one in its place), and the prediction must follow it;
- error handling: a real operation failed in a way that follows from its action, and the prediction must report that failure;
- consistency: what an earlier action wrote (a file, a variable, the row of a table) must be in what a later one reads.

Each case knows right and wrong texts, so it is kept only if its rule says the same as the truth about the real observation, texts
that were broken on purpose, and other models' predictions. The paper has its cases written by a model and does not publish them;
the cases here are our own, and figures are not the paper's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from wm_plugin.client.answers import Answer, Answers
from wm_plugin.data.prompts import Prompts, render
from wm_plugin.data.readers import agentworldbench
from wm_plugin.data.schema import Source, Trajectory
from wm_plugin.data.transitions import identity, transition
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.bench import Judge, Table, macro, rubric_scores
from wm_plugin.lab.evaluation.bench_rows import Row, domain_of
from wm_plugin.rewards.extract import extract
from wm_plugin.rewards.rules import RuleReward
from wm_plugin.rewards.verdict import is_forged
from wm_plugin.tokens.message import Message

AXES = ("controllability", "error handling", "consistency")
_SHOWN = 20_000  # characters of a text in `rows.jsonl`
_RIGHT, _WRONG = 4.0, 2.0  # a judge's mean scores from which a prediction is right, and up to which it is wrong


@dataclass(frozen=True)
class Session:
    """A trajectory whose turns may become cases."""

    name: str
    domain: str
    trajectory: Trajectory
    turns: frozenset[int]  # the turns that may
    # returns the conversation that asks for a turn's observation, under an instruction or ""
    ask: Callable[[int, str], list[Message]]
    read: Callable[[str], str | None]  # returns the prediction in an output, None if there is none


@dataclass(frozen=True)
class Case:
    """A check of one prediction. Cases of one session are not independent."""

    session: Session
    turn: int  # from 0
    axis: str
    kind: str  # what the case is, such as "file"
    conversation: list[Message]  # the question to the model
    rules: Sequence[Any]  # all of which a prediction must fulfil, as in `rewards.rules`
    real: str  # the real observation
    right: str  # a text that fulfils the rules
    wrong: tuple[str, ...]  # texts that must not

    @property
    def name(self) -> str:
        return f"{self.session.name}/{self.turn}/{self.kind}"

    def holds(self, texts: Sequence[str | None]) -> list[bool]:
        """Return whether the rules hold for each text."""
        count = len(texts)
        reward = RuleReward(malformed="count")
        verdicts = reward.verdicts(texts, [self.right] * count, verifier=[{"all": list(self.rules)}] * count)
        return [bool(one) for one in verdicts]


# Whether predictions of cases are right; None if that is open.
Label = Callable[[Sequence[Case], Sequence[str]], Sequence[bool | None]]


def sessions(trajectories: Iterable[Trajectory], prompts: Prompts, *, seed: int = 0) -> Iterator[Session]:
    """Turn trajectories into sessions; `prompts` ask the world model."""
    for trajectory in trajectories:
        name = identity(trajectory)

        def ask(turn: int, instruction: str, trajectory: Trajectory = trajectory, name: str = name) -> list[Message]:
            told = "\n".join(filter(None, (trajectory.context.simulation_instruction, instruction)))
            context = trajectory.context.model_copy(update={"simulation_instruction": told})
            asked = trajectory.model_copy(update={"context": context})
            step = transition(asked, turn, asked.turns[turn].observations[0], name=name)
            return list(render(step, prompts, seed=seed, world_context=True).messages)

        def read(output: str) -> str | None:
            return extract(output, prompts.tag).prediction

        yield Session(name, _domain(trajectory), trajectory, frozenset(range(len(trajectory.turns))), ask, read)


def bench_sessions(rows: Iterable[Row]) -> Iterator[Session]:
    """Turn AgentWorldBench's rows into sessions, of which only the turn to predict becomes cases."""
    for row in rows:

        def ask(_: int, instruction: str, row: Row = row) -> list[Message]:
            return row.conversation(instruction)

        record = {
            "task": row.task,
            "id": row.id,
            "prompt": list(row.prompts[: row.turn]),
            "response": list(row.responses[: row.turn]),
            "system_str": row.system,
            "turn_idx": row.turn,
        }
        trajectory = next(agentworldbench.convert(record, Source(format="agentworldbench", file="", row=0)))
        yield Session(row.trajectory, row.domain, trajectory, frozenset([row.turn - 1]), ask, row.prediction)


def _domain(trajectory: Trajectory) -> str:
    domain = trajectory.metadata.get("domain")
    if not isinstance(domain, str) or not domain:
        # of a built-in world, such as wm_plugin.worlds.sql:SqlEnvironment
        path = trajectory.metadata.get("environment")
        domain = path.partition(":")[0].rpartition(".")[2] if isinstance(path, str) else ""
    return domain_of(domain) or "general"


def validated(
    cases: Sequence[Case],
    answers: Sequence[Sequence[Answer]] = (),
    label: Label | None = None,
) -> tuple[list[Case], Counter[str]]:
    """Return the cases whose verdicts agree with the truth, and count the others by what they do not agree with.

    Args:
        answers: each checking model's answers to the cases.
        label: judges predictions. One that is a case's right text, or one that was broken on purpose, needs no judge.
    """
    kept, left, disagreed = [], Counter[str](), set()
    for of_model in answers:
        predictions = [None if a.trouble else c.session.read(a.text) for c, a in zip(cases, of_model, strict=True)]
        for number, text, truth in _truths(cases, predictions, label):
            if truth is not None and cases[number].holds([text]) != [truth]:
                disagreed.add(number)
    for number, case in enumerate(cases):
        if case.holds([case.right]) == [False]:
            left["the real observation"] += 1
        elif any(case.holds(case.wrong)):
            left["a broken observation"] += 1
        elif number in disagreed:
            left["a model's prediction"] += 1
        else:
            kept.append(case)
    return kept, left


def labels_of(judge: Judge) -> Label:
    """Label by the rubric: right from a mean of 4 on, wrong up to 2, open in between."""

    def label(cases: Sequence[Case], texts: Sequence[str]) -> list[bool | None]:
        scores, _ = rubric_scores(
            judge,
            texts,
            [case.right for case in cases],
            action=[case.conversation[-1]["content"] for case in cases],
            context=[case.conversation[:-1] for case in cases],
            domain=[case.session.domain for case in cases],
        )
        means = [fmean(scores[number].values()) if number in scores else None for number in range(len(cases))]
        return [None if m is None or _WRONG < m < _RIGHT else m >= _RIGHT for m in means]

    return label


def _truths(
    cases: Sequence[Case], predictions: Sequence[str | None], label: Label | None
) -> list[tuple[int, str, bool | None]]:
    """Return (the case's number, the prediction, whether it is right) of those that there are."""
    found: dict[int, tuple[str, bool | None]] = {}
    for number, (case, text) in enumerate(zip(cases, predictions, strict=True)):
        if text is not None:
            right, wrong = text.strip() == case.right.strip(), text.strip() in {one.strip() for one in case.wrong}
            found[number] = (text, True if right else False if wrong else None)
    openly = [number for number, (_, truth) in found.items() if truth is None]
    if label and openly:
        labels = label([cases[number] for number in openly], [found[number][0] for number in openly])
        found |= {number: (found[number][0], truth) for number, truth in zip(openly, labels, strict=True)}
    return [(number, *both) for number, both in found.items()]


def score(
    cases: Sequence[Case],
    answers: Sequence[Answer],
    *,
    label: Label | None = None,
    seed: int = 0,
) -> Table:
    """Measure the share of cases that a model passes, in points: the mean over domains of the mean over their axes.

    Args:
        label: judges predictions, as in `validated`. Then there is a second share, "rules, judged", in which a case also fails
            if a wrong prediction passes its rule.
    """
    table = Table()
    predictions = [None if a.trouble else case.session.read(a.text) for case, a in zip(cases, answers, strict=True)]
    passed = [case.holds([text])[0] for case, text in zip(cases, predictions, strict=True)]
    names = {"rules": passed}
    if label:
        there = [text if holds else None for text, holds in zip(predictions, passed, strict=True)]
        deceived = {
            number
            for number, text, truth in _truths(cases, there, label)
            if truth is False or is_forged(text, cases[number].real)  # a judge says nothing of a forged verdict
        }
        names["rules, judged"] = [one and number not in deceived for number, one in enumerate(passed)]
    for number, (case, answer, prediction) in enumerate(zip(cases, answers, predictions, strict=True)):
        failure = answer.trouble or ("no prediction" if prediction is None else "")
        if failure:
            table.failures[f"rules: {failure}"] += 1
        row = {
            "name": case.name,
            "domain": case.session.domain,
            "axis": case.axis,
            "context": "",
            "action": case.conversation[-1]["content"][-_SHOWN:],
            "real": case.right,
            "predicted": None if prediction is None else prediction[:_SHOWN],
            "scores": {} if failure else {name: float(values[number]) for name, values in names.items()},
            "failure": failure,
        }
        table.rows.append(row)
    for name in names:
        cells: dict[str, dict[str, list[tuple[float | None, str]]]] = {}
        for case, row in zip(cases, table.rows, strict=True):
            value = 100.0 * row["scores"][name] if row["scores"] else None
            cells.setdefault(case.session.domain, {}).setdefault(case.axis, []).append((value, case.session.name))
        if cells:
            table.measures.append(macro(name, [list(axes.values()) for axes in cells.values()], seed=seed))
        domains = sorted(cells)
        table.measures += [macro(name, [list(cells[domain].values())], "domain", domain, seed) for domain in domains]
        table.measures += [
            macro(name, [[cells[domain][axis]]], "axis", f"{domain}/{axis}", seed)
            for domain in domains
            for axis in AXES
            if axis in cells[domain]
        ]
    return table


def add_to(
    table: Table,
    sessions: Iterable[Session],
    model: Answers,
    checkers: Sequence[Answers],
    judges: Sequence[Judge],
    source: str,
    seed: int,
) -> None:
    """Build cases, check them with other models and the first judge, and add a model's scores to a table."""
    from wm_plugin.lab.evaluation.rule_cases import build

    cases = list(build(sessions, seed=seed))
    conversations = [case.conversation for case in cases]
    checking = [answers(conversations, seed=seed) for answers in checkers]
    label = labels_of(judges[0]) if judges else None
    kept, left = validated(cases, checking, label)
    if not kept:
        raise UserError(f"{source}: no turn gives a case for --rules ({len(cases)} were built, and none was kept)")
    scored = score(kept, model([case.conversation for case in kept], seed=seed), label=label, seed=seed)
    table.measures += scored.measures
    table.failures += scored.failures
    table.rows += scored.rows
    without = "".join(f"; {count} left out that disagree with {reason}" for reason, count in sorted(left.items()))
    table.notes.append(f"rules: {len(kept)} cases, checked with {len(checkers)} models{without}")
