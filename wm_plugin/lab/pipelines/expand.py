"""A pipeline's steps with all names replaced: one for each combination of the loops that it is in.

A name in braces, `{seed}`, is a loop's value, a setting, one of the file's `cases` or `values`, `{work}` or `{here}`. A word of a
command that is nothing but a name takes a list's values as words of their own. `{@step}` is what the step makes, which is needed
then. `${name}` and braces around anything else stay as they are, so that JSON and Hydra need no escapes.
"""

import itertools
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from wm_plugin.errors import nearest, shown
from wm_plugin.lab.pipelines.file import OWN, Pipeline, Value, Written

_NAME = re.compile(r"(?<!\$)\{(@?[A-Za-z_]\w*)\}")
_OF_A_SHELL = ("|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1")
_DEEP = 50  # values within values


@dataclass(frozen=True)
class Step:
    """A step that can run."""

    name: str  # the file's name for it, with the values of its loops: `train:real:0`
    commands: tuple[tuple[str, ...], ...]  # each command's words
    needs: tuple[str, ...]
    makes: tuple[str, ...]
    env: Mapping[str, str]
    resumes: bool
    show: bool
    here: str  # the file's folder; to move it is no reason to run a step again
    after: tuple[str, ...] = ()  # names of the steps that make what it needs
    loops: Mapping[str, str] = field(default_factory=dict)

    @property
    def family(self) -> str:
        return self.name.partition(":")[0]

    @property
    def key(self) -> str:
        """What must be unchanged for the step to count as done, beside content."""
        return self.portable(repr((self.commands, sorted(self.env.items()))))

    def portable(self, text: str) -> str:
        """Return a text without the place of the file."""
        return text.replace(self.here, "{here}").replace(os.path.dirname(self.here), "{here}/..")


def expand(pipeline: Pipeline, work: str | None = None) -> list[Step]:
    """Return the steps, each after those that make what it needs; `work` replaces the file's own folder of results."""
    work = work_of(pipeline) if work is None else os.path.normpath(work)
    made: dict[str, dict[str, _Names]] = {name: {} for name in pipeline.steps}
    for name, written in pipeline.steps.items():
        for names in _combinations(pipeline, name, written, work):
            step = ":".join((name, *names.loops.values()))
            if step in made[name]:
                raise pipeline.error(f"there are two steps {step}; write other values of `for`", name)
            made[name][step] = names
    steps: dict[str, Step] = {}
    for family, combinations in made.items():
        for name, names in combinations.items():
            names.made = made
            steps[name] = _step(pipeline, name, pipeline.steps[family], names)
    return _ordered(pipeline, _linked(pipeline, steps, work))


def work_of(pipeline: Pipeline) -> str:
    """Return the folder of all results that a file names."""
    return os.path.normpath(_Names(pipeline, {}, "", "").text(pipeline.work))


class _Names:
    """What the names in braces stand for, in one step."""

    def __init__(self, pipeline: Pipeline, loops: Mapping[str, str], work: str, family: str) -> None:
        self.pipeline, self.loops, self.family = pipeline, loops, family
        self.own = {"work": work, "here": str(pipeline.path.resolve().parent)} if work else {}
        self.made: Mapping[str, Mapping[str, _Names]] = {}
        self.used: dict[str, None] = {}  # the steps that were asked for
        self._depth = 0

    def value(self, name: str) -> Value:
        if name.startswith("@"):
            return tuple(path for one in self._makers(name[1:]) for path in one.makes())
        found = self._find(name)
        if found is None:
            pipeline = self.pipeline
            of = [
                chooser for chooser, table in pipeline.cases.items() if any(name in names for names in table.values())
            ]
            if name in pipeline.loops or of:
                loop = name if name in pipeline.loops else of[0]
                raise self.error(
                    f"{{{name}}} is of the loop {loop}; write `for: [{loop}]`, or a value for {self.loops}"
                )
            there = {*pipeline.settings, *pipeline.values, *pipeline.loops, *OWN}
            raise self.error(f"there is no {{{name}}}{nearest(name, there)}")
        if self._depth > _DEEP:
            raise self.error(f"the value {name!r} is made of itself")
        self._depth += 1
        found = self.text(found) if isinstance(found, str) else self.words(found)
        self._depth -= 1
        return found

    def _find(self, name: str) -> Value | None:
        for there in (self.loops, self.own, self.pipeline.settings):
            if name in there:
                return there[name]
        for chooser, table in self.pipeline.cases.items():
            chosen = self.loops.get(chooser, self.pipeline.settings.get(chooser))
            if isinstance(chosen, str) and name in table.get(chosen, {}):
                return table[chosen][name]
        return self.pipeline.values.get(name)

    def _makers(self, family: str) -> "list[_Names]":
        """Return a family's steps whose loops have the same values as here, where both have the loop."""
        if family not in self.made:
            raise self.error(f"there is no step {family!r}{nearest(family, self.made)}")
        found = {
            name: one
            for name, one in self.made[family].items()
            if all(one.loops.get(loop, text) == text for loop, text in self.loops.items())
        }
        self.used |= dict.fromkeys(found)
        return list(found.values())

    def makes(self) -> tuple[str, ...]:
        return tuple(map(os.path.normpath, self.words(self.pipeline.steps[self.family].makes)))

    def text(self, text: str) -> str:
        def one(match: re.Match[str]) -> str:
            value = self.value(match[1])
            if not isinstance(value, str):
                raise self.error(f"{{{match[1]}}} is a list; in {shown(text)} only a text can stand")
            return value

        return _NAME.sub(one, text)

    def words(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Replace the names in texts; one that is nothing but a list's name gives its values."""
        found: list[str] = []
        for text in texts:
            whole = _NAME.fullmatch(text)
            value = self.value(whole[1]) if whole else self.text(text)
            found += [value] if isinstance(value, str) else value
        return tuple(found)

    def command(self, text: str) -> tuple[str, ...]:
        """Return a command's words, split as a shell does."""
        try:
            split = shlex.split(text)
        except ValueError as error:
            raise self.error(f"run: {shown(text)} cannot be split into words ({error})") from None
        for part in split:
            if part in _OF_A_SHELL:
                raise self.error(
                    f"run: {part} is for a shell, and none runs commands; write a list of commands, or bash -c '...'"
                )
        words = self.words(split)
        if not words:
            raise self.error("run has a command without words")
        return words

    def error(self, text: str) -> Exception:
        return self.pipeline.error(text, self.family)


def _combinations(pipeline: Pipeline, name: str, written: Written, work: str) -> Iterator[_Names]:
    outer, lists = _Names(pipeline, {}, work, name), []
    for loop in written.loops:
        value = pipeline.loops[loop]
        values = outer.words([value] if isinstance(value, str) else value)
        if not values or len(set(values)) < len(values):
            raise outer.error(f"for: {loop} is {list(values)}; write values, each once")
        lists.append(values)
    for chosen in itertools.product(*lists):
        names = _Names(pipeline, dict(zip(written.loops, chosen, strict=True)), work, name)
        if all(names.value(key) in cases for key, cases in written.when.items()):
            yield names


def _step(pipeline: Pipeline, name: str, written: Written, names: _Names) -> Step:
    commands = tuple(names.command(text) for text in written.run)
    asked = [f"{{{need}}}" if need.startswith("@") else need for need in written.needs]
    needs = [os.path.normpath(path) for path in names.words(asked) if path]
    by_name = {made: one for family in names.made.values() for made, one in family.items()}
    needs += [path for used in names.used for path in by_name[used].makes()]
    makes = names.makes()
    if not makes:
        raise pipeline.error("makes nothing; write what it writes", name)
    env = {key: names.text(text) for key, text in {**pipeline.env, **written.env}.items()}
    return Step(
        name, commands, tuple(dict.fromkeys(needs)), makes, env, written.resumes, written.show, names.own["here"],
        after=tuple(names.used), loops=names.loops,
    )  # fmt: skip


def _linked(pipeline: Pipeline, steps: Mapping[str, Step], work: str) -> dict[str, Step]:
    """Add to each step those that make a path that it needs, or one within it."""
    makers: dict[str, str] = {}
    within: dict[str, set[str]] = {}  # folder -> the steps that make something in it
    for step in steps.values():
        for path in step.makes:
            if path == work or os.path.relpath(path, work).split(os.sep)[0] == os.pardir:
                raise pipeline.error(f"makes {path}, which is not in {work}; begin it with {{work}}/", step.name)
            if path in makers:
                raise pipeline.error(f"makes {path}, which {makers[path]} makes, too", step.name)
            makers[path] = step.name
            for folder in _above(path):
                within.setdefault(folder, set()).add(step.name)
    for path, maker in makers.items():
        if path in within:
            inside = sorted(within[path])[0]
            raise pipeline.error(f"makes what lies in {path} of {maker}; name another", inside)
    linked = {}
    for step in steps.values():
        after = set(step.after)
        for need in step.needs:
            after |= {makers[path] for path in (need, *_above(need)) if path in makers} | within.get(need, set())
        linked[step.name] = replace(step, after=tuple(sorted(after)))
    return linked


def _above(path: str) -> list[str]:
    return [str(folder) for folder in Path(path).parents if str(folder) != "."]


def _ordered(pipeline: Pipeline, steps: Mapping[str, Step]) -> list[Step]:
    """Return the steps in the file's order, as far as what they need allows."""
    places = {name: place for place, name in enumerate(steps)}
    sorter = TopologicalSorter({name: step.after for name, step in steps.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        raise pipeline.error(f"steps wait for each other: {' -> '.join(error.args[1])}") from None
    order: list[Step] = []
    waiting: list[str] = []
    while sorter.is_active():
        waiting = sorted([*waiting, *sorter.get_ready()], key=places.__getitem__)
        order.append(steps[waiting.pop(0)])
        sorter.done(order[-1].name)
    return order
