"""`wm VERB …`: runs a verb and turns its result or error into an exit code.

A verb is a function that returns the dict which `--json` prints; a server yields it when it is ready, and goes on. Its flags are
its parameters, and the fields of the options models among them; its help is its docstring. `@prints(show)` says how people see
the result. If a result's `ok` is False, the exit code is 1. Verbs are imported when they are called, and heavy imports are inside
them, so that `wm --help` is quick.
"""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any, get_args

import pydantic
from cyclopts import App, Argument, CycloptsError, Parameter
from cyclopts.exceptions import (
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from wm_plugin.cli import output as printing
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.options import Options, default, members, user_error
from wm_plugin.registry import import_object
from wm_plugin.runtime.command import exit_code, output
from wm_plugin.untrusted import without_nan

Parameter(name="*")(Options)  # a model's fields are flags of the verb itself
# a verb, or a group with its verbs: `wm eval one-step` is the function `one_step` of wm_plugin.cli.eval.one_step
_STEPS = {
    "doctor": "",
    "masks": "",
    "train": "",
    "data": "convert inspect filter expand easy build",
    "env": "list new check play rollout serve",
    "eval": "one-step consistency lookahead",
    "report": "",
    "demo": "",
    "lab": "simulate pipeline bench coefficient foresight forgetting weights perplexity audit synthesize mix alternatives "
    "reflect fictional scenarios control context best prompts search-prompts",
}
VERBS = {verb: tuple(steps.split()) for verb, steps in _STEPS.items()}
GROUPS = {
    "data": "Training data: rollouts of any format to trajectories, and trajectories to what trainers read.",
    "env": "Worlds: those of this package by name, yours as package.module:Class.",
    "eval": "What a world model, or an agent that has one, can do.",
    "lab": "What serves the study of one paper.",
}
_EPILOG = """
First steps:

- `wm doctor`: does my installation work, and if not, what do I do?
- `wm masks --example`: which tokens of a rollout does the objective train on?
- `wm demo`: what does it change? (a few minutes on one CPU)

In your own run, replace trl's GRPOTrainer by wm_plugin.trl.WorldModelGRPOTrainer(..., world_model=EchoConfig(coeff=0.05)).
Every verb takes --json and then prints one JSON object. Exit codes: 0 done, 2 bad input, 130 interrupted, 1 anything else.
"""
_JSON = "With --json it prints its result as one JSON object, last."


def make_app(argv: Sequence[str] = ()) -> App:
    """The command with all its verbs. Imports the one that `argv` calls, or those that a help page lists."""
    called = [word for word in argv if not word.startswith("-")][:2]
    app = App(
        name="wm",
        help="World-model objectives for TRL and verl: train a policy on what its environment says, too.",
        help_epilogue=_EPILOG,
        version=_version,
        help_flags=["--help", "-h"],
        result_action="return_value",
        default_parameter=Parameter(negative=(), show_default=_shown_default, allow_repeating=True),
    )
    for verb, steps in VERBS.items():
        group = App(name=verb, help=GROUPS[verb], help_epilogue="") if steps else app
        if steps:
            app.command(group)
        for words in [[verb, step] for step in steps] or [[verb]]:
            module = ".".join(words).replace("-", "_")
            path = f"wm_plugin.cli.{module}:{module.rpartition('.')[2]}"
            imported = called in (words, words[:-1]) or called[:1] == words
            target = _with_defaults(import_object(path, field="wm")) if imported else path
            group.command(target, name=words[-1], help_epilogue=_JSON)
    return app


@functools.cache
def _with_defaults(verb: Any) -> Any:
    """Let the values of options that are a parameter's default be the defaults of its flags."""
    for name, parameter in inspect.signature(verb).parameters.items():
        options = parameter.default
        if isinstance(options, Options) and options.model_fields_set:
            kind, *metadata = get_args(parameter.annotation) or [parameter.annotation]
            changed = [(one, kind.model_fields[one].annotation) for one in options.model_fields_set]
            fields: Any = {one: (of, default(kind, one, getattr(options, one))) for one, of in changed}
            made: Any = pydantic.create_model(kind.__name__, __base__=kind, **fields)
            verb.__annotations__[name] = Annotated[made, *metadata] if metadata else made
    return verb


def _shown_default(value: Any) -> str | None:
    """A default as the help shows it; None for those that say nothing."""
    if value is None or value is False or value in ("", (), "{}"):
        return None
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0 done, 2 bad input, 1 anything else, 130 interrupted."""
    return exit_code(lambda: _run(list(sys.argv[1:] if argv is None else argv)), "wm")


def _run(argv: list[str]) -> int:
    if argv[:1] == ["train"]:  # its flags are the trainer's
        from wm_plugin.cli.train import train

        return train(*argv[1:])
    as_json = "--json" in argv
    with output():  # help and version are printed while parsing
        verb, bound = parse([argument for argument in argv if argument != "--json"])
        if verb.__module__.startswith("cyclopts"):  # help, version
            verb(*bound.args, **bound.kwargs)
            return 0
    returned = verb(*bound.args, **bound.kwargs)
    code = 0
    for result in returned if inspect.isgenerator(returned) else (returned,):
        with output():
            if as_json:
                print(json.dumps(without_nan(result), allow_nan=False))
            else:
                show: Callable[[Any], None] = getattr(verb, "show", printing.show)
                show(printing.readable(result))
        code = int(not result.get("ok", True))
    return code


def parse(argv: Sequence[str]) -> tuple[Callable[..., Any], inspect.BoundArguments]:
    """The verb's function, and the arguments that the words of a command line are for it."""
    try:
        verb, bound, _ = make_app(argv).parse_args(list(argv), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise _in_one_line(error, argv) from None
    return verb, bound


def _in_one_line(error: CycloptsError, argv: Sequence[str]) -> UserError:
    """The library's message, with where to read on."""
    chain = " ".join(error.command_chain or ())
    if isinstance(error, MissingArgumentError) and (unknown := _unknown_flag(error, argv)):
        return unknown  # else a misspelt flag would hide behind one that is missing
    if isinstance(error, ValidationError) and error.argument is not None:
        return _misfit(error, error.argument)
    if isinstance(error, UnknownCommandError):
        word = (error.unused_tokens or ["?"])[0]
        if word.startswith("-"):
            return UserError(f"there is no flag {word!r}; see {f'wm {chain}'.rstrip()} --help")
        of_lab = [f"lab {word}"] if word in VERBS["lab"] else []
        name, known = f"{chain} {word}".strip(), [f"{chain} {step}".strip() for step in VERBS.get(chain) or VERBS]
        return UserError(f"there is no verb {name!r}{nearest(name, of_lab or known)}")
    if isinstance(error, UnusedCliTokensError):
        text = f"there is no place for {(error.unused_tokens or ['?'])[0]!r}"
    elif isinstance(error, UnknownOptionError):
        text = str(error).removeprefix("Unknown option: ")
        text = f"there is no flag {text[:1].lower()}{text[1:]}"
    else:
        text = str(error)
    text = " ".join(text.split()).rstrip(".")
    return UserError(f"{text}; see wm {f'{chain} ' if chain else ''}--help")


def _unknown_flag(error: MissingArgumentError, argv: Sequence[str]) -> UserError | None:
    known = (
        {name for argument in error.app.assemble_argument_collection() for name in argument.names}
        if error.app
        else set()
    )
    for flag in (word.partition("=")[0] for word in argv if word.startswith("--")):
        if known and flag not in known:
            return UserError(f"there is no flag {flag}{nearest(flag, known)}")
    return None


def _misfit(error: ValidationError, argument: Argument) -> UserError:
    """A value that is out of its bounds: of a parameter of a verb's own, or of a field of an options model."""
    cause = error.__cause__
    models = [one for one in members(argument.hint) if isinstance(one, type) and issubclass(one, Options)]
    if not isinstance(cause, pydantic.ValidationError) or not models:
        token = argument.tokens[0]
        return UserError(f"{token.keyword or argument.name} is {token.value}; {error.exception_message}")
    first = cause.errors()[0]
    text = str(user_error(models[0], cause, {}, "")).removesuffix(" or null")
    flags = {child.keys[-1]: child.name for child in argument.children}
    if first["loc"] and (flag := flags.get(str(first["loc"][0]))) and text.startswith(field := str(first["loc"][0])):
        text = f"{flag}{text.removeprefix(field)}"
    found = first["input"]
    if isinstance(found, str):
        text = text.replace(f" is {shown(found)}", f" is {found}", 1)
    return UserError(text)


def _version() -> str:
    try:
        return f"wm-plugin {metadata.version('wm-plugin')}"
    except metadata.PackageNotFoundError:
        return "wm-plugin (a checkout that is not installed)"
