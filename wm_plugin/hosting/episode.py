"""The episode port: how a host reports an episode to its environment, call by call.

    port = EpisodePort(environment)
    first = port.begin(columns, prompt=prompt, training=True)     # TRL resets environments itself, within `resets`
    port.turn(message, results)                                   # each answer, before its calls run
    await port.ready()
    port.end(unanswered)                                          # before the reward is read
    port.figures(calls, ...)

The port passes these reports to the environment's wrappers (see `world.Wrapper`); without any it only resets the environment.
Tool calls do not go through the port: the host calls the environment's methods.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import action_of
from wm_plugin.data.schema import Action
from wm_plugin.data.thoughts import split
from wm_plugin.hosting.world import (
    Start,
    Wrapper,
    chain_of,
    check_columns,
    is_waiting,
    layers_of,
    report,
    tool_methods,
)
from wm_plugin.untrusted import encodable

CALLS = "calls/"  # the prefix of a tool's count among an episode's figures


class EpisodePort:
    """The episodes of one environment, one at a time.

    Args:
        environment: an instance, with or without wrappers.

    Attributes:
        unanswered: how many answers of the episode held no action while the environment waited for one.
    """

    def __init__(self, environment: Any) -> None:
        self.environment, self.unanswered = environment, 0
        self._chain = chain_of(environment)
        self.is_turn_aware = any(kind.is_turn_aware for kind, *_ in layers_of(environment))

    @property
    def is_waiting(self) -> bool:
        """Whether the environment says that it waits for an action."""
        return is_waiting(self.environment)

    def begin(
        self, columns: Mapping[str, Any], *, prompt: Any = None, training: bool = True, strength: float = 1.0
    ) -> Any:
        """Reset the environment; return the first observation, or an awaitable if `reset` is asynchronous.

        Args:
            columns: the row's columns for `reset`.
            prompt: the row's prompt, for wrappers that need it.
            training: whether the episode is for training rather than evaluation.
            strength: the curriculum's factor on all perturbation rates.

        Raises:
            UserError: `reset` does not take these columns.
        """
        self.unanswered = 0
        check_columns(type(self.environment), columns)
        if self._chain is None:
            return self.environment.reset(**columns)
        return self._chain.reset(dict(columns), Start(prompt, training, strength))

    def turn(
        self, answer: Action | Mapping[str, Any], results: Sequence[str] = (), *, executed: int | None = None
    ) -> None:
        """Announce the policy's next turn to the wrappers before its calls run. Does not wait for answers, and never raises.

        Args:
            answer: an action, or an assistant's message in OpenAI's form.
            results: what the policy observed after the previous turn's calls, the host's own answers included.
            executed: how many of the calls the host runs; None: all.
        """
        if self._chain is None or not self.is_turn_aware:
            return
        action = answer if isinstance(answer, Action) else _action_of(answer)
        calls = tuple(call.model_copy(update={"id": None}) for call in action.calls[:executed])
        self._chain.turn(action.model_copy(update={"calls": calls}), results)

    async def ready(self) -> None:
        """Wait, without a thread, until the turn's calls can return at once. Never raises."""
        if self._chain is not None:
            await self._chain.ready()

    def end(self, unanswered: int = 0) -> None:
        """End the episode, before its figures and reward are read. May wait for a judge.

        Raises:
            UserError: a judge or a world model could not be asked at all.
        """
        end_together([self], [unanswered])

    def notes(self, *, failed: bool = False) -> dict[str, Any]:
        """Return the wrappers' entries for the last observation's `data`; `failed`: the host wrote the observation."""
        return {} if self._chain is None else self._chain.notes(failed)

    @property
    def about(self) -> dict[str, Any]:
        """The wrappers' entries for the `metadata` of the episode's record."""
        return {} if self._chain is None else self._chain.about()

    def report(self) -> dict[str, float]:
        """Return the environment's own figures of the episode; see `world.report`."""
        return report(self.environment, self.unanswered)

    def figures(
        self,
        calls: Iterable[str],
        *,
        budget: int | None,
        truncated: bool,
        policy_tokens: int,
        environment_tokens: int,
    ) -> dict[str, float]:
        """Return the figures of an episode that ended: the environment's own and the host's.

        Args:
            calls: every tool call's name, in any order. A name that is not a tool counts as `unknown`.
            budget: the turns that the host allowed, if it limits them; the environment's own `max_turns` may be lower.
            truncated: whether the completion was cut at the length limit.
            policy_tokens: how many tokens of the completion the policy sampled.
            environment_tokens: how many it did not sample.
        """
        tools = tool_methods(self.environment)
        counted = Counter(name if name in tools else "unknown" for name in calls)
        figures = self.report()
        limits = [limit for limit in (budget, getattr(self.environment, "max_turns", None)) if isinstance(limit, int)]
        if limits:
            figures["budget"] = float(min(limits))
        return figures | {
            **{f"{CALLS}{name}": float(counted[name]) for name in (*tools, "unknown")},
            "truncated": float(truncated),
            "policy_tokens": float(policy_tokens),
            "environment_tokens": float(environment_tokens),
        }


def end_together(ports: Sequence[EpisodePort], unanswered: Sequence[int]) -> None:
    """End several episodes, as `EpisodePort.end` does; each judge is asked once, about all of them."""
    layers: dict[type[Wrapper], list[Wrapper]] = {}
    for port, answers in zip(ports, unanswered, strict=True):
        port.unanswered, layer = answers, port._chain
        if layer is not None:
            layer.end(answers)
            for kind, *_ in reversed(layers_of(port.environment)):
                layers.setdefault(kind, []).append(layer)
                layer = layer.world
    for kind, episodes in layers.items():
        kind.finalize(episodes)


def _action_of(message: Mapping[str, Any]) -> Action:
    try:
        return action_of(encodable(dict(message)))
    except (RowError, ValueError):  # its calls do not parse
        return Action(text=split(str(encodable(str(message.get("content") or ""))))[1])
