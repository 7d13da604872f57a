"""Which hooks has the installed host moved? Nightly, for its main branch: prints an issue, and exits with 1 if any has.

python benchmarks/upstream.py trl | verl
"""

import importlib
import sys
from collections.abc import Iterable

from wm_plugin.hosting.hooks import Hook, missing_hooks


def hooks_of(host: str) -> list[Hook]:
    """All hooks that the adapter lists.

    Raises:
        ImportError: what the adapter itself imports has moved.
    """
    support = importlib.import_module(f"wm_plugin.{host}.support")
    return [hook for name, found in vars(support).items() if name.endswith("HOOKS") for hook in found]


def body(host: str, version: str, moved: Iterable[str]) -> str:
    """The issue, in Markdown."""
    lines = "".join(f"- `{what}`\n" for what in moved)
    where = f"`HOOKS` in `wm_plugin/{host}/support.py`"
    return (
        f"{host} {version} on its main branch has moved what we rely on:\n\n{lines}\n"
        f"Each is listed in {where}; {host}'s next release is refused until it is mended there.\n"
    )


def main(host: str) -> int:
    version = importlib.import_module(host).__version__
    try:
        moved = missing_hooks(hooks_of(host))
    except ImportError as error:
        moved = [f"{error} (imported by wm_plugin.{host}.support)"]
    if moved:
        print(body(host, version, moved), end="")
    else:
        print(f"{host} {version}: nothing has moved")
    return bool(moved)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
