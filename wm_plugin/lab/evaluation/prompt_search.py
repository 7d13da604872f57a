"""A search for prompts: a model proposes templates, held-out transitions score them, and the best are refined.

Qwen-AgentWorld (§3.1.2) makes its twelve variants in this way: a run a style, ten rounds a run. In each round a proposer sees the
best template of a style so far with its worst predictions, and writes another one; a world model predicts with it, and a reward
compares. The transitions of some tasks are kept for the end: only the chosen templates' score there is a measurement, since the
others chose them.

Models' answers are kept as they come, and a round as it ends. A run that was killed asks nothing twice and ends as any other.
"""

import hashlib
import heapq
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from wm_plugin.client.answers import Answer, Answers, Model
from wm_plugin.client.predict import seed_of
from wm_plugin.client.server import KINDS
from wm_plugin.data.draws import whole_number
from wm_plugin.data.outputs import write_text
from wm_plugin.data.predictions import same_settings
from wm_plugin.data.prompts import Prompts, Variant, render
from wm_plugin.data.render import reward_columns
from wm_plugin.data.schema import Transition
from wm_plugin.data.scores import Reward, score, truth
from wm_plugin.errors import UserError, nearest
from wm_plugin.lab.evaluation.measures import Measure, mean, mean_of
from wm_plugin.lab.evaluation.proposals import LEAST, START, Example, Refused, question, read_proposal
from wm_plugin.rewards.extract import extract
from wm_plugin.tokens.message import Message
from wm_plugin.untrusted import encodable

VERSION = 2  # of the folder's layout
_TRANSIENT = ("timeout", "connection", "rate limit", "server error")  # failures that say nothing about a prompt
_MOST_FAILED = 0.05  # share of a round's predictions that may fail so; `ServerPredictor` allows as many
_MOST_LOST = 0.5  # share of proposals, and of predictions with the template at the start, that may fail in any way
_CONTEXT = 4_000  # characters before an action, in a row


class Candidate(BaseModel):
    """A template in a style, and its predictions of transitions. Refused ones have none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    style: str  # its name; `START` for the template that the search starts from
    round: int  # the number of the round; 0 for `START`
    system: str = ""
    user: str = ""
    # why the proposer's answer was no template: the kind, and the words that the proposer is told
    refused: str = ""
    reason: str = ""
    predictions: list[str] = []  # "" or the whole output if there is none
    # None if there is no prediction or no score, for the reason in `failures`, which else is ""
    scores: list[float | None] = []
    failures: list[str] = []

    @property
    def score(self) -> float:
        """The mean by which templates are chosen; a row without a score counts 0, as in training."""
        return mean([value or 0.0 for value in self.scores]) or 0.0


_CANDIDATES = TypeAdapter(list[Candidate])


class Held(NamedTuple):
    """Held-out transitions: those that choose the templates, and those of other tasks that measure the chosen ones."""

    search: Sequence[Transition]
    test: Sequence[Transition]


@dataclass(frozen=True)
class Outcome:
    """The result of a search."""

    prompts: Prompts | None  # a variant for each style, the best first; None if fewer than three styles have a template
    chosen: Sequence[Candidate]  # the best candidate of each style, in the same order
    measures: Sequence[Measure]  # of the search and of the test
    failures: Mapping[str, int]  # rows of the test without a score, by reason; refused proposals as "proposal: REASON"
    notes: Sequence[str]
    rows: Sequence[Mapping[str, Any]]  # the test's predictions
    # how many answers the models gave in this run
    proposed: int
    predicted: int


def split(transitions: Iterable[Transition], *, limit: int = 100, test_share: float = 0.5, seed: int = 0) -> Held:
    """Draw `limit` transitions of a search and of its test, which has a share of the tasks for itself.

    Args:
        transitions: iterated several times; a list, or `Repeatable`.
    """
    if limit < 1:
        raise UserError(f"limit is {limit}; write a number >= 1")
    if not 0 < test_share < 1:
        raise UserError(f"the test's share is {test_share}; write a number between 0 and 1")
    tasks = sorted({_task(one) for one in transitions}, key=lambda task: (whole_number(f"{seed}/task/{task}"), task))
    if len(tasks) < 2:
        raise UserError(
            f"the transitions are of {len(tasks) or 'no'} task; a search needs two or more, of which some are for the test"
        )
    tested = set(tasks[: min(max(1, round(test_share * len(tasks))), len(tasks) - 1)])

    def drawn(of_test: bool) -> list[Transition]:
        chosen = (one for one in transitions if (_task(one) in tested) is of_test)
        return heapq.nsmallest(limit, chosen, key=lambda one: whole_number(f"{seed}/{_name(one)}"))

    return Held(drawn(False), drawn(True))


class Search:
    """A search for a family of prompts.

    Args:
        start: the family whose tag, fields and texts the result has.
        styles: what the proposer is told about the form, by the style's name.
        reward: scores predictions; higher is better, 0 if there is none.
        settings: what else the scores depend on, such as the reward's arguments, as JSON values.
        rounds: of proposals. A finished search can be continued with more.
    """

    def __init__(
        self,
        start: Prompts,
        variant: str,
        styles: Mapping[str, str],
        held: Held,
        world: Model,
        proposer: Model,
        reward: Reward,
        work: str | Path,
        *,
        settings: Mapping[str, Any],
        rounds: int = 10,
        examples: int = 4,
        seed: int = 0,
        thinking: bool = True,
        world_context: bool = False,
    ) -> None:
        if variant not in start.variants:
            raise UserError(f"{start.name}: there is no variant {variant!r}{nearest(variant, start.variants)}")
        for name, value in (("rounds", rounds), ("examples", examples)):
            if value < 1:
                raise UserError(f"{name} is {value}; write a number >= 1")
        self.start, self.variant, self.styles, self.held = start, start.variants[variant], styles, held
        self.reward, self.work = reward, Path(work)
        self.rounds, self.examples, self.seed = rounds, examples, seed
        self.thinking, self.world_context = thinking, world_context
        self.world = Answers(world, self.work / "predictions.jsonl")
        self.proposer = Answers(proposer, self.work / "proposals.jsonl")
        everything = {
            "version": VERSION,
            "prompts": _digest([start.model_dump(), variant]),
            "styles": _digest(list(styles.items())),
            "transitions": _digest([[one.to_bytes().decode() for one in part] for part in (held.search, held.test)]),
            "world_model": world.settings,
            "proposer": proposer.settings,
            "examples": examples,
            "seed": seed,
            "thinking": thinking,
            "world_context": world_context,
            **settings,
        }
        same_settings(self.work / "search.json", everything, "a search")

    def run(self, watch: Callable[[Iterable[int]], Iterable[int]] = iter) -> Outcome:
        """Search and test, or go on where an earlier run was killed. `watch` passes the rounds through."""
        history: list[list[Candidate]] = []
        for number in watch(range(self.rounds + 1)):
            path = self.work / f"round-{number:03d}.json"
            if path.exists():
                made = self._read(path, number)
            else:
                made = self._round(number, history)
                write_text(path, json.dumps([one.model_dump() for one in made], ensure_ascii=True) + "\n")
            history.append(made)
        (start,) = history[0]
        best = [one for one in (self._best(style, history) for style in self.styles) if one is not None]
        best.sort(key=lambda one: -one.score)  # equal ones stay in the styles' order
        named = {one.style: one for one in [start, *best]}
        trials = self._tried(list(named.values()), self.held.test)
        tested = dict(zip(named, trials, strict=True))
        candidates = [one for made in history for one in made]
        refused = Counter(f"proposal: {one.refused}" for one in candidates if one.refused)
        failures = Counter(reason for trial in trials for reason in trial.failures if reason)
        prompts = self._family(best) if len(best) >= LEAST else None
        return Outcome(
            prompts,
            best,
            self._measures(candidates, best, tested),
            {**failures, **refused},
            self._notes(best, prompts),
            [row for style, trial in tested.items() for row in self._rows(style, trial)],
            self.proposer.asked,
            self.world.asked,
        )

    def _round(self, number: int, history: Sequence[Sequence[Candidate]]) -> list[Candidate]:
        if number == 0:
            start = Candidate(style=START, round=0, system=self.variant.system, user=self.variant.user)
            made = self._tried([start], self.held.search)
            _check_failed("the world model", made[0].failures, KINDS, _MOST_LOST)
            return made
        questions = [self._question(style, number, history) for style in self.styles]
        answers = self.proposer(questions, seed=seed_of(f"{self.seed}/round/{number}"))
        _check_failed("the proposer", [answer.failure for answer in answers], KINDS, _MOST_LOST)
        made = [self._proposed(style, number, answer) for style, answer in zip(self.styles, answers, strict=True)]
        tried = iter(self._tried([one for one in made if not one.refused], self.held.search))
        return [one if one.refused else next(tried) for one in made]

    def _question(self, style: str, number: int, history: Sequence[Sequence[Candidate]]) -> list[Message]:
        present = self._best(style, history) or history[0][0]
        attempts = [
            f"round {one.round}: " + (f"could not be used: {one.reason}" if one.refused else f"score {one.score:.4f}")
            for made in history
            for one in made
            if one.style == style or one.round == 0
        ]
        texts, examples = [truth(one, self.start) for one in self.held.search], []
        rows = zip(texts, present.predictions, present.scores, present.failures, strict=True)
        worst = [
            (value or 0.0, row)
            for row, (text, said, value, why) in enumerate(rows)
            if why or said.strip() != text.strip()
        ]
        for _, row in sorted(worst)[: self.examples]:
            columns = reward_columns(self.held.search[row])
            predicted = present.predictions[row] or f"(none: {present.failures[row]})"
            examples.append(Example(columns["context"], columns["action"], texts[row], predicted))
        template, told = Variant(system=present.system, user=present.user), self.styles[style]
        return question(self.start, self.variant, told, template, examples, attempts, number=number)

    def _proposed(self, style: str, number: int, answer: Answer) -> Candidate:
        try:
            if answer.trouble:
                raise Refused(answer.trouble, f"there was no whole answer ({answer.trouble})")
            made = read_proposal(answer.text, self.start, self.variant)
        except Refused as error:
            return Candidate(style=style, round=number, refused=error.kind, reason=str(error))
        return Candidate(style=style, round=number, system=made.system, user=made.user)

    def _best(self, style: str, history: Sequence[Sequence[Candidate]]) -> Candidate | None:
        """Return a style's best template so far, the first of equal ones."""
        usable = [one for made in history for one in made if one.style == style and not one.refused]
        return max(usable, key=lambda one: one.score, default=None)

    def _tried(self, candidates: Sequence[Candidate], transitions: Sequence[Transition]) -> list[Candidate]:
        """Predict the transitions with each of the templates, and compare."""
        families = [self._with({one.style: one}, {}) for one in candidates]
        how: dict[str, Any] = {"thinking": self.thinking, "world_context": self.world_context}
        conversations = [
            list(render(one, family, variant=next(iter(family.variants)), **how).messages)
            for family in families
            for one in transitions
        ]
        answers = self.world(conversations, seed=self.seed)
        _check_failed("the world model", [answer.failure for answer in answers], _TRANSIENT, _MOST_FAILED)
        tried = []
        for place, (candidate, family) in enumerate(zip(candidates, families, strict=True)):
            own = answers[place * len(transitions) : (place + 1) * len(transitions)]
            outputs = [[] if answer.trouble else [answer.text] for answer in own]
            scored = score(zip(transitions, outputs, strict=True), self.reward, family)
            predictions, scores, failures = [], [], []
            for answer, (_, _, given) in zip(own, scored, strict=True):
                value = next((one for one in given if one is not None and math.isfinite(one)), None)
                text = extract(answer.text, family.tag).prediction
                predictions.append(encodable(answer.text if text is None else text))
                scores.append(value)
                missing = "" if value is not None else "no prediction" if text is None else "no score"
                failures.append(answer.trouble or missing)
            own_fields = {"predictions": predictions, "scores": scores, "failures": failures}
            tried.append(candidate.model_copy(update=own_fields))
        return tried

    def _family(self, best: Sequence[Candidate]) -> Prompts:
        """Make the family of the best templates: the best one is for RL, the next for CPT and all others for SFT."""
        names = [one.style for one in best]
        stages = {"rl": names[:1], "cpt": names[1:2], "sft": names[2:]}
        return self._with({one.style: one for one in best}, stages)

    def _with(self, candidates: Mapping[str, Candidate], stages: Mapping[str, list[str]]) -> Prompts:
        own = {"think": self.variant.think, "direct": self.variant.direct}
        variants = {name: {"system": one.system, "user": one.user, **own} for name, one in candidates.items()}
        return Prompts(**{**self.start.model_dump(), "variants": variants, "stages": stages})

    def _measures(
        self, candidates: Sequence[Candidate], best: Sequence[Candidate], tested: Mapping[str, Candidate]
    ) -> list[Measure]:
        """Measure a search, with intervals over trajectories.

        `test` and `gain` are over all chosen templates, and by style; the gain is over the template at the start on the same
        transitions, where a row without a score counts 0. `search` is by style of the chosen templates, and by candidate
        ("prose, round 3") of all. `refused` counts the proposer's answers that were no templates, by style.
        """
        searched, tests = ([one.trajectory for one in part] for part in self.held)
        start = [value or 0.0 for value in tested[START].scores]

        def measure(
            name: str, scores: Sequence[float | None], names: Sequence[str], by: str = "", group: str = ""
        ) -> Measure:
            note = "" if any(value is not None for value in scores) else "no prediction has a score"
            rows = list(zip(scores, names, strict=True))
            made = mean_of(name, "score", rows, by=by, group=group, note=note, seed=self.seed)
            return replace(made, with_failed=made.with_failed or 0.0)

        def of_test(styles: Sequence[str], *group: str) -> Iterator[Measure]:
            scores = [value for style in styles for value in tested[style].scores]
            yield measure("test", scores, tests * len(styles), *group)
            gains = [(value or 0.0) - before for value, before in zip(scores, start * len(styles), strict=True)]
            yield measure("gain", gains, tests * len(styles), *group)

        chosen = [one.style for one in best]
        by_style = {style: list(of_test([style], "style", style)) for style in [START, *chosen]}
        made = [*of_test(chosen)] if chosen else []
        made += [test for test, _ in by_style.values()]
        made += [by_style[style][1] for style in chosen]
        made += [measure("search", one.scores, searched, "style", one.style) for one in [candidates[0], *best]]
        for one in candidates:
            if not one.refused:
                made.append(measure("search", one.scores, searched, "candidate", f"{one.style}, round {one.round}"))
        for style in dict.fromkeys(one.style for one in candidates[1:]):
            refused = [bool(one.refused) for one in candidates if one.style == style]
            made.append(Measure("refused", sum(refused), "count", len(refused), "style", style))
        return made

    def _rows(self, style: str, trial: Candidate) -> Iterator[dict[str, Any]]:
        for place, transition in enumerate(self.held.test):
            columns, value = reward_columns(transition), trial.scores[place]
            yield {
                "context": columns["context"][-_CONTEXT:],
                "action": columns["action"],
                "real": truth(transition, self.start),
                "predicted": trial.predictions[place],
                "scores": {} if value is None else {"score": value},
                "failure": trial.failures[place],
                "variant": style,
                "trajectory": transition.trajectory,
                "turn": transition.turn,
            }

    def _notes(self, best: Sequence[Candidate], prompts: Prompts | None) -> list[str]:
        notes = ["Scores of the search chose the templates; those of the test, on other tasks, did not."]
        if missing := [style for style in self.styles if style not in {one.style for one in best}]:
            notes.append(f"No answer could be used in the style {', '.join(missing)}.")
        if prompts is None:
            notes.append(f"There is no family of prompts: its stages need {LEAST} styles with a template.")
        return notes

    def _read(self, path: Path, number: int) -> list[Candidate]:
        """Read a finished round's candidates."""
        try:
            made = _CANDIDATES.validate_json(path.read_bytes())
        except ValidationError:
            made = []
        if [one.style for one in made] != (list(self.styles) if number else [START]):
            raise UserError(f"{path}: damaged; remove it and the rounds after it, and they are made again")
        return made


def _check_failed(who: str, failures: Sequence[str], kinds: Collection[str], most: float) -> None:
    """Stop if a server fails too often: its failures must not lead a search."""
    failed = Counter(kind for kind in failures if kind in kinds)
    if failed.total() > most * len(failures):
        reasons = ", ".join(f"{count} {kind}" for kind, count in failed.most_common())
        raise UserError(f"{who}: {failed.total()} of {len(failures)} calls failed ({reasons}); run it again to go on")


def _task(transition: Transition) -> str:
    return transition.task_id or transition.trajectory


def _name(transition: Transition) -> str:
    return f"{transition.trajectory}/{transition.turn}/{transition.observation.call}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
