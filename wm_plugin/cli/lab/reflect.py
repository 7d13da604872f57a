"""`wm lab reflect`."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wm_plugin.cli.flags import ModelFlags
from wm_plugin.cli.lab.flags import ProposalFlags, SampleFlags
from wm_plugin.cli.support import progress
from wm_plugin.client.answers import Answers
from wm_plugin.data.outputs import check_apart
from wm_plugin.data.readers import read
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.proposing import prepared
from wm_plugin.lab.agents.reflection import reflection
from wm_plugin.worlds.agents.rollout import path_of


def reflect(
    source: str,
    /,
    *,
    out: Path,
    proposals: ProposalFlags,
    samples: SampleFlags = SampleFlags(),
    inline: bool = False,
    writer: ModelFlags = ModelFlags(temperature=1.0, max_new_tokens=2048),
) -> dict[str, Any]:
    """Write reasons for an expert's actions, which compare them with others, to fine-tune on (RWML's baseline SR).

    Tries other actions in each state of an expert's trajectories, as wm lab alternatives, and lets a strong model, which is told
    what each of them brings about, write the thought that leads to the expert's. A row is the history, that thought and the
    action, which alone count. A run that was killed asks nothing twice.

    As JSON: `samples` with a reason, `rows` written, `left_out` by reason, and `asked` of the model in this run.

    Args:
        source: An expert's trajectories, as wm env rollout writes them.
        out: X.jsonl or X.parquet; verl's rows need --tokenizer.
        inline: Put the thought before the content as `<think>...</think>`: templates of models without a thinking mode leave
            reasoning out.
    """
    writer.check()
    samples.check(out)
    if samples.host == "verl" and samples.tokenizer is None:
        raise UserError("verl counts every message of the assistant: give a --tokenizer, and the rows are tokens")
    world, folder = proposals.check(out)
    kept = {"--work": folder / "proposals.jsonl", "the answers": folder / "reflections.jsonl"}
    check_apart([source, proposals.propose, writer.model, samples.tokenizer], {"--out": out, **kept})
    counts: Counter[str] = Counter()
    with ExitStack() as held:
        propose = proposals.proposer(world, folder, counts, held)
        answers = held.enter_context(Answers(writer.asked(), folder / "reflections.jsonl"))

        def ask(conversations: list[Any]) -> list[str | None]:
            said = answers(conversations, seed=proposals.seed)
            return [None if one.failure or one.cut else one.text for one in said]

        environment = world.make()
        experts = prepared(progress(read(source), "trajectories"), propose, path_of(environment))
        made = reflection(
            experts, environment, propose, ask, alternatives=proposals.alternatives, inline=inline, counts=counts
        )
        written = samples.write(made, out, counts)
    return {
        "samples": counts.pop("samples", 0),
        "rows": written,
        "left_out": dict(counts.most_common()),
        "asked": answers.asked,
        "out": str(out),
    }
