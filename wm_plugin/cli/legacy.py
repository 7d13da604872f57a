"""The verbs that have not moved to cyclopts yet."""

import argparse
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from wm_plugin.cli.output import finite, readable
from wm_plugin.errors import UserError, nearest
from wm_plugin.runtime.command import output

VERBS = ("data",)
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


def run(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-") and argv[0] not in VERBS:
        raise UserError(f"there is no verb {argv[0]!r}{nearest(argv[0], VERBS)} (wm --help lists them)")
    parser, verbs = make_parser()
    _check_step(argv, verbs)
    try:
        args, extras = parser.parse_known_args(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    if args.version:
        from wm_plugin.cli.main import _version

        with output():
            print(_version())
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
            print(json.dumps(finite(result), allow_nan=False))
        elif show := getattr(args, "show", None):
            show(readable(result))
    return int(not result.get("ok", True))


def _check_step(argv: Sequence[str], verbs: Mapping[str, Parser]) -> None:
    """Refuse a step that a verb does not have, which argparse would do without a hint."""
    steps = verbs[argv[0]].get_default("step_names") if argv and argv[0] in verbs else None
    if steps and len(argv) > 1 and not argv[1].startswith("-") and argv[1] not in steps:
        raise UserError(f"wm {argv[0]} has no step {argv[1]!r}{nearest(argv[1], steps)}")
