"""A real episode of given actions, which is played as far as they go."""

from collections.abc import Sequence
from typing import Any

import wm_plugin.worlds.agents.rollout as rollout
from wm_plugin.data.schema import Action, Trajectory
from wm_plugin.errors import UserError
from wm_plugin.runtime.workers import lost_by

_MOST_TURNS = 1_000_000  # worlds have limits of their own


class RealEpisode:
    """The real world's episode of a row. Actions that do not continue the ones before begin it anew, as after an undo."""

    def __init__(
        self, environment: Any, row: dict[str, Any], *, max_turns: int = _MOST_TURNS, host: rollout.Host = "trl"
    ) -> None:
        self.environment, self._row, self._max_turns, self._host = environment, row, max_turns, host
        self._begin()
        self.start = self._trajectory  # before the first turn

    def after(self, actions: Sequence[Action]) -> Trajectory:
        """Play these actions, or the first ones if the episode is over before the last; return the trajectory."""
        done = [turn.action for turn in self._trajectory.turns]
        if done != list(actions[: len(done)]):
            self._begin()
            done = []
        for action in actions[len(done) :]:
            if self._steps is None:
                break
            self._send(action)
        return self._trajectory

    @property
    def over(self) -> bool:
        return self._steps is None

    def _begin(self) -> None:
        self.trouble = ""  # why the episode cannot go on
        self._steps: Any = rollout.episode(self.environment, self._row, max_turns=self._max_turns, host=self._host)
        self._send(None)

    def _send(self, action: Action | None) -> None:
        try:
            self._trajectory: Trajectory = self._steps.send(action)
        except StopIteration as end:
            self._steps, self._trajectory = None, end.value
        except UserError as error:
            if action is not None:  # an episode that raised cannot be sent anything more
                self._steps, self.trouble = None, str(error)
            raise
        except Exception as error:
            if action is None:
                raise
            self._steps, self.trouble = None, lost_by(error).kind
