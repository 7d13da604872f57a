"""The command's start, for the script `wm` and `python -m wm_plugin`: an interrupt is one line from the first import on."""

import sys


def main() -> int:
    """`wm_plugin.cli.main.main`, which is imported here because that takes a while."""
    try:
        from wm_plugin.cli.main import main

        return main()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("wm: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
