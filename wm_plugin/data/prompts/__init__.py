"""Prompts that ask for the next observation: templates by family, several variants each, and a user's own by path.

`rwml` follows RWML (tables A4 to A7), `word2world` Word2World's dialogues, and `mcp` to `os` the seven domains of Qwen-AgentWorld
(§3.1.2); their facts are the papers'. The module `file` documents files of prompts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Template

from wm_plugin.data.errors import RowError
from wm_plugin.data.hidden import Shown, parts
from wm_plugin.data.prompts.file import FAMILIES, PLACEHOLDERS, STAGES, Prompts, Variant, load
from wm_plugin.data.readers.word2world import SUCCESS
from wm_plugin.data.render import Side, sides, write_action, write_context, write_history, write_observer
from wm_plugin.data.schema import Action, Context, Observation, Trajectory, Transition, Turn
from wm_plugin.data.transitions import identity, with_success
from wm_plugin.tokens.message import Message

__all__ = ["FAMILIES", "STAGES", "Prompts", "Rendered", "Variant", "dialogue", "load", "observed", "render", "target"]

COMPLETED = {True: "Task completed: yes", False: "Task completed: no"}
_ROLES: dict[Side, str] = {"actor": "user", "world": "assistant"}


@dataclass(frozen=True)
class Rendered:
    """A conversation for a chat template, and the variant that made it."""

    messages: list[Message]
    variant: str


def render(
    transition: Transition,
    prompts: Prompts,
    *,
    stage: str = "rl",
    seed: int = 0,
    thinking: bool = True,
    variant: str | None = None,
    world_context: Shown = False,
) -> Rendered:
    """Render a transition as the conversation that asks for its observation. It ends with a user message.

    Other results of the same action are left out; the prompt names the call whose result it asks for.

    Args:
        stage: the variants to draw from: `rl`, `sft` or `cpt`.
        world_context: what of the state is shown, as far as the context has it: True for all, False for what the agent sees.
    """
    name = prompts.choose(transition.trajectory, stage, seed, variant)
    chosen, observation = prompts.variants[name], transition.observation
    as_text, history = prompts.history == "text", _acted(transition.history, prompts)
    values = _values(prompts) | {
        **_context(transition.context, world_context),
        "history": write_history(history, transition.turn - len(history)) if as_text else "",
        "action": write_action(_action(transition.action, prompts), observation.call, [observation]),
        "observer": write_observer(transition.action, observation),
        "answer": prompts.answer(name, thinking),
        "masked": prompts.masked if _is_masked(observation) else "",
        "success": SUCCESS if prompts.success else "",  # a transition does not tell whether its episode's is known
        "completion": prompts.completion,
    }
    system = _fill(chosen.system, values)
    question: tuple[Side, str] = ("actor", _fill(chosen.user, values))
    if as_text:
        return Rendered(_messages(system, [question]), name)
    texts = [[observed(o, prompts) for o in turn.observations] for turn in history]
    blocks = [*sides(history, texts), question]
    return Rendered(_messages(system, blocks, prompts.dialogue), name)


def target(observation: Observation, prompts: Prompts, *, thinking: bool = False) -> str:
    """Return the answer that the model should give: the observation between the tags, after an empty thought.

    With `thinking` there is no empty thought, and the caller puts reasoning before the text. Without a tag the answer is the
    observation alone.
    """
    text = observed(observation, prompts)
    for mark in ("<think>", "</think>", *([f"<{prompts.tag}>", f"</{prompts.tag}>"] if prompts.tag else [])):
        if mark in text:
            raise RowError(f"the observation holds {mark} itself", "tag in observation")
    if not prompts.tag:
        return text
    answer = f"<{prompts.tag}>\n{text}\n</{prompts.tag}>"
    return answer if thinking else f"<think>\n\n</think>\n\n{answer}"


def dialogue(
    trajectory: Trajectory,
    prompts: Prompts,
    *,
    stage: str = "sft",
    seed: int = 0,
    variant: str | None = None,
    world_context: Shown = False,
) -> Rendered:
    """Write a trajectory as a dialogue: the user acts, the assistant is the world (Word2World; Qwen-AgentWorld's pre-training).

    User and assistant alternate, beginning with the user and ending with the assistant. An action without an observation is
    joined with the next action, or left out at the end. The observations of a turn are one message. If the prompts set `success`,
    the last observation of a successful trajectory gets " [SUCCESS]"; where nobody knows whether it was one, the mark is not
    spoken of. A trajectory without observations is its system message alone. Arguments and errors are those of `render`.
    """
    name = prompts.choose(identity(trajectory), stage, seed, variant)
    values = dict.fromkeys(PLACEHOLDERS, "") | _values(prompts) | _context(trajectory.context, world_context)
    observations = [observation for _, _, observation in trajectory.observed()]
    if any(map(_is_masked, observations)):
        values["masked"] = prompts.masked
    if prompts.success and (trajectory.success is not None or any(map(_is_won, observations))):
        values["success"] = SUCCESS
    turns = _acted(with_success(trajectory).turns, prompts)
    blocks = list(sides(turns, [[observed(o, prompts) for o in turn.observations] for turn in turns]))
    while blocks and blocks[-1][0] == "actor":
        blocks.pop()
    system = _fill(prompts.variants[name].system, values)
    return Rendered(_messages(system, blocks, prompts.dialogue), name)


def _context(context: Context, shown: Shown) -> dict[str, str]:
    return {
        "context": write_context(context, world=shown),
        "task": context.task,
        "world_context": context.world_context if "summary" in parts(shown) else "",
        "initial_state": context.initial_state if "initial-state" in parts(shown) else "",
        "instruction": context.simulation_instruction,
    }


def _acted(turns: Sequence[Turn], prompts: Prompts) -> Sequence[Turn]:
    """Return turns with their actions as the prompts write them."""
    if prompts.actions == "calls":
        return turns
    return [turn.model_copy(update={"action": _action(turn.action, prompts)}) for turn in turns]


def _action(action: Action, prompts: Prompts) -> Action:
    arguments = action.calls[0].arguments if len(action.calls) == 1 else None
    if prompts.actions == "calls" or not isinstance(arguments, dict) or len(arguments) != 1:
        return action
    (said,) = arguments.values()
    return Action(text=said) if isinstance(said, str) else action


def _is_masked(observation: Observation) -> bool:
    return observation.data.get("schema") is True


def _is_won(observation: Observation) -> bool:
    return observation.data.get("success") is True


def observed(observation: Observation, prompts: Prompts) -> str:
    """Return an observation as it is to be predicted: with the marks of success that the prompts ask for."""
    won = _is_won(observation)
    text = observation.text + SUCCESS if prompts.success and won else observation.text
    return f"{text}\n{COMPLETED[won]}" if prompts.completion else text


def _messages(system: str, blocks: Iterable[tuple[Side, str]], closing: str = "") -> list[Message]:
    """Make messages of blocks; consecutive blocks of one side are joined. `closing` ends the system message."""
    system = "\n\n".join(filter(None, (system, closing.strip())))
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for side, text in blocks:
        role = _ROLES[side]
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"
        else:
            messages.append({"role": role, "content": text})
    return messages


def _fill(template: str, values: Mapping[str, str]) -> str:
    paragraphs = (Template(paragraph) for paragraph in re.split(r"\n[ \t]*\n", template.strip()))
    whole = (p.substitute(values) for p in paragraphs if all(values[name].strip() for name in p.get_identifiers()))
    return "\n\n".join(whole)


def _values(prompts: Prompts) -> dict[str, str]:
    return {
        name: "\n".join(f"- {line.strip()}" for line in value) if isinstance(value, list) else value.strip()
        for name, value in prompts.fields.items()
    }
