"""A pipeline's steps with all names replaced: one for each combination of the loops that it is in.

A name in braces, `{seed}`, is a loop's, a setting, one of the file's `values`, `{work}` or `{here}`. A word of a command that is
nothing but a name takes a list's values as words of their own. `{@step}` is what the step makes, which is needed then. `${name}`
and braces around anything else stay as they are, so that JSON and Hydra need no escapes. `{by: NAME, CASE: value}` is the value
of the case that NAME has.
"""

import itertools
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from wm_plugin.errors import nearest, shown
from wm_plugin.lab.pipelines.file import OWN, Pipeline, Written

_NAME = re.compile(r"(?<!\$)\{(@?[A-Za-z_]\w*)\}")
_OPEN = re.compile(r"(?<!\$)\{(@?[A-Za-z_]\w*)(?=/|$)")  # one that is not closed
_OF_A_SHELL = ("|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1")
_MOST = 10_000  # steps of a pipeline
_COMBINATIONS = 100 * _MOST  # of a step's loops, of which `when` may leave most out
_LONG = 1 << 16  # characters of a text, or of all words of a list, with its names replaced
_DEEP = 50  # values within values
OTHERS = "else"  # the case of a table for what it does not name

Value = str | tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """A step that can run.

    Attributes:
        name: the file's name for it, with the values of its loops: `train:real:0`.
        commands: words, of each command.
        needs, makes: paths.
        after: names of the steps that make what it needs.
        key: what the record has of its commands, without where the file lies.
        names: of needs that lie where the file does, what the record has of them.
    """

    name: str
    family: str
    about: str
    commands: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...]
    makes: tuple[str, ...]
    logs: tuple[str, ...]
    env: Mapping[str, str]
    resumes: bool
    show: bool
    after: tuple[str, ...] = ()
    key: str = ""
    loops: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


def expand(pipeline: Pipeline, work: str | None = None) -> list[Step]:
    """The steps, each after those that make what it needs.

    Args:
        work: the folder of all results, in place of the file's own.

    Raises:
        UserError: a name that there is not, a path that two steps make, steps that wait for each other.
    """
    work = work_of(pipeline) if work is None else os.path.normpath(work)
    here = str(pipeline.path.resolve().parent)
    each = ((written, names) for written in pipeline.steps for names in _combinations(pipeline, written, work, here))
    there = list(itertools.islice(each, _MOST + 1))
    if len(there) > _MOST:
        raise pipeline.error(f"more than {_MOST:,} steps; leave some values of `for` out")
    made: dict[str, list[_Made]] = {written.name: [] for written in pipeline.steps}
    for written, names in there:
        paths = tuple(os.path.normpath(path) for path in names.words(written.makes))
        name = _name(written, names)
        if any(one.step == name for one in made[written.name]):
            raise pipeline.error(
                f"there are two steps {name}; write other values of `for`, without colons", written.name
            )
        if not paths:
            raise pipeline.error("makes nothing; write what it writes", name)
        made[written.name].append(_Made(name, names.loops, paths))
    return _ordered(
        pipeline, _linked(pipeline, [_step(pipeline, written, names, made) for written, names in there], work)
    )


def work_of(pipeline: Pipeline) -> str:
    """The folder of all results that a file names."""
    return os.path.normpath(_Names(pipeline, {}, "", "").text(pipeline.work))


class _Made(NamedTuple):
    """What a step makes."""

    step: str
    loops: Mapping[str, str]
    paths: tuple[str, ...]


class _Names:
    """What the names in braces stand for, in one step."""

    def __init__(self, pipeline: Pipeline, loops: Mapping[str, str], work: str, here: str, step: str = "") -> None:
        self._pipeline, self.loops, self._step = pipeline, loops, step
        self.here = here
        self._own = {"work": work, "here": here} if work else {}
        self._depth = 0
        self._known: dict[str, Value] = {}
        self.made: Mapping[str, Sequence[_Made]] = {}  # by the name of the step in the file
        self.used: dict[str, None] = {}  # the steps, of these, that were asked for

    def error(self, text: str) -> Exception:
        return self._pipeline.error(text, self._step)

    def value(self, name: str) -> Value:
        """A name's value: a text, or several."""
        if name.startswith("@"):
            return tuple(path for one in self.makers(name[1:]) for path in one.paths)
        for there in (self.loops, self._own, self._pipeline.settings):
            if name in there:
                return there[name]
        if name not in self._pipeline.values:
            loops = set(self._pipeline.loops)
            if name in loops:
                raise self.error(f"{{{name}}} is of a loop; write `for: [{name}]`")
            raise self.error(
                f"there is no {{{name}}}{nearest(name, {*self._pipeline.settings, *self._pipeline.values, *loops, *OWN})}"
            )
        if name in self._known:
            return self._known[name]
        if self._depth > _DEEP:
            raise self.error(f"the value {name!r} is made of itself")
        self._depth += 1
        chosen = self.chosen(self._pipeline.values[name])
        found = self._known[name] = self.text(chosen) if isinstance(chosen, str) else self.words(chosen)
        self._depth -= 1
        return found

    def makers(self, family: str) -> list[_Made]:
        """The steps of a name in the file whose loops have the same values as here, where both have the loop."""
        if family not in self.made:
            raise self.error(f"there is no step {family!r}{nearest(family, self.made)}")
        loops = self.loops.items()
        found = [one for one in self.made[family] if not any(one.loops.get(name, text) != text for name, text in loops)]
        self.used |= dict.fromkeys(one.step for one in found)
        return found

    def chosen(self, value: Any, mapping: bool = False) -> Any:
        """A value's own case, where it is a table of cases.

        Args:
            mapping: whether another mapping may be a value.
        """
        while isinstance(value, dict):
            if mapping and "by" not in value:
                return value
            if "by" not in value or not isinstance(value["by"], str):
                raise self.error(f"{shown(value)} is no value; a table of cases begins with `by: NAME`")
            name = value["by"]
            case = self.value(name)
            cases = [key for key in value if key != "by"]
            if not isinstance(case, str) or (case not in value and OTHERS not in value):
                raise self.error(f"a table has no case {shown(case)} of {name}{nearest(case, cases)}")
            value = value[case] if case in cases else value[OTHERS]
        return value

    def text(self, text: str) -> str:
        """A text with its names replaced."""
        length = len(text)

        def one(match: re.Match[str]) -> str:
            nonlocal length
            value = self.value(match[1])
            if not isinstance(value, str):
                raise self.error(f"{{{match[1]}}} is a list; in {shown(text)} only a text can stand")
            length += len(value)
            self._check_length(length, text)
            return value

        for name in _OPEN.findall(text):
            if name.startswith("@") or name in {*OWN, *self.loops, *self._pipeline.settings, *self._pipeline.values}:
                raise self.error(f"{{{name} is not closed in {shown(text)}; write {{{name}}}")
        return _NAME.sub(one, text)

    def words(self, value: Any) -> tuple[str, ...]:
        """The words of a value: of a text one, or those of a list that it names; of a list those of its parts."""
        value = self.chosen(value)
        if isinstance(value, list | tuple):
            found: list[str] = []
            length = 0
            for part in value:
                words = self.words(part)
                length += sum(map(len, words)) + len(words)
                self._check_length(length, value)
                found += words
            return tuple(found)
        whole = _NAME.fullmatch(value)
        if whole:
            named = self.value(whole[1])
            return (named,) if isinstance(named, str) else named
        return (self.text(value),)

    def _check_length(self, length: int, value: Any) -> None:
        if length > _LONG:
            raise self.error(f"{shown(value)} becomes longer than {_LONG:,} characters; name fewer values in it")

    def variables(self, value: Any) -> dict[str, str]:
        """The variables of `env`, of which all may be cases of a table."""
        chosen = self.chosen(value, mapping=True)
        if not isinstance(chosen, dict):
            raise self.error(f"env is {shown(chosen)}; write VARIABLE: VALUE lines under it")
        for name in chosen:
            if not name or {"=", "\0"} & set(name):
                raise self.error(f"env: {shown(name)} cannot be a variable's name; write letters, digits and _")
        return {name: self.text(self.chosen(one)) for name, one in chosen.items()}

    def commands(self, value: Any) -> Iterator[tuple[str, ...]]:
        """The commands of `run`: of a text one, split as a shell does; of a list each of its parts, where a list is words."""
        value = self.chosen(value)
        if isinstance(value, list) and all(isinstance(self.chosen(part), list | str) for part in value):
            for part in map(self.chosen, value):
                yield from self.commands(part) if isinstance(part, str) else [self.words(part)]
            return
        try:
            split = shlex.split(value)
        except ValueError as error:
            raise self.error(f"run: {shown(value)} cannot be split into words ({error})") from None
        for part in split:
            if part in _OF_A_SHELL:
                raise self.error(
                    f"run: {part} is for a shell, and none runs commands; write a list of commands, or bash -c '...'"
                )
        yield tuple(word for part in split for word in self.words(part))


def _combinations(pipeline: Pipeline, written: Written, work: str, here: str) -> Iterator[_Names]:
    outer = _Names(pipeline, {}, work, here, written.name)
    lists = [outer.words(pipeline.loops[loop]) for loop in written.loops]
    for loop, values in zip(written.loops, lists, strict=True):
        if not values or len(set(values)) < len(values):
            raise outer.error(f"for: {loop} is {list(values)}; write values, each once")
    if math.prod(map(len, lists)) > _COMBINATIONS:
        raise outer.error(
            f"for: more than {_COMBINATIONS:,} combinations of {', '.join(written.loops)}; leave some out"
        )
    for values in itertools.product(*lists):
        names = _Names(pipeline, dict(zip(written.loops, values, strict=True)), work, here, written.name)
        if all(names.value(name) in cases for name, cases in written.when.items()):
            yield names


def _name(written: Written, names: _Names) -> str:
    return ":".join((written.name, *names.loops.values()))


def _step(pipeline: Pipeline, written: Written, names: _Names, made: Mapping[str, Sequence[_Made]]) -> Step:
    names.made = made
    commands = tuple(names.commands(written.run))
    if not all(commands):
        raise names.error("run has a command without words")
    needs = [f"{{{need}}}" if need.startswith("@") else need for need in names.words(written.needs)]
    paths = [path for need in needs for path in names.words(need) if path]
    env = names.variables(pipeline.env) | names.variables(written.env)
    portable = [[word.replace(names.here, "{here}") for word in command] for command in commands]
    step = Step(
        _name(written, names),
        written.name,
        written.about,
        commands,
        tuple(map(os.path.normpath, paths)),
        tuple(map(os.path.normpath, names.words(written.makes))),
        names.words(written.logs),
        env,
        written.resumes,
        written.show,
        after=tuple(names.used),
        key=repr((portable, sorted((name, text.replace(names.here, "{here}")) for name, text in env.items()))),
        loops=names.loops,
        names={os.path.normpath(path): path.replace(names.here, "{here}") for path in paths if names.here in path},
    )
    by_name = {one.step: one.paths for family in made.values() for one in family}
    return replace(
        step, needs=tuple(dict.fromkeys([*step.needs, *(path for name in step.after for path in by_name[name])]))
    )


def _linked(pipeline: Pipeline, steps: Sequence[Step], work: str) -> dict[str, Step]:
    """The steps with all that they come after: what makes a path that they need, or one within it."""
    makers: dict[str, str] = {}
    within: dict[str, set[str]] = {}  # folder -> the steps that make something in it
    for step in steps:
        for path in step.makes:
            if path == work or os.path.relpath(path, work).split(os.sep)[0] == os.pardir:
                raise pipeline.error(f"makes {path}, which is not in {work}; begin it with {{work}}/", step.name)
            if path in makers:
                raise pipeline.error(f"makes {path}, which {makers[path]} makes, too", step.name)
            makers[path] = step.name
            for folder in _above(path):
                within.setdefault(folder, set()).add(step.name)
    for path, maker in makers.items():
        inside = next((folder for folder in _above(path) if folder in makers), None)
        if inside is not None:
            raise pipeline.error(f"makes {path}, which lies in {inside} of {makers[inside]}; name another", maker)
    linked = {}
    for step in steps:
        after = set(step.after)
        for need in step.needs:
            after |= {makers[path] for path in (need, *_above(need)) if path in makers} | within.get(need, set())
        linked[step.name] = replace(step, after=tuple(sorted(after)))
    return linked


def _above(path: str) -> list[str]:
    return [str(folder) for folder in Path(path).parents if str(folder) != "."]


def _ordered(pipeline: Pipeline, steps: Mapping[str, Step]) -> list[Step]:
    places = {name: place for place, name in enumerate(steps)}
    try:
        sorter = TopologicalSorter({name: step.after for name, step in steps.items()})
        sorter.prepare()
    except CycleError as error:
        raise pipeline.error(f"steps wait for each other: {' -> '.join(error.args[1])}") from None
    order: list[Step] = []
    waiting: list[str] = []
    while sorter.is_active():
        waiting = sorted([*waiting, *sorter.get_ready()], key=places.__getitem__)
        name = waiting.pop(0)
        order.append(steps[name])
        sorter.done(name)
    return order


def words_of(commands: Sequence[Sequence[str]]) -> str:
    """Commands as a shell would read them."""
    return "; ".join(shlex.join(command) for command in commands)
