"""Makes a reward from its description in a config."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from wm_plugin.errors import UserError, check_keys, nearest, shown

Reward = Callable[..., Sequence[float]]


def make(spec: Any, *, field: str = "reward") -> Reward:
    """Make the reward that a config describes.

    Args:
        spec: a reward; its name, or package.module:Name; or {"path": either of them, "kwargs": its arguments}.
        field: the name of the setting, for messages.

    Raises:
        UserError: there is no such reward, or it does not take these arguments.
    """
    from wm_plugin.rewards import REWARDS

    if callable(spec) and not inspect.isclass(spec):
        return spec  # type: ignore[no-any-return]
    values = {"path": spec} if isinstance(spec, str) else spec
    if not isinstance(values, Mapping) or not isinstance(values.get("path"), str):
        raise UserError(f"{field} is {shown(spec)}; write a name, or {{path: NAME, kwargs: {{...}}}}")
    check_keys(field, values, ("path", "kwargs"))
    path, kwargs = values["path"], values.get("kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise UserError(f"{field}: kwargs is {shown(kwargs)}; write the arguments of {path} by name")
    reward = REWARDS.get(path)
    if inspect.isclass(reward):
        reward = build(reward, kwargs, f"{field}: {path} does not take these arguments")
    elif kwargs:
        raise UserError(f"{field}: {path} is not a class, so it takes no kwargs; leave them out, or name a class")
    if not callable(reward):
        raise UserError(f"{field}: {path} cannot be called; name a function or a class of rewards")
    return reward  # type: ignore[no-any-return]


def build(kind: Any, kwargs: Mapping[str, Any], where: str) -> Any:
    """Instantiate a class with a config's arguments.

    Args:
        where: the beginning of the message.

    Raises:
        UserError: the class does not take these arguments; the message names the nearest one, or the missing one.
    """
    try:
        return kind(**kwargs)
    except TypeError as error:
        raise UserError(f"{where}: {_misfit(kind, kwargs) or error}") from None


def _misfit(kind: type, kwargs: Mapping[str, Any]) -> str | None:
    """Say which argument is unknown or missing; None if the class's signature does not tell."""
    parameters = inspect.signature(kind).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = [one.name for one in named]
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        for name in kwargs:
            if name not in names:
                return f"it has no {shown(name)}{nearest(name, names)}"
    missing = [repr(one.name) for one in named if one.default is one.empty and one.name not in kwargs]
    return f"it needs {', '.join(missing)}" if missing else None


def check_tagged(reward: Any, name: str) -> None:
    """Raise a UserError if a reward can extract predictions but has no tag: given whole outputs, it would score the reasoning."""
    if getattr(reward, "tag", "") is None:
        raise UserError(
            f"reward {name} has no tag, and trainers pass whole outputs; write kwargs: {{tag: next_state}}, or "
            'tag: "" if the whole answer is the prediction'
        )


def check_spec(spec: Any, path: str) -> None:
    """Check that a reward exists and has a tag without making it, because some rewards load a model.

    Args:
        spec: the description, as in `make`.
        path: the name or dotted path in it.

    Raises:
        UserError: as from `make` and `check_tagged`.
    """
    from wm_plugin.rewards import REWARDS

    reward = REWARDS.get(path)
    kwargs = (spec.get("kwargs") if isinstance(spec, Mapping) else None) or {}
    # `tag` may be one of **settings, which a base class names
    inits = [vars(base).get("__init__") for base in inspect.getmro(reward)] if inspect.isclass(reward) else []
    parameters = [inspect.signature(init).parameters.get("tag") for init in inits if inspect.isfunction(init)]
    tag = next((parameter for parameter in parameters if parameter is not None), None)
    if tag is not None and isinstance(kwargs, Mapping):
        check_tagged(SimpleNamespace(tag=kwargs.get("tag", tag.default)), path)
