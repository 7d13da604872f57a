"""An environment with WMAct's reward, which depends on the outcome of an episode and on the actions that led to it.

Both hosts ask an environment for its reward, so one class serves both:

    environment_factory=rewarded(MazeEnvironment, rescale=True)                                       # TRL
    episode_reward: {rescale: true, format_penalty: 0.1}                                              # a file for wm train
    wm.environment=maze 'wm.episode_reward={rescale: true, format_penalty: 0.1}'                      # verl

Only the host sees an answer from which no action reached a world that waited for one (plain text, a call that cannot be parsed or
of no tool, an answer that was cut). It counts as a turn of one invalid action, in the reward, in the episode's figures and in the
turn budget: a turn of the paper is an answer of the policy. Ignoring the form never costs less than a wrong action.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.hosting.world import Start, Wrapper, dress, report
from wm_plugin.rewards.episode import EpisodeReward

COUNTS = ("actions", "effective")  # required in an environment's `metrics`


def rewarded(environment: type, config: EpisodeReward | Mapping[str, Any] | None = None, **settings: Any) -> type:
    """Return the class of `environment` whose reward is an `EpisodeReward` of its own reward and counts.

    Args:
        environment: has `get_reward` and a mapping `metrics` with `actions` and `effective`, and `invalid` if it counts these.

    Raises:
        UserError: there is no such setting, its value does not fit, or the environment has no `get_reward`; in an episode:
            `metrics` lacks a count, or a setting needs `turns` and there are none.
    """
    reward = EpisodeReward.read(settings if config is None else config, "episode_reward")
    if not hasattr(environment, "get_reward"):
        raise UserError(f"{environment.__name__} has no get_reward: there is no outcome to rescale")
    return dress(environment, Rewarded, reward)


class Rewarded(Wrapper):
    """A world with another reward."""

    def __init__(self, world: Wrapper, options: EpisodeReward, environment: type) -> None:
        super().__init__(world, options, environment)
        self._reward = options.model_copy()  # which has the figures of its last call
        self._unanswered = 0  # of the episode

    def reset(self, columns: dict[str, Any], start: Start) -> Any:
        self._unanswered = 0
        return super().reset(columns, start)

    def end(self, unanswered: int) -> None:
        self._unanswered = unanswered
        super().end(unanswered)

    def get_reward(self) -> Any:
        """Return the reward of the episode, from the world's own, which may be asynchronous."""
        outcome = self.world.get_reward()
        return self._awaited(outcome) if inspect.isawaitable(outcome) else self._score(outcome)

    async def _awaited(self, outcome: Any) -> float:
        return self._score(await outcome)

    def _score(self, outcome: float) -> float:
        counts = report(self.world, self._unanswered)
        if missing := [name for name in COUNTS if name not in counts]:
            raise UserError(
                f"{self.environment.__name__}.metrics has no {' and no '.join(missing)}: WMAct's reward counts them"
            )
        (rescaled,) = self._reward(
            [float(outcome)],
            actions=[int(counts["actions"])],
            effective=[int(counts["effective"])],
            invalid=[int(counts.get("invalid", self._unanswered))],
            turns=[int(counts["turns"])] if "turns" in counts else None,
        )
        return float(rescaled)
