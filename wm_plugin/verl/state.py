"""Our checkpoint state: a small JSON file inside verl's own checkpoint folder.

The coefficient is a function of the global step, which verl restores, so that schedules need no state of their own.
"""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import write_text
from wm_plugin.errors import UserError
from wm_plugin.objectives import Objective, column
from wm_plugin.untrusted import loads

logger = logging.getLogger(__name__)

FILE = "wm_state.json"
_TRACKER = "latest_checkpointed_iteration.txt"  # verl's: the step of the last checkpoint that is complete
KINDS = {"max_turns": int | None, "turn_budget": dict | None, "control": dict | None}  # of its fields
OBJECTIVE_KINDS = {"objective": dict, "tools": list, "guard": dict | None}  # of those of each objective


def save(folder: str, state: dict[str, Any]) -> None:
    """Write the file whole or not at all. To be called before verl marks the checkpoint as the latest."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_text(Path(folder) / FILE, json.dumps(state, indent=1))


def load(folder: str, objectives: Iterable[str] = ("",)) -> dict[str, Any] | None:
    """Return what `save` wrote; None: the checkpoint is of a run without us.

    Raises:
        UserError: the file is damaged.
    """
    path = Path(folder) / FILE
    if not path.exists():
        return None
    try:
        state = loads(path.read_bytes())
    except ValueError:
        state = None
    if isinstance(state, dict):
        for name in ("guard", "control"):  # earlier releases wrote none
            state.setdefault(name, None)
    kinds = {column(field, name): kind for field, kind in OBJECTIVE_KINDS.items() for name in objectives} | KINDS
    fits = isinstance(state, dict) and kinds.keys() <= state.keys()
    if not fits or not all(isinstance(state[name], kind) for name, kind in kinds.items()):
        raise UserError(
            f"{path}: damaged; resume from another checkpoint, or remove the file to go on without its state"
        )
    return state


def last_whole(folder: str) -> str | None:
    """Return the checkpoint to resume from where verl's own choice is damaged, as by a full disk; None: verl's choice is whole.

    Raises:
        UserError: no checkpoint is whole.
    """
    steps = {int(path.name[12:]): path for path in Path(folder).glob("global_step_*") if path.name[12:].isdecimal()}
    tracker = Path(folder) / _TRACKER
    if not steps or not tracker.exists():
        return None
    damage: UserError | None = None
    try:
        chosen = int(tracker.read_text())
    except ValueError:  # written after all else of a checkpoint
        chosen, damage = max(steps), UserError(f"{tracker}: damaged; write the number of a checkpoint's step into it")
    for step in sorted((step for step in steps if step <= chosen), reverse=True):
        try:
            load(str(steps[step]))
        except UserError as error:
            damage = damage or error
            logger.warning("%s is left out: its %s is damaged", steps[step], FILE)
            continue
        if damage is None:
            return None
        if all((steps[step] / name).exists() for name in ("actor", "data.pt")):  # which verl may have removed
            return str(steps[step])
    if damage is None:
        return None
    raise damage


def describe(config: Objective) -> dict[str, Any]:
    """Return an objective as JSON, to tell after a resume whether it was changed."""
    values = config.model_dump(mode="json", exclude={"select"})
    values["select"] = None if config.select is None else getattr(config.select, "__qualname__", repr(config.select))
    return values
