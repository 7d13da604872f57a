"""Whether a prediction means what the observation means: the cosine of their embeddings (RWML, §2.2).

    d = 1 − cos(E(prediction), E(target));  the reward is 1 if d < τ_d, else 0

The threshold keeps vague predictions from earning anything. According to the paper, above 0.5 a general description is enough,
and below 0.1 only the text itself is.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from wm_plugin.client.replies import vector
from wm_plugin.client.server import MAX_REPLY, Failure, Server, ServerOptions
from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.rewards.base import TextReward, check_least, mean

_ROWS = 1024  # compared at once, to bound the memory of a large call
_LONGEST_WORD, _CONTEXT = 40, 16  # characters
# Refusals of a text; others are about the key, the address or the model.
_TEXT_REFUSED = ("status 400", "status 413", "status 422")
# Failures that a text may cause: the model gives NaN, or the text is too long for it.
_TEXT_MAY_FAIL = ("server error", "malformed", "too large")
_TRUNCATED = {"truncate_prompt_tokens": -1}  # vLLM's: as many as fit the model
_MAX_EMBEDDING = 1 << 18  # bytes of an embedding as JSON: 10,000 dimensions


class EmbeddingReward(TextReward):
    """1 if the cosine distance is strictly below the threshold, else 0; without a threshold the cosine, from 0 to 1.

    A negative cosine gives 0. Surrounding white space is ignored. Equal texts have distance 0, and a blank text has distance 1 to
    every other text. A call encodes each text once; embeddings of targets are kept for later calls.

    A model sees its window and silently cuts the rest (`all-MiniLM-L6-v2`: 256 tokens). Longer texts are compared from where they
    begin to differ, in the same number of parts that fit, and the part that differs most decides: much that is right does not
    hide a wrong end. A prediction that takes more than twice as many parts as the observation has distance 1.

    Args:
        model: a folder or name for sentence-transformers (extra `embed`), or the model's name on the server. The paper has
            Qwen/Qwen3-Embedding-8B. A threshold is only valid for one model.
        threshold: τ_d, in (0, 2]. RWML trains with 0.2 on ALFWorld and with 0.4 on users' replies in τ²-bench.
        base_url: an OpenAI-compatible server with `/embeddings`, such as http://localhost:8000/v1 (extra `server`).
        tag: see `TaggedReward`.
        batch_size: texts per forward pass, or per request.
        cache_size: number of targets whose embeddings are kept, least recently used first to go; 4 bytes per dimension each.
        max_chars: texts of more characters are compared in parts too. It bounds what a server gets, whose window is unknown.
        device: for a model in this process; None takes a GPU if there is one, which the reward then shares with the training.
        truncate: ask a server again about texts that it refuses, with vLLM's `truncate_prompt_tokens: -1`, which compares only
            their beginning. A smaller `max_chars` compares the end too.
        server: further settings of `client.server.Server`, such as {"timeout": 120}; `parameters` are sent in requests.

    Attributes:
        figures: also, over predictions, `cosine`, the mean; `beyond_window`, the share compared in parts; and with a server
            `failures/refused`, the share with a text that it refuses or fails on by itself (too long, say), which gets cosine 0.
            With `truncate`, `truncated`: the share with a text of which only the beginning is compared.

    Raises:
        UserError: a setting is invalid, or there is no such model; from a call: the server gave no embeddings, after retries.
        MissingExtraError: sentence-transformers or aiohttp is not installed.
    """

    def __init__(
        self,
        model: str | Path,
        threshold: float | None = None,
        *,
        base_url: str | None = None,
        tag: str | None = None,
        batch_size: int = 32,
        cache_size: int = 4096,
        max_chars: int = 20_000,
        device: str | None = None,
        truncate: bool = False,
        server: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(tag=tag)
        if threshold is not None and not 0 < threshold <= 2:
            raise UserError(
                f"threshold is {shown(threshold)}; write a distance in (0, 2], such as 0.2, or leave it out"
            )
        check_least(1, batch_size=batch_size, max_chars=max_chars)
        check_least(0, cache_size=cache_size)
        if base_url is None and truncate:
            raise UserError(
                "truncate is for a server, but base_url is not set; leave it out: long texts are compared in parts"
            )
        if base_url is None and server:
            raise UserError("server has settings, but base_url is not set; write the server's address there")
        self.threshold, self.cache_size, self.max_chars = threshold, cache_size, max_chars
        self.truncate = truncate
        self._model: _Local | _Remote = (
            _Local(str(model), batch_size, device)
            if base_url is None
            else _Remote(base_url, str(model), batch_size, truncate, server or {})
        )
        self._targets: OrderedDict[bytes, tuple[Tensor, bool]] = OrderedDict()  # vector, whether truncated
        self._truncated: set[str] = set()  # texts of a call
        self._lock = threading.Lock()

    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        distances, beyond, refused, truncated = self._distances(predictions, targets)
        cosines = [1 - distance for distance in distances]
        if self.threshold is None:
            scores = [max(0.0, cosine) for cosine in cosines]
        else:
            scores = [float(distance < self.threshold) for distance in distances]
        rows = max(len(targets), 1)
        figures = {"cosine": mean(cosines), "beyond_window": beyond / rows}
        if isinstance(self._model, _Remote):
            figures["failures/refused"] = refused / rows
        if self.truncate:
            figures["truncated"] = truncated / rows
        return scores, figures

    def distances(self, predictions: list[str], targets: list[str]) -> list[float]:
        """Return 1 − cosine of each prediction, from 0 to 2, whatever the threshold. The inputs are predictions, without tags."""
        return self._distances(predictions, targets)[0]

    def share_beyond_window(self, texts: list[str]) -> float:
        """Return the share of texts longer than the model's window, or than `max_chars`."""
        with self._lock:
            return mean([float(self._count_parts(_clean(text)) > 1) for text in texts])

    def _distances(self, predictions: list[str], targets: list[str]) -> tuple[list[float], int, int, int]:
        """Return the distances, and how many rows are beyond the window, refused and truncated."""
        pairs = [(_clean(a), _clean(b)) for a, b in zip(predictions, targets, strict=True)]
        distances = [float(a != b) for a, b in pairs]  # of equal texts and of blank ones
        different = [row for row, (a, b) in enumerate(pairs) if a and b and a != b]
        refused = truncated = 0
        with self._lock:
            self._truncated = set()
            counts = {text: self._count_parts(text) for text in dict.fromkeys(text for pair in pairs for text in pair)}
            for start in range(0, len(different), _ROWS):
                rows = different[start : start + _ROWS]
                compared = [self._in_parts(*pairs[row], counts) for row in rows]
                cosines = iter(self._cosines([part for parts in compared for part in parts]))
                for row, parts in zip(rows, compared, strict=True):
                    of_parts = [next(cosines) for _ in parts]
                    refused += None in of_parts
                    truncated += any(self._truncated.intersection(part) for part in parts)
                    distances[row] = max((1 - (cosine or 0.0) for cosine in of_parts), default=1.0)
        return distances, sum(max(counts[a], counts[b]) > 1 for a, b in pairs), refused, truncated

    def _count_parts(self, text: str) -> int:
        """Return the number of equal parts of a text that each fit into the model's window."""
        limit = self._model.limit
        count = -(-len(text) // self.max_chars) or 1
        if limit is None:
            return count
        count = max(count, -(-self._model.tokens(text) // limit))
        while count < len(text) and any(self._model.tokens(part) > limit for part in equal_parts(text, count)):
            count += 1 + count // 8
        return count

    def _in_parts(self, prediction: str, target: str, counts: Mapping[str, int]) -> list[tuple[str, str]]:
        """Return the parts to compare; none for a prediction that is far too long, so that the observation bounds the time."""
        predicted, observed = counts[prediction], counts[target]
        if predicted == observed == 1:
            return [(prediction, target)]
        if predicted > 2 * observed:
            return []
        start = _differ(prediction, target)
        prediction, target = prediction[start:], target[start:]
        count = max(map(self._count_parts, (prediction, target)))
        return list(zip(equal_parts(prediction, count), equal_parts(target, count), strict=True))

    def _cosines(self, pairs: list[tuple[str, str]]) -> list[float | None]:
        """Return the cosine of each pair; None if the model refuses one of its texts."""
        cosines: list[float | None] = [float(a == b) for a, b in pairs]
        different = {row: pair for row, pair in enumerate(pairs) if pair[0] and pair[1] and pair[0] != pair[1]}
        if not different:
            return cosines
        vectors = self._vectors([a for a, _ in different.values()], [b for _, b in different.values()])
        known = [row for row, pair in different.items() if vectors.keys() >= set(pair)]
        for row in different:
            cosines[row] = None
        if known:
            a, b = (torch.stack([vectors[pairs[row][side]] for row in known]).double() for side in (0, 1))
            for row, cosine in zip(known, (a * b).sum(1).clamp(-1, 1).tolist(), strict=True):
                cosines[row] = cosine
        return cosines

    def _vectors(self, predicted: list[str], observed: list[str]) -> dict[str, Tensor]:
        """Return unit vectors by text, without the texts that the model refuses."""
        keys = {text: _key(text) for text in dict.fromkeys(observed)}
        kept = {text: self._targets[key] for text, key in keys.items() if key in self._targets}
        vectors = {text: vector for text, (vector, _) in kept.items()}
        self._truncated |= {text for text, (_, truncated) in kept.items() if truncated}
        missing = [text for text in dict.fromkeys((*observed, *predicted)) if text not in vectors]
        if missing:
            answers = zip(missing, self._model(missing), strict=True)
            vectors |= {text: normalize(vector, dim=0) for text, vector in answers if vector is not None}
            self._truncated |= self._model.truncated
        for text, key in keys.items():
            if text not in vectors:
                continue
            # a copy, because a view keeps its whole batch alive
            self._targets.setdefault(key, (vectors[text].clone(), text in self._truncated))
            self._targets.move_to_end(key)
        while len(self._targets) > self.cache_size:
            self._targets.popitem(last=False)
        return vectors


class _Local:
    """A model of sentence-transformers in this process."""

    truncated: frozenset[str] = frozenset()

    def __init__(self, model: str, batch_size: int, device: str | None) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ModuleNotFoundError:
            raise MissingExtraError("EmbeddingReward", "sentence-transformers", "embed") from None
        try:
            self.model = SentenceTransformer(model, device=device)
        except (OSError, ValueError) as error:
            raise UserError(f"model {model!r}: {' '.join(str(error).split())[:200]}") from None
        self.batch_size = batch_size
        self.limit: int | None = self.model.get_max_seq_length()  # tokens of a text

    def tokens(self, text: str) -> int:
        """Return the number of a text's tokens, with those that the model adds."""
        return len(self.model.tokenizer(text, truncation=False, verbose=False)["input_ids"])

    def __call__(self, texts: list[str]) -> list[Tensor | None]:
        """Return the texts' embeddings: (dimensions,) each, float32 on the CPU."""
        vectors = self.model.encode(texts, batch_size=self.batch_size, convert_to_tensor=True, show_progress_bar=False)
        return list(torch.as_tensor(vectors).float().cpu())


class _Remote:
    """A model behind a server. Several batches are requested at the same time."""

    limit: int | None = None  # a server's is not known

    def tokens(self, text: str) -> int:
        raise NotImplementedError

    def __init__(self, base_url: str, model: str, batch_size: int, truncate: bool, settings: Mapping[str, Any]) -> None:
        max_reply = max(MAX_REPLY, batch_size * _MAX_EMBEDDING)
        usual = {"temperature": None, "max_tokens": None, "seed": None, "max_reply": max_reply}
        address = {"base_url": base_url, "model": model}
        if twice := address.keys() & settings:
            raise UserError(f"server: {min(twice)} is given beside it; leave it out here")
        self.server = Server(ServerOptions.read({**usual, **settings, **address}, "server"))
        self.batch_size, self.truncate = batch_size, truncate
        self.truncated: set[str] = set()  # texts of the last call
        self.dimensions = 0  # of the first embedding; all others must have as many
        self._failure = Failure("refused", "")  # the last one
        self._accepted = ""  # a text that the server embedded before
        self._mixed = False  # whether an embedding's dimensions differed from the first's: no fault of a text

    def __call__(self, texts: list[str]) -> list[Tensor | None]:
        """Return the texts' embeddings: (dimensions,) each, float32; None for a text that the server refuses or fails on.

        A request fails whole, though only one of its texts may be too long. Its texts are then requested one by one, and with
        `truncate` the refused ones a last time. If none succeeds, a text that succeeded before tells whether the texts or the
        server are to blame.
        """
        batches = [texts[start : start + self.batch_size] for start in range(0, len(texts), self.batch_size)]
        answers = self._ask(batches)
        alone = [text for batch, answer in zip(batches, answers, strict=True) if answer is None for text in batch]
        single = dict(zip(alone, self._ask([[text] for text in alone]), strict=True))
        long = [text for text, answer in single.items() if answer is None and self.truncate]
        single |= zip(long, self._ask([[text] for text in long], _TRUNCATED), strict=True)
        self.truncated = {text for text in long if single[text] is not None}
        vectors: list[Tensor | None] = []
        for batch, answer in zip(batches, answers, strict=True):
            if answer is None:
                vectors += [None if (one := single[text]) is None else one[0] for text in batch]
            else:
                vectors += list(answer)
        accepted = [text for text, one in zip(texts, vectors, strict=True) if one is not None]
        if not accepted and (not self._accepted or self._ask([[self._accepted]]) == [None]):
            raise self._error(self._failure)
        self._accepted = next((text for text in accepted if text not in self.truncated), self._accepted)
        return vectors

    def _ask(self, batches: list[list[str]], fields: Mapping[str, Any] | None = None) -> list[Tensor | None]:
        """Return each batch's embeddings; None if the server fails, perhaps because of a text."""
        answers: list[Tensor | None] = []
        for size, group in groupby(batches, len):  # only the last batch may be smaller
            bodies = [self._body(batch) | dict(fields or {}) for batch in group]
            for answer in self.server.post("/embeddings", bodies, partial(self._read, size)):
                if not isinstance(answer, Failure):
                    answers.append(answer)
                elif not self._mixed and (answer.kind in _TEXT_MAY_FAIL or answer.message.startswith(_TEXT_REFUSED)):
                    self._failure = answer
                    answers.append(None)
                else:
                    raise self._error(answer)
        return answers

    def _error(self, failure: Failure) -> UserError:
        too_long = failure.message.startswith(_TEXT_REFUSED) and not self.truncate
        hint = "; if the texts are too long for the model, write truncate: true" if too_long else ""
        return UserError(
            f"{self.server.base_url}: no embeddings of {self.server.model!r}, with up to {self.server.options.max_retries} "
            f"retries (the last answer: {failure.kind}, {failure.message}){hint}"
        )

    def _body(self, batch: list[str]) -> dict[str, Any]:
        return {"model": self.server.model, "input": batch, "encoding_format": "float", **self.server.parameters}

    def _read(self, count: int, answer: Any) -> Tensor:
        """Convert an answer to a batch's embeddings: (count, dimensions). `Server.post` counts its errors as malformed."""
        rows = sorted(answer["data"], key=itemgetter("index"))
        if [row["index"] for row in rows] != list(range(count)):
            raise ValueError("not an embedding for each text")
        lists = [vector(row["embedding"]) for row in rows]
        dimensions = self.dimensions or len(lists[0])
        if not dimensions or {len(one) for one in lists} != {dimensions}:
            self._mixed = True
            lengths = sorted({dimensions, *map(len, lists)})
            raise ValueError(f"embeddings of {' and '.join(map(str, lengths[:3]))} dimensions")
        vectors = torch.stack([torch.frombuffer(one, dtype=torch.float32) for one in lists])
        if not vectors.isfinite().all():
            raise ValueError("an embedding with a number that is not finite")
        self.dimensions = dimensions  # set in the client's loop only, so that no two batches can be the first
        return vectors


def equal_parts(text: str, count: int) -> list[str]:
    """Split a text into `count` parts of about as many characters each, between words if possible."""
    ends = [0]
    for part in range(1, count):
        place = len(text) * part // count
        space = text.rfind(" ", max(ends[-1], place - _LONGEST_WORD), place)
        ends.append(max(ends[-1], place if space < 0 else space))
    return [text[start:end].strip() for start, end in pairwise([*ends, len(text)])]


def _differ(a: str, b: str) -> int:
    """Return where two texts begin to differ, two or three words earlier."""
    place = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    space = a.rfind(" ", 0, max(0, place - _CONTEXT))
    return max(space, 0)


def _clean(text: str) -> str:
    """Strip a text and replace lone surrogates, which no tokenizer accepts."""
    return text.strip().encode(errors="replace").decode()


def _key(text: str) -> bytes:
    """Hash a text, so that the cache does not keep long texts."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
