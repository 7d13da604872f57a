"""How many examples hypothesis tries: a tenth in the fast tests, all at night (`make test-nightly`)."""

import os


def examples(count: int) -> int:
    return count if os.environ.get("WM_ALL_EXAMPLES") else max(40, count // 10)
