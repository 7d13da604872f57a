"""How much of a model a training changed (RWML, section 4.2 and appendix E).

A weight changed if |ŵ − w| > η·max(|w|, |ŵ|), with η = 1e-3; only weights that are finite and not zero in both models count. The
share is given over all weights, by layer, by module (such as self_attn.q_proj) over all layers, and by each layer's modules.

Two models that are stored in different precision are compared in the lower one, in which rounding changes nothing: bfloat16 alone
moves a weight by up to 4e-3. Files are read in pieces, so memory does not grow with the model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import Evaluation, Measure
from wm_plugin.runtime.tensors import DTYPES, Place, pieces, settings_of, tensors_of

ETA = 1e-3
_PIECE = 1 << 22  # numbers that are read at once
_SLICE = 1 << 18  # numbers that are compared at once, so that they stay in the processor's cache
_PRECISION = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")  # from the highest to the lowest
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
_NAMED = 3  # tensors that a note names


@dataclass(frozen=True)
class Change:
    """The comparison of one tensor."""

    tensor: str  # its name in the trained model
    layer: str  # its number, with the stack's name if the model has several; "" outside of layers
    module: str  # its name without layer and numbers
    # weights that changed, and those that count
    changed: int
    counted: int
    left_out: int  # weights that are zero or not finite in one of the models
    rounded: bool  # whether one of the two was rounded to the other's precision


@dataclass(frozen=True)
class Pairs:
    """The tensors that two models share, and what is left out."""

    places: Mapping[str, tuple[Place, Place]]  # by name in the trained model: where it lies (before, after)
    notes: tuple[str, ...]  # what is not compared, and why
    left_out: Mapping[str, int]  # how many tensors are not compared, by reason


def pair(before: str | Path, after: str | Path) -> Pairs:
    """Match two models' tensors by name.

    An output layer that is tied to the embeddings, and so has no tensor of its own, is compared if the other model has one.
    """
    first, second = tensors_of(before), tensors_of(after)
    tied_first, tied_second = _tied(first, settings_of(before)), _tied(second, settings_of(after))
    if tied_first and tied_second:  # stored a second time in one of them, or in both
        first, second = ({n: p for n, p in places.items() if not _is_head(n)} for places in (first, second))
    else:
        first, second = _with_head(first, second, tied_first), _with_head(second, first, tied_second)
    places: dict[str, tuple[Place, Place]] = {}
    reasons: dict[str, list[str]] = {
        "only before": [name for name in first if name not in second],
        "only after": [name for name in second if name not in first],
        "another shape": [],
        "no floating-point numbers": [],
    }
    for name, place in second.items():
        if name not in first:
            continue
        if not (first[name].floating and place.floating):
            reasons["no floating-point numbers"].append(name)
        elif first[name].shape != place.shape:
            reasons["another shape"].append(name)
        else:
            places[name] = (first[name], place)
    if not places:
        raise UserError(
            f"{before} and {after} have no tensor in common; name a model and the one that it was trained from"
        )
    notes = tuple(f"not compared, {reason}: {_listed(names)}" for reason, names in reasons.items() if names)
    return Pairs(places, notes, {f"tensors: {reason}": len(names) for reason, names in reasons.items() if names})


def changes(pairs: Pairs, eta: float = ETA) -> Iterator[Change]:
    """Compare each pair of tensors."""
    names = _stacks(pairs.places)
    for name, (first, second) in pairs.places.items():
        with _one_thread():
            changed, counted = _compared(first, second, eta)
        yield Change(name, *names[name], changed, counted, second.size - counted, first.dtype != second.dtype)


def evaluation(compared: Iterable[Change], pairs: Pairs, before: str, after: str, eta: float = ETA) -> Evaluation:
    """Measure `changed` over all weights, by layer, by module, and by layer and module."""
    order = ["", "layer", "module", "layer/module"]
    groups: dict[tuple[str, str], list[int]] = {("", ""): [0, 0]}
    left_out, rounded = 0, 0
    for change in compared:
        keys = [("", ""), ("module", change.module)]
        if change.layer:
            keys += [("layer", change.layer), ("layer/module", f"{change.layer}/{change.module}")]
        for key in keys:
            counts = groups.setdefault(key, [0, 0])
            counts[0] += change.changed
            counts[1] += change.counted
        left_out += change.left_out
        rounded += change.rounded
    measures = [
        Measure("changed", changed / counted if counted else None, "share", counted, by, group)
        for (by, group), (changed, counted) in sorted(groups.items(), key=lambda item: order.index(item[0][0]))
    ]
    notes = list(pairs.notes)
    if rounded:
        notes.append(f"{rounded} tensors are stored in different precision, and were compared in the lower one")
    failures = {**pairs.left_out, **({"weights: zero or not finite": left_out} if left_out else {})}
    return Evaluation("weights", after, before, {"before": before, "eta": eta}, measures, failures, notes)


def row(change: Change) -> dict[str, Any]:
    """Make a row for `write_rows`."""
    return {
        "tensor": change.tensor,
        "layer": change.layer,
        "module": change.module,
        "counted": change.counted,
        "scores": {"changed": change.changed / change.counted} if change.counted else {},
    }


def _compared(first: Place, second: Place, eta: float) -> tuple[int, int]:
    """Return how many weights changed, and how many count."""
    lower = DTYPES[max(first.dtype, second.dtype, key=_PRECISION.index)]
    wide = torch.float64 if lower == torch.float64 else torch.float32
    # allocated once: new memory for each slice takes half of the time
    room = torch.empty(4, min(_SLICE, second.size), dtype=wide)
    changed = counted = 0
    for before, after in zip(pieces(first, _PIECE), pieces(second, _PIECE), strict=True):
        for start in range(0, len(before), _SLICE):
            parts = [part[start : start + _SLICE].to(lower) for part in (before, after)]
            one, other, distance, largest = room[:, : len(parts[0])]
            one.copy_(parts[0])
            other.copy_(parts[1])
            torch.sub(one, other, out=distance).abs_()
            torch.maximum(one.abs_(), other.abs_(), out=largest)
            # no comparison with NaN is true, and no difference from an infinity is larger than a share of it
            counts = (torch.minimum(one, other, out=one) > 0) & (largest < torch.inf)
            counted += int(torch.count_nonzero(counts))
            changed += int(torch.count_nonzero((distance > largest.mul_(eta)) & counts))
    return changed, counted


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: slices are too small for several, which wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _stacks(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return each tensor's layer and module. Layers outside the largest stack are named with their stack."""
    parts: dict[str, tuple[str, str, str]] = {}
    layers: dict[str, set[str]] = {}
    for name in names:
        words = name.split(".")
        place = next((place for place, word in enumerate(words) if word.isdecimal()), None)
        if place is None:
            parts[name] = ("", "", _module(words))
        else:
            stack, number = ".".join(words[:place]), words[place]
            parts[name] = (stack, number, _module(words[place + 1 :]))
            layers.setdefault(stack, set()).add(number)
    largest = max(layers, key=lambda stack: (len(layers[stack]), stack), default="")
    return {
        name: (number if not number or stack == largest else f"{stack}.{number}", module)
        for name, (stack, number, module) in parts.items()
    }


def _module(words: Sequence[str]) -> str:
    """Return a tensor's name without numbers, such as those of experts, and without the kind of parameter."""
    kept = [word for word in words if not word.isdecimal()]
    named = [word for word in kept if word not in ("model", "transformer", "weight", "bias")]
    return ".".join(named or kept)


def _is_head(name: str) -> bool:
    return name == "lm_head.weight" or name.endswith(".lm_head.weight")


def _tied(places: Mapping[str, Place], settings: Mapping[str, Any]) -> bool:
    """Return whether the output layer is the embeddings. Without a word in the config, a model without one is tied."""
    inner = settings.get("text_config")
    for fields in (settings, inner if isinstance(inner, dict) else {}):
        if isinstance(fields.get("tie_word_embeddings"), bool):
            return bool(fields["tie_word_embeddings"])
    return not any(map(_is_head, places))


def _with_head(places: dict[str, Place], others: Mapping[str, Place], tied: bool) -> dict[str, Place]:
    """Add a tied model's output layer under the other model's name for it."""
    heads = [name for name in others if _is_head(name)]
    embeddings = [name for name in places if name.endswith(_EMBEDDINGS)]
    if not tied or len(heads) != 1 or len(embeddings) != 1 or heads[0] in places:
        return places
    return {**places, heads[0]: places[embeddings[0]]}


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
