"""Policies that imagine: a model in this process, or one behind a server."""

import math
from collections.abc import Sequence
from typing import Any

from wm_plugin.client.decode import Decoder, pick
from wm_plugin.client.predict import LocalPredictor, seed_of
from wm_plugin.client.server import Failure, Server
from wm_plugin.data.chat import chat
from wm_plugin.data.schema import Action, Trajectory, Turn
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.branches import Branch, ResultTexts
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
from wm_plugin.tokens.chat import Chat, plain_messages
from wm_plugin.worlds.agents.policies import LocalPolicy, read_action, with_mappings

NO_TOKENIZER = (
    "a chat server writes only an assistant's turns: for the policy's own predictions give --tokenizer, and the server must have "
    "/v1/completions; or name another world model (--world-model, --world-server)"
)


class LocalImaginer:
    """A model in this process. A state's branches share its prompt's cache and continue from it.

    The temperature and the limit of actions are `config`'s; `chat_template` replaces the tokenizer's own, as in the trainer.
    """

    batched = True

    def __init__(self, predictor: LocalPredictor, config: LookAheadConfig, chat_template: str | None = None) -> None:
        self.predictor, self.config = predictor, config
        self._policy, self._tokenizer = LocalPolicy(predictor), predictor.tokenizer
        self._results = ResultTexts(Chat(predictor.tokenizer, chat_template))
        pad = predictor.tokenizer.pad_token_id
        self._decoder = Decoder(predictor.model, 0 if pad is None else pad)
        self._ends = frozenset(predictor.ends)
        self._rows: list[Branch] = []  # the decoder's rows
        self._mark = 0  # the decoder's columns up to the actions, without each action's last token

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
            if not go_on:  # few of many draws are unfinished; a state's are neighbours
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
        """Return the tokens of an episode so far, up to where the policy's turn begins."""
        return self._policy.prompt_ids(state)

    def _first_tokens(self, groups: Sequence[Sequence[Branch]]) -> None:
        """Draw each branch's first token; each state's distribution is computed once."""
        import torch

        for place, group in enumerate(groups):
            draws = torch.tensor([[one.draw.random() if self.config.temperature else 0.0 for one in group]])
            tokens, logps = pick(self._decoder.logits[place : place + 1], draws, self.config.temperature)
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
        """Drop the rows of other branches, and cut the columns back to where the actions end."""
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


class ServerImaginer:
    """A policy behind a server. Its chat gives actions; a raw prompt that ends where a result begins gives predicted results.

    Without the policy's tokenizer it cannot predict results. The temperature and the limit of actions are the server's.
    """

    batched = False

    def __init__(
        self,
        server: Server,
        config: LookAheadConfig,
        tokenizer: Any = None,
        chat_template: str | None = None,
        *,
        logprobs: bool = False,
    ) -> None:
        self.server, self.config, self._logprobs = server, config, logprobs
        self._results = None if tokenizer is None else ResultTexts(Chat(tokenizer, chat_template))

    @property
    def at_once(self) -> int:
        return self.server.concurrency

    @property
    def settings(self) -> dict[str, Any]:
        parameters = {name: value for name, value in self.server.parameters.items() if name != "seed"}
        template = {} if self._results is None else {"template": self._results.digest}
        return {"model": self.server.model, **template, **parameters}

    @property
    def sampling(self) -> dict[str, Any]:
        return {"logprobs": self._logprobs}

    def begin(self, branches: Sequence[Branch], *, go_on: bool) -> None:
        self._act(branches, logprobs=self._logprobs and not go_on)

    def act(self, branches: Sequence[Branch]) -> None:
        self._act(branches)

    def _act(self, branches: Sequence[Branch], *, logprobs: bool = False) -> None:
        own = {"logprobs": True} if logprobs else {}
        bodies = [
            self.server.body(chat(whole.context, whole.turns), seed_of(f"{branch.seed}/{len(branch.turns)}"))
            | {"tools": list(whole.context.action_space), **own}
            for branch in branches
            for whole in [branch.trajectory]
        ]
        for branch, answer in zip(branches, self.server.post("/chat/completions", bodies, _read), strict=True):
            if isinstance(answer, Failure):
                branch.fail(answer.kind)
                continue
            action, tokens, logp = answer
            branch.tokens += tokens
            branch.logp = logp if logprobs else None
            branch.act(action)

    def predict(self, branches: Sequence[Branch]) -> list[list[str]]:
        """Predict results; a branch whose request fails gets trouble. Raises UserError if the server takes no raw prompts."""
        if self._results is None:
            raise UserError(NO_TOKENIZER)
        texts: list[list[str]] = [[] for _ in branches]
        for index in range(max(len(one.action.calls) for one in branches)):
            asked = [place for place, one in enumerate(branches) if index < len(one.action.calls) and not one.trouble]
            bodies = [self._body(branches[place], texts[place], index) for place in asked]
            answers = self.server.post("/completions", bodies, _read_text)
            if answers and all(isinstance(one, Failure) and one.kind == "refused" for one in answers):
                first = answers[0]
                assert isinstance(first, Failure)
                raise UserError(
                    f"{self.server.base_url}/completions does not accept prompts of token ids ({first.message}), so the policy "
                    "cannot predict results itself; name a world model instead (--world-model, --world-server)"
                )
            for place, answer in zip(asked, answers, strict=True):
                branch = branches[place]
                if isinstance(answer, Failure):
                    branch.fail(answer.kind)
                    continue
                text, tokens = answer
                branch.tokens += tokens
                if not self.config.observation_tokens:
                    text = self._results.content(text, _names(branch.action), index)
                texts[place].append(text)
        return texts

    def _body(self, branch: Branch, said: Sequence[str], index: int) -> dict[str, Any]:
        assert self._results is not None
        config, names = self.config, _names(branch.action)
        body = {
            "model": self.server.model,
            "prompt": self._before(branch) + self._results.opening(names, said),
            "max_tokens": config.observation_tokens or config.max_observation_tokens,
            "temperature": config.observation_temperature,
        }
        if not config.observation_tokens:
            body["stop"] = [self._results.closing(names, index)[1]]
        if self.server.options.seed is not None and config.observation_temperature:
            body["seed"] = seed_of(f"{branch.seed}/{len(branch.turns)}/{index}")
        return body

    def _before(self, branch: Branch) -> list[int]:
        """Return the tokens of an episode up to the end of the action."""
        assert self._results is not None
        whole, writer = branch.trajectory, self._results.chat
        messages = plain_messages(chat(whole.context, (*whole.turns, Turn(action=branch.action))))
        tools = list(whole.context.action_space) or None
        try:
            text = writer.render(messages, tools=tools)
        except UserError:
            if (mapped := with_mappings(messages)) == messages:
                raise
            text = writer.render(mapped, tools=tools)
        ids = writer.encode([text])[0][0]
        eos = writer.tokenizer.eos_token_id
        return ids[: len(ids) - ids[::-1].index(eos)] if eos in ids else ids


def _names(action: Action) -> tuple[str, ...]:
    return tuple(call.name for call in action.calls)


def _read(answer: Any) -> tuple[Action, int, float | None]:
    choice = answer["choices"][0]
    content = (choice.get("logprobs") or {}).get("content")
    logp = sum(float(one["logprob"]) for one in content) if content else None
    if logp is not None and not math.isfinite(logp):  # would break best-of-n's maximum
        logp = None
    return read_action(choice["message"]), _tokens(answer), logp


def _read_text(answer: Any) -> tuple[str, int]:
    text = answer["choices"][0]["text"]
    if not isinstance(text, str):
        raise TypeError("the continuation is not a text")
    return text, _tokens(answer)


def _tokens(answer: Any) -> int:
    """Return the answer's length in tokens; 0 if the server does not say."""
    count = (answer.get("usage") or {}).get("completion_tokens")
    return count if type(count) is int and 0 <= count < 1 << 30 else 0
