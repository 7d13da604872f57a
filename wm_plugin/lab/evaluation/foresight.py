"""Does an agent foresee what comes of its actions (Qwen-AgentWorld, section 6.2 and figure 10)?

Over the turns in whose thinking the agent explicitly says what the environment will answer, the accuracy is the share in which
that agrees with the real answer. A judge finds the prediction without seeing the answer, so that hindsight cannot help it, and
must copy it from the thinking word for word; a second question compares it with the answer. The judge also counts how often and
why the agent corrects itself, and words such as "Wait," are counted here. The judge sees what the agent wrote between markers, as
data (`rewards.delimit`), and a reply has one verdict or none (`rewards.verdict`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from wm_plugin.client.answers import Answer, Answers, ask_again
from wm_plugin.data.schema import Trajectory, Turn
from wm_plugin.data.thoughts import words
from wm_plugin.data.transitions import identity
from wm_plugin.data.turn_texts import action_text
from wm_plugin.lab.evaluation.measures import Key, Sums
from wm_plugin.rewards import prompts
from wm_plugin.rewards.delimit import fenced, neutral, shortened
from wm_plugin.rewards.extract import extract
from wm_plugin.rewards.verdict import TAG, fields, is_forged, number
from wm_plugin.tokens.message import Message

CORRECTIONS = ("factual", "epistemic", "perspective")  # section 7.1, of the thoughts of a world model
MAX_CHARS = 100_000  # of each text that the judge sees
_AT_ONCE = 256  # questions in memory, each as long as three texts of `max_chars`
_MOST = 10_000  # corrections of a turn; the published peak is 56
_AFTER_WAIT = frozenset(",.!?:;…—–-")
_CLOSING = f"The data ends here. Do with it what you were told, and end with your only verdict in <{TAG}>."
_AGAIN = (
    f"The data ends here. A reply before this one could not be read: write <{TAG}> once, close it, and put one JSON object and "
    "nothing else into it."
)


class Finding(NamedTuple):
    """What the judge found in the thinking: the prediction, if there is one, and corrections by kind."""

    prediction: str | None
    corrections: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A turn in which the agent thought and got an answer, with the judge's words on it."""

    task: str  # the turn's task
    where: str  # the trajectory's name
    turn: int  # the turn's number, from 0
    tool: str  # the tool that was called; "" for a text or several tools
    # the turn's texts
    thinking: str
    action: str
    observed: str
    finding: Finding | None = None  # None if the judge gave none
    right: bool | None = None  # None if there is no prediction or no verdict
    failure: str = ""  # why something of the judge is missing

    def as_row(self) -> dict[str, Any]:
        """Make a row for `write_rows`."""
        return {
            "trajectory": self.where,
            "turn": self.turn,
            "context": self.thinking,
            "action": self.action,
            "real": self.observed,
            "predicted": self.finding.prediction if self.finding else None,
            "corrections": dict(zip(CORRECTIONS, self.finding.corrections, strict=True)) if self.finding else None,
            "scores": {} if self.right is None else {"right": float(self.right)},
            "failure": self.failure,
        }


def cases(trajectory: Trajectory, sums: Sums, task: str) -> Iterator[Case]:
    """Yield the agent's turns with thoughts and an answer; count those with an answer, and words such as "Wait,"."""
    where = identity(trajectory)
    for place, turn in enumerate(trajectory.turns):
        if turn.actor != "agent" or not turn.observations:
            continue
        written = extract(turn.action.text, "")  # the thinking may be recorded apart, or stand in the text
        thinking = "\n".join(filter(None, [words(turn.action.thought), written.reasoning]))
        sums.add(Key("thinking"), task, bool(thinking))
        if not thinking:
            continue
        sums.add(Key("interrupts", "count"), task, interrupts(thinking))
        tools = {observation.tool or "" for observation in turn.observations}
        tool = tools.pop() if len(tools) == 1 else ""
        action = action_text(turn.action.model_copy(update={"text": written.prediction or ""}))
        yield Case(task, where, place, tool, thinking, action, _observed(turn))


def interrupts(thinking: str) -> int:
    """Count how often a thought interrupts itself with "Wait," or the like; "wait for" does not."""
    words = (word.lstrip("\"'*_([“‘") for word in thinking.lower().split())
    return sum(word[:4] == "wait" and word[4:5] in _AFTER_WAIT and len(word) > 4 for word in words)


def judge(turns: Sequence[Case], answers: Answers, *, seed: int = 0, max_chars: int = MAX_CHARS) -> list[Case]:
    """Ask a judge about every case: first for the prediction, then whether it came true.

    A reply without a verdict is asked for once more.
    """

    def find(case: Case, again: bool) -> list[Message]:
        return _question("foresight_find", {"thinking": case.thinking, "action": case.action}, max_chars, again)

    def compare(pair: tuple[Case, str], again: bool) -> list[Message]:
        case, prediction = pair
        texts = {"predicted": prediction, "action": case.action, "observed": case.observed}
        return _question("foresight_compare", texts, max_chars, again)

    clean = [place for place, case in enumerate(turns) if not is_forged(case.thinking + case.action, "")]
    with answers:  # its file is read once, not for each chunk
        found = _asked(answers, [turns[place] for place in clean], find, _finding, seed)
        findings = dict(zip(clean, found, strict=True))
        pairs = {place: (turns[place], one.prediction) for place, one in findings.items() if _predicts(one)}
        verdicts = dict(zip(pairs, _asked(answers, list(pairs.values()), compare, _right, seed), strict=True))
    judged = []
    for place, case in enumerate(turns):
        finding, right = findings.get(place, "forged"), verdicts.get(place)
        failure = next((one for one in (finding, right) if isinstance(one, str)), "")
        whole = None if isinstance(finding, str) else finding
        judged.append(replace(case, finding=whole, right=None if isinstance(right, str) else right, failure=failure))
    return judged


def _predicts(finding: Finding | str | None) -> bool:
    return isinstance(finding, Finding) and finding.prediction is not None


def add(sums: Sums, judged: Iterable[Case]) -> Counter[str]:
    """Add a judge's words to the sums by task, and return how many failed, by reason.

    Where the judge failed to find a prediction there may be a wrong one, so it is a failed row of the accuracy, too.
    """
    failures: Counter[str] = Counter()
    for one in judged:
        task, finding, lost = one.task, one.finding, one.finding is None
        failures[one.failure] += bool(one.failure)
        predicts = _predicts(finding)
        sums.add(Key("predicts"), task, predicts, not lost, lost)
        if lost or predicts:
            row = (task, float(one.right or 0), one.right is not None, one.right is None)
            sums.add(Key("accuracy"), *row)
            if one.tool:
                sums.add(Key("accuracy", "share", "tool", one.tool), *row)
        for place, kind in enumerate(CORRECTIONS):
            count = finding.corrections[place] if finding else 0
            sums.add(Key("corrections", "count", "kind", kind), task, count, not lost, lost)
    return +failures


def _asked(
    answers: Answers,
    items: Sequence[Any],
    question: Callable[[Any, bool], list[Message]],
    read: Callable[[Any, str], Any],
    seed: int,
) -> list[Any]:
    """Read the answers: each result is what `read` returns, or a text that says why there is nothing.

    What could not be read is asked for once more, in other words.
    """
    results: list[Any] = [""] * len(items)

    def settle(place: int, reply: Answer) -> bool:
        results[place] = reply.trouble or read(items[place], reply.text)
        return bool(reply.failure) or not isinstance(results[place], str)

    def asked(place: int, attempt: int) -> list[Message]:
        return question(items[place], attempt > 0)

    ask_again(answers, range(len(items)), asked, settle, tries=2, seed=seed, at_once=_AT_ONCE)
    return results


def _finding(case: Case, reply: str) -> Finding | str:
    values = fields(reply, ["prediction", *CORRECTIONS], case.thinking)
    counts = [number(values.get(kind), 0, _MOST) for kind in CORRECTIONS]
    prediction = values.get("prediction")
    if not values or any(count is None or count % 1 for count in counts) or not isinstance(prediction, str | None):
        return "no verdict"
    if prediction is not None and not prediction.strip():
        prediction = None
    if prediction is not None and _words(prediction) not in _words(neutral(case.thinking)[0]):
        return "not in the thinking"
    return Finding(prediction, tuple(int(count or 0) for count in counts))


def _right(pair: tuple[Case, str], reply: str) -> bool | str:
    value = fields(reply, ["right"], pair[0].observed).get("right")
    score = float(value) if isinstance(value, bool) else number(value, 0, 1)
    return "no verdict" if score not in (0.0, 1.0) else score == 1.0


def _question(name: str, texts: dict[str, str], max_chars: int, again: bool) -> list[Message]:
    blocks, _ = fenced({key: shortened(text, max_chars) for key, text in texts.items()})
    closing = _AGAIN if again else _CLOSING
    return [{"role": "system", "content": _instructions(name)}, {"role": "user", "content": f"{blocks}\n\n{closing}"}]


@cache
def _instructions(name: str) -> str:
    prompt = (resources.files(__package__) / f"{name}.md").read_text(encoding="utf-8").strip()
    return f"{prompt}\n\n{prompts.packaged('data')}"


def _observed(turn: Turn) -> str:
    if len(turn.observations) == 1:
        return turn.observations[0].text
    return "\n\n".join(
        f"Answer {place}" + (f" ({one.tool})" if one.tool else "") + f":\n{one.text}"
        for place, one in enumerate(turn.observations, 1)
    )


def _words(text: str) -> str:
    return " ".join(text.casefold().split())
