"""`wm lab context`."""

from itertools import islice
from pathlib import Path
from typing import Any

from wm_plugin.cli.flags import ModelFlags
from wm_plugin.cli.lab.flags import Work
from wm_plugin.cli.numbers import Count
from wm_plugin.cli.support import progress, work_folder
from wm_plugin.client.answers import Answers
from wm_plugin.data.hidden_context import TAGS, WITH_INSTRUCTION, Report, with_contexts
from wm_plugin.data.outputs import check_apart, check_out
from wm_plugin.data.readers import read
from wm_plugin.data.write import SUFFIXES, write


def context(
    source: str,
    /,
    *,
    out: Path,
    writer: ModelFlags = ModelFlags(max_new_tokens=8192),
    instruction: bool = False,
    limit: Count | None = None,
    work: Work = None,
) -> dict[str, Any]:
    """Let a model write what the environment hid, from what was recorded, for the world model alone.

    A model reads each trajectory to its end and writes its hidden context: a summary of the data, permissions, what is available,
    and the final state that success requires. World models are shown it (wm data build --hidden), agents and judges never. What
    a trajectory has of it already stays, and so does a trajectory for which the model writes nothing useful; both are counted.

    As JSON: `trajectories`, of which `filled`, `complete` already, and `failed` by reason; and `asked` of the model in this run.

    Args:
        source: Trajectories, in any format that convert reads.
        out: X.jsonl or X.parquet: the trajectories with their contexts.
        instruction: Write the simulation instruction, too: which calls fail, what is withheld, and in which form answers come.
        limit: The first so many trajectories.
    """
    writer.check()
    check_out(out, SUFFIXES)
    kept = work_folder(out, work) / "answers.jsonl"
    check_apart([source, writer.model], {"--out": out, "--work": kept})
    answers = Answers(writer.asked(), kept)
    report = Report()
    trajectories = islice(read(source), limit)
    tags = WITH_INSTRUCTION if instruction else TAGS
    write(progress(with_contexts(trajectories, answers, report, tags), "trajectories"), out, sources=[source])
    ok = not report.failed.total() or report.filled > 0
    return {**report.as_dict(), "asked": answers.asked, "out": str(out), "ok": ok}
