"""The world-model objective inside TRL's SFT trainer: an agent's dialogues, with what the environment said as a term of its own.

The host trains on the agent's tokens, as ever. The term takes the log-probabilities of the environment's tokens from the same
forward, whose labels are completed by these tokens; the host sees its own labels only.

Which tokens these are must survive the host's preparation of rows (it cuts and packs them) and its collator. A label that the
host ignores is a number of ours meanwhile: the token's place among all tokens of the run's rows. Our collator gives the host its
labels back, and looks up what is known of the place.
"""

import copy
import logging
import secrets
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from trl import SFTConfig, SFTTrainer

from wm_plugin.data.rows import REWARD
from wm_plugin.data.tokenize import Tokeniser
from wm_plugin.errors import UserError
from wm_plugin.hosting.dialogues import ENVIRONMENT, Dialogue, Dialogues
from wm_plugin.objectives.base import Objective
from wm_plugin.objectives.metrics import learn_tools
from wm_plugin.objectives.run import TRAJECTORIES, WEIGHTS, Objectives, RunObjective, column
from wm_plugin.tokens.spans import SPAN_FIELD, Span, read_spans
from wm_plugin.trl import optimizers, sft_support, sharding, support
from wm_plugin.trl.callbacks import EndCallback
from wm_plugin.trl.settings import ObjectiveSettings, TrainerFields
from wm_plugin.trl.term import EvaluatedMixin, no_coefficient_warning, resolve
from wm_plugin.untrusted import loads

logger = logging.getLogger(__name__)
LIMIT = "max_length"  # the host's setting that limits a row's length
IGNORED = -100  # the host's label of a token that it does not train on
_CODES = -1000  # labels from here on downwards are places: -1000 - 2 * place - (1 where the host trains on the token)


@dataclass
class WorldModelSFTConfig(ObjectiveSettings, SFTConfig):
    """`SFTConfig` and the fields of `EchoConfig`, each with the prefix `echo_`."""

    def __post_init__(self) -> None:
        for name in ("turn_budget", "look_ahead", "max_lost"):
            if getattr(self, name) != getattr(TrainerFields, name):
                raise UserError(f"{name} is of episodes, which fine-tuning does not play; leave it out")
        self.objectives()  # says what is wrong before the host's own checks, which may load a device
        super().__post_init__()


class WorldModelSFTTrainer(EvaluatedMixin, SFTTrainer):
    """TRL's `SFTTrainer` with the world-model term on what the environment said.

    Rows are dialogues (`messages`, or `prompt` and `completion`, with `tools`), or the tokens that `wm data build --as imitation
    --tokenizer` writes. The observations are what others said after the agent's first turn; N counts those of the whole optimizer
    batch, apart from the agent's tokens. `eval_loss` is the host's own, of the agent's tokens.

    With `coeff` 0 for the whole run, loss, gradients, parameters and random numbers are those of the host, bit by bit. The
    environment tokens' NLL is then measured on a CPU alone: elsewhere the host's head computes the log-probabilities of the
    tokens that it trains on and no others, and more of them would change its rounding.

    Args:
        world_model: the objective, or several by name, {name: EchoConfig(...)}. The `echo_*` fields of a `WorldModelSFTConfig`
            are the same thing; giving both is an error.

    Raises:
        UserError: a combination that is not known to be exact (see `wm_plugin.trl.sft_support`), with the way out.
    """

    data_collator: Any  # the host's
    _wm_explores = False  # an agent that is cloned becomes surer of its actions, and should

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *more: Any,
        world_model: Objective | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        support.check_arguments(model)
        self._wm_asked = objectives = resolve(world_model, args)
        self._wm_rows = Rows()
        self._wm_tokeniser: Tokeniser | None = None
        if objectives:
            try:
                sft_support.require()
                sft_support.check_rows(args, *more, **kwargs)
            except UserError as error:
                if objectives.active:
                    raise
                logger.warning("environment tokens are not measured (coeff is 0): %s", error)
                self._wm_asked = objectives = Objectives()
        super().__init__(model, args, *more, **kwargs)
        sharding.warn(self)
        support.warn_untested()
        optimizers.put(self)
        self._wm_log(no_coefficient_warning(world_model, self.args, None))
        if not objectives:
            return
        self._wm_trains = self._wm_rows.parts[0]  # prepared first
        running: list[RunObjective] = []
        try:
            sft_support.check(self, objectives, self._wm_rows.tools)
            running = self._wm_make_running(objectives, self._wm_rows.tools)
            if self._wm_rows.doubled and objectives.active:
                raise UserError(
                    "the host's loss counts the environment's tokens already, together with the agent's, which they outnumber; "
                    "write assistant_only_loss: true, or train on rows of wm data build --as imitation --tokenizer"
                )
        except UserError as error:
            if objectives.active:
                raise
            logger.warning("environment tokens are not measured (coeff is 0): %s", error)
        decode = partial(self.processing_class.decode, skip_special_tokens=True)
        dialogues = Dialogues(running, decode)
        self.data_collator = Collator(self.data_collator, self._wm_rows, dialogues, running)
        if not running:
            return
        if objectives.active:
            dialogues.check(self._wm_trains, "the training set", LIMIT)
        self._wm_start(objectives, running)
        self.add_callback(EndCallback(self._wm_end))

    def _wm_make_running(self, objectives: Objectives, tools: Any) -> list[RunObjective]:
        names = learn_tools([], tools)
        return [RunObjective(name, one, limit=LIMIT, tools=names) for name, one in objectives.items()]

    # -- rows: the environment's tokens keep their places ----------------------------------------------------------------------

    def _prepare_dataset(
        self, dataset: Any, processing_class: Any, args: Any, packing: bool, formatting_func: Any, dataset_name: str
    ) -> Any:
        if not self._wm_asked:
            return super()._prepare_dataset(dataset, processing_class, args, packing, formatting_func, dataset_name)
        whole = copy.copy(args)
        whole.max_length, whole.shuffle_dataset = None, False
        tokens = super()._prepare_dataset(dataset, processing_class, whole, False, formatting_func, dataset_name)
        part = Part.read(tokens, partial(self._wm_spans, processing_class))
        if part.problem:
            problem = f"{dataset_name} dataset, row {part.problem[0]}: {part.problem[1]}"
            if self._wm_asked.active:
                raise UserError(problem)
            logger.warning("environment tokens of the %s are not measured (coeff is 0)", problem)
        self._wm_rows.add(part)
        coded = tokens.map(
            part.encode,
            with_indices=True,
            load_from_cache_file=False,
            new_fingerprint=secrets.token_hex(8),
            desc="Placing",
        )
        if args.max_length is not None and not packing:
            # the host drops rows that are cut before the agent speaks; to it, places are labels like others
            kept = (
                slice(None, args.max_length) if args.truncation_mode == "keep_start" else slice(-args.max_length, None)
            )
            speaks = [bool((np.asarray(labels[kept]) != IGNORED).any()) for labels in tokens["labels"]]
            if not all(speaks):
                coded = coded.select(np.flatnonzero(speaks))
        return super()._prepare_dataset(coded, processing_class, args, packing, formatting_func, dataset_name)

    def _wm_spans(self, processing_class: Any, row: dict[str, Any]) -> list[Span]:
        """Return what the environment said in a row that the host has tokenised."""
        ids = row["input_ids"]
        if SPAN_FIELD in row:
            return read_spans(row[SPAN_FIELD] or (), np.zeros(len(ids), dtype=np.int8))
        if isinstance(row.get("messages"), list):
            messages, first = row["messages"], 0
        elif isinstance(row.get("prompt"), list) and isinstance(row.get("completion"), list):
            messages, first = row["prompt"] + row["completion"], len(row["prompt"])
        else:
            return []
        tools = row.get("tools")
        tools = loads(tools) if isinstance(tools, str) else tools
        trained = [label != IGNORED for label in row["labels"]]
        more = row.get("chat_template_kwargs")
        if self._wm_tokeniser is None:
            self._wm_tokeniser = Tokeniser(processing_class, self.chat_template)
        return self._wm_tokeniser.observed(messages, tools or (), ids, trained, first=first, chat_template_kwargs=more)

    # -- the count and the loss ------------------------------------------------------------------------------------------------

    def _wm_count(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self._wm.counts(inputs, inputs[ENVIRONMENT]).to(self.accelerator.device)

    def _wm_count_window(self) -> torch.Tensor:
        return torch.stack([self._wm_count(batch) for batch in self._wm_window.batches]).sum(dim=0)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if not self._wm:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        columns = {name: inputs.pop(name) for name in [*inputs] if name.startswith("wm_")}
        training = self.model.training
        if training:
            columns["wm_num_tokens"] = self._wm_num_tokens()
        if not (self._wm.active or self.accelerator.device.type == "cpu"):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not training:
            columns["wm_num_tokens"] = self.accelerator.reduce(self._wm_count(columns), reduction="sum")[:, 0]
        selected = torch.stack([columns[column(WEIGHTS, name)] for name in self._wm]).ne(0).any(dim=0)
        found: list[torch.Tensor] = []

        def forward(**words: Any) -> Any:
            if not words.get("fused_lm_head"):
                return model(**words)
            labels = words["labels"]
            trained = labels[:, 1:] != IGNORED
            both = labels.clone()
            both[:, 1:] = torch.where(selected, words["input_ids"][:, 1:], labels[:, 1:])
            outputs = model(**{**words, "labels": both})
            if outputs.log_probs.shape != trained.shape:
                raise UserError(
                    "the model has tokens of its own before a row's (prompt or prefix tuning), which the world-model term cannot "
                    "tell from them; use another adapter, or coeff 0"
                )
            found.append(outputs.log_probs)
            own = {name: outputs[name].masked_fill(~trained, 0) for name in ("log_probs", "entropy", "is_top1")}
            return type(outputs)(**{**outputs, **own, "label_mask": trained})

        result = super().compute_loss(forward, inputs, return_outputs, num_items_in_batch)
        if len(found) != 1:
            raise RuntimeError(
                f"the loss computed log-probabilities {len(found)} times instead of once; which of them the world-model term "
                "should use is not known"
            )
        columns["advantages"] = (inputs["labels"][:, 1:] != IGNORED).float()
        columns["wm_masked"] = torch.zeros((), device=found[0].device)
        loss = self._wm_add(result[0] if return_outputs else result, found[0], columns)
        if not training:  # the figures are measured; the loss of evaluations stays the host's
            return result
        return (loss, result[1]) if return_outputs else loss


class Part:
    """The rows of one dataset: what is known of each, and where its tokens begin among the run's."""

    def __init__(
        self, dataset: Dataset, spans: list[list[Span]], lengths: list[int], problem: tuple[int, str] | None
    ) -> None:
        self.spans, self.problem, self.first = spans, problem, 0
        names = [name for name in ("input_ids", "labels", REWARD) if name in dataset.column_names]
        self._dataset = dataset.select_columns(names)
        self._starts = [0, *np.cumsum(lengths).tolist()]
        self.doubled = False  # whether the host trains on tokens of the environment

    @classmethod
    def read(cls, dataset: Dataset, find: Any) -> "Part":
        """Read rows that the host has tokenised; a row whose spans are not known is the part's `problem`, and no row has any."""
        spans, lengths, problem = [], [], None
        for number, row in enumerate(dataset):
            lengths.append(len(row["input_ids"]))
            if problem is None:
                try:
                    spans.append(find(row))
                except UserError as error:
                    problem = number, str(error)
        return cls(dataset, [[] for _ in lengths] if problem else spans, lengths, problem)

    @property
    def size(self) -> int:
        return int(self._starts[-1])

    @property
    def tools(self) -> set[str]:
        return {span.tool for own in self.spans for span in own if span.tool is not None}

    def encode(self, row: dict[str, Any], number: int) -> dict[str, Any]:
        """Write places where the host ignores a token, and where it trains on one of the environment."""
        labels, ids = np.asarray(row["labels"], dtype=np.int64), np.asarray(row["input_ids"], dtype=np.int64)
        places = self.first + self._starts[number] + np.arange(len(labels))
        environment = np.zeros(len(labels), dtype=bool)
        for span in self.spans[number]:
            environment[span.start : span.end] |= span.content
        trained = labels != IGNORED
        doubled = environment & trained & (labels == ids)
        self.doubled |= bool(doubled.any())
        return {"labels": np.where(~trained | doubled, _CODES - 2 * places - trained, labels)}

    def find(self, place: int) -> tuple[int, int]:
        """Return the row and the token that a place is."""
        number = bisect_right(self._starts, place - self.first) - 1
        return number, place - self.first - self._starts[number]

    def __getitem__(self, number: int) -> Dialogue:
        row = self._dataset[number]
        trained = [int(label != IGNORED) for label in row["labels"]]
        return Dialogue(row["input_ids"], trained, self.spans[number], row.get(REWARD))

    def __iter__(self) -> Iterator[Dialogue]:
        return (self[number] for number in range(len(self.spans)))


class Rows:
    """The rows of all of a run's datasets."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def add(self, part: Part) -> None:
        part.first = self.parts[-1].first + self.parts[-1].size if self.parts else 0
        self.parts.append(part)

    @property
    def tools(self) -> set[str]:
        return {name for part in self.parts for name in part.tools}

    @property
    def doubled(self) -> bool:
        return self.parts[0].doubled

    def find(self, place: int) -> tuple[Part, int, int]:
        part = self.parts[bisect_right([one.first for one in self.parts], place) - 1]
        return part, *part.find(place)


class Collator:
    """Collates as the host does, and adds the objectives' columns, (B, T - 1): those of `labels` without the first.

    Args:
        collate: the host's.
    """

    def __init__(self, collate: Any, rows: Rows, dialogues: Dialogues, running: Sequence[RunObjective]) -> None:
        self._collate, self._rows, self._dialogues, self._running = collate, rows, dialogues, running

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        restored, columns = [], []
        for example in examples:
            labels, ids = (
                np.asarray(example["labels"], dtype=np.int64),
                np.asarray(example["input_ids"], dtype=np.int64),
            )
            coded = labels <= _CODES
            places, trained = np.divmod(_CODES - labels, 2)
            restored.append(
                {**example, "labels": np.where(coded, np.where(trained == 1, ids, IGNORED), labels).tolist()}
            )
            if self._running:
                lengths = example.get("seq_lengths") or [len(labels)]
                columns.append(self._columns(np.where(coded, places, -1), lengths))
        batch = self._collate(restored)
        if not self._running:
            return batch
        for name in columns[0]:
            values = [own[name] for own in columns]
            if name.startswith(TRAJECTORIES):
                batch[name] = (
                    torch.cat(values) if len(batch["labels"]) == len(values) else torch.cat(values).sum()[None]
                )
                continue
            if len(batch["labels"]) != len(values):  # without padding, the rows are one
                values = [torch.cat(values)]
            padded = pad_sequence(values, batch_first=True)
            batch[name] = torch.nn.functional.pad(padded, (0, batch["labels"].size(1) - padded.size(1)))[:, 1:]
        return batch

    def _columns(self, places: np.ndarray, lengths: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the columns of an example that is one row, or several that are packed."""
        parts: list[dict[str, torch.Tensor]] = []
        position = 0
        for length in lengths:
            parts += self._pieces(places[position : position + length])
            position += length
        summed = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return {
            name: values.sum()[None] if name.startswith(TRAJECTORIES) else values for name, values in summed.items()
        }

    def _pieces(self, places: np.ndarray) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the columns of pieces of rows, of which one follows the other where the host packs without their lengths."""
        begin = 0
        while begin < len(places):
            known = np.flatnonzero(places[begin:] >= 0)
            if not len(known):
                yield self._dialogues.columns(Dialogue([0] * (len(places) - begin), (), ()))
                return
            part, number, token = self._rows.find(int(places[begin + known[0]]))
            row = part[number]
            start = token - int(known[0])
            # what comes before the row's first token is the end of another, on all of which the host trains
            if start < 0:
                yield self._dialogues.columns(Dialogue([0] * -start, (), ()))
                begin, start = begin - start, 0
            stop = min(len(row.ids), start + len(places) - begin)
            yield self._dialogues.columns(row, start, stop, held_out=part is not self._rows.parts[0])
            begin += stop - start
