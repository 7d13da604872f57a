"""`wm lab prompts`."""

from typing import Any, Literal

from wm_plugin.cli import output
from wm_plugin.cli.numbers import NotNegative
from wm_plugin.cli.support import progress
from wm_plugin.data.prompt_lengths import rendered, variants
from wm_plugin.data.prompts import load


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
    for unit, by_text in result["lengths"].items():
        output.table([{"of a": f"{of}, {unit}", **values} for of, values in by_text.items() if values])
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
    loaded = load(family)
    names = [variant] if variant else loaded.names(stage) if stage else list(loaded.variants)
    result = {"prompts": loaded.name, "tag": loaded.tag, "variants": variants(loaded, names, thinking=not direct)}
    if data is None:
        return result
    return result | rendered(
        data,
        loaded,
        stage=stage or "rl",
        variant=variant,
        thinking=not direct,
        samples=count,
        seed=seed,
        tokenizer=tokenizer,
        watch=lambda transitions: progress(transitions, "transitions"),
    )
