"""Sample from a Hugging Face model: several requests in one batch, each with its own temperature and random numbers."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig


@dataclass
class Request:
    """A prompt and what has been generated for it."""

    prompt_ids: list[int]
    temperature: float
    max_tokens: int
    stop_ids: frozenset[int]
    rng: random.Random
    forced: list[int] | None = None  # tokens to take instead of sampling
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        if len(self.token_ids) >= self.max_tokens:
            return True
        if self.forced is not None:
            return len(self.token_ids) == len(self.forced)
        return bool(self.token_ids) and self.token_ids[-1] in self.stop_ids


class Generator:
    """A model with random weights until `load` brings the trainer's, and the tokens that end a turn."""

    def __init__(self, path: str, dtype: str, seed: int) -> None:
        torch.set_num_threads(1)  # the trainer and the agent loops want the other cores
        self.model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(path), dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        ends = GenerationConfig.from_pretrained(path).eos_token_id
        self.stop_ids = frozenset([ends] if isinstance(ends, int) else ends or [])
        self.seed = seed
        self.version: int | None = None
        self._asked: Counter[tuple[int, ...]] = Counter()

    def load(self, weights: dict[str, torch.Tensor], version: int | None) -> None:
        self.model.load_state_dict(weights)
        self.version = version
        self._asked.clear()

    def request(
        self, prompt_ids: list[int], params: dict[str, Any], max_tokens: int, forced: list[int] | None = None
    ) -> Request:
        """Make a request of verl's sampling parameters; those that it does not know are refused, not ignored.

        Raises:
            ValueError: they ask for more than a temperature.
        """
        if (
            params.get("top_p", 1.0) != 1.0
            or params.get("top_k", -1) != -1
            or params.get("repetition_penalty", 1.0) != 1.0
        ):
            raise ValueError(f"the CPU rollout samples by temperature alone, not by {params}")
        if params.get("stop"):
            raise ValueError(f"the CPU rollout stops at tokens, not at the texts {params['stop']}")
        # Seeded by the weights, the prompt and how often it was asked for, not by the order of arrival: the same seed gives the
        # same set of trajectories.
        asked = self._asked[tuple(prompt_ids)]
        stops = frozenset() if params.get("ignore_eos") else self.stop_ids
        self._asked[tuple(prompt_ids)] += 1
        return Request(
            prompt_ids=prompt_ids,
            temperature=float(params.get("temperature", 1.0)),
            max_tokens=max_tokens,
            stop_ids=stops | frozenset(params.get("stop_token_ids") or []),
            rng=random.Random(f"{self.seed} {self.version} {asked} {prompt_ids}"),
            forced=forced,
        )

    @torch.no_grad()
    def run(self, requests: list[Request]) -> None:
        """Generate for all requests. A row that is done is carried along, as the batches are small."""
        width = max(len(request.prompt_ids) for request in requests)
        rows = [[0] * (width - len(request.prompt_ids)) + request.prompt_ids for request in requests]
        mask = torch.tensor([[0] * (width - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in requests])
        ids, cache = torch.tensor(rows), None
        while not all(request.done for request in requests):
            output = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            # Log-probabilities after the temperature, as verl's trainer computes them.
            scale = torch.tensor([r.temperature or 1.0 for r in requests])[:, None]
            log_probs = (output.logits[:, -1].float() / scale).log_softmax(-1)
            tokens = [self._choose(request, row) for request, row in zip(requests, log_probs, strict=True)]
            ids = torch.tensor(tokens)[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)

    def _choose(self, request: Request, log_probs: torch.Tensor) -> int:
        """Choose the next token of one request, and record it unless the request is done."""
        if request.done:
            return 0
        if request.forced is not None:
            token = request.forced[len(request.token_ids)]
        elif request.temperature == 0:
            token = int(log_probs.argmax())
        else:
            below = log_probs.exp().cumsum(0) < request.rng.random()
            token = min(int(below.sum()), len(log_probs) - 1)
        request.token_ids.append(token)
        request.log_probs.append(float(log_probs[token]))
        return token
