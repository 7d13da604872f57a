"""Supervised fine-tuning on an agent's dialogues: the objectives' columns of rows of tokens, the same on both hosts.

The host trains on the agent's tokens, as ever; what the environment said is in a row's spans (`data.rows`).
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from wm_plugin.errors import UserError
from wm_plugin.objectives.empty_batches import Tally, likely_causes
from wm_plugin.objectives.information import category
from wm_plugin.objectives.run import Objectives, RunObjective
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.spans import Decode, Ending, Origin, Span, texts_of, zero_runs

ENVIRONMENT = "wm_environment"  # column (T,), 1 = the environment's token, before any selection


class Dialogue(NamedTuple):
    """A row of tokens."""

    ids: Sequence[int]  # (T,)
    trained: Sequence[int]  # (T,), 1 = the host trains on the token; empty: nothing is known of the row
    spans: Sequence[Span]  # what the environment said
    reward: float | None = None


class Dialogues:
    """Makes the objectives' columns.

    Args:
        running: the run's objectives.
        decode: token ids -> text, without special tokens.
    """

    def __init__(self, running: Sequence[RunObjective], decode: Decode) -> None:
        self._running, self._decode = running, decode
        every = [one.objective for one in running]
        self._texts = any(one.select or one.select_rollout or one.turn_information for one in every)
        self._categorize = any(one.turn_information for one in every)
        self._rollouts = any(one.select_rollout for one in every)

    def columns(
        self, row: Dialogue, start: int = 0, stop: int | None = None, *, held_out: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return the columns of the row's tokens [start, stop): (T,) each, and (1,) where `objectives.run` has one value a row.

        The first token never counts: nothing predicts it.

        Args:
            held_out: whether the row is an evaluation's.
        """
        length = len(row.ids)
        stop = length if stop is None else stop
        ending = Ending.COMPLETE if stop == length else Ending.TRUNCATED
        origins = []
        for origin in self._origins(row):
            span = origin.span
            part = span._replace(start=max(span.start, start + 1) - start, end=min(span.end, stop) - start)
            if part.end > part.start:
                origins.append(origin._replace(span=part, ending=ending))
        environment = torch.zeros(stop - start, dtype=torch.int8)
        for origin in origins:
            environment[origin.span.start : origin.span.end] = 1
        columns = {ENVIRONMENT: environment}
        rollout = None
        if self._rollouts and len(row.trained):
            rollout = self._messages(row), math.nan if row.reward is None else row.reward
        for one in self._running:
            tally = Tally(environment=int(environment.sum()))
            spans = one.weigh([origins], [False], tally, rollouts=[rollout], held_out=held_out)
            columns |= {
                name: values[0] if values.ndim == 2 else values
                for name, values in one.columns(spans, stop - start).items()
            }
        return columns

    def check(self, rows: Iterable[Dialogue], where: str, limit: str) -> None:
        """Refuse a training set without a token that may ever count.

        Args:
            where: the setting that names it. limit: the setting that limits a row's length.

        Raises:
            UserError: an objective with a coefficient has none; the message says what leaves them out.
        """
        active = [one for one in self._running if one.objective.active]
        totals = [Tally() for _ in active]
        for row in rows:
            self.columns(row)
            totals = [Tally.sum([total, one.tallies[-1]]) for total, one in zip(totals, active, strict=True)]
            if all(total.selected for total in totals):
                return
        for one, tally in zip(active, totals, strict=True):
            if tally.selected:
                continue
            name = f" {one.name}" if one.name else ""
            if not tally.environment:
                raise UserError(
                    f"{where} has no observations, on which the objective{name} trains: give dialogues with tool results or a "
                    "user's replies, or rows of wm data build --as imitation --tokenizer"
                )
            causes = likely_causes(tally, one.objective, environment=tally.environment, selected=0, limit=limit)
            raise UserError(f"{where}: the objective{name} has no token to train on: {'; '.join(causes)}")

    def _origins(self, row: Dialogue) -> list[Origin]:
        if not self._texts:
            return [Origin(span) for span in row.spans]
        origins = []
        for span, (action, text) in zip(row.spans, self._turns(row)[0], strict=True):
            message = {"role": span.role, "content": text, **({"name": span.tool} if span.tool else {})}
            origins.append(Origin(span, message, category=category(action, text) if self._categorize else None))
        return origins

    def _turns(self, row: Dialogue) -> tuple[list[tuple[str, str]], int, torch.Tensor]:
        """Return the texts (action, observation) of each span, where the agent first spoke, and the mask of its tokens."""
        begin = next((place for place, counts in enumerate(row.trained) if counts), 0)
        begin = min([begin, *(span.start for span in row.spans)])
        agents = torch.ones(len(row.ids) - begin, dtype=torch.uint8)
        spans = [span._replace(start=span.start - begin, end=span.end - begin) for span in row.spans]
        for span in spans:
            agents[span.start : span.end] = 0
        return texts_of(spans, row.ids[begin:], agents, self._decode), begin, agents

    def _messages(self, row: Dialogue) -> list[Message]:
        """Return the dialogue's messages from the agent's first one on, as `select_rollout` takes them: texts of their tokens."""
        texts, begin, agents = self._turns(row)
        messages: list[Message] = []
        before = begin
        for start, end in [*zero_runs(agents), (len(agents), len(agents))]:
            if begin + start > before:
                content = self._decode(list(row.ids[before : begin + start]))
                messages.append({"role": "assistant", "content": content})
            for span, (_, text) in zip(row.spans, texts, strict=True):
                if span.content and begin + start <= span.start < begin + end:
                    messages.append({"role": span.role, "content": text, **({"name": span.tool} if span.tool else {})})
            before = begin + end
        return messages


def check_objectives(objectives: Objectives, where: str) -> None:
    """Refuse options that only rollouts give a meaning.

    Args:
        where: what an option's name begins with, e.g. `echo_`.

    Raises:
        UserError: an option has no meaning in fine-tuning.
    """
    for one in objectives.values():
        if one.zero_variance_groups != "keep":
            raise UserError(
                f"{where}zero_variance_groups is {one.zero_variance_groups}, and in fine-tuning there are no groups of rollouts; "
                "leave it out"
            )
        if one.tempered and one.preset_name is None:  # a preset says it of its own trainer's rollouts
            raise UserError(f"{where}tempered is true, and fine-tuning samples at no temperature; leave it out")
