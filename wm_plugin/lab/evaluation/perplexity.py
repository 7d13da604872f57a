"""How well a model predicts general text, before and after a training.

ECHO's probe is the beginning of 200 documents, at most 256 tokens each. A document is a text file, or a row of JSON lines, JSON
or parquet with a text field. Perplexity is exp of the mean negative log-likelihood over all tokens that follow another one; a
token with which the tokenizer begins every text does not count.
"""

import math
import random
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wm_plugin.data import files
from wm_plugin.errors import UserError, shown
from wm_plugin.lab.evaluation.intervals import Ratio, compare, interval
from wm_plugin.lab.evaluation.measures import Measure
from wm_plugin.lab.evaluation.one_step import OneStep, evaluate
from wm_plugin.untrusted import encodable

DOCUMENTS, TOKENS = 200, 256  # ECHO's
ROWS = (".json", ".jsonl", ".parquet")  # the endings of files that hold rows
_CHARACTERS = 16  # tokenized at first for each token that is wanted
_LARGEST = 1 << 24  # bytes that are read of a text file


class Document(NamedTuple):
    """A text, and where it is from."""

    name: str
    text: str


class Reader:
    """Reads documents. `failures` counts what is no document, by reason."""

    def __init__(self, field: str = "text") -> None:
        self.field = field
        self.failures: Counter[str] = Counter()

    def __call__(self, sources: Sequence[str | Path]) -> Iterator[Document]:
        """Read the documents of files, and of the files in folders."""
        for source in map(Path, sources):
            inside = [path for path in sorted(source.rglob("*")) if path.is_file()] if source.is_dir() else [source]
            if not inside:
                raise UserError(f"{source}: the folder has no file")
            for path in inside:
                yield from self._rows(path) if path.name.removesuffix(".gz").endswith(ROWS) else self._text(path)

    def _text(self, path: Path) -> Iterator[Document]:
        with files.open_file(path) as file:
            try:
                data = file.read(_LARGEST)
                # a character may be cut at the end
                text = getincrementaldecoder("utf-8")().decode(data, final=len(data) < _LARGEST)
            except UnicodeDecodeError:
                self.failures["not UTF-8"] += 1
                return
            except files.BROKEN as error:
                raise UserError(f"{path}: {error}") from None
        yield from self._document(str(path), text)

    def _rows(self, path: Path) -> Iterator[Document]:
        keys: Iterable[str] = ()
        found = False
        for record in files.records(path, files.head(path)):
            value = record.value.get(self.field) if isinstance(record.value, Mapping) else None
            if isinstance(value, str):
                found = True
                yield from self._document(f"{path}:{record.row}", value)
            else:
                keys = record.value if isinstance(record.value, Mapping) else keys
                self.failures["no text" if record.error is None else record.error.kind] += 1
        if not found:
            has = ", ".join(map(shown, list(keys)[:8])) or "none"
            raise UserError(
                f"{path}: no row has a text in {self.field!r}; name the field by --field (its fields: {has})"
            )

    def _document(self, name: str, text: str) -> Iterator[Document]:
        if text.strip():
            yield Document(name, encodable(text))
        else:
            self.failures["empty"] += 1


def drawn(documents: Iterable[Document], count: int, seed: int | None = None) -> list[Document]:
    """Return the first `count` documents; with a seed as many random ones, in the order in which they come."""
    if seed is None:
        return list(islice(documents, count))
    generator = random.Random(seed)
    chosen: list[tuple[int, Document]] = []
    for number, document in enumerate(documents):
        if number < count:
            chosen.append((number, document))
        elif (place := generator.randrange(number + 1)) < count:
            chosen[place] = (number, document)
    return [document for _, document in sorted(chosen)]


def windows(tokenizer: Any, text: str, size: int, total: int) -> list[list[int]]:
    """Return a text's first `total` token ids in windows of `size`, without windows of fewer than two tokens.

    Only as much of the text is tokenized as is needed.
    """
    length = _CHARACTERS * (total + 1)
    while True:
        ids = tokenizer(encodable(text[:length]), add_special_tokens=False, verbose=False).input_ids
        if length >= len(text) or len(ids) > total:
            break
        length *= 4
    begin = tokenizer.bos_token_id
    begins = begin is not None and tokenizer(encodable("x")).input_ids[:1] == [begin]
    first, ids = [begin] if begins else [], ids[:total]
    rows = [first + ids[start : start + size] for start in range(0, len(ids), size)]
    return [row for row in rows if len(row) > 1]


def score(model: torch.nn.Module, rows: Sequence[Sequence[int]], *, batch_size: int = 8) -> OneStep:
    """Score each window, the longest ones first: a lack of memory shows at once. All tokens but a window's first count."""
    order = sorted(range(len(rows)), key=lambda place: -len(rows[place]))
    ordered = [rows[place] for place in order]
    step = evaluate(model, ordered, [[0] + [1] * (len(row) - 1) for row in ordered], batch_size=batch_size)
    back = torch.tensor(sorted(range(len(order)), key=order.__getitem__))
    return OneStep(step.nll[back], step.tokens[back], step.exact[back], step.observations[back])


@dataclass(frozen=True)
class Texts:
    """Documents as windows of tokens, with the name of each window's document."""

    rows: list[list[int]] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)


def tokenized(tokenizer: Any, documents: Iterable[Document], size: int, most: int = 1) -> Texts:
    """Cut documents into windows, at most `most` each. A document of less than two tokens has none."""
    texts = Texts()
    for document in documents:
        rows = windows(tokenizer, document.text, size, size * most)
        texts.rows.extend(rows)
        texts.documents.extend([document.name] * len(rows))
    return texts


def measures(texts: Texts, after: OneStep, before: OneStep | None, seed: int = 0) -> list[Measure]:
    """Measure `nll` and `perplexity`; with a model before it, also that one's (by "model") and the difference."""
    count, made = len(set(texts.documents)), []
    for group, step in (("", after), ("before", before)):
        if step is not None:
            limits = interval(step.nll.tolist(), step.tokens.tolist(), texts.documents, seed=seed)
            nll = Measure("nll", step.mean_nll, "nats", count, "model" if group else "", group, *limits)
            made += [_exponential(nll, "perplexity", "perplexity"), nll]
    if before is not None:
        value = after.mean_nll - before.mean_nll
        nll = Measure("nll_difference", value, "nats", count, note="one document: no interval")
        if count > 1:
            paired = compare(Ratio(after.nll, after.tokens), Ratio(before.nll, before.tokens), texts.documents, seed)
            note = f"after and before on the same tokens, by document, 99% interval: {paired.verdict}"
            nll = replace(nll, value=paired.difference, low=paired.low, high=paired.high, note=note)
        made += [nll, _exponential(nll, "perplexity_ratio", "ratio")]
    return made


def _exponential(one: Measure, name: str, unit: str) -> Measure:
    value, low, high = (
        None if limit is None else math.exp(limit) if limit < 700 else math.inf
        for limit in (one.value, one.low, one.high)
    )
    return replace(one, name=name, unit=unit, value=value, low=low, high=high)


def rows(texts: Texts, after: OneStep, before: OneStep | None) -> Iterator[dict[str, Any]]:
    """Make a row for each window."""
    steps = {"nll": after, **({"nll_before": before} if before else {})}
    for place, name in enumerate(texts.documents):
        scores = {key: float(step.nll[place] / step.tokens[place]) for key, step in steps.items()}
        yield {"document": name, "tokens": int(after.tokens[place]), "scores": scores}
