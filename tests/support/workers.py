"""What processes that tests spawn run. They import it by this name: verl installs a package `tests`, which would hide ours."""

import os
import time
from typing import Any

from wm_plugin.errors import UserError


def start(offset: int) -> Any:
    def work(task: Any) -> int:
        if task == "die":
            os._exit(7)
        if task == "hang":
            time.sleep(3600)
        if task == "fail":
            raise RuntimeError("broken\nin two lines")
        if task == "mistake":
            raise UserError("write another task")
        time.sleep(task % 3 / 50)  # results do not come in the order of the tasks
        return task + offset

    return work


def bad_start() -> None:
    raise UserError("nothing can be started")
