"""`wm lab foresight`."""

from collections import Counter
from itertools import islice
from typing import Any

from cyclopts import Group, Parameter

from wm_plugin.cli import measures
from wm_plugin.cli.flags import ModelFlags
from wm_plugin.cli.numbers import Count, Names
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import progress
from wm_plugin.client.answers import Answers
from wm_plugin.data.readers import read
from wm_plugin.data.transitions import identity
from wm_plugin.options import Whole, option


@Parameter(name="*", group=Group("The judge", sort_key=1))
class Judge(ModelFlags):
    """The judge; without one, the actions alone are measured."""

    max_chars: Whole = option("Longest text for the judge, in characters.", default=100_000, ge=1)


@prints(measures.show)
def foresight(
    source: str,
    /,
    *,
    before: str | None = None,
    passive: Names | None = None,
    invalid: Names | None = None,
    limit: Count | None = None,
    judge: Judge = Judge(max_new_tokens=4096, batch_size=16),
    seed: int = 0,
    out: str | None = None,
) -> dict[str, Any]:
    """Does an agent foresee what comes of its actions, and how good are they?

    Accuracy of the explicit predictions in an agent's thinking, as a judge finds and compares them, and how often the agent
    corrects itself (Qwen-AgentWorld, sections 6.2 and 7.1); invalid and ineffective actions by kind (RWML, section 4.1).
    Without a judge, the actions alone.

    ```
    wm lab foresight after.jsonl --before before.jsonl --out out/foresight --server http://localhost:8000/v1 --server-model NAME
    wm lab foresight after.jsonl --before before.jsonl --passive look examine
    ```

    Args:
        source: The agent's trajectories, or any format that wm data convert reads.
        before: Those of before its training: adds differences, paired by task.
        passive: Commands that only look: ineffective, too.
        invalid: Regular expressions for observations that answer an invalid action, besides the known ones.
        limit: The first N trajectories of each file.
        seed: Seed of the intervals, and of a judge that samples.
        out: Folder that keeps the judge's answers, the cases and the measures; the same command continues from it.
    """
    from wm_plugin.lab.evaluation import foresight
    from wm_plugin.lab.evaluation.measures import Evaluation, differences

    asked = None
    if judge.name or judge.server:
        judge.check()
        asked = judge.asked()
    folder = measures.open_folder(out, "foresight", source, source)
    failures: Counter[str] = Counter()
    sums, rows = {}, []
    for name, file in {"after": source, **({"before": before} if before else {})}.items():
        sums[name], turns = _read(file, passive or [], invalid or [], limit)
        if asked and turns:
            answers = Answers(asked, folder and folder / measures.ANSWERS)
            judged = foresight.judge(turns, answers, seed=seed, max_chars=judge.max_chars)
            failures += foresight.add(sums[name], judged)
            rows += [{"data": name, **one.as_row()} for one in judged]
    found = sums["after"].measures(seed=seed)
    notes = [] if asked else ["no judge was named, so that nothing is said of predictions and corrections"]
    if before:
        found += sums["before"].measures(by="data", group="before", seed=seed)
        compared = differences(sums["after"], sums["before"], seed=seed)
        if not compared:
            notes.append("the two files have fewer than two tasks in common, so that nothing is compared")
        found += compared
    settings = {
        "before": before,
        "passive": passive or [],
        "invalid": invalid or [],
        "limit": limit,
        "max_chars": judge.max_chars,
        "seed": seed,
        "judge": asked.settings if asked else None,
    }
    result = Evaluation("foresight", source, source, settings, found, dict(failures), notes)
    return measures.kept(result, rows, folder, ok=bool(found))


def _read(source: str, passive: list[str], invalid: list[str], limit: int | None) -> tuple[Any, list[Any]]:
    """The sums of a file's actions, and its turns for the judge."""
    from wm_plugin.lab.evaluation import actions, foresight
    from wm_plugin.lab.evaluation.measures import Sums

    sums, turns = Sums(), list[foresight.Case]()
    looking = {word.lower() for word in passive}
    for trajectory in progress(islice(read(source), limit), "trajectories"):
        task = trajectory.task_id or identity(trajectory)
        actions.add(sums, task, actions.quality(trajectory, passive=looking, invalid=invalid))
        turns += foresight.cases(trajectory, sums, task)
    return sums, turns
