"""The parts of a run of `wm lab bench`: what is scored, by which prompts, and the checks by rules."""

import hashlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.prompts import load
from wm_plugin.data.readers import agentworldbench, read
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import bench_rows, rule_cases, rules
from wm_plugin.rewards import prompts
from wm_plugin.rewards.verdict import TAG

_PROMPTS = "mcp"  # of trajectories


def is_bench(source: str) -> bool:
    """Whether these are AgentWorldBench's files, and not trajectories."""
    return Path(source).is_dir() or agentworldbench.matches(files.head(Path(source)))


def turing_prompts(ours: bool, others: Sequence[str]) -> list[str]:
    """The prompts that let judges tell predictions from observations.

    Raises:
        UserError: one does not ask for the verdict in the form that is read.
    """
    chosen = [*(["turing"] if ours else []), *(str(Path(one).resolve()) for one in others)]
    for prompt in chosen:
        if f"<{TAG}>" not in prompts.load(prompt):
            raise UserError(
                f'--turing-prompt {prompt}: ask for the verdict in our form, {{"real": "first"}} in <{TAG}>'
            )
    return chosen


def sessions(source: str, rows: Sequence[bench_rows.Row], family: str | None, limit: int | None, seed: int) -> Any:
    """What the checks by rules are built from: rows of the benchmark, or else trajectories."""
    if rows:
        return rules.bench_sessions(rows)
    return rules.sessions(islice(read(source), limit), load(family or _PROMPTS), seed=seed)


def add_rules(
    table: Any, sessions: Any, model: Any, checkers: list[Any], judges: list[Any], source: str, seed: int
) -> None:
    """Add the checks by rules to a table.

    Raises:
        UserError: no turn gives a case.
    """
    cases = list(rule_cases.build(sessions, seed=seed))
    conversations = [case.conversation for case in cases]
    checking = [answers(conversations, seed=seed) for answers in checkers]
    label = rules.labels_of(judges[0]) if judges else None
    kept, left = rules.validated(cases, checking, label)
    if not kept:
        raise UserError(f"{source}: no turn gives a case for --rules ({len(cases)} were built, and none was kept)")
    scored = rules.score(kept, model([case.conversation for case in kept], seed=seed), label=label, seed=seed)
    table.measures += scored.measures
    table.failures += scored.failures
    table.rows += scored.rows
    without = "".join(f"; {count} left out that disagree with {reason}" for reason, count in sorted(left.items()))
    table.notes.append(f"rules: {len(kept)} cases, checked with {len(checkers)} models{without}")


def file_name(label: str) -> str:
    """A file name for a judge's answers; a hash tells names apart that a file cannot."""
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in ".-") else "-" for sign in label)[:40]
    return f"{plain}-{hashlib.sha256(label.encode(errors='replace')).hexdigest()[:8]}"
