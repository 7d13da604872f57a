"""Write a user's first world: a small package with a class, rows, an expert, tests and a README."""

import importlib.util
import keyword
import re
from pathlib import Path

from wm_plugin.data.outputs import atomic_folder, check_new_folder
from wm_plugin.errors import UserError, shown
from wm_plugin.worlds.specs import SPECS

FILES = {
    "__init__.py": "world.txt",
    "test_{}.py": "test.txt",
    "README.md": "readme.md",
}  # what is written, of which text


def write(name: str, folder: str | Path = ".") -> list[Path]:
    """Write the package `name` into a folder, and return its files. A name `my_world` gives a class `MyWorld`.

    Raises:
        UserError: the name is no module's, or taken; the package's folder is not empty.
    """
    if problem := _not_a_name(name):
        raise UserError(f"{shown(name)} {problem}")
    path = Path(folder, name)
    check_new_folder(path, "the world's folder")
    if name in SPECS:
        raise UserError(f"{name} is a world of this package (wm env list); write another name, such as my_{name}")
    module = Path(folder, f"{name}.py")
    if module.exists() or (importlib.util.find_spec(name) is not None and not path.exists()):
        where = f" ({module})" if module.exists() else ""
        raise UserError(f"there is a module {name!r} already{where}; write another name, such as my_{name}")
    written = []
    with atomic_folder(path) as unfinished:
        for file, source in FILES.items():
            text = Path(__file__).with_name(source).read_text(encoding="utf-8")
            text = text.replace("my_world", name).replace("MyWorld", class_name(name))
            (unfinished / file.format(name)).write_text(text, encoding="utf-8")
            written.append(path / file.format(name))
    return written


def class_name(name: str) -> str:
    """Return the class's name for a module's: MyWorld for my_world."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _not_a_name(name: str) -> str:
    """Say why a text is no name of a module with a class of the same name; "" if it is one."""
    if not re.fullmatch("[a-z][a-z0-9_]{0,60}", name):
        plain = re.sub("[^a-z0-9]+", "_", name.lower())[:60].strip("_")
        hint = f", such as {plain}" if plain[:1].isalpha() else ""
        return f"is no module name; write small letters, digits and underscores{hint}"
    if keyword.iskeyword(name) or keyword.iskeyword(class_name(name)):
        return "is a Python keyword; write another name"
    return ""
