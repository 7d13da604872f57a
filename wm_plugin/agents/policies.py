"""Policies that are models: behind an OpenAI-compatible server, or in this process.

Both see what a host shows (the prompt with the first observation, the tools, and what came back) and act by tool calls. Where the
server or the tokenizer does not tell calls from text, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` is read as one:
the form of Qwen, Hermes and many others. What cannot be read as a call stays text, and an action without a call ends an episode.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from wm_plugin.runtime.predict import LocalPredictor, seed_of
from wm_plugin.runtime.server import Failure, Server
from wm_plugin.trajectories.chat import chat
from wm_plugin.trajectories.errors import RowError
from wm_plugin.trajectories.messages import action_of, arguments_of
from wm_plugin.trajectories.schema import Action, Trajectory

TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


class NoAnswer(Exception):
    """A server that gave none, after its retries. `kind` is one of `server.KINDS`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.kind = failure.kind


class ServerPolicy:
    """A model behind a chat server that takes `tools`. Each turn of each episode has a seed of its own.

    Args:
        seed: of the episode.

    Raises:
        NoAnswer: from a call, after the server's retries.
    """

    def __init__(self, server: Server, seed: str) -> None:
        self.server, self.seed = server, seed

    def __call__(self, trajectory: Trajectory, environment: Any) -> Action:
        del environment  # what it knows is not for a model
        body = self.server.body(
            chat(trajectory.context, trajectory.turns), seed_of(f"{self.seed}/{len(trajectory.turns)}")
        )
        (found,) = self.server.post(
            "/chat/completions", [body | {"tools": list(trajectory.context.action_space)}], _read
        )
        if isinstance(found, Failure):
            raise NoAnswer(found)
        return found


class LocalPolicy:
    """A model of transformers in this process, which acts in many episodes at once.

    Calls are read by the tokenizer's `response_template` (transformers 5.13, `response_schema` before it), as TRL reads them,
    or by the tags above.

    Args:
        predictor: the model, its tokenizer and its sampling.
    """

    def __init__(self, predictor: LocalPredictor) -> None:
        import transformers
        from packaging.version import Version

        self.predictor = predictor
        self._types_arguments = Version(transformers.__version__) >= Version("5.15.0.dev0")

    def __call__(self, trajectories: Sequence[Trajectory], seed: int) -> list[Action]:
        """An action for each. The same trajectories and seed give the same actions."""
        import torch

        prompts = [self._prompt_ids(trajectory) for trajectory in trajectories]
        model, at_once = self.predictor.model, self.predictor.batch_size
        ends, actions = set(self.predictor.ends), []
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(seed)
            for start in range(0, len(prompts), at_once):
                chosen = prompts[start : start + at_once]
                made = self.predictor.generate(chosen).tolist()
                for prompt, ids, trajectory in zip(chosen, made, trajectories[start:], strict=False):
                    end = next((place for place, token in enumerate(ids) if token in ends), len(ids) - 1)
                    actions.append(self._action(ids[: end + 1], prompt, trajectory))
        return actions

    def _prompt_ids(self, trajectory: Trajectory) -> list[int]:
        messages = chat(trajectory.context, trajectory.turns)
        for message in messages:
            for call in message.get("tool_calls", ()):  # templates write arguments themselves
                call["function"]["arguments"] = arguments_of(call["function"]["arguments"])
        tokenizer = self.predictor.tokenizer
        text = tokenizer.apply_chat_template(
            messages, tools=list(trajectory.context.action_space), add_generation_prompt=True, tokenize=False
        )
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _action(self, ids: list[int], prompt: list[int], trajectory: Trajectory) -> Action:
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
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
        ):  # what the model wrote is no call, whatever it wanted to be
            return Action(text=text)


def read_action(message: dict[str, Any]) -> Action:
    """The action of an assistant's message. Calls have no ids, which differ from run to run.

    Raises:
        RowError: its calls are no list of named calls.
    """
    action = action_of(message)
    if not action.calls and "<tool_call>" in action.text:
        action = _tagged(action)
    return action.model_copy(update={"calls": tuple(call.model_copy(update={"id": None}) for call in action.calls)})


def _tagged(action: Action) -> Action:
    """The same with what stands in tags as calls; as it was, if one of them is no call."""
    try:
        calls = [{"function": json.loads(found)} for found in TAGGED.findall(action.text)]
        found = action_of({"content": TAGGED.sub("", action.text).strip(), "tool_calls": calls})
    except (ValueError, RowError, RecursionError):
        return action
    return found.model_copy(update={"thought": action.thought}) if calls else action


def _read(answer: Any) -> Action:
    return read_action(answer["choices"][0]["message"])
