"""How long a family's prompts and targets are on data."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from wm_plugin.data.errors import RowError
from wm_plugin.data.prompts import STAGES, Prompts, render, target
from wm_plugin.data.schema import Action, Observation, Transition
from wm_plugin.data.summary import spread
from wm_plugin.data.transitions import transitions_in
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.tokenizer import load_tokenizer
from wm_plugin.untrusted import encodable

Measures = tuple[Callable[[list[Message]], int], Callable[[str], int]]  # of messages, and of a text


def variants(prompts: Prompts, names: Iterable[str], *, thinking: bool = True) -> list[dict[str, Any]]:
    """Return the stages of these variants, and their length in characters without data."""
    nothing = Transition(
        trajectory="", turn=0, history=(), action=Action(), observation=Observation(kind="environment", text="")
    )
    return [
        {
            "variant": name,
            "stages": [stage for stage in STAGES if name in prompts.names(stage)],
            "characters": _characters(render(nothing, prompts, variant=name, thinking=thinking).messages),
        }
        for name in names
    ]


def rendered(
    source: str | Path,
    prompts: Prompts,
    *,
    stage: str = "rl",
    variant: str | None = None,
    thinking: bool = True,
    samples: int = 1,
    seed: int = 0,
    tokenizer: str | None = None,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> dict[str, Any]:
    """Render the prompts of all transitions in a file. Returns the first `samples`, counts, and the spread of all lengths.

    Args:
        tokenizer: measures lengths in its tokens too, of messages in its chat template if it has one.
    """
    measures: dict[str, Measures] = {"characters": (_characters, len)}
    if tokenizer:
        measures["tokens"] = _tokens(tokenizer)
    shown: list[dict[str, Any]] = []
    lengths: dict[str, dict[str, list[int]]] = {unit: {"prompt": [], "target": []} for unit in measures}
    rejected: Counter[str] = Counter()
    count = 0
    for transition in watch(transitions_in(source)):
        count += 1
        made = render(transition, prompts, stage=stage, seed=seed, thinking=thinking, variant=variant)
        try:
            label = target(transition.observation, prompts, thinking=thinking)
        except RowError as error:
            rejected[error.kind] += 1
            continue
        if len(shown) < samples:
            where = f"{transition.trajectory}, turn {transition.turn}"
            shown.append({"where": where, "variant": made.variant, "messages": made.messages, "target": label})
        for unit, (of_messages, of_text) in measures.items():
            lengths[unit]["prompt"].append(of_messages(made.messages))
            lengths[unit]["target"].append(of_text(label))
    return {
        "samples": shown,
        "transitions": count,
        "rejected": dict(rejected),
        "lengths": {unit: {of: spread(values) for of, values in by_text.items()} for unit, by_text in lengths.items()},
    }


def _characters(messages: list[Message]) -> int:
    return sum(len(message["content"] or "") for message in messages)


def _tokens(path: str) -> Measures:
    tokenizer = load_tokenizer(path, field="--tokenizer")

    def of_text(text: str) -> int:
        return len(tokenizer(encodable(text), add_special_tokens=False).input_ids)

    def of_messages(messages: list[Message]) -> int:
        if tokenizer.chat_template is None:
            return sum(of_text(message["content"] or "") for message in messages)
        return of_text(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    return of_messages, of_text
