"""A pipeline's file: its shape, checked, before any name in it is replaced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wm_plugin.data import plain_yaml
from wm_plugin.errors import UserError, nearest, shown

LARGEST = 1 << 20  # characters of a file
_TOP = ("about", "work", "settings", "for", "values", "env", "steps")
_STEP = ("about", "for", "when", "run", "needs", "makes", "logs", "env", "resumes", "show")
OWN = ("work", "here")  # names that every file has: the folder of all results, and that of the file


@dataclass(frozen=True)
class Written:
    """A step as the file has it. Values may be texts with names in braces, lists of them, and tables of cases.

    Attributes:
        loops: names of the file's `for`; the step is there for each combination of their values.
        when: name of a loop or setting -> the values with which the step is there.
        run: a command, or several, which run in this order.
        needs, makes: files and folders. A need `@step` is whatever that step makes.
        logs: patterns of files in these folders whose content does not count.
        resumes: whether the commands go on with what a killed run left; without, it is moved aside.
        show: whether what the step prints is the pipeline's result.
    """

    name: str
    about: str = ""
    loops: tuple[str, ...] = ()
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    run: Any = ()
    needs: Any = ()
    makes: Any = ()
    logs: Any = ()
    env: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = True
    show: bool = False


@dataclass(frozen=True)
class Pipeline:
    """A file. `settings` have what `--set` says in them already; `env` is of every step."""

    path: Path
    about: str
    work: str
    settings: Mapping[str, str | tuple[str, ...]]
    loops: Mapping[str, Any]
    values: Mapping[str, Any]
    steps: tuple[Written, ...]
    env: Mapping[str, Any] = field(default_factory=dict)

    def error(self, text: str, step: str = "") -> UserError:
        """An error that names the file, and the step."""
        return UserError(f"{self.path}: {f'step {step}: ' if step else ''}{text}")


def read(path: Path, sets: Sequence[str] = ()) -> Pipeline:
    """The pipeline in a file.

    Args:
        sets: `NAME=VALUE` of settings; a setting that is a list takes values with commas between them.

    Raises:
        UserError: the file cannot be read or has another shape, or it has no such setting.
    """
    try:
        top = plain_yaml.loads(path.read_text(encoding="utf-8"), largest=LARGEST)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    where = Pipeline(path, "", "", {}, {}, {}, ())
    if not isinstance(top, dict) or not isinstance(top.get("steps"), dict) or not top["steps"]:
        raise where.error("is no pipeline; write `steps:`, and under it each step's name with `run:` and `makes:`")
    _known(where, top, _TOP)
    for key in ("settings", "for", "values", "env"):
        if not isinstance(top.get(key) or {}, dict):
            raise where.error(f"{key} is {shown(top[key])}; write NAME: VALUE lines under it")
    settings = {name: _setting(where, name, value) for name, value in (top.get("settings") or {}).items()}
    loops, values = top.get("for") or {}, top.get("values") or {}
    names: dict[str, str] = {}
    for kind, there in (("settings", settings), ("for", loops), ("values", values)):
        for name in there:
            if not name.isidentifier() or name in OWN or name in names:
                why = f"is in {names[name]}, too" if name in names else "cannot be a name"
                raise where.error(f"{kind}: {name!r} {why}; write another word of letters and digits")
            names[name] = kind
    settings |= _set(where, settings, sets)
    steps = tuple(_step(where, name, step, loops, names) for name, step in top["steps"].items())
    about, work = (_text(where, key, top.get(key, "")) for key in ("about", "work"))
    return Pipeline(path, about, work or f"runs/{path.stem}", settings, loops, values, steps, top.get("env") or {})


def _known(where: Pipeline, found: Mapping[str, Any], known: Sequence[str], step: str = "") -> None:
    for key in found:
        if key not in known:
            raise where.error(f"there is no key {key!r}{nearest(key, known)}", step)


def _text(where: Pipeline, key: str, value: Any, step: str = "") -> str:
    if not isinstance(value, str):
        raise where.error(f"{key} is {shown(value)}; write a text", step)
    return value


def _setting(where: Pipeline, name: str, value: Any) -> str | tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if not isinstance(value, str):
        raise where.error(f"settings: {name} is {shown(value)}; write a text, a number, or a list of them")
    return value


def _set(where: Pipeline, settings: Mapping[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in sets:
        name, equals, text = one.partition("=")
        if not equals:
            raise UserError(f"--set {one}: write NAME=VALUE")
        if name not in settings:
            raise UserError(f"--set {one}: {where.path} has no setting {name!r}{nearest(name, settings)}")
        listed = isinstance(settings[name], tuple)
        found[name] = tuple(part.strip() for part in text.split(",") if part.strip()) if listed else text
        if listed and not found[name]:
            raise UserError(f"--set {one}: write one value or more, with commas between them")
    return found


def _step(where: Pipeline, name: str, step: Any, loops: Mapping[str, Any], names: Mapping[str, str]) -> Written:
    if not name.replace("_", "").isalnum():
        raise where.error("a step's name has letters, digits and _ only", name)
    if not isinstance(step, dict):
        raise where.error(f"is {shown(step)}; write `run:` and `makes:` under it", name)
    _known(where, step, _STEP, name)
    for key in ("run", "makes"):
        if not step.get(key):
            raise where.error(f"{key} is missing; write {'the command' if key == 'run' else 'what it writes'}", name)
    chosen = step.get("for") or []
    chosen = [chosen] if isinstance(chosen, str) else chosen
    for loop in chosen if isinstance(chosen, list) else [shown(chosen)]:
        if loop not in loops:
            raise where.error(f"for: the file's `for` has no {loop!r}{nearest(loop, loops)}", name)
    when = step.get("when") or {}
    if not isinstance(when, dict):
        raise where.error(f"when is {shown(when)}; write {{NAME: [VALUE, ...]}}", name)
    for key in when:
        if names.get(key) not in ("settings", "for") or (names[key] == "for" and key not in chosen):
            raise where.error(f"when: {key!r} is no setting, and not in the step's `for`", name)
    env = step.get("env") or {}
    if not isinstance(env, dict):
        raise where.error(f"env is {shown(env)}; write VARIABLE: VALUE lines under it", name)
    flags = {key: step.get(key, default) for key, default in (("resumes", "true"), ("show", "false"))}
    for key, flag in flags.items():
        if flag not in ("true", "false"):
            raise where.error(f"{key} is {shown(flag)}; write true or false", name)
    return Written(
        name,
        about=_text(where, "about", step.get("about", ""), name),
        loops=tuple(chosen),
        when={key: tuple(cases) if isinstance(cases, list) else (str(cases),) for key, cases in when.items()},
        run=step["run"],
        needs=step.get("needs") or (),
        makes=step["makes"],
        logs=step.get("logs") or (),
        env=env,
        resumes=flags["resumes"] == "true",
        show=flags["show"] == "true",
    )
