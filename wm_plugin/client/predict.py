"""Predictors: k raw outputs of a model for each conversation.

`LocalPredictor` runs a model in this process, `ServerPredictor` asks one behind an OpenAI-compatible server.
`data.predictions` stores their outputs on disk.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from wm_plugin.client.server import Failure, Server
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.tokenizer import load_tokenizer, template_end
from wm_plugin.untrusted import encodable


class Predictor(Protocol):
    """Anything that answers conversations.

    Args of a call:
        conversations: lists of messages; the last message is a user's.
        k: number of outputs per conversation.
        seed: seed of the sampling. The same conversations and seed give the same outputs, as far as the model allows.

    Returns:
        k raw outputs per conversation, in order; fewer where calls failed.
    """

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that the outputs depend on, as JSON values. A folder of predictions is not continued with other settings."""
        ...

    def __call__(self, conversations: list[list[Message]], *, k: int, seed: int) -> list[list[str]]: ...


class LocalPredictor:
    """A causal language model of transformers, in this process.

    Outputs are sampled from the model's own distribution at `temperature`, without the top-k, top-p and penalties of its
    generation config. An output ends at that config's end-of-sequence tokens, and at the token by which the chat template ends a
    turn: a base model trained on dialogues writes it, while its config may still be the base model's. For models of many billion
    parameters a server is faster.

    Args:
        model: a folder, a name, or a loaded model.
        tokenizer: a tokenizer with a chat template, its folder or its name; None for the model's own.
        temperature: 0 is greedy, and all k outputs are the same.
        batch_size: outputs generated at once. Another batch size gives other samples of the same distribution.
        device: `auto` takes a GPU if there is one. A loaded model stays on its device.

    Raises:
        UserError: a setting is invalid, or the model or tokenizer cannot be loaded or has no chat template.
        MissingExtraError: transformers is not installed.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        temperature: float = 1.0,
        max_new_tokens: int = 1024,
        batch_size: int = 64,
        device: str = "auto",
    ) -> None:
        if not 0 <= temperature < math.inf:
            raise UserError(f"temperature is {temperature}; write a number >= 0")
        for name, value in (("max_new_tokens", max_new_tokens), ("batch_size", batch_size)):
            if value < 1:
                raise UserError(f"{name} is {value}; write a number >= 1")
        self.name = str(model) if isinstance(model, str | Path) else str(model.config.name_or_path)
        self.temperature, self.max_new_tokens, self.batch_size = temperature, max_new_tokens, batch_size
        named = isinstance(model, str | Path)
        if tokenizer is None or isinstance(tokenizer, str | Path):
            tokenizer = load_tokenizer(tokenizer or (model if named else model.config.name_or_path))
        self.model, self.tokenizer = load_model(model, device) if named else model.eval(), tokenizer
        if self.tokenizer.chat_template is None:
            raise UserError(f"{self.name}: the tokenizer has no chat template; take an instruction-tuned model")
        self._turn_end = template_end(self.tokenizer)
        self._digest: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        if self._digest is None:
            self._digest = _weights_digest(self.model)
        return {
            "weights": self._digest,  # not the name: a folder may move, and its model may be trained again
            "temperature": self.temperature,
            "max_new_tokens": self.max_new_tokens,
        }

    def __call__(self, conversations: list[list[Message]], *, k: int, seed: int) -> list[list[str]]:
        prompts = [self._prompt_ids(messages) for messages in conversations]
        # the longest first, so that a lack of memory shows at once
        order = sorted(range(len(prompts)), key=lambda index: (-len(prompts[index]), index))
        draws = k if self.temperature else 1
        batch = max(1, self.batch_size // draws)
        outputs: list[list[str]] = [[] for _ in prompts]
        with _seeded(self.model.device, seed):
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                ids = self.generate([prompts[index] for index in chosen], draws)
                texts: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
                for place, index in enumerate(chosen):
                    outputs[index] = texts[place * draws : (place + 1) * draws] * (k // draws)
        return outputs

    def completions(self, conversations: list[list[Message]], *, seed: int) -> list[tuple[str, bool]]:
        """Return an output of each conversation, in one batch, and whether it ended at `max_new_tokens`."""
        with _seeded(self.model.device, seed):
            ids = self.generate([self._prompt_ids(messages) for messages in conversations])
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        ends = set(self.ends)
        return [(text, not ends.intersection(row)) for text, row in zip(texts, ids.tolist(), strict=True)]

    def _prompt_ids(self, messages: list[Message]) -> list[int]:
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self.tokenizer(encodable(text), add_special_tokens=False).input_ids
        return ids

    @property
    def ends(self) -> list[int]:
        """Return the tokens that end an output."""
        ends = self.model.generation_config.eos_token_id
        ends = [self.tokenizer.eos_token_id] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        return ends if self._turn_end is None or self._turn_end in ends else [*ends, self._turn_end]

    def generate(self, prompts: list[list[int]], draws: int = 1) -> Any:
        """Generate `draws` outputs for each prompt: ids (prompts · draws, length), grouped by prompt, padded on the right."""
        import torch

        ends = self.ends
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else ends[0]
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        sampling: dict[str, Any] = {"do_sample": False}
        if self.temperature:
            sampling = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        ids = self.model.generate(
            input_ids=ids.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            max_new_tokens=self.max_new_tokens,
            num_return_sequences=draws,
            num_beams=1,
            repetition_penalty=1.0,
            eos_token_id=ends,
            pad_token_id=pad,
            **sampling,
        )
        return ids[:, width:]


class ServerPredictor:
    """A model behind an OpenAI-compatible chat server.

    Requests k outputs at once, or one by one if the server only returns one. Outputs that fail after the retries are left out.

    Args:
        server: `Server(base_url, model, temperature=1.0, max_tokens=..., ...)`. Calls set the seed, unless the server's is None.
        max_failure_share: a call raises if a larger share of its outputs failed.
        thinking: put a reasoning model's thoughts, if the server returns them separately, before its answer in `<think>` tags.
            Otherwise only the answer is used.

    Attributes:
        failed: the number of outputs that failed, over all calls.

    Raises:
        UserError: `max_failure_share` is invalid; from a call: too many outputs failed.
    """

    def __init__(self, server: Server, *, max_failure_share: float = 0.05, thinking: bool = False) -> None:
        if not 0 <= max_failure_share <= 1:
            raise UserError(f"max_failure_share is {max_failure_share}; write a number between 0 and 1")
        self.server, self.max_failure_share, self.thinking = server, max_failure_share, thinking
        self.failed = 0
        self._one_each = False  # the server returned one output where several were requested

    @property
    def settings(self) -> dict[str, Any]:
        return {"thinking": self.thinking, **self.server.settings}

    def __call__(self, conversations: list[list[Message]], *, k: int, seed: int) -> list[list[str]]:
        outputs: list[list[str]] = [[] for _ in conversations]
        failures: list[Failure] = []
        lost: set[int] = set()  # conversations whose call failed
        refused: set[int] = set()  # those for which the server refused k outputs
        if k > 1 and not self._one_each:
            for index, answer in enumerate(self._ask(conversations, [(i, 0) for i in range(len(outputs))], k, seed)):
                if not isinstance(answer, Failure):
                    outputs[index] = answer[:k]
                    self._one_each |= len(answer) == 1
                elif answer.kind == "refused":
                    refused.add(index)
                else:
                    lost.add(index)
                    failures.append(answer)
        # the missing ones are requested one by one, each with its own seed
        rest = [
            (index, draw) for index, texts in enumerate(outputs) if index not in lost for draw in range(len(texts), k)
        ]
        for (index, _), answer in zip(rest, self._ask(conversations, rest, 1, seed), strict=True):
            if isinstance(answer, Failure):
                failures.append(answer)
            else:
                outputs[index] += answer[:1]
        self._one_each |= any(outputs[index] for index in refused)
        self._check_missing(outputs, k, failures)
        return outputs

    def _ask(
        self, conversations: list[list[Message]], draws: list[tuple[int, int]], n: int, seed: int
    ) -> list[list[str] | Failure]:
        """Request n outputs for each (conversation, draw)."""
        bodies = [
            self.server.body(conversations[index], seed_of(f"{seed}/{index}/{draw}")) | ({"n": n} if n > 1 else {})
            for index, draw in draws
        ]
        return self.server.post("/chat/completions", bodies, self._texts)

    def _texts(self, answer: Any) -> list[str]:
        return [self._text(choice["message"]) for choice in answer["choices"]]

    def _text(self, message: Any) -> str:
        text = message.get("content") or ""  # None if a reasoning model was cut before its answer
        thought = message.get("reasoning_content") or message.get("reasoning")
        if not isinstance(text, str):
            raise TypeError("the content is not text")
        return f"<think>\n{thought}\n</think>\n\n{text}" if self.thinking and isinstance(thought, str) else text

    def _check_missing(self, outputs: list[list[str]], k: int, failures: list[Failure]) -> None:
        wanted = k * len(outputs)
        missing = wanted - sum(map(len, outputs))
        if missing > self.max_failure_share * wanted:
            why = failures[-1].message if failures else "no choices in the answer"
            raise UserError(
                f"{self.server.base_url}: {missing} of {wanted} predictions failed, more than {self.max_failure_share:.0%} "
                f"(the last one: {why}); run it again to continue"
            )
        self.failed += missing


def seed_of(text: str) -> int:
    """Return a seed from a hash of a text; of 31 bits, which every server accepts."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def load_model(model: str | Path, device: str = "auto") -> Any:
    """Load a causal language model of transformers by its folder or name, in evaluation mode."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ModuleNotFoundError:
        raise MissingExtraError("a model in this process", "transformers", "trl") from None

    try:
        loaded = AutoModelForCausalLM.from_pretrained(str(model), dtype="auto")
    except Exception as error:  # the parsers of a damaged file raise all kinds
        raise UserError(f"{model}: {' '.join(str(error).split())[:200] or type(error).__name__}") from None
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return loaded.to(device).eval()


@contextmanager
def _seeded(device: Any, seed: int) -> Iterator[None]:
    """Seed torch for the block, without gradients; the global generators continue as before."""
    import torch

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.inference_mode():
        torch.manual_seed(seed)
        yield


def _weights_digest(model: Any) -> str:
    """Hash all parameters and buffers with their names."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
