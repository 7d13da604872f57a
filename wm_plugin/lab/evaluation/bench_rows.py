"""AgentWorldBench's rows, as its files have them: nothing is cut, trimmed or rendered again.

`data.readers.agentworldbench` reads the same files as trajectories, for everything else.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.readers import agentworldbench
from wm_plugin.errors import UserError
from wm_plugin.rewards.extract import extract
from wm_plugin.tokens.message import Message

TEXT, GUI = ("mcp", "search", "terminal", "swe"), ("android", "web", "os")
TAG = "predicted_observation"
_FILES = "*_test.jsonl"


@dataclass(frozen=True)
class Row:
    """A turn to predict."""

    task: str
    domain: str  # the last part of `task`
    id: str
    turn: int  # from 1
    # all that the file has; those after `turn` are not shown
    prompts: tuple[str, ...]
    responses: tuple[str, ...]
    system: str = ""  # the world model's instructions, or ""
    current: str = ""  # the file's `current_prompt`, mostly the turn's prompt

    @property
    def trajectory(self) -> str:
        return f"{self.task}/{self.id}"

    @property
    def key(self) -> tuple[str, str, int]:
        return self.task, self.id, self.turn

    @property
    def action(self) -> str:
        return self.prompts[self.turn - 1]

    @property
    def response(self) -> str:
        return self.responses[self.turn - 1]

    @property
    def real(self) -> str:
        """The real observation, without its heading."""
        return unmarked(self.response)

    @property
    def history(self) -> list[tuple[str, str]]:
        """The prompts before the turn, with their responses."""
        before = self.turn - 1
        return list(zip(self.prompts[:before], self.responses[:before], strict=True))

    def conversation(self, instruction: str = "") -> list[Message]:
        """Return the question to the world model, word for word; an `instruction` follows its own instructions."""
        system = "\n\n".join(filter(None, (self.system, instruction)))
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        for action, observed in self.history:
            messages += [{"role": "user", "content": action}, {"role": "assistant", "content": observed}]
        return [*messages, {"role": "user", "content": self.action}]

    def prediction(self, output: str) -> str | None:
        """Return an output's prediction by our rules: in the tag, or after the thoughts if nobody asked for the tag."""
        tagged = extract(output, TAG).prediction
        if tagged is None and f"<{TAG}>" not in self.system:
            tagged = extract(output, "").prediction
        return None if tagged is None else unmarked(tagged)


def unmarked(text: str) -> str:
    """Remove an observation's heading from the beginning of a text."""
    return text.strip().removeprefix(agentworldbench.OBSERVATION).strip()


def domain_of(task: str) -> str:
    """Return the last part of a task's name, without what a terminal would act on."""
    return "".join(sign if sign.isprintable() else "?" for sign in task.rpartition("/")[2])[:40]


def is_bench(source: str) -> bool:
    """Return whether these are AgentWorldBench's files, and not trajectories."""
    return Path(source).is_dir() or agentworldbench.matches(files.head(Path(source)))


def read(source: str | Path, limit: int | None = None) -> list[Row]:
    """Read the rows of a file, or of all `*_test.jsonl` of a folder."""
    path = Path(source)
    paths = sorted(path.glob(_FILES)) if path.is_dir() else [path]
    if not paths:
        raise UserError(f"{path}: holds no {_FILES} of AgentWorldBench")
    rows: list[Row] = []
    counts: dict[str, int] = defaultdict(int)
    for where, value in _values(paths):
        row = _row(where, value)
        counts[row.domain] += 1
        if limit is None or counts[row.domain] <= limit:
            rows.append(row)
    return rows


def read_outputs(source: str | Path) -> Callable[[Row], str]:
    """Return a function that gives a model's output for a row, "" if the file has none.

    The file has rows with `task`, `id`, `turn_idx` and `gen`, as the published evaluator writes them. Several outputs of one row
    come in the file's order.
    """
    outputs: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for where, value in _values([Path(source)]):
        turn, text = value.get("turn_idx"), value.get("gen")
        if type(turn) is not int or not isinstance(text, str | None) or "gen" not in value:
            raise _damaged(where, "no row with turn_idx and gen, which holds the output")
        outputs[str(value.get("task")), str(value.get("id")), turn].append(text or "")
    iterators = {key: iter(texts) for key, texts in outputs.items()}
    return lambda row: next(iterators.get(row.key, iter(())), "")


def _values(paths: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where it is, the row)."""
    for path in paths:
        for one in files.records(path, files.head(path)):
            where = f"{path}: row {one.row + 1}"
            if one.error is not None or not isinstance(one.value, dict):
                raise _damaged(where, str(one.error or "not an object"))
            yield where, one.value


def _row(where: str, value: dict[str, Any]) -> Row:
    prompts, responses, turn = value.get("prompt"), value.get("response"), value.get("turn_idx")
    for name, texts in (("prompt", prompts), ("response", responses)):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise _damaged(where, f"`{name}` is no list of texts")
    assert isinstance(prompts, list)
    assert isinstance(responses, list)
    if type(turn) is not int or not 1 <= turn <= min(len(prompts), len(responses)):
        held = f"{len(prompts)} prompts and {len(responses)} responses"
        raise _damaged(where, f"turn_idx is {str(turn)[:20]}, of {held}")
    texts = [value.get("task"), value.get("system_str") or "", value.get("current_prompt") or ""]
    if not all(isinstance(text, str) for text in texts) or not texts[0]:
        raise _damaged(where, "`task`, `system_str` or `current_prompt` is no text")
    task, system, current = map(str, texts)
    return Row(task, domain_of(task), str(value.get("id")), turn, tuple(prompts), tuple(responses), system, current)


def _damaged(where: str, reason: str) -> UserError:
    return UserError(f"{where} is no row of AgentWorldBench: {reason}")
