"""`python -m wm_plugin.recipes HOST NAME [FLAG...]` runs HOST/run.sh, wherever it is installed; alone, it prints README.md."""

import importlib.util
import os
import sys
from pathlib import Path

from wm_plugin.recipes import HERE, page

from wm_plugin.errors import MissingExtraError


def main(words: list[str]) -> None:
    if not words:
        print(page(), end="")
        return
    if words[0] not in ("trl", "verl"):
        print(f"wm_plugin.recipes: the first word is trl or verl, not {words[0]!r}", file=sys.stderr)
        raise SystemExit(2)
    if importlib.util.find_spec(words[0]) is None:
        print(MissingExtraError(f"wm_plugin.recipes {words[0]}", words[0], words[0]), file=sys.stderr)
        raise SystemExit(2)
    # the launcher calls the programs of this environment, active or not
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execvp("bash", ["bash", str(HERE / words[0] / "run.sh"), *words[1:]])


if __name__ == "__main__":
    main(sys.argv[1:])
