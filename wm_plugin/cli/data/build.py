"""`wm data build`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from wm_plugin.cli.flags import Host, StateFlags
from wm_plugin.cli.support import progress

Kind = Literal["rwml-sft", "rwml", "word2world", "agentworld-sft", "agentworld", "cpt", "imitation", "rft"]


def build(
    source: str,
    /,
    *,
    kind: Annotated[Kind, Parameter(name="--as")],
    host: Host,
    out: Path,
    prompts: str | None = None,
    domain: str | None = None,
    tokenizer: str | None = None,
    max_tokens: int | None = None,
    too_long: Literal["drop", "truncate"] = "drop",
    turn_information: bool = False,
    state: StateFlags = StateFlags(),
    history: int | None = None,
    corpus: tuple[str, ...] = (),
    success_reward: float | None = None,
    per_task: int | None = None,
    split: str = "train",
    seed: int = 0,
) -> dict[str, Any]:
    """Write the files that TRL and verl train on: samples with their prompts, in the columns that a stock trainer reads.

    As JSON: `rows`, `tokens`, `counted_tokens` (0 without a tokenizer), `left_out` by reason, `truncated`, `categories` (how many
    observations count, and how many are context only).

    Args:
        source: Trajectories, transitions, or any format that convert reads.
        kind: What the rows train.
        host: Which trainer reads them.
        out: X.jsonl or X.parquet.
        prompts: rwml, word2world, a domain (mcp, search, ...), or a file of your own.
        domain: With agentworld: whose guidance the judge gets, if the prompts are a file of your own.
        tokenizer: For fine-tuning: write tokens and a mask, the same for both hosts; else: to count only.
        max_tokens: The limit of a sample.
        too_long: What happens to longer samples: drop them, or truncate dialogues (Word2World as released); both are counted.
        turn_information: Count observations with the probability of their category.
        history: Turns before the action to keep (default: all).
        corpus: With cpt: texts of your own (.txt and .md, a text each; .jsonl, one a line in the field text) (repeatable).
        success_reward: With rft: a reward of so much or more counts as a success, too.
        per_task: With rft: at most so many trajectories of each task.
        split: What verl's extra_info says.
        seed: Seed of all draws.
    """
    from wm_plugin.data.outputs import check_out
    from wm_plugin.data.write import SUFFIXES

    check_out(out, SUFFIXES)  # before imports of many seconds
    from wm_plugin.data import building

    report = building.build(
        source,
        kind,
        host,
        out,
        prompts=prompts,
        domain=domain,
        tokenizer=tokenizer,
        max_tokens=max_tokens,
        too_long=too_long,
        turn_information=turn_information,
        world_context=state.shown(),
        context_file=state.context_file,
        history=history,
        corpora=corpus,
        threshold=success_reward,
        per_task=per_task,
        split=split,
        seed=seed,
        watch=lambda samples: progress(samples, "samples"),
    )
    result = report.as_dict()
    notes = list(result["notes"])
    if report.assistant_only_loss:
        notes.append(
            "trl sft trains on every message of these rows, the user's too, unless you set assistant_only_loss: true (with a "
            "chat template that marks the assistant's words by {% generation %}); with --tokenizer the rows are tokens and a mask"
        )
    if report.calls_as_text:
        notes.append(
            "tool calls have their arguments as JSON text, which chat templates that write them as JSON (Qwen2.5's) would quote "
            "once more; with --tokenizer the rows are tokens"
        )
    return {**result, "notes": notes, "out": str(out)}
