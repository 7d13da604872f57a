"""Any reward of predictions as a reward function of TRL's GRPO trainers.

    GRPOTrainer(..., reward_funcs=[as_reward_function({"path": "rouge", "kwargs": {"step": 0.2, "tag": "next_state"}})])

In the YAML of `wm train` the same block stands under `rewards`. Stock `trl grpo` takes only dotted paths of functions, without
arguments, so this module has ready-made ones for predictions in `<next_state>`: `exact`, `word_f1`, `rouge`, `rules` and
`rwml_tools`. For another tag or other settings, write two lines in a module of your own:

    from wm_plugin.trl.rewards import as_reward_function
    mine = as_reward_function({"path": "rouge", "kwargs": {"tag": "predicted_observation"}})   # --reward_funcs module.mine

The rows are those of `wm data build --as rwml --host trl`: `prompt`, `target`, and the columns that some rewards need.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from wm_plugin.errors import UserError, shown
from wm_plugin.rewards.hosted import HostedReward, RewardError, short_name
from wm_plugin.rewards.make import make

logger = logging.getLogger(__name__)

# (prompts, completions, completion_ids, **columns) -> list[float | None], or a coroutine of it
RewardFunction = Callable[..., Any]
# TRL's own arguments beside the dataset's columns. `environments`, one per row, counts as a column.
_HOST = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


def as_reward_function(reward: Any, *, name: str | None = None, target: str = "target") -> RewardFunction:
    """Return a reward function for TRL.

    The prediction is the content of the last assistant message of a completion, or the completion itself if it is a text; None
    if there is none. The reward gets the other columns that its signature takes, by name, and the prompts as `context` unless
    the dataset has such a column. The reward's `figures` are logged as `wm/<name>/<figure>` (`eval_wm/...` in evaluations),
    averaged over a step and all processes; a TRL without `log_metric` logs none.

    A reward with `call_async`, or one that is a coroutine function, becomes a coroutine function; TRL awaits all of these at the
    same time. As in TRL, None and NaN leave a row out of this reward.

    Args:
        reward: a reward; its name, or package.module:Name; or {"path": either of them, "kwargs": its arguments}.
        name: its name in TRL's metrics; None for the reward's own.
        target: the column of the real observations.

    Raises:
        UserError: there is no such reward, or it has no tag; from a call: a column is missing, or the reward does not return one
            score per row.
    """
    function = make(reward)
    name = name or _name(reward)
    hosted = HostedReward(name, function, label=name, optional=True)
    call: Any = hosted.call_async or function

    def columns_of(prompts: Sequence[Any], arguments: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the targets, and the columns that the reward takes."""
        columns = {key: value for key, value in arguments.items() if key not in _HOST}
        hosted.check_column(target, columns)
        targets = columns.pop(target)
        return targets, hosted.columns({"context": prompts, **columns})

    def scores(log_metric: Any, prompts: Sequence[Any], result: Any) -> list[float | None]:
        outcomes = hosted.outcomes(result, len(prompts))
        for outcome in outcomes:
            if isinstance(outcome, RewardError):
                raise UserError(str(outcome))
        if log_metric is not None:
            for figure, value in hosted.figures.items():
                if math.isfinite(value):
                    log_metric(figure, value)
        return outcomes  # type: ignore[return-value]  # none of them is an error

    if hosted.is_async:

        async def reward_function(
            prompts: Sequence[Any], completions: Sequence[Any], log_metric: Any = None, **rest: Any
        ) -> list[float | None]:
            targets, columns = columns_of(prompts, rest)
            return scores(log_metric, prompts, await call(predictions(completions), targets, **columns))

    else:

        def reward_function(  # type: ignore[misc]
            prompts: Sequence[Any], completions: Sequence[Any], log_metric: Any = None, **rest: Any
        ) -> list[float | None]:
            targets, columns = columns_of(prompts, rest)
            return scores(log_metric, prompts, call(predictions(completions), targets, **columns))

    reward_function.__name__ = reward_function.__qualname__ = name
    reward_function.reward, reward_function.target = function, target  # type: ignore[attr-defined]
    return reward_function


def check_truth(functions: Any, dataset: Any, *, warns: bool = True) -> None:
    """Check that the rules among reward functions hold for the real observations of a dataset.

    Args:
        functions: a list, or one of them; those that are not made here are left alone.
        dataset: of a trainer; None where environments supply every prompt.
        warns: whether this process warns of rules that hold for few.
    """
    from wm_plugin.rewards.rule_truth import ROWS, check_rules, rules_of

    for function in functions if isinstance(functions, list) else [functions]:
        rules = rules_of(getattr(function, "reward", None))
        if rules is None or dataset is None:
            continue
        warning = check_rules(rules, islice(dataset, ROWS), getattr(function, "target", "target"))
        if warning and warns:
            logger.warning("%s", warning)


def predictions(completions: Sequence[Any]) -> list[str | None]:
    """Return the model's last text in each completion, which is a text or a list of messages."""
    return [completion if isinstance(completion, str) else _last_content(completion) for completion in completions]


def reward_functions(specs: Any, *, field: str = "rewards") -> list[RewardFunction]:
    """Return the reward functions that a config lists. A second one of the same name is `<name>_2` in the metrics.

    Raises:
        UserError: it is not a list, or an entry is invalid; with the field and the entry's number.
    """
    if isinstance(specs, str | Mapping):
        specs = [specs]
    if not isinstance(specs, Sequence):
        raise UserError(f"{field} is {shown(specs)}; write a list of names, or of {{path: NAME, kwargs: {{...}}}}")
    functions: list[RewardFunction] = []
    names: list[str] = []
    for number, spec in enumerate(specs, 1):
        try:
            function = as_reward_function(spec)
        except UserError as error:
            raise UserError(f"{field}, entry {number}: {error}") from None
        names.append(function.__name__)
        if (times := names.count(function.__name__)) > 1:
            function = as_reward_function(function.reward, name=f"{function.__name__}_{times}")  # type: ignore[attr-defined]
        functions.append(function)
    return functions


def _last_content(messages: Sequence[Mapping[str, Any]]) -> str | None:
    content = next((m.get("content") for m in reversed(messages) if m.get("role") == "assistant"), None)
    if content is None or isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if part.get("type") == "text")


def _name(spec: Any) -> str:
    """`rouge` of "rouge", `Mine` of "package.module:Mine", the class of an instance."""
    path = spec.get("path") if isinstance(spec, Mapping) else spec
    if isinstance(path, str):
        return short_name(path)
    return str(getattr(path, "__name__", type(path).__name__))


READY_MADE: dict[str, dict[str, Any]] = {  # for reward_funcs: wm_plugin.trl.rewards.rouge
    "exact": {"path": "exact"},
    "word_f1": {"path": "word_f1"},
    "rouge": {"path": "rouge"},
    "rules": {"path": "rules"},
    # RWML's reward for tool results; its other half needs a model
    "rwml_tools": {"path": "rouge", "kwargs": {"step": 0.2}},
}


def __getattr__(name: str) -> Any:
    if name not in READY_MADE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    spec = READY_MADE[name]
    made = as_reward_function({**spec, "kwargs": {"tag": "next_state", **spec.get("kwargs", {})}}, name=name)
    globals()[name] = made
    return made
