"""Reads text files that a user names."""

from typing import Any

import yaml

from wm_plugin.errors import UserError


class UniqueKeys:
    """For loaders of YAML: refuses a key that a mapping has twice, of which they would keep the last."""

    def get_single_node(self) -> Any:  # the whole document, into whose mappings `<<` has not brought keys yet
        top = super().get_single_node()  # type: ignore[misc]
        nodes, checked = [top], set()
        while nodes:
            node = nodes.pop()
            if id(node) in checked:  # an anchor may be in many places
                continue
            checked.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                nodes += node.value
            elif isinstance(node, yaml.MappingNode):
                _check_keys(node)
                nodes += [one for pair in node.value for one in pair]
        return top


def _check_keys(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                where = f"line {key.start_mark.line + 1}"
                raise yaml.YAMLError(f"a key appears twice, {key.value!r} in {where}; keep one")
            seen.add((key.tag, key.value))


class _Loader(UniqueKeys, yaml.SafeLoader):
    pass


def load_yaml(text: str) -> Any:
    """Return the value that YAML from a user's hand stands for.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: it is not YAML, a key is there twice, or a date or a number is none.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        raise yaml.YAMLError(str(error).replace(' in "<unicode string>",', " at")) from None


def read_text(path: Any, what: str = "") -> str:
    """Return the text of a file: a `Path`, or a resource of the package."""
    name = f"{what}: {str(path)!r}" if what else f"{path}:"
    try:
        text: str = path.read_text(encoding="utf-8")
        return text
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} not UTF-8 at byte {error.start}") from None


def read_yaml(path: Any, what: str = "") -> Any:
    """Return the value in a file of YAML; `what` as in `read_text`."""
    return yaml_of(read_text(path, what), str(path))


def yaml_of(text: str, what: str) -> Any:
    """Return the value of YAML; `what` names its source in errors."""
    try:
        return load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{what} is not YAML: {' '.join(str(error).split())[:200]}") from None
