"""Decodes many texts of one model in step: texts that continue by turns, partly sampled and partly given.

`generate` of transformers starts anew with every prompt. Here the keys and values of the text so far are kept: an imagined
episode (the policy's turn, a result, the next turn) costs only its new tokens, and the samples of one prompt share its work.
"""

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from wm_plugin.errors import UserError

_CUT = {"full_attention", "sliding_attention", "chunked_attention"}  # kinds of layers whose cache can be cut back


class Decoder:
    """Rows of tokens with their cache. Texts of different lengths are padded on the left at every step, and masked.

    Args:
        model: a causal language model of transformers in evaluation mode, with a cache of keys and values that can be cut back.

    Attributes:
        logits: (rows, vocabulary), float32: of the token after each row.
        fed: how many tokens the model was given, without padding.
    """

    def __init__(self, model: Any, pad: int = 0) -> None:
        kinds = set(getattr(model.config, "layer_types", None) or ()) - _CUT
        if kinds:  # their states cannot be taken back, and some do not say so
            raise UserError(
                f"a {type(model).__name__} has layers of {', '.join(sorted(map(str, kinds)))}, whose state cannot be cut back, "
                "as imagined results need; put the model behind a server"
            )
        self.model, self.pad, self.fed = model, pad, 0
        self._cache: Any = None
        self._mask = torch.zeros(0, 0, dtype=torch.long)  # (rows, columns), 1 = a token that is seen
        self.logits = torch.zeros(0, 0)

    @property
    def columns(self) -> int:
        """Return the width so far, to which `cut` can go back."""
        return self._mask.shape[1]

    def start(self, prompts: Sequence[Sequence[int]]) -> None:
        """Begin with a row for each prompt, none of them empty."""
        self._cache, self._mask = None, torch.zeros(len(prompts), 0, dtype=torch.long, device=self.model.device)
        self.feed(prompts)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order. A row may be named several times: its copies continue separately."""
        index = torch.tensor(rows, dtype=torch.long, device=self._mask.device)
        self._cache.batch_select_indices(index)
        self._mask, self.logits = self._mask[index], self.logits[index.to(self.logits.device)]

    def cut(self, columns: int) -> None:
        """Go back to this width. `logits` are undefined until the next `feed`."""
        if columns == self.columns:
            return
        try:
            self._cache.crop(columns - self.columns)  # a negative number takes as many off
        except (AttributeError, NotImplementedError, ValueError) as error:
            raise UserError(
                f"the cache of a {type(self.model).__name__} cannot be cut back ({' '.join(str(error).split())[:100]}), as "
                "imagined results need; put the model behind a server"
            ) from None
        self._mask = self._mask[:, :columns]

    @torch.inference_mode()
    def feed(self, tokens: Sequence[Sequence[int]]) -> None:
        """Continue with given tokens. A row without any keeps its text; its logits are undefined then."""
        width = max(map(len, tokens), default=0)
        if not width:
            return
        device = self._mask.device
        ids = torch.tensor([[self.pad] * (width - len(row)) + list(row) for row in tokens], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in tokens], device=device)
        self._push(ids, mask)
        self.fed += sum(map(len, tokens))

    @torch.inference_mode()
    def sample(
        self,
        draws: Sequence[random.Random],
        *,
        temperature: float,
        limits: Sequence[int],
        ends: Collection[int] = (),
        stop: Callable[[int, list[int]], bool] | None = None,
        begun: Sequence[int] | None = None,
    ) -> tuple[list[list[int]], list[float]]:
        """Sample a text after each row. The model has not read the last token of each yet: begin the next `feed` with it.

        A row's text depends on its own generator alone, except for rounding.

        Args:
            draws: a generator per row, which gives a number per token; not used at temperature 0.
            limits: the maximum number of tokens of each row; a row with 0 gets no text.
            stop: whether a row's text, by its number and tokens, ends for another reason.
            begun: the first token of each row, if it was drawn already.

        Returns:
            The tokens of each row, an end included; and the sum of their log-probabilities at temperature 1, without `begun`.
        """
        tokens: list[list[int]] = [[one] for one in begun] if begun else [[] for _ in range(len(self._mask))]
        sums = [0.0] * len(tokens)
        going, drawn = [row for row, limit in enumerate(limits) if limit > 0], begun is not None
        while going:
            if not drawn:
                uniform = torch.tensor([[draws[row].random() if temperature else 0.0] for row in going])
                picked, logps = pick(self.logits[going], uniform, temperature)
                for row, token, logp in zip(going, picked[:, 0].tolist(), logps[:, 0].tolist(), strict=True):
                    tokens[row].append(token)
                    sums[row] += logp
            drawn = False
            going = [
                row
                for row in going
                if tokens[row][-1] not in ends
                and len(tokens[row]) < limits[row]
                and not (stop and stop(row, tokens[row]))
            ]
            if going:
                ids = torch.full((len(tokens), 1), self.pad, device=self._mask.device)
                mask = torch.zeros_like(ids)
                ids[going, 0] = torch.tensor([tokens[row][-1] for row in going], device=ids.device)
                mask[going, 0] = 1
                self._push(ids, mask)
                self.fed += len(going)
        return tokens, sums

    def _push(self, ids: Tensor, mask: Tensor) -> None:
        before = self._mask.sum(1, keepdim=True)
        self._mask = torch.cat([self._mask, mask], 1)
        positions = (before + mask.cumsum(1) - 1).clamp(min=0)
        output = self.model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache, self.logits = output.past_key_values, output.logits[:, -1].float()


def pick(logits: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Pick tokens by uniform numbers in [0, 1); at temperature 0 always the likeliest one.

    Args:
        logits: (rows, vocabulary).
        uniform: (rows, draws).

    Returns:
        The tokens and their log-probabilities at temperature 1, both (rows, draws).
    """
    if temperature:
        below = (logits / temperature).double().softmax(-1).cumsum(-1)
        wanted = uniform.to(below) * below[:, -1:]
        tokens = torch.searchsorted(below, wanted, right=True).clamp(max=logits.shape[-1] - 1)
    else:
        tokens = logits.argmax(-1, keepdim=True).expand(uniform.shape[0], uniform.shape[1])
    return tokens, logits.log_softmax(-1).gather(1, tokens)
