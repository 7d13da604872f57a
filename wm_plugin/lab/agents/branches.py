"""Imagined episodes of one policy: its own actions, and its own predictions of what follows them.

The policy reads an imagined episode as its trainer writes a rollout: prompt, turn, and the tokens of the results by the chat
template (as `evaluation.policy_fidelity` does for one result). Its predictions are therefore asked for in the very form in which
the objective trained it to read results.
"""

import random
from collections.abc import Sequence
from typing import Any, Protocol

from wm_plugin.client.decode import Decoder, pick
from wm_plugin.client.predict import LocalPredictor, seed_of
from wm_plugin.data.render import write_call
from wm_plugin.data.schema import Action, Observation, Trajectory, Turn
from wm_plugin.lab.agents.lookahead_values import Continuation, LookAheadConfig
from wm_plugin.lab.agents.result_texts import ResultTexts
from wm_plugin.tokens.chat import Chat
from wm_plugin.worlds.agents.outcomes import bounded
from wm_plugin.worlds.agents.policies import LocalPolicy


class Branch:
    """An imagined episode.

    Attributes:
        state: the real episode so far.
        action: the last one, which nothing has followed yet.
        stopped: by the policy, with an action without a call. `over` is by the world.
        turns: imagined, each with what followed it.
        tokens, first_tokens: that the policy generated for it, and for its first action.
        trouble: why it ended, if something failed.
    """

    def __init__(self, state: Trajectory, seed: int, limit: int) -> None:
        self.state, self.limit, self.draw = state, limit, random.Random(seed)
        self.seed = seed
        self.action = Action()
        self.turns: list[Turn] = []
        self.rewards: list[float] = []
        self.over = self.won = self.stopped = False
        self.logp: float | None = None
        self.tokens, self.first_tokens, self.trouble = 0, 0, ""
        self.pending: list[int] = []  # sampled, and not yet read by the model
        self.first, self.first_ids = Action(), list[int]()  # the tokens are known of a policy in this process

    @property
    def live(self) -> bool:
        return not (self.over or self.stopped or self.trouble) and len(self.turns) < self.limit

    @property
    def trajectory(self) -> Trajectory:
        """The real and the imagined turns."""
        return self.state.model_copy(update={"turns": (*self.state.turns, *self.turns)})

    def act(self, action: Action) -> None:
        if not self.turns:
            self.first, self.first_tokens = action, self.tokens
        self.action = action
        self.stopped = not action.calls  # which ends an episode, and is no end that the world predicts

    def observe(self, observations: Sequence[Observation], *, over: bool, won: bool, reward: float) -> None:
        self.turns.append(Turn(action=self.action, observations=tuple(observations)))
        self.rewards.append(bounded(reward))
        self.over, self.won = over, won

    def fail(self, trouble: str) -> None:
        self.trouble = self.trouble or trouble

    def continuation(self) -> Continuation:
        said = [one.text for one in self.turns[0].observations] if self.turns else []
        return Continuation(
            write_first(self.first),
            len(self.turns),
            self.over,
            self.won,
            tuple(self.rewards),
            "\n".join(said),
            self.logp,
        )


def write_first(action: Action) -> str:
    """An action as a text by which equal ones are told: its calls, without what is thought and said beside them."""
    if not action.calls:
        return f"text: {action.text.strip()}"
    return "\n".join(map(write_call, action.calls))


class Imaginer(Protocol):
    """A policy that imagines. One call of `begin` at a time."""

    own: bool  # it can predict results itself
    batched: bool

    @property
    def at_once(self) -> int:
        """Episodes that are imagined together."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """Which model it is, as JSON values."""
        ...

    @property
    def sampling(self) -> dict[str, Any]:
        """How its actions are sampled."""
        ...

    def begin(self, branches: Sequence[Branch], *, go_on: bool) -> None:
        """The first action of each branch; those of a state stand together. `go_on`: they will be continued."""
        ...

    def predict(self, branches: Sequence[Branch]) -> list[list[str]]:
        """What the policy says of each call of the branches' actions."""
        ...

    def act(self, branches: Sequence[Branch]) -> None:
        """The next action of branches whose last turn has its observations."""
        ...


class LocalImaginer:
    """A model in this process. Branches of a state share the work on it, and go on from the cache.

    Args:
        predictor: the policy; its own temperature and limit of tokens are not used.
        chat_template: that the trainer takes in the place of the tokenizer's own.
    """

    own, batched = True, True

    def __init__(self, predictor: LocalPredictor, config: LookAheadConfig, chat_template: str | None = None) -> None:
        self.predictor, self.config = predictor, config
        self._policy, self._tokenizer = LocalPolicy(predictor), predictor.tokenizer
        self._results = ResultTexts(Chat(predictor.tokenizer, chat_template))
        pad = predictor.tokenizer.pad_token_id
        self._decoder = Decoder(predictor.model, 0 if pad is None else pad)
        self._ends = frozenset(predictor.ends)
        self._rows: list[Branch] = []  # of the decoder
        self._mark = 0  # columns that hold what was acted, without the last token of each action

    @property
    def at_once(self) -> int:
        return self.predictor.batch_size

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "weights": self.predictor.settings["weights"],
            "batch_size": self.predictor.batch_size,
            "template": self._results.digest,
        }

    @property
    def sampling(self) -> dict[str, Any]:
        return {"temperature": self.config.temperature, "max_new_tokens": self.config.max_new_tokens}

    def begin(self, branches: Sequence[Branch], *, go_on: bool) -> None:
        states = list({id(branch.state): branch.state for branch in branches}.values())
        places = {id(state): place for place, state in enumerate(states)}
        prompts = [self.prompt_ids(state) for state in states]
        groups: list[list[Branch]] = [[] for _ in states]
        for branch in branches:
            groups[places[id(branch.state)]].append(branch)
        self._decoder.start(prompts)
        self._first_tokens(groups)
        unfinished = [one for one in branches if one.pending[-1] not in self._ends and self.config.max_new_tokens > 1]
        if not (go_on or unfinished):
            self._read(branches, [one.pending for one in branches], prompts, places)
            return
        size = len(branches) if go_on else self.at_once
        waiting = list(branches) if go_on else unfinished
        texts = {id(one): one.pending for one in branches}
        for start in range(0, len(waiting), size):
            chunk = waiting[start : start + size]
            used = {id(one.state): places[id(one.state)] for one in chunk}
            if not go_on:  # of many draws few go on, and those of a state stand together
                self._decoder.start([prompts[place] for place in used.values()])
            rows = places if go_on else {key: row for row, key in enumerate(used)}
            self._decoder.select([rows[id(one.state)] for one in chunk])
            ended = [1 if one.pending[-1] in self._ends else self.config.max_new_tokens for one in chunk]
            tokens, logps = self._decoder.sample(
                [one.draw for one in chunk],
                temperature=self.config.temperature,
                ends=self._ends,
                limits=ended,
                begun=[one.pending[0] for one in chunk],
            )
            for one, row, logp in zip(chunk, tokens, logps, strict=True):
                texts[id(one)], one.logp = row, (one.logp or 0.0) + logp
        self._rows, self._mark = list(branches), self._decoder.columns
        self._read(branches, [texts[id(one)] for one in branches], prompts, places)

    def prompt_ids(self, state: Trajectory) -> list[int]:
        """The tokens of an episode so far, which end where the policy's turn begins."""
        return self._policy.prompt_ids(state)

    def _first_tokens(self, groups: Sequence[Sequence[Branch]]) -> None:
        """Draw the first token of every branch from its state's distribution, which is computed once."""
        import torch

        for place, group in enumerate(groups):
            luck = torch.tensor([[one.draw.random() if self.config.temperature else 0.0 for one in group]])
            tokens, logps = pick(self._decoder.logits[place : place + 1], luck, self.config.temperature)
            for one, token, logp in zip(group, tokens[0].tolist(), logps[0].tolist(), strict=True):
                one.pending, one.logp = [token], logp

    def _read(
        self,
        branches: Sequence[Branch],
        texts: Sequence[list[int]],
        prompts: Sequence[list[int]],
        places: dict[int, int],
    ) -> None:
        known: dict[tuple[int, tuple[int, ...]], Action] = {}
        for one, ids in zip(branches, texts, strict=True):
            one.tokens += len(ids)
            one.pending = ids[-1:]
            if not one.turns:
                one.first_ids = list(ids)
            key = (places[id(one.state)], tuple(ids))
            if key not in known:
                known[key] = self._policy.read(ids, prompts[key[0]], one.state)
            one.act(known[key])

    def _keep(self, branches: Sequence[Branch]) -> None:
        """Leave the rows of other branches, and go back to where the actions end."""
        if len(branches) != len(self._rows):
            places = {id(one): place for place, one in enumerate(self._rows)}
            self._decoder.select([places[id(one)] for one in branches])
            self._rows = list(branches)
        self._decoder.cut(self._mark)

    def predict(self, branches: Sequence[Branch]) -> list[list[str]]:
        self._keep(branches)
        texts: list[list[str]] = [[] for _ in branches]
        for index in range(max(len(one.action.calls) for one in branches)):
            self._decoder.cut(self._mark)
            asked = [index < len(one.action.calls) for one in branches]
            names = [tuple(call.name for call in one.action.calls) for one in branches]
            openings = [
                one.pending + self._results.opening(named, said) if wanted else []
                for one, named, said, wanted in zip(branches, names, texts, asked, strict=True)
            ]
            self._decoder.feed(openings)
            predicted = self._write_results(branches, names, asked, index)
            for text, wanted, mine in zip(predicted, asked, texts, strict=True):
                if wanted:
                    mine.append(text)
        return texts

    def _write_results(
        self, branches: Sequence[Branch], names: Sequence[tuple[str, ...]], asked: Sequence[bool], index: int
    ) -> list[str]:
        config, tokenizer = self.config, self._tokenizer
        closings = [
            self._results.closing(named, index)[1] if wanted else "" for named, wanted in zip(names, asked, strict=True)
        ]
        limit = config.observation_tokens or config.max_observation_tokens

        def closed(row: int, tokens: list[int]) -> bool:
            ending = closings[row]
            return ending in tokenizer.decode(tokens[-len(ending) - 8 :], skip_special_tokens=False)

        tokens, _ = self._decoder.sample(
            [one.draw for one in branches],
            temperature=config.observation_temperature,
            limits=[limit if wanted else 0 for wanted in asked],
            ends=() if config.observation_tokens else {tokenizer.eos_token_id},
            stop=None if config.observation_tokens else closed,
        )
        texts = []
        for one, row, named, wanted in zip(branches, tokens, names, asked, strict=True):
            one.tokens += len(row)
            text = tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            exact = config.observation_tokens or not wanted
            texts.append(text if exact else self._results.content(text, named, index))
        return texts

    def act(self, branches: Sequence[Branch]) -> None:
        self._keep(branches)
        blocks: dict[tuple[Any, ...], list[int]] = {}
        rows = []
        for one in branches:
            seen = one.turns[-1]
            names = tuple(call.name for call in seen.action.calls)
            key = (names, tuple(observation.text for observation in seen.observations))
            if key not in blocks:
                blocks[key] = self._results.block(*key)
            rows.append(one.pending + blocks[key])
        self._decoder.feed(rows)
        tokens, _ = self._decoder.sample(
            [one.draw for one in branches],
            temperature=self.config.temperature,
            limits=[self.config.max_new_tokens] * len(branches),
            ends=self._ends,
        )
        self._mark = self._decoder.columns
        places: dict[int, int] = {}
        prompts: list[list[int]] = []
        for one, row in zip(
            branches, rows, strict=True
        ):  # the block ends with the header of the turn, as a prompt does
            places.setdefault(id(one.state), len(prompts))
            if places[id(one.state)] == len(prompts):
                prompts.append(row)
        self._read(branches, tokens, prompts, places)


def branches_of(state: Trajectory, seed: int, count: int, limit: int) -> list[Branch]:
    """So many branches of a state. The first has the same luck, however many there are."""
    return [Branch(state, seed_of(f"{seed}/{number}"), limit) for number in range(count)]
