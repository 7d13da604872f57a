"""What a class of an adapter takes from its host: the names that it overrides, calls by `super()` and reads on `self`."""

import ast
import inspect
import textwrap


def taken_from_host(ours: type, host: type, *, prefix: str = "_wm") -> set[str]:
    """The names of `host` that the body of `ours` uses, `__init__` excepted.

    A name that starts with `prefix` is ours, as is one that `ours` defines and the host does not.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(ours)))
    own = {name for name in vars(ours) if not hasattr(host, name)}
    used = {name for name, value in vars(ours).items() if hasattr(host, name) and callable(value)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        on_super = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", None) == "super"
        if on_self or on_super:
            used.add(node.attr)
    return {name for name in used if name not in own and not name.startswith(("__", prefix))}
