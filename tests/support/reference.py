"""The objective once more, naively: plain transformers on the full batch, content found by its tags in the decoded bytes.

Shares no code with the package. Valid for the byte tokenizer of `support.on_trl` and contents without tags in them.
"""

import re
from typing import Any

import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTES = {char: bytes([byte]) for byte, char in bytes_to_unicode().items()}

# the host's failures: what TRL writes for an exception and for an unknown tool
HOST_MADE = b"{'error': "

# what docs/coefficient.md says of each: coefficient, normalization, content alone, hosts' errors, temperature
SAID = {
    "blog": (0.05, "selected_tokens", True, False, 1.0),
    "paper": (0.05, "per_trajectory", True, True, 1.0),
    "prime-rl": (0.1, "selected_tokens", True, True, 1.0),
    "verl-recipe": (0.05, "per_trajectory", True, True, 0.8),
    "rllm": (0.05, "per_trajectory", False, True, 1.0),
    "openenv": (0.1, "per_micro_batch", False, True, 1.0),
}


def selected(
    row_ids: list[int], mask: list[int], tool_mask: list[int], tokenizer: Any, *, content_only: bool, errors: bool
):
    """[(token index, tool name)] of the environment tokens of one completion."""
    found = []
    index = 0
    while index < len(row_ids):
        if not mask[index] or tool_mask[index]:
            index += 1
            continue
        start = index
        while index < len(row_ids) and mask[index] and not tool_mask[index]:
            index += 1
        pieces = [
            BYTES[token] if token in BYTES else token.encode()
            for token in tokenizer.convert_ids_to_tokens(row_ids[start:index])
        ]
        offsets = [0]
        for piece in pieces:
            offsets.append(offsets[-1] + len(piece))
        block = b"".join(pieces)
        matches = list(re.finditer(rb"<tool_response>\n(.*?)(?:\n</tool_response>|\n?\Z)", block, re.S))
        begin = 0
        for number, match in enumerate(matches):
            content = match.group(1)
            # shorter where the completion was cut; where nothing is left of it, the call did not fail with the seeds used
            failed = bool(content) and HOST_MADE.startswith(content[: len(HOST_MADE)])
            begins = content[:4]  # fewer where the completion was cut
            tool = (
                "run_code" if b"OUT[".startswith(begins) else "lookup_doc" if b"DOC ".startswith(begins) else "failed"
            )
            end = len(block) if number == len(matches) - 1 else match.end(1)
            low, high = (match.start(1), match.end(1)) if content_only else (begin, end)
            begin = end
            if failed and not errors:
                continue
            found += [(start + t, tool) for t in range(len(pieces)) if low <= offsets[t] < high]
    return found


def weights(
    batch: dict[str, torch.Tensor], tokenizer: Any, tools: Any, *, content_only: bool = True, errors: bool = False
):
    """(B, T) multipliers: `tools` is None, or {name: multiplier}."""
    mask = torch.zeros(batch["completion_ids"].shape, dtype=torch.float64)
    for row, ids in enumerate(batch["completion_ids"].tolist()):
        found = selected(
            ids,
            batch["completion_mask"][row].tolist(),
            batch["tool_mask"][row].tolist(),
            tokenizer,
            content_only=content_only,
            errors=errors,
        )
        for index, tool in found:
            mask[row, index] = 1.0 if tools is None else tools.get(tool, 0.0)
    return mask


def term(
    model: Any,
    batches: list[dict],
    masks: list,
    *,
    floor: float = 0.0,
    ceiling: float = float("inf"),
    count=None,
    temperature=1.0,
    normalization="selected_tokens",
) -> tuple[torch.Tensor, int]:
    """Σ weight·NLL / N over all batches together, and N. A batch is a micro-batch, each of its rows a trajectory."""
    total, tokens = 0.0, 0
    for batch, mask in zip(batches, masks, strict=True):
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1] / temperature
        logps = torch.log_softmax(logits.double(), -1).gather(-1, ids[:, 1:, None])[..., 0]
        nll = -logps[:, -batch["completion_ids"].size(1) :]
        inside = (nll.detach() >= floor) & (nll.detach() <= ceiling)
        losses = (nll * mask * inside).sum(1)
        selected = (mask != 0).sum(1)
        if normalization == "per_trajectory":
            total, tokens = total + (losses / selected.clamp(min=1)).sum(), tokens + len(mask)
        elif normalization == "per_micro_batch":
            total, tokens = total + losses.sum() / selected.sum().clamp(min=1), 1
        else:
            total = total + losses.sum()
            tokens += int(selected.sum() if count is None else count(batch))
    return total / tokens, tokens


def term_gradient(model: Any, batches: list[dict], masks: list, **fields: Any) -> tuple[torch.Tensor, int]:
    """Gradient of `term`, and N."""
    model.zero_grad()
    loss, tokens = term(model, batches, masks, **fields)
    loss.backward()
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.requires_grad]), tokens
