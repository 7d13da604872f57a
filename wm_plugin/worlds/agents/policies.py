"""Policies that are models: behind an OpenAI-compatible server, or in this process.

Both see what a model sees under a host (the prompt with the first observation, the tools, and their results) and act by tool
calls. If the server or the tokenizer does not parse calls, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` is parsed
here: the form of Qwen, Hermes and many others. Anything that does not parse stays text. An action without a call ends an episode.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from wm_plugin.client.predict import LocalPredictor, seed_of
from wm_plugin.client.server import Failure, Server
from wm_plugin.data.chat import chat
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import action_of, arguments_of
from wm_plugin.data.schema import Action, Trajectory
from wm_plugin.tokens.message import Message
from wm_plugin.untrusted import encodable, loads

_PATH = "/chat/completions"
_OPENS, _CLOSES = "<tool_call>", "</tool_call>"


class NoAnswer(Exception):
    """The server gave no answer, after its retries. `kind` is one of `server.KINDS`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.kind = failure.kind


class ServerPolicy:
    """A model behind a chat server that takes `tools`. Every turn of an episode has its own seed.

    Args:
        seed: of the episode.

    Raises:
        NoAnswer: from a call, after the server's retries.
    """

    def __init__(self, server: Server, seed: str) -> None:
        self.server, self.seed = server, seed

    def __call__(self, trajectory: Trajectory, environment: Any) -> Action:
        del environment  # for scripted policies only
        return _found(*self.server.post(_PATH, [self._body(trajectory)], _read))

    async def act(self, trajectory: Trajectory) -> Action:
        """Act as a call does, for code inside an event loop."""
        return _found(*await self.server.post_async(_PATH, [self._body(trajectory)], _read))

    @classmethod
    def ask(
        cls,
        server: Server,
        trajectories: Iterable[Trajectory],
        seeds: Iterable[str],
        each: Callable[[int, Action | Failure], None],
    ) -> None:
        """Ask for the next action of many episodes; call `each` with an episode's place and its action as soon as it arrives."""
        pairs = zip(trajectories, seeds, strict=True)
        server.post(_PATH, (cls(server, seed)._body(trajectory) for trajectory, seed in pairs), _read, each=each)

    def _body(self, trajectory: Trajectory) -> dict[str, Any]:
        seed = seed_of(f"{self.seed}/{len(trajectory.turns)}")
        body = self.server.body(chat(trajectory.context, trajectory.turns), seed)
        return body | {"tools": list(trajectory.context.action_space)}


def sampling_of(server: Server) -> dict[str, Any]:
    """Return the parameters that a server's actions depend on, besides their seeds."""
    return {name: value for name, value in server.parameters.items() if name != "seed"}


class LocalPolicy:
    """A transformers model in this process, which acts in many episodes at once.

    Calls are parsed by the tokenizer's `response_template` (transformers 5.13; `response_schema` before it), as in TRL, or else
    by the tags above.

    Args:
        predictor: the model, its tokenizer and its sampling.
    """

    def __init__(self, predictor: LocalPredictor) -> None:
        import transformers
        from packaging.version import Version

        self.predictor = predictor
        self._types_arguments = Version(transformers.__version__) >= Version("5.15.0.dev0")

    def __call__(self, trajectories: Sequence[Trajectory], seed: int) -> list[Action]:
        """Return an action for each trajectory. The same trajectories and seed give the same actions."""
        import torch

        prompts = [self.prompt_ids(trajectory) for trajectory in trajectories]
        model, at_once = self.predictor.model, self.predictor.batch_size
        ends, actions = set(self.predictor.ends), []
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(seed)
            for start in range(0, len(prompts), at_once):
                batch = prompts[start : start + at_once]
                completions = self.predictor.generate(batch).tolist()
                for prompt, ids, trajectory in zip(batch, completions, trajectories[start:], strict=False):
                    end = next((place for place, token in enumerate(ids) if token in ends), len(ids) - 1)
                    actions.append(self.read(ids[: end + 1], prompt, trajectory))
        return actions

    def prompt_ids(self, trajectory: Trajectory) -> list[int]:
        """Return the tokens of an episode so far, to the beginning of the policy's next turn."""
        messages = chat(trajectory.context, trajectory.turns)
        for message in messages:
            for call in message.get("tool_calls", ()):  # templates write arguments themselves
                call["function"]["arguments"] = arguments_of(call["function"]["arguments"])
        tokenizer, tools = self.predictor.tokenizer, list(trajectory.context.action_space)
        write = partial(tokenizer.apply_chat_template, tools=tools, add_generation_prompt=True, tokenize=False)
        try:
            text = write(messages)
        except Exception:  # what a template raises
            if (mapped := with_mappings(messages)) == messages:
                raise
            text = write(mapped)
        ids: list[int] = tokenizer(encodable(text), add_special_tokens=False).input_ids
        return ids

    def read(self, ids: list[int], prompt: list[int], trajectory: Trajectory) -> Action:
        """Return the action that sampled tokens, their end included, say after a prompt."""
        tokenizer = self.predictor.tokenizer
        text = tokenizer.decode(ids, skip_special_tokens=True)
        typed = {"tools": list(trajectory.context.action_space)} if self._types_arguments else {}
        try:
            if getattr(tokenizer, "response_template", None) is not None:
                message = tokenizer.parse_response(ids, prefix=prompt, **typed)
            elif getattr(tokenizer, "response_schema", None) is not None:
                message = tokenizer.parse_response(ids)
            else:
                message = {"content": text}
            if isinstance(message.get("content"), str):
                message["content"] = message["content"].removesuffix(tokenizer.eos_token or "")
            return read_action(message)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):  # it does not parse as a call
            return action_of({"content": text})


def with_mappings(messages: Sequence[Message]) -> list[Message]:
    """Return messages for templates that write arguments one by one: arguments that are no mapping become one."""

    def mapped(call: Message) -> Message:
        arguments = call["function"]["arguments"]
        arguments = arguments if isinstance(arguments, dict) else {"arguments": arguments}
        return {**call, "function": {**call["function"], "arguments": arguments}}

    return [
        {**one, "tool_calls": [mapped(call) for call in one["tool_calls"]]} if one.get("tool_calls") else one
        for one in messages
    ]


def read_action(message: dict[str, Any]) -> Action:
    """Return the action of an assistant's message. Ids of calls are dropped: they differ from run to run.

    Raises:
        RowError: its calls are no list of named calls.
    """
    action = action_of(message)
    if not action.calls and "<tool_call>" in action.text:
        action = _tagged(action)
    return action.model_copy(update={"calls": tuple(call.model_copy(update={"id": None}) for call in action.calls)})


def split_tags(text: str) -> tuple[list[str], str]:
    """Return what the tags of a text hold, and the text without them, in linear time. A tag must be closed."""
    inside: list[str] = []
    outside: list[str] = []
    place = 0
    while (start := text.find(_OPENS, place)) >= 0 and (end := text.find(_CLOSES, start + len(_OPENS))) >= 0:
        outside.append(text[place:start])
        inside.append(text[start + len(_OPENS) : end].strip())
        place = end + len(_CLOSES)
    return inside, "".join([*outside, text[place:]])


def _tagged(action: Action) -> Action:
    """Return the action with its tagged texts as calls; unchanged if one of them does not parse."""
    try:
        inside, outside = split_tags(action.text)
        calls = [{"function": loads(text)} for text in inside]
        parsed = action_of({"content": outside.strip(), "tool_calls": calls})
    except (ValueError, RowError):
        return action
    return parsed.model_copy(update={"thought": action.thought}) if calls else action


def _read(answer: Any) -> Action:
    return read_action(answer["choices"][0]["message"])


def _found(answer: Action | Failure) -> Action:
    if isinstance(answer, Failure):
        raise NoAnswer(answer)
    return answer
