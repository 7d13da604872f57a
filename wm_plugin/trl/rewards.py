"""Any reward of predictions as a reward function of TRL's GRPO trainers.

    GRPOTrainer(..., reward_funcs=[as_reward_function({"path": "rouge", "kwargs": {"step": 0.2, "tag": "next_state"}})])

In the YAML of `wm train` the same block stands under `rewards`. Stock `trl grpo` takes dotted paths of functions only, and never
calls what it finds there with arguments: `exact`, `word_f1`, `rouge`, `rules` and `rwml_tools` are made here, for predictions in
`<next_state>`. With another tag or other settings, two lines of a module of your own are enough:

    from wm_plugin.trl.rewards import as_reward_function
    mine = as_reward_function({"path": "rouge", "kwargs": {"tag": "predicted_observation"}})   # --reward_funcs module.mine

The rows are those of `wm data build --as rwml --host trl`: `prompt`, `target`, and columns that some rewards ask for.
"""

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wm_plugin.errors import UserError, nearest
from wm_plugin.rewards.make import check_tagged, make

RewardFunction = Callable[
    ..., Any
]  # (prompts, completions, completion_ids, **columns) -> list[float], or a coroutine of it
# What TRL hands over beside the dataset's columns. `environments` is one a row, and goes on with them.
_HOST = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


def as_reward_function(reward: Any, *, name: str | None = None, target: str = "target") -> RewardFunction:
    """A reward function for TRL.

    The prediction is the content of a completion's last message of the assistant's, or the text that a completion is; None where
    there is none. All other columns go to the reward by their names, those it takes, and the prompts as `context` where there is
    no such column. What the reward's `figures` say is logged as `wm/<name>/<figure>` (`eval_wm/...` in evaluations), averaged
    over a step and all processes; a TRL without `log_metric` logs none.

    A reward with `call_async`, and one that is a coroutine function, becomes a coroutine function: TRL waits for all of these at
    the same time. None and NaN leave a row out of this reward, as in TRL.

    Args:
        reward: a reward; its name, or package.module:Name; or {"path": either of them, "kwargs": its arguments}.
        name: in TRL's metrics; None: the reward's own.
        target: the column of what was really observed.

    Raises:
        UserError: there is no such reward, or it has no tag; from a call: a column is missing, or what the reward gives is no
            score for each row.
    """
    made = make(reward)
    name = name or _name(reward)
    check_tagged(made, name)
    asked: Any = getattr(made, "call_async", made)
    takes = _Columns(name, made, target)

    def scores(log_metric: Any, prompts: Sequence[Any], given: Any) -> list[float | None]:
        found = _scores(name, given, len(prompts))
        if log_metric is not None:
            for figure, value in (getattr(made, "figures", None) or {}).items():
                if math.isfinite(value):
                    log_metric(f"wm/{name}/{figure}", float(value))
        return found

    if _is_async(asked):

        async def function(
            prompts: Sequence[Any], completions: Sequence[Any], log_metric: Any = None, **rest: Any
        ) -> list[float | None]:
            columns = takes(prompts, rest)
            return scores(log_metric, prompts, await asked(predictions(completions), **columns))

    else:

        def function(  # type: ignore[misc]
            prompts: Sequence[Any], completions: Sequence[Any], log_metric: Any = None, **rest: Any
        ) -> list[float | None]:
            columns = takes(prompts, rest)
            return scores(log_metric, prompts, asked(predictions(completions), **columns))

    function.__name__ = function.__qualname__ = name
    function.reward = made  # type: ignore[attr-defined]
    return function


def predictions(completions: Sequence[Any]) -> list[str | None]:
    """What a model wrote last, for each completion: text, or messages."""
    return [completion if isinstance(completion, str) else _last_content(completion) for completion in completions]


def reward_functions(specs: Any, *, field: str = "rewards") -> list[RewardFunction]:
    """The reward functions that a config lists. A second one of the same name is `<name>_2` in the metrics.

    Raises:
        UserError: it is no list, or an entry does not fit; with the field and the entry's number.
    """
    if isinstance(specs, str | Mapping):
        specs = [specs]
    if not isinstance(specs, Sequence):
        raise UserError(f"{field} is {specs!r:.100}; write a list of names, or of {{path: NAME, kwargs: {{...}}}}")
    found: list[RewardFunction] = []
    names: list[str] = []
    for number, spec in enumerate(specs, 1):
        try:
            function = as_reward_function(spec)
        except UserError as error:
            raise UserError(f"{field}, entry {number}: {error}") from None
        names.append(function.__name__)
        if (times := names.count(function.__name__)) > 1:
            function = as_reward_function(function.reward, name=f"{function.__name__}_{times}")  # type: ignore[attr-defined]
        found.append(function)
    return found


class _Columns:
    """Those of TRL's arguments that a reward takes: `targets`, and columns by name."""

    def __init__(self, name: str, reward: Any, target: str) -> None:
        self.name, self.target = name, target
        parameters = list(inspect.signature(reward).parameters.values())
        rest = [p for p in parameters[2:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if len(parameters) < 2 or parameters[1].kind is parameters[1].KEYWORD_ONLY:
            raise UserError(f"reward {name} takes {inspect.signature(reward)}; predictions and targets come first")
        self._second = parameters[1].name
        self._texts = {p.name for p in parameters[:2]}
        self._takes = {p.name for p in rest}
        self._needs = [p.name for p in rest if p.default is p.empty]
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def __call__(self, prompts: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
        columns = {key: value for key, value in given.items() if key not in _HOST}
        for needed in (self.target, *self._needs):
            if needed not in columns and needed != "context":
                raise UserError(
                    f"reward {self.name} needs the column {needed!r}, and the dataset has {', '.join(columns) or 'no other'}"
                    f"{nearest(needed, columns) if columns else ''}"
                )
        targets = columns.pop(self.target)
        columns.setdefault("context", prompts)
        takes = columns.keys() - self._texts if self._takes_all else columns.keys() & self._takes
        return {self._second: targets} | {key: columns[key] for key in columns if key in takes}


def _last_content(messages: Sequence[Mapping[str, Any]]) -> str | None:
    content = next((m.get("content") for m in reversed(messages) if m.get("role") == "assistant"), None)
    if content is None or isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if part.get("type") == "text")


def _scores(name: str, given: Any, count: int) -> list[float | None]:
    """A list of numbers and None, whatever sequence a reward returned."""
    values = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(values, list | tuple) or len(values) != count:
        what = f"{len(values)} scores" if isinstance(values, list | tuple) else type(values).__name__
        raise UserError(f"reward {name} returned {what} for {count} completions; write one number for each")
    for value in values:
        if value is not None and (not isinstance(value, numbers.Real) or math.isinf(value)):
            raise UserError(
                f"reward {name} returned {value!r:.40} for a completion; write a number, or None to leave it out"
            )
    return [None if value is None else float(value) for value in values]


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _name(spec: Any) -> str:
    """`rouge` of "rouge", `Mine` of "package.module:Mine", the class of an instance."""
    path = spec.get("path") if isinstance(spec, Mapping) else spec
    if isinstance(path, str):
        return path.replace(":", ".").rpartition(".")[2]
    return str(getattr(path, "__name__", type(path).__name__))


def _stock(path: str, name: str, **kwargs: Any) -> RewardFunction:
    return as_reward_function({"path": path, "kwargs": {"tag": "next_state", **kwargs}}, name=name)


exact = _stock("exact", "exact")
word_f1 = _stock("word_f1", "word_f1")
rouge = _stock("rouge", "rouge")
rules = _stock("rules", "rules")
rwml_tools = _stock("rouge", "rwml_tools", step=0.2)  # RWML's reward of what tools return; its other half needs a model
