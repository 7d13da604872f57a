"""`wm env new`."""

from typing import Any

from wm_plugin.cli.output import prints
from wm_plugin.worlds.new import class_name, write


def show(result: dict[str, Any]) -> None:
    for file in result["files"]:
        print(file)
    print(f"The world is {result['environment']}; its README.md has the commands that check, play and train it.")


@prints(show)
def new(name: str, /, *, out: str = ".") -> dict[str, Any]:
    """Write a world of your own: a class, rows, an expert and tests that pass, as a package to change.

    As JSON, `files` are what was written and `environment` the name that every command takes.

    Args:
        name: The package's name, such as my_world; the class is then MyWorld.
        out: The folder in which the package's folder is made; run commands from here.
    """
    files = write(name, out)
    return {"files": [str(file) for file in files], "environment": f"{name}:{class_name(name)}"}
