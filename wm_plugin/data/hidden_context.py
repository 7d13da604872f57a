"""The hidden context of a recorded trajectory, written by a model from all that happened in it.

Qwen-AgentWorld's simulators get such a summary of the state behind a trajectory (the data, permissions, what is available) and
the final state that success requires (section 6), without telling how it is made. It is for the world model alone: it knows what
the agent has yet to find out. The instruction that a simulator is to obey can be written with it: how the environment behaved,
its failures and what it withheld.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from itertools import islice
from string import Template
from typing import Any

from wm_plugin.client.answers import Answers
from wm_plugin.data.errors import RowError
from wm_plugin.data.hidden import HIDDEN
from wm_plugin.data.render import write_context, write_history
from wm_plugin.data.schema import Trajectory
from wm_plugin.rewards.delimit import fenced, neutral
from wm_plugin.rewards.extract import extract
from wm_plugin.tokens.message import Message

LONGEST = 20_000  # characters of a part
MOST = 1_000_000  # characters of a record that is asked about
_AT_ONCE = 64  # trajectories in memory
_NONE = ("none", "none.", "(none)", "n/a")
# A tag of the answer -> the field of the context.
TAGS = dict(zip(("summary", "permissions", "availability", "final_state"), HIDDEN, strict=True))
# With the instruction that would make a simulator behave so (Qwen-AgentWorld, section 6.1.2).
WITH_INSTRUCTION = {**TAGS, "instruction": "simulation_instruction"}
_INSTRUCTION = (
    "- instruction: how the environment behaves in this session where its state alone does not say it, as orders to whoever "
    "stands in for it: which calls fail, how often and with which words, what is withheld until it is asked for, what comes in "
    "pages, and the form of the answers. Name turns only where the record leaves no other rule.\n"
)


class Refused(RowError):
    """An answer holds no context."""


@dataclass
class Report:
    """Counts of trajectories: those that got a context, those that had all of it, and the others by reason."""

    trajectories: int = 0
    filled: int = 0
    complete: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "failed": dict(self.failed.most_common())}


def with_contexts(
    trajectories: Iterable[Trajectory], answers: Answers, report: Report, tags: Mapping[str, str] = TAGS
) -> Iterator[Trajectory]:
    """Yield the trajectories, in order, with the hidden context that a model writes. What a context has already stays.

    An answer that cannot be read is answered with the reason, and asked for once more.
    """
    rest = iter(trajectories)
    with answers:
        while some := list(islice(rest, _AT_ONCE)):
            asked: dict[int, list[Message]] = {}
            for place, trajectory in enumerate(some):
                if all(getattr(trajectory.context, one) for one in tags.values()):
                    report.complete += 1
                elif (messages := question(trajectory, tags)) is None:
                    report.failed["too long"] += 1
                else:
                    asked[place] = messages
            read = _asked_twice(asked, answers, report, tags)
            for place, trajectory in enumerate(some):
                report.trajectories += 1
                report.filled += place in read
                yield _filled(trajectory, read[place]) if place in read else trajectory


def question(trajectory: Trajectory, tags: Mapping[str, str] = TAGS) -> list[Message] | None:
    """Write the conversation that asks for a context; None for a record that is too long."""
    texts = {
        "beginning": write_context(trajectory.context, world=True),
        "session": write_history(trajectory.turns),
        "outcome": {
            True: "The task was done.",
            False: "The task was not done.",
            None: "Nobody knows whether it was done.",
        }[trajectory.success],
    }
    if sum(map(len, texts.values())) > MOST:
        return None
    data, _ = fenced(texts)
    told = Template(resources.files(__package__).joinpath("hidden_context.md").read_text(encoding="utf-8"))
    closing = "The data ends here. Write the parts as you were told."
    more = {"told": "", "form": ""}
    if "instruction" in tags:
        more = {"told": _INSTRUCTION, "form": "<instruction>\n...\n</instruction>"}
    return [
        {"role": "system", "content": told.substitute(longest=f"{LONGEST:,}", **more).strip()},
        {"role": "user", "content": f"{data}\n\n{closing}"},
    ]


def read_context(text: str, tags: Mapping[str, str] = TAGS) -> dict[str, str]:
    """Read the fields of a context from an answer. Any text is accepted, in time linear in its length."""
    fields: dict[str, str] = {}
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
    for tag, name in tags.items():
        found = extract(text, tag).prediction
        if found is None or f"</{tag}>" not in text or any(mark in found for mark in marks):
            raise Refused(f"<{tag}> was missing, or not closed before another part", "no context")
        if len(found) > LONGEST:
            raise Refused(f"{tag} had more than {LONGEST:,} characters", "part too long")
        if neutral(found)[0] != found:
            raise Refused(f"{tag} had marks of chat templates or thoughts, or characters that cannot be seen", "marks")
        fields[name] = "" if found.lower() in _NONE else found
    if not fields[TAGS["summary"]]:
        raise Refused("the summary was empty", "no summary")
    return fields


def _asked_twice(
    asked: dict[int, list[Message]], answers: Answers, report: Report, tags: Mapping[str, str]
) -> dict[int, dict[str, str]]:
    read: dict[int, dict[str, str]] = {}
    for last in (False, True):
        again: dict[int, list[Message]] = {}
        for (place, messages), answer in zip(asked.items(), answers(asked.values()), strict=True):
            try:
                if answer.failure or answer.cut:
                    raise Refused("it was cut", answer.trouble)
                read[place] = read_context(answer.text, tags)
            except Refused as error:
                if last or answer.failure:
                    report.failed[error.kind] += 1
                    continue
                told = f"This cannot be used: {error}. Write all parts again, each between its tags, with nothing after them."
                reply = [{"role": "assistant", "content": answer.text}, {"role": "user", "content": told}]
                again[place] = [*messages, *reply]
        asked = again
    return read


def _filled(trajectory: Trajectory, fields: dict[str, str]) -> Trajectory:
    context = trajectory.context
    update = {name: text for name, text in fields.items() if not getattr(context, name)}
    return trajectory.model_copy(update={"context": context.model_copy(update=update)})
