"""`wm lab prompts`."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

from wm_plugin.cli import output
from wm_plugin.cli.flags import NotNegative
from wm_plugin.cli.support import progress, token_counter


def show(result: dict[str, Any]) -> None:
    samples = result.get("samples", [])
    for sample in samples:
        print(f"{sample['where']}, variant {sample['variant']}")
        for message in [*sample["messages"], {"role": "target", "content": sample["target"]}]:
            print(f"--- {message['role']}\n{message['content']}")
        print()
    if "lengths" not in result:
        output.table(result["variants"])
        return
    output.table(
        [
            {"of a": f"{of}, {unit}", **values}
            for unit, by_text in result["lengths"].items()
            for of, values in by_text.items()
            if values
        ]
    )
    output.show({name: result[name] for name in ("transitions", "rejected")})


@output.prints(show)
def prompts(
    family: str,
    /,
    *,
    data: str | None = None,
    variant: str | None = None,
    stage: Literal["rl", "sft", "cpt"] | None = None,
    direct: bool = False,
    count: NotNegative = 1,
    seed: int = 0,
    tokenizer: str | None = None,
) -> dict[str, Any]:
    """List the variants of a family of prompts; with --data, show prompts and targets, and how long all are.

    As JSON: `variants`; with data also `samples`, `transitions`, `rejected` by reason, and `lengths` by unit.

    Args:
        family: rwml, word2world, mcp, search, ..., or your own file: ./mine.yaml.
        data: Trajectories, transitions, or any format that convert reads.
        variant: This one (default: as the stage draws, one a trajectory).
        stage: Which variants are listed, and drawn from (default with --data: rl).
        direct: Ask for the prediction without reasoning, as SFT does.
        count: Prompts to show.
        seed: Seed of the variants' draw.
        tokenizer: Measure lengths in its tokens too, with its chat template.
    """
    from wm_plugin.data.prompts import STAGES, load, render
    from wm_plugin.data.schema import Action, Observation, Transition

    loaded = load(family)
    nothing = Transition(
        trajectory="", turn=0, history=(), action=Action(), observation=Observation(kind="environment", text="")
    )
    names = [variant] if variant else loaded.names(stage) if stage else list(loaded.variants)
    variants = [
        {
            "variant": name,
            "stages": [one for one in STAGES if name in loaded.names(one)],
            "characters": _characters(render(nothing, loaded, variant=name, thinking=not direct).messages),
        }
        for name in names
    ]
    result: dict[str, Any] = {"prompts": loaded.name, "tag": loaded.tag, "variants": variants}
    if data is None:
        return result

    from wm_plugin.data.errors import RowError
    from wm_plugin.data.prompts import target
    from wm_plugin.data.summary import spread
    from wm_plugin.data.transitions import transitions_in

    measures: dict[str, tuple[Callable[[Any], int], Callable[[str], int]]] = {"characters": (_characters, len)}
    if tokenizer:
        measures["tokens"] = _tokens(tokenizer)
    samples: list[dict[str, Any]] = []
    lengths: dict[str, dict[str, list[int]]] = {unit: {"prompt": [], "target": []} for unit in measures}
    rejected: Counter[str] = Counter()
    transitions = 0
    for transition in progress(transitions_in(data), "transitions"):
        transitions += 1
        made = render(transition, loaded, stage=stage or "rl", seed=seed, thinking=not direct, variant=variant)
        try:
            label = target(transition.observation, loaded, thinking=not direct)
        except RowError as error:
            rejected[error.kind] += 1
            continue
        if len(samples) < count:
            where = f"{transition.trajectory}, turn {transition.turn}"
            samples.append({"where": where, "variant": made.variant, "messages": made.messages, "target": label})
        for unit, (of_messages, of_text) in measures.items():
            lengths[unit]["prompt"].append(of_messages(made.messages))
            lengths[unit]["target"].append(of_text(label))
    spreads = {unit: {of: spread(values) for of, values in by_text.items()} for unit, by_text in lengths.items()}
    return {
        **result,
        "samples": samples,
        "transitions": transitions,
        "rejected": dict(rejected),
        "lengths": spreads,
    }


def _characters(messages: list[dict[str, Any]]) -> int:
    return sum(len(message["content"]) for message in messages)


def _tokens(path: str) -> tuple[Callable[[Any], int], Callable[[str], int]]:
    """Return functions that count the tokens of messages, in the chat template if there is one, and of a text."""
    from wm_plugin.tokens.tokenizer import load_tokenizer

    tokenizer, of_text = load_tokenizer(path, field="--tokenizer"), token_counter(path)

    def of_messages(messages: Any) -> int:
        if tokenizer.chat_template is None:
            return sum(of_text(message["content"]) for message in messages)
        return of_text(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    return of_messages, of_text
