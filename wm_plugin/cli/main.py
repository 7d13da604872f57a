"""`wm VERB …`: runs a verb and turns its result or error into an exit code.

A verb's module has `add_parser(subparsers)`, which returns the parser with `run` among its defaults. `run(args)` returns the dict
that `--json` prints. If `show` is among the defaults, `show(result)` prints it for people. A result whose `ok` is False makes the
exit code 1. With `hands_over` among the defaults, all arguments after the verb go to another program, whose output and
`exit_code` become ours. Heavy imports are inside `run`, so that `wm --help` is quick.
"""

import sys

if __name__ == "__main__":  # before the imports, which an interrupt may hit
    from wm_plugin.__main__ import main as start

    sys.exit(start())

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from wm_plugin.errors import UserError, nearest
from wm_plugin.runtime.command import exit_code, output

VERBS = ("demo", "masks", "doctor", "train", "data", "env", "eval", "simulate", "pipeline", "report")
_EPILOG = """first steps:
  wm doctor             does my installation work, and if not, what do I do?
  wm masks --example    which tokens of a rollout does the objective train on?
  wm demo               what does it change? (a few minutes on one CPU)

In your own run, replace trl's GRPOTrainer by wm_plugin.trl.WorldModelGRPOTrainer(..., world_model=EchoConfig(coeff=0.05)).
Every verb takes --json and then prints one JSON object. Exit codes: 0 done, 2 bad input, 130 interrupted, 1 anything else."""


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, without the usage."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**{**options, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def print_help(self, file: Any = None) -> None:  # argparse keeps quiet where it cannot print
        with output():
            print(self.format_help(), end="", file=file)

    def refuse(self, extras: Sequence[str]) -> NoReturn:
        """Raise the error for arguments that no flag takes."""
        flags = [extra for extra in extras if extra.startswith("-")]
        if not flags:
            raise UserError(f"{self.prog} has no place for {extras[0]!r}; see {self.prog} --help")
        name = flags[0].partition("=")[0]
        raise UserError(f"{self.prog} has no flag {name!r}{nearest(name, self._option_string_actions)}")


def make_parser() -> tuple[Parser, dict[str, Parser]]:
    """The command's parser, and the parser of each verb."""
    parser = Parser(
        prog="wm",
        description="World-model objectives for TRL and verl: train a policy on what its environment says, too.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="store_true", help="print the version of this package")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    verbs = {}
    for verb in VERBS:
        verbs[verb] = import_module(f"wm_plugin.cli.{verb}").add_parser(subparsers)
        if not verbs[verb].get_default("hands_over"):
            verbs[verb].add_argument(
                "--json", action="store_true", help="print one JSON object, last, on standard output"
            )
    return parser, verbs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0 done, 2 bad input, 1 anything else, 130 interrupted."""
    return exit_code(lambda: _run(list(sys.argv[1:] if argv is None else argv)), "wm")


def _run(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-") and argv[0] not in VERBS:
        raise UserError(f"there is no verb {argv[0]!r}{nearest(argv[0], VERBS)} (wm --help lists them)")
    parser, verbs = make_parser()
    _check_step(argv, verbs)
    try:
        args, extras = parser.parse_known_args(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    if args.version:
        with output():
            print(f"wm-plugin {_version()}")
        return 0
    if args.verb is None:
        if extras:
            parser.refuse(extras)
        parser.print_help()
        return 0
    verb = verbs[args.verb]
    if verb.get_default("hands_over"):
        args.rest = extras
        return int(args.run(args)["exit_code"])
    if extras:
        getattr(args, "step_parser", verb).refuse(extras)
    result: dict[str, Any] = args.run(args)
    with output():
        if args.json:
            print(json.dumps(_finite(result), allow_nan=False))
        elif show := getattr(args, "show", None):
            show(_readable(result))
    return int(not result.get("ok", True))


def _finite(value: Any) -> Any:
    """A result with null in place of numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _readable(value: Any) -> Any:
    """A result whose texts no terminal acts on: names in it come from models, files and servers."""
    if isinstance(value, str) and not value.isprintable():
        from wm_plugin.tokens.view import visible

        return visible(value)
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list) else value


def _check_step(argv: Sequence[str], verbs: Mapping[str, Parser]) -> None:
    """Refuse a step that a verb does not have, which argparse would do without a hint."""
    steps = verbs[argv[0]].get_default("step_names") if argv and argv[0] in verbs else None
    if steps and len(argv) > 1 and not argv[1].startswith("-") and argv[1] not in steps:
        raise UserError(f"wm {argv[0]} has no step {argv[1]!r}{nearest(argv[1], steps)}")


def _version() -> str:
    from importlib import metadata  # half the time of `wm --help`

    try:
        return metadata.version("wm-plugin")
    except metadata.PackageNotFoundError:
        return "(a checkout that is not installed)"
