"""A reward by what a config says of it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from wm_plugin.errors import UserError, nearest

Reward = Callable[..., Sequence[float]]


def make(spec: Any, *, field: str = "reward") -> Reward:
    """A reward.

    Args:
        spec: a reward; its name, or package.module:Name; or {"path": either of them, "kwargs": its arguments}.
        field: the setting, for messages.

    Raises:
        UserError: there is none of this name, or it does not take these arguments.
    """
    from wm_plugin.rewards import REWARDS

    if callable(spec) and not inspect.isclass(spec):
        given: Reward = spec
        return given
    values = {"path": spec} if isinstance(spec, str) else spec
    if not isinstance(values, Mapping) or not isinstance(values.get("path"), str):
        raise UserError(f"{field} is {spec!r:.100}; write a name, or {{path: NAME, kwargs: {{...}}}}")
    for key in values.keys() - {"path", "kwargs"}:
        raise UserError(f"{field} has no field {key!r}{nearest(str(key), ('path', 'kwargs'))}")
    path, kwargs = values["path"], values.get("kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise UserError(f"{field}: kwargs is {kwargs!r:.100}; write the arguments of {path} by name")
    found = REWARDS.get(path)
    if inspect.isclass(found):
        try:
            found = found(**kwargs)
        except TypeError as error:
            raise UserError(f"{field}: {path} does not take these arguments: {error}") from None
    elif kwargs:
        raise UserError(f"{field}: {path} is no class, which kwargs are for; leave them out, or name a class")
    if not callable(found):
        raise UserError(f"{field}: {path} cannot be called; name a function or a class of rewards")
    return found  # type: ignore[no-any-return]


def check_tagged(reward: Any, name: str) -> None:
    """Refuse a reward that would score whole outputs by oversight: a host hands over reasoning and all.

    Raises:
        UserError: it can take predictions out of outputs, and no tag was chosen.
    """
    if getattr(reward, "tag", "") is None:
        raise UserError(
            f"reward {name} has no tag, and a trainer hands over all that the model wrote; write kwargs: {{tag: next_state}}, or "
            'tag: "" where the answer as a whole is the prediction'
        )


def check_spec(spec: Any, path: str) -> None:
    """The same, and that the reward exists, of a config's description alone: making some rewards loads a model.

    Raises:
        UserError: as `make` and `check_tagged` would.
    """
    from wm_plugin.rewards import REWARDS

    found = REWARDS.get(path)
    kwargs = (spec.get("kwargs") if isinstance(spec, Mapping) else None) or {}
    # a class may take it as one of **settings, which a class above it names
    makers = [vars(one).get("__init__") for one in inspect.getmro(found)] if inspect.isclass(found) else []
    parameters = [inspect.signature(maker).parameters.get("tag") for maker in makers if inspect.isfunction(maker)]
    tag = next((parameter for parameter in parameters if parameter is not None), None)
    if tag is not None and isinstance(kwargs, Mapping):
        check_tagged(SimpleNamespace(tag=kwargs.get("tag", tag.default)), path)
