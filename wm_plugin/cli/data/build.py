"""`wm data build`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from wm_plugin.cli.flags import StateFlags
from wm_plugin.cli.support import progress
from wm_plugin.data.kinds import AgentWorld, Cpt, Kind, Prompted, Rft, Rwml, RwmlSft
from wm_plugin.data.outputs import check_out
from wm_plugin.data.write import SUFFIXES
from wm_plugin.options import Options, default

Name = Literal["rwml-sft", "rwml", "word2world", "agentworld-sft", "agentworld", "cpt", "imitation", "rft"]


def _of(kind: type[Kind], name: str, value: Any = None) -> Any:
    """A field of the one kind that has it, with the kind in its help."""
    field = default(kind, name, value)
    field.description = f"With --as {kind.name}: {field.description}"
    return field


class KindFlags(Options):
    """The fields of all kinds."""

    prompts: str | None = default(Prompted, "prompts", None)
    history: int | None = default(Rwml, "history", None)
    turn_information: bool = default(RwmlSft, "turn_information", False)
    domain: str | None = _of(AgentWorld, "domain")
    corpus: tuple[str, ...] = _of(Cpt, "corpora", ())
    success_reward: float | None = _of(Rft, "threshold")
    per_task: int | None = _of(Rft, "per_task")
    seed: int = default(Kind, "seed", 0)


def build(
    source: str,
    /,
    *,
    kind: Annotated[Name, Parameter(name="--as")],
    host: Literal["trl", "verl"],
    out: Path,
    tokenizer: str | None = None,
    max_tokens: int | None = None,
    too_long: Literal["drop", "truncate"] = "drop",
    split: str = "train",
    options: KindFlags = KindFlags(),
    state: StateFlags = StateFlags(),
) -> dict[str, Any]:
    """Write the files that TRL and verl train on: samples with their prompts, in the columns that a stock trainer reads.

    As JSON: `rows`, `tokens`, `counted_tokens` (0 without a tokenizer), `left_out` by reason, `truncated`, `categories` (how many
    observations count, and how many are context only).

    Args:
        source: Trajectories, transitions, or any format that convert reads.
        kind: What the rows train.
        host: Which trainer reads them.
        out: X.jsonl or X.parquet.
        tokenizer: For fine-tuning: write tokens and a mask, the same for both hosts; else: to count only.
        max_tokens: The limit of a sample.
        too_long: What happens to longer samples: drop them, or truncate dialogues (Word2World as released); both are counted.
        split: What verl's extra_info says.
    """
    check_out(out, SUFFIXES)
    from wm_plugin.data import building  # which imports torch

    values = options.model_dump()
    values |= {"corpora": values.pop("corpus"), "threshold": values.pop("success_reward")}
    report = building.build(
        source,
        kind,
        host,
        out,
        tokenizer=tokenizer,
        max_tokens=max_tokens,
        too_long=too_long,
        world_context=state.shown(),
        context_file=state.context_file,
        split=split,
        watch=lambda samples: progress(samples, "samples"),
        **values,
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
