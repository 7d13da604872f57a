"""The command `wm`: parses, calls and prints. One module a verb, with `add_parser(subparsers)` and `run(args) -> dict`."""
