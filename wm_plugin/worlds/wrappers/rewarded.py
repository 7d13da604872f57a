"""An environment with WMAct's reward, which depends on the outcome of an episode and on the actions that led to it.

Both hosts ask an environment for its reward, so one class serves both:

    environment_factory=rewarded(MazeEnvironment, rescale=True)                                       # TRL
    episode_reward: {rescale: true, format_penalty: 0.1}                                              # a file for wm train
    wm.environment=maze 'wm.episode_reward={rescale: true, format_penalty: 0.1}'                      # verl

An answer from which no action reached a world that waited for one (plain text, a call that cannot be parsed or of no tool, an
answer that was cut) is seen by the host alone, which notes it (`note_unanswered`). It counts as a turn of one invalid action, in
the reward, in the figures of the episode and in the turn budget: a turn of the paper is an answer of the policy. Not to answer in
the form that is asked for never costs less than a wrong action.
"""

import inspect
from contextlib import suppress
from functools import lru_cache
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.rewards.episode import EpisodeReward
from wm_plugin.worlds.kit.protocol import UNANSWERED, report

COUNTS = ("actions", "effective")  # required in an environment's `metrics`


def note_unanswered(environment: Any, answers: int) -> None:
    """Tell an environment how many answers of its episode had no action, before its figures and its reward are asked for."""
    if answers or getattr(environment, UNANSWERED, 0):  # of the episode before
        with suppress(AttributeError):  # a class may have slots
            setattr(environment, UNANSWERED, answers)


def is_waiting(environment: Any) -> bool:
    """Whether an environment says that its episode is not over. One that says nothing about it may be left at any time."""
    return getattr(environment, "over", None) is False


def rewarded(environment: type, **settings: Any) -> type:
    """A subclass of `environment` whose reward is `EpisodeReward(**settings)` of the environment's own reward and counts.

    Everything else, its name included, is the environment's.

    Args:
        environment: has `get_reward` and a mapping `metrics` with `actions` and `effective`, and `invalid` if it counts these.

    Raises:
        UserError: there is no such setting, its value does not fit, or the environment has no `get_reward`; in an episode:
            `metrics` lacks a count, or a setting needs `turns` and there are none.
    """
    EpisodeReward.read(settings, "episode_reward")
    if not hasattr(environment, "get_reward"):
        raise UserError(f"{environment.__name__} has no get_reward: there is no outcome to rescale")
    return _rewarded(environment, tuple(sorted(settings.items())))


@lru_cache  # the same class each time a config is read
def _rewarded(environment: Any, settings: tuple[tuple[str, Any], ...]) -> type:
    reward = EpisodeReward(**dict(settings))

    def score(self: Any, outcome: float) -> float:
        counts = report(self)
        if missing := [name for name in COUNTS if name not in counts]:
            raise UserError(
                f"{environment.__name__}.metrics has no {' and no '.join(missing)}: WMAct's reward counts them"
            )
        (rescaled,) = reward(
            [float(outcome)],
            actions=[int(counts["actions"])],
            effective=[int(counts["effective"])],
            invalid=[int(counts.get("invalid", getattr(self, UNANSWERED, 0)))],
            turns=[int(counts["turns"])] if "turns" in counts else None,
        )
        return rescaled

    class Rewarded(environment):  # type: ignore[misc]
        def get_reward(self) -> Any:
            return score(self, super().get_reward())

    class AsyncRewarded(environment):  # type: ignore[misc]
        async def get_reward(self) -> Any:
            return score(self, await super().get_reward())

    subclass = AsyncRewarded if inspect.iscoroutinefunction(environment.get_reward) else Rewarded
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(subclass, name, getattr(environment, name))
    return subclass
