"""Train a tiny model as a world model, on the dialogues of `wm data build --as word2world`.

    python -m wm_plugin.lab.tiny world-model --start runs/tiny --rows rows.jsonl --held-out held_out.jsonl --out runs/world

It starts from the tiny policy, which already predicts its world, and learns what only a world model needs: where an observation
ends, the mark of success, and what simulation instructions ask for. Tokens that the model does not expect weigh more, like
changed cells in the demo's warm start.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from wm_plugin.data import files
from wm_plugin.data.sample import Sample
from wm_plugin.data.tokenize import Tokeniser
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.one_step import evaluate
from wm_plugin.lab.tiny.policy import make_tokenizer, template
from wm_plugin.lab.tiny.warm_start import STOP_AT, train

HARD = 4.0  # the extra weight of a token that the model takes for impossible
CHECKED = 64  # held-out rows that decide whether training ends early


class Rows(NamedTuple):
    """Token ids, and masks: 1 = the token counts (the world's texts with their end tokens)."""

    ids: list[list[int]]
    masks: list[list[int]]


def fit(
    model: PreTrainedModel,
    rows: Rows,
    held_out: Rows,
    *,
    steps: int,
    batch: int,
    seed: int,
    check_every: int = 50,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """Train `model` in place on the tokens that count; return the share of held-out observations that it predicts exactly."""

    def loss(tokens: Tensor, mask: Tensor) -> Tensor:
        counts = mask[:, 1:] == 1
        logits = model(input_ids=tokens[:, :-1]).logits[counts]
        nll = cross_entropy(logits, tokens[:, 1:][counts], reduction="none")
        weight = 1 + HARD * (1 - torch.exp(-nll.detach()))
        return (nll * weight).sum() / weight.sum()

    exact = 0.0
    for step in train(model, *rows, loss, steps=steps, batch=batch, rate=3e-3, seed=seed):
        if progress:
            progress(step, steps)
        if step % check_every == 0 or step == steps:
            exact = evaluate(model, *held_out, batch_size=16).exact_share
            if exact >= STOP_AT:
                break
    return exact


def world_tokenizer(written: str = "world") -> Any:
    """Make the policy's tokenizer with a chat template that writes a dialogue with the world as the policy reads its episode.

    A move is one token, where the policy makes it, and an observation's end stands where the policy's turn begins. All cells are
    as far apart as in the policy's own text, so that what its layers learnt about the world still holds.

    Args:
        written: the chat template. "foresight" is exactly the policy's own text, so that a policy predicts without further
            training; nothing ends an observation, so sampling must stop after the tokens of a board.
    """
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template(written)
    return unparsed(tokenizer)


def unparsed(tokenizer: Any) -> Any:
    """Return a tokenizer whose turns are texts: a response template would parse letters as moves."""
    for name in ("response_template", "response_schema"):
        setattr(tokenizer, name, None)
    return tokenizer


def read_rows(path: Path, tokenizer: Any, most: int | None = None) -> Rows:
    """Read token ids and masks from a file that `wm data build --as word2world --host trl --out X.jsonl` wrote."""
    tokenise, rows = Tokeniser(tokenizer), Rows([], [])
    for record in files.lines(path):
        messages = record.value.get("messages") if isinstance(record.value, dict) else None
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise UserError(
                f"{path}, row {record.row}: {record.error or 'no messages'}; write the file with "
                "wm data build --as word2world --host trl --out X.jsonl"
            )
        sample = Sample(messages, [message["role"] == "assistant" for message in messages])
        ids, mask, _ = tokenise(sample)
        rows.ids.append(ids)
        rows.masks.append(mask)
        if len(rows.ids) == most:
            break
    if not rows.ids:
        raise UserError(f"{path} has no rows")
    return rows


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("role", "content"))
