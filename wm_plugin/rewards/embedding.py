"""Whether a prediction means what the observation means: the cosine of their embeddings (RWML, §2.2).

    d = 1 − cos(E(prediction), E(target));  the reward is 1 if d < τ_d, else 0

The threshold keeps vague predictions from earning anything. According to the paper, above 0.5 a general description is enough,
and below 0.1 only the text itself is.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.rewards.base import TextReward, mean
from wm_plugin.runtime.replies import vector
from wm_plugin.runtime.server import MAX_REPLY, Failure, Server

_ROWS = 1024  # compared at once, to bound the memory of a large call
_MAX_EMBEDDING = 1 << 18  # bytes of an embedding as JSON: 10,000 dimensions


class EmbeddingReward(TextReward):
    """1 if the cosine distance is strictly below the threshold, else 0; without a threshold the cosine, from 0 to 1.

    A negative cosine gives 0. White space at the ends is ignored. Equal texts have distance 0, and a blank text has distance 1 to
    every other text. A call encodes each text once, however often it occurs; embeddings of targets are kept for later calls.

    The model silently cuts texts at its own limit (`all-MiniLM-L6-v2`: 256 tokens).

    Args:
        model: a folder or name for sentence-transformers (extra `embed`), or the model's name on the server. The paper has
            Qwen/Qwen3-Embedding-8B. A threshold is only valid for one model.
        threshold: τ_d, in (0, 2]. RWML trains with 0.2 on ALFWorld and with 0.4 on users' replies in τ²-bench.
        base_url: an OpenAI-compatible server with `/embeddings`, such as http://localhost:8000/v1 (extra `server`).
        tag: see `TaggedReward`.
        batch_size: texts per forward pass, or per request.
        cache_size: number of targets whose embeddings are kept, least recently used first to go; 4 bytes per dimension each.
        device: for a model in this process; None takes a GPU if there is one, which the reward then shares with the training.
        server: further settings of `runtime.server.Server`, such as {"timeout": 120}; `parameters` are sent in requests.

    Attributes:
        figures: also `cosine`, the mean over predictions.

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
        device: str | None = None,
        server: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(tag=tag)
        if threshold is not None and not 0 < threshold <= 2:
            raise UserError(f"threshold is {threshold!r}; write a distance in (0, 2], such as 0.2, or leave it out")
        for name, value, least in (("batch_size", batch_size, 1), ("cache_size", cache_size, 0)):
            if value < least:
                raise UserError(f"{name} is {value}; write a number >= {least}")
        if server and base_url is None:
            raise UserError("server has settings, but base_url is not set; write the server's address there")
        self.threshold, self.cache_size = threshold, cache_size
        # n texts -> (n, dimensions), float32 on the CPU
        self._embed: Callable[[list[str]], Tensor] = (
            _Local(str(model), batch_size, device)
            if base_url is None
            else _Remote(base_url, str(model), batch_size, server or {})
        )
        self._targets: OrderedDict[bytes, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        predicted, observed = ([_clean(text) for text in texts] for texts in (predictions, targets))
        cosines: list[float] = []
        with self._lock:
            for start in range(0, len(predicted), _ROWS):
                cosines += self._cosines(predicted[start : start + _ROWS], observed[start : start + _ROWS])
        if self.threshold is None:
            scores = [max(0.0, cosine) for cosine in cosines]
        else:
            scores = [float(1 - cosine < self.threshold) for cosine in cosines]
        return scores, {"cosine": mean(cosines)}

    def _cosines(self, predicted: list[str], observed: list[str]) -> list[float]:
        pairs = list(zip(predicted, observed, strict=True))
        cosines = [float(a == b) for a, b in pairs]
        different = [row for row, (a, b) in enumerate(pairs) if a and b and a != b]
        if not different:
            return cosines
        vectors = self._vectors([predicted[row] for row in different], [observed[row] for row in different])
        a, b = (torch.stack([vectors[texts[row]] for row in different]).double() for texts in (predicted, observed))
        for row, cosine in zip(different, (a * b).sum(1).clamp(-1, 1).tolist(), strict=True):
            cosines[row] = cosine
        return cosines

    def _vectors(self, predicted: list[str], observed: list[str]) -> dict[str, Tensor]:
        """Unit vectors by text."""
        keys = {text: _key(text) for text in dict.fromkeys(observed)}
        vectors = {text: self._targets[key] for text, key in keys.items() if key in self._targets}
        missing = [text for text in dict.fromkeys((*observed, *predicted)) if text not in vectors]
        if missing:
            vectors |= zip(missing, normalize(self._embed(missing), dim=1), strict=True)
        for text, key in keys.items():
            self._targets.setdefault(key, vectors[text].clone())  # a copy, because a view keeps its whole batch alive
            self._targets.move_to_end(key)
        while len(self._targets) > self.cache_size:
            self._targets.popitem(last=False)
        return vectors


class _Local:
    """A model of sentence-transformers in this process."""

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

    def __call__(self, texts: list[str]) -> Tensor:
        vectors = self.model.encode(texts, batch_size=self.batch_size, convert_to_tensor=True, show_progress_bar=False)
        return torch.as_tensor(vectors).float().cpu()


class _Remote:
    """A model behind a server. Several batches are requested at the same time."""

    def __init__(self, base_url: str, model: str, batch_size: int, settings: Mapping[str, Any]) -> None:
        usual = {
            "temperature": None,
            "max_tokens": None,
            "seed": None,
            "max_reply": max(MAX_REPLY, batch_size * _MAX_EMBEDDING),
        }
        try:
            self.server = Server(base_url, model, **{**usual, **settings})
        except TypeError as error:
            raise UserError(f"server: {error}") from None
        self.batch_size = batch_size
        self.dimensions = 0  # of the first embedding; all others must have as many

    def __call__(self, texts: list[str]) -> Tensor:
        batches = [texts[start : start + self.batch_size] for start in range(0, len(texts), self.batch_size)]
        parts: list[Tensor] = []
        for size, group in groupby(batches, len):  # only the last batch may be smaller
            bodies = [self._body(batch) for batch in group]
            for vectors in self.server.post("/embeddings", bodies, partial(self._read, size)):
                if isinstance(vectors, Failure):
                    raise UserError(
                        f"{self.server.base_url}: no embeddings of {self.server.model!r}, with up to {self.server.max_retries} "
                        f"retries (the last answer: {vectors.kind}, {vectors.message})"
                    )
                parts.append(vectors)
        return torch.cat(parts)

    def _body(self, batch: list[str]) -> dict[str, Any]:
        return {"model": self.server.model, "input": batch, "encoding_format": "float", **self.server.parameters}

    def _read(self, count: int, answer: Any) -> Tensor:
        """The embeddings of a batch: (count, dimensions). Its errors are those that `Server.post` counts as malformed."""
        rows = sorted(answer["data"], key=itemgetter("index"))
        if [row["index"] for row in rows] != list(range(count)):
            raise ValueError("not an embedding for each text")
        lists = [vector(row["embedding"]) for row in rows]
        dimensions = self.dimensions or len(lists[0])
        if not dimensions or {len(one) for one in lists} != {dimensions}:
            lengths = sorted({dimensions, *map(len, lists)})
            raise ValueError(f"embeddings of {' and '.join(map(str, lengths[:3]))} dimensions")
        vectors = torch.stack([torch.frombuffer(one, dtype=torch.float32) for one in lists])
        if not vectors.isfinite().all():
            raise ValueError("an embedding with a number that is not finite")
        self.dimensions = dimensions  # in the client's loop only, so that no two batches can be the first
        return vectors


def _clean(text: str) -> str:
    """The text without white space at the ends and with lone surrogates replaced, which no tokenizer accepts."""
    return text.strip().encode(errors="replace").decode()


def _key(text: str) -> bytes:
    """A hash, so that the cache does not keep long texts."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
