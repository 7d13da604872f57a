"""Makes a reward from its description in a config."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from wm_plugin.errors import UserError, nearest, shown

Reward = Callable[..., Sequence[float]]


def make(spec: Any, *, field: str = "reward") -> Reward:
    """The reward that a config describes.

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
    for key in values.keys() - {"path", "kwargs"}:
        raise UserError(f"{field} has no field {key!r}{nearest(key, ('path', 'kwargs'))}")
    path, kwargs = values["path"], values.get("kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise UserError(f"{field}: kwargs is {shown(kwargs)}; write the arguments of {path} by name")
    reward = REWARDS.get(path)
    if inspect.isclass(reward):
        try:
            reward = reward(**kwargs)
        except TypeError as error:
            reason = _misfit(reward, kwargs) or error
            raise UserError(f"{field}: {path} does not take these arguments: {reason}") from None
    elif kwargs:
        raise UserError(f"{field}: {path} is no class, which kwargs are for; leave them out, or name a class")
    if not callable(reward):
        raise UserError(f"{field}: {path} cannot be called; name a function or a class of rewards")
    return reward  # type: ignore[no-any-return]


def _misfit(reward: type, kwargs: Mapping[str, Any]) -> str | None:
    """Which argument a class does not have, or is not given; None if its signature does not say."""
    parameters = inspect.signature(reward).parameters.values()
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        for name in kwargs:
            if name not in names:
                return f"it has no {shown(name)}{nearest(name, names)}"
    missing = [one.name for one in parameters if one.name in names and one.default is one.empty]
    missing = [name for name in missing if name not in kwargs]
    return f"it needs {', '.join(map(repr, missing))}" if missing else None


def check_tagged(reward: Any, name: str) -> None:
    """Refuse a reward that would score a model's reasoning by mistake, because hosts hand over whole outputs.

    Raises:
        UserError: the reward can extract predictions, but has no tag.
    """
    if getattr(reward, "tag", "") is None:
        raise UserError(
            f"reward {name} has no tag, and a trainer hands over all that the model wrote; write kwargs: {{tag: next_state}}, or "
            'tag: "" where the answer as a whole is the prediction'
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
