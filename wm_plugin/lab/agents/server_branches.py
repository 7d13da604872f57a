"""Imagined episodes of a policy behind a server: actions by its chat, predicted results as the continuation of a raw prompt.

A chat server writes an assistant's turns and nothing else. What the policy predicts as a tool's result is asked for at
`/completions`, with a prompt of token ids that ends where the result begins; that takes the policy's tokenizer and template here.
"""

import math
from collections.abc import Sequence
from typing import Any

from wm_plugin.client.predict import seed_of
from wm_plugin.client.server import Failure, Server
from wm_plugin.data.chat import chat
from wm_plugin.data.schema import Action, Turn
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.branches import Branch
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
from wm_plugin.lab.agents.result_texts import ResultTexts
from wm_plugin.tokens.chat import Chat, plain_messages
from wm_plugin.worlds.agents.policies import read_action, with_mappings

NO_TOKENIZER = (
    "a chat server writes an assistant's turns and no results: for the policy's own predictions give --tokenizer, and the server "
    "must have /v1/completions; or name another world model (--world-model, --world-server)"
)


class ServerImaginer:
    """A policy behind a server.

    Args:
        server: with the temperature and the limit of tokens of its actions.
        tokenizer: of the policy; None: it cannot predict results itself.
        logprobs: ask for log-probabilities of its actions.
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
        self.own = tokenizer is not None

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
        """As `Imaginer.predict`; a branch whose call failed has trouble.

        Raises:
            UserError: the server takes no raw prompts.
        """
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
                    f"{self.server.base_url}/completions takes no prompts of token ids ({first.message}), which the policy's own "
                    "predictions need; name a world model instead (--world-model, --world-server)"
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
        """The tokens of an episode to the end of the action, after which the template writes results."""
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
    if logp is not None and not math.isfinite(logp):  # of which no maximum can be taken
        logp = None
    return read_action(choice["message"]), _tokens(answer), logp


def _read_text(answer: Any) -> tuple[str, int]:
    text = answer["choices"][0]["text"]
    if not isinstance(text, str):
        raise TypeError("the continuation is no text")
    return text, _tokens(answer)


def _tokens(answer: Any) -> int:
    """Of the answer; 0 where the server does not count them."""
    count = (answer.get("usage") or {}).get("completion_tokens")
    return count if type(count) is int and 0 <= count < 1 << 30 else 0
