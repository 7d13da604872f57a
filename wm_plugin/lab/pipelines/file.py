"""A pipeline's file, with its settings, before any name in it is replaced."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import BeforeValidator

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.options import Options, option
from wm_plugin.runtime.texts import UniqueKeys

OWN = ("work", "here")  # names that every file has: the folder of all results, and that of the file


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Value = str | tuple[str, ...]
Values = Annotated[dict[str, Value], BeforeValidator(lambda value: value or {})]  # a key may have no lines under it


class Written(Options):
    """A step as the file has it. Texts have names in braces."""

    run: Texts = option("The command, or several, which run in this order.", min_length=1)
    makes: Texts = option("Files and folders in {work} that it writes.", min_length=1)
    needs: Texts = option("Files and folders; @step for all that a step makes.", default=())
    loops: Texts = option("The loops that it is in: it is there for each combination of their values.", default=())
    when: dict[str, Texts] = option("Values of loops and settings with which it is there.", default={})
    env: dict[str, str] = option("Environment variables.", default={})
    resumes: bool = option("Whether its commands go on with what a killed run left.", default=True)
    show: bool = option("Whether what it prints is the pipeline's result.", default=False)


class Pipeline(Options):
    """A file. `settings` have what `--set` says in them already."""

    aliases: ClassVar[Mapping[str, str]] = {"for": "loops"}
    steps: dict[str, Written] = option("The steps by name.", min_length=1)
    path: Path = option("The file.", default=Path())
    about: str = option("What it compares.", default="")
    table: Texts = option("Its line in a table of pipelines.", default=())
    work: str = option("The folder of all results.", default="")
    settings: Values = option("Texts and lists that --set changes.", default={})
    loops: Values = option("Loops, and their values.", default={})
    values: Values = option("Further names.", default={})
    cases: dict[str, dict[str, Values]] = option(
        "By a loop or setting, and by its value: the names that it sets.", default={}
    )
    env: dict[str, str] = option("Environment variables of all steps.", default={})

    def error(self, text: str, step: str = "") -> UserError:
        return UserError(f"{self.path}: {f'step {step}: ' if step else ''}{text}")


class _Loader(UniqueKeys, yaml.BaseLoader):
    """Takes every scalar as a text."""


def read(path: Path, sets: Sequence[str] = ()) -> Pipeline:
    """Read a pipeline's file; `sets` are `NAME=VALUE` of settings, of lists with commas between the values."""
    try:
        top = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
        if not isinstance(top, dict) or not isinstance(top.get("steps"), dict):
            raise UserError("is no pipeline; write `steps:`, and under it each step's name with `run:` and `makes:`")
        for step in top["steps"].values():
            if isinstance(step, dict) and "for" in step:  # which is no name in Python
                step["loops"] = step.pop("for")
        found = Pipeline.read({**top, "path": path})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # RecursionError: brackets in brackets
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    settings: dict[str, Value] = dict(found.settings)
    for one in sets:
        name, equals, text = one.partition("=")
        if not equals:
            raise UserError(f"--set {one}: write NAME=VALUE")
        if name not in settings:
            raise UserError(f"--set {one}: {path} has no setting {name!r}{nearest(name, settings)}")
        listed = isinstance(settings[name], tuple)
        settings[name] = tuple(part.strip() for part in text.split(",") if part.strip()) if listed else text
        if listed and not settings[name]:
            raise UserError(f"--set {one}: write one value or more, with commas between them")
    found = found.model_copy(update={"settings": settings, "work": found.work or f"runs/{path.stem}"})
    _check(found)
    return found


def _check(pipeline: Pipeline) -> None:
    """Refuse names that clash, and loops and settings that are not there."""
    loops, settings = pipeline.loops, pipeline.settings
    for name in [*settings, *loops, *pipeline.values]:
        if not name.isidentifier() or name in OWN or (name in settings) + (name in loops) > 1:
            raise pipeline.error(f"{name!r} cannot be a name here, or is one twice; write another word")
    for chooser, table in pipeline.cases.items():
        if chooser not in loops and chooser not in settings:
            raise pipeline.error(
                f"cases: there is no loop or setting {chooser!r}{nearest(chooser, [*loops, *settings])}"
            )
        if chooser in settings and settings[chooser] not in table:
            raise pipeline.error(f"{chooser} is {shown(settings[chooser])}{nearest(str(settings[chooser]), table)}")
    for name, step in pipeline.steps.items():
        if not name.replace("_", "").isalnum():
            raise pipeline.error("a step's name has letters, digits and _ only", name)
        for loop in step.loops:
            if loop not in loops:
                raise pipeline.error(f"for: the file's `for` has no {loop!r}{nearest(loop, loops)}", name)
        for key in step.when:
            if key not in settings and key not in step.loops:
                raise pipeline.error(f"when: {key!r} is no setting, and not in the step's `for`", name)
