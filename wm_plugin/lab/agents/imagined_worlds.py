"""Who predicts what follows an imagined action: the policy itself, another world model, or the real environment.

Another world model makes this Word2World's check before an action (section 5.3), extended from one action to a choice among
several. The real environment is the bound: what look-ahead would gain from perfect predictions.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from wm_plugin.client.answers import Answers
from wm_plugin.data.schema import Action, Kind, Observation, Turn
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import is_over
from wm_plugin.lab.agents.branches import Branch, Imaginer
from wm_plugin.lab.agents.real import RealEpisode
from wm_plugin.runtime.workers import lost_by
from wm_plugin.tokens.harmless import harmless
from wm_plugin.tokens.message import Message
from wm_plugin.worlds.agents.controls import CONTROLS
from wm_plugin.worlds.agents.outcomes import Marks
from wm_plugin.worlds.agents.rollout import Host
from wm_plugin.worlds.kit.protocol import reward_of
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.simulated_episode import Simulation

_FEW = 8  # fewer questions than this may all fail by chance
_GONE = ("timeout", "connection", "rate limit", "server error")  # the server failed, whatever the question
_NO_ROW = (
    "the real environment replays every episode from its row, and this episode has none; play it with wm env rollout or "
    "wm eval lookahead"
)


class ImaginedWorld:
    """Answers imagined actions."""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that its answers depend on, as JSON values."""
        return {}

    def begin(self, branches: Sequence[Branch]) -> None:
        """Prepare for new branches."""

    def observe(self, branches: Sequence[Branch]) -> None:
        """Give each branch the observations and outcome of its action, or make it fail."""
        raise NotImplementedError


class OwnWorld(ImaginedWorld):
    """The policy predicts the results of its own calls; `marks` read the outcome from them.

    `observers` has the kind of observation after each tool's calls, as in `World.observers`; "tool" after all others.
    """

    def __init__(self, imaginer: Imaginer, marks: Marks, observers: Mapping[str, Kind] | None = None) -> None:
        self._imaginer, self._marks, self._observers = imaginer, marks, observers or {}

    def observe(self, branches: Sequence[Branch]) -> None:
        for branch, texts in zip(branches, self._imaginer.predict(branches), strict=True):
            if not branch.trouble:
                imagined(branch, texts, self._marks, self._observers)


def imagined(
    branch: Branch, texts: Sequence[str], marks: Marks, observers: Mapping[str, Kind] = MappingProxyType({})
) -> None:
    """Add the results that the policy imagined to a branch; `marks` read the outcome from them."""
    outcomes = [marks.outcome(text) for text in texts]
    branch.observe(
        [
            Observation(kind=observers.get(call.name, "tool"), text=text, tool=call.name, call=number)
            for number, (call, text) in enumerate(zip(branch.action.calls, texts, strict=True))
        ],
        over=any(one.over for one in outcomes),
        won=any(one.won for one in outcomes),
        reward=sum(one.reward for one in outcomes),
    )


class OtherWorld(ImaginedWorld):
    """A world model, asked as in `Simulation`; its mark of success says that an episode is won.

    Questions pass through `harmless`, as in a simulated world: otherwise an action could write the world model's answer. `tokens`
    are control tokens that `harmless` does not know by their form. `marks` tell rewards, and ends without success.
    """

    def __init__(
        self, model: Answers, simulation: Callable[[], Simulation], marks: Marks, tokens: tuple[str, ...] = ()
    ) -> None:
        self._model, self._make, self._marks, self._tokens = model, simulation, marks, tokens
        self._simulations: dict[int, Simulation] = {}

    @property
    def settings(self) -> dict[str, Any]:
        prompts = self._make().prompts
        digest = hashlib.sha256(prompts.model_dump_json().encode()).hexdigest()[:16]
        return {"world_model": self._model.settings, "prompts": prompts.name, "prompts_digest": digest}

    def begin(self, branches: Sequence[Branch]) -> None:
        self._simulations = {}
        for branch in branches:
            simulation = self._make()
            simulation.reset(branch.state)
            simulation.max_turns = len(branch.state.turns) + branch.limit
            for turn in branch.state.turns:
                simulation.take(turn.action, turn.observations, False)
            self._simulations[id(branch)] = simulation

    def observe(self, branches: Sequence[Branch]) -> None:
        pairs = [(branch, self._simulations[id(branch)]) for branch in branches]
        answers = self._model([self._question(simulation, branch.action) for branch, simulation in pairs])
        if len(answers) >= _FEW and all(one.failure in _GONE for one in answers):
            raise UserError(
                f"the world model gave no answer to any of {len(answers)} questions ({answers[0].failure}); check that its "
                "server runs, and give the same command again"
            )
        for (branch, simulation), answer in zip(pairs, answers, strict=True):
            simulation.step(branch.action, answer)
            if simulation.trouble:
                branch.fail(f"world model, {simulation.trouble}")
                continue
            seen = simulation.trajectory.turns[-1].observations
            outcomes = [self._marks.outcome(one.text) for one in seen]
            over = simulation.success or any(one.over for one in outcomes)
            branch.observe(seen, over=over, won=simulation.success, reward=sum(one.reward for one in outcomes))

    def _question(self, simulation: Simulation, action: Action) -> list[Message]:
        made = simulation.question(action)
        return [{**message, "content": harmless(message["content"], self._tokens)} for message in made]


class ControlWorld(ImaginedWorld):
    """A control (`controls.CONTROLS`) in the world's place: it says only whether a first action wins.

    With one that always says yes, the policy takes its most frequent sample; with one that always says no, its first. So
    `wm eval lookahead` has only the coin as an arm.
    """

    def __init__(self, name: str) -> None:
        self._name, self._control = name, CONTROLS[name](object)

    @property
    def settings(self) -> dict[str, Any]:
        return {"control": self._name}

    def observe(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            wins = bool(self._control(branch.state, branch.action, str(branch.seed)))
            branch.observe([], over=True, won=wins, reward=float(wins))


class RealWorld(ImaginedWorld):
    """The environment itself, replayed from the episode's row: an oracle that no agent has.

    A replay equals the episode only where the row determines everything, as in our worlds.
    """

    def __init__(self, world: World, marks: Marks, *, host: Host = "trl") -> None:
        self._world, self._marks, self._host = world, marks, host
        self._played: dict[int, RealEpisode] = {}
        self._free: list[Any] = []  # environments to reuse: some worlds start a process for each

    @property
    def settings(self) -> dict[str, Any]:
        return {"oracle": self._world.name}

    def begin(self, branches: Sequence[Branch]) -> None:
        del branches  # each is replayed when it is first observed
        self._free += [episode.environment for episode in self._played.values()]
        self._played = {}

    def observe(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            try:
                episode = self._played.get(id(branch)) or self._replayed(branch)
            except UserError:
                raise
            except Exception as error:  # of the environment
                branch.fail(f"real world, {lost_by(error).kind}")
            else:
                if episode is not None:
                    self._step(branch, episode)

    def _step(self, branch: Branch, episode: RealEpisode) -> None:
        environment = episode.environment
        before = reward_of(environment) or 0.0
        after = episode.after([*(turn.action for turn in branch.trajectory.turns), branch.action])
        if episode.trouble:
            branch.fail(f"real world, {episode.trouble}")
            return
        success = after.success if episode.over else getattr(environment, "success", None)
        reward = (reward_of(environment) or 0.0) - before
        seen = after.turns[-1].observations
        if self._marks.reward:
            reward = sum(self._marks.outcome(one.text).reward for one in seen)
        branch.observe(seen, over=episode.over or is_over(environment), won=bool(success), reward=reward)

    def _replayed(self, branch: Branch) -> RealEpisode | None:
        """Replay the branch's episode in an environment; make the branch fail if it comes out differently."""
        row = branch.state.metadata.get("reset")
        if not isinstance(row, dict):
            raise UserError(_NO_ROW)
        environment = self._free.pop() if self._free else self._world.make()
        turns = branch.state.turns
        episode = RealEpisode(environment, row, max_turns=len(turns) + branch.limit, host=self._host)
        after = episode.after([turn.action for turn in turns])
        if episode.trouble:
            branch.fail(f"real world, {episode.trouble}")
            return None
        if episode.over or list(map(_texts, after.turns)) != list(map(_texts, turns)):
            branch.fail("real world, the replay differs from the episode")
            return None
        self._played[id(branch)] = episode
        return episode


def _texts(turn: Turn) -> list[str]:
    return [one.text for one in turn.observations]
