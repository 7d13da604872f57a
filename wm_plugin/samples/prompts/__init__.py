"""Prompts that ask for the next observation: templates by family, several variants each, and a user's own by path.

`rwml` follows RWML (tables A4 to A7), `word2world` Word2World's dialogues, and `mcp` to `os` are the seven domains of
Qwen-AgentWorld (§3.1.2). Their facts are the papers', their words are ours. What a file of prompts holds
is told in the module `file`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Template

from wm_plugin.errors import UserError, nearest
from wm_plugin.samples.prompts.file import FAMILIES, PLACEHOLDERS, STAGES, Prompts, Variant, load
from wm_plugin.tokens.message import Message
from wm_plugin.trajectories.errors import RowError
from wm_plugin.trajectories.expand import identity
from wm_plugin.trajectories.readers.word2world import SUCCESS
from wm_plugin.trajectories.render import Side, sides, write_action, write_context, write_history, write_observer
from wm_plugin.trajectories.schema import Observation, Trajectory, Transition, Turn

__all__ = ["FAMILIES", "STAGES", "Prompts", "Rendered", "Variant", "dialogue", "load", "render", "target"]

_ROLES: dict[Side, str] = {"actor": "user", "world": "assistant"}


@dataclass(frozen=True)
class Rendered:
    """A conversation for a chat template, and the variant that it was made by."""

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
) -> Rendered:
    """A transition as the conversation that asks for its observation. It ends with the user.

    Other results of the same action are not shown: the prompt says which call it asks for.

    Args:
        stage: `rl`, `sft` or `cpt`: which variants to draw from.
        seed: of the draw, which is one a trajectory: its turns have the same variant.
        thinking: ask to reason first, or for the prediction alone.
        variant: this one, and no draw.

    Raises:
        UserError: there is no such stage or variant.
    """
    name = _named(prompts, variant) if variant is not None else prompts.choose(transition.trajectory, stage, seed)
    chosen, observation = prompts.variants[name], transition.observation
    as_text = prompts.history == "text"
    values = _values(prompts) | {
        "context": write_context(transition.context),
        "history": write_history(transition.history, transition.turn - len(transition.history)) if as_text else "",
        "action": write_action(transition.action, observation.call),
        "observer": write_observer(transition.action, observation),
        "answer": prompts.answer(name, thinking),
        "masked": prompts.masked if _is_masked(observation) else "",
    }
    system = _fill(chosen.system, values)
    asked: tuple[Side, str] = ("actor", _fill(chosen.user, values))
    if as_text:
        return Rendered(_messages(system, [asked]), name)
    texts = [[_marked(o, prompts) for o in turn.observations] for turn in transition.history]
    blocks = [*sides(transition.history, texts), asked]
    return Rendered(_messages(_joined(system, prompts.dialogue), blocks), name)


def target(observation: Observation, prompts: Prompts, *, thinking: bool = False) -> str:
    """What the model should write: the observation between the tags, after an empty thought unless it is `thinking`.

    Reasoning that the caller has goes before the text for `thinking`. Without a tag it is the observation alone.

    Raises:
        RowError: the observation holds one of the tags itself: `rewards.extract` could not find it in the answer again.
    """
    text = _marked(observation, prompts)
    for mark in ("<think>", "</think>", *([f"<{prompts.tag}>", f"</{prompts.tag}>"] if prompts.tag else [])):
        if mark in text:
            raise RowError(f"the observation holds {mark} itself", "tag in observation")
    if not prompts.tag:
        return text
    answer = f"<{prompts.tag}>\n{text}\n</{prompts.tag}>"
    return answer if thinking else f"<think>\n\n</think>\n\n{answer}"


def dialogue(
    trajectory: Trajectory, prompts: Prompts, *, stage: str = "sft", seed: int = 0, variant: str | None = None
) -> Rendered:
    """A trajectory as a dialogue: the user acts, the assistant is the world (Word2World; Qwen-AgentWorld's pre-training).

    User and assistant alternate, from the user to the assistant: what nobody answered is joined to the next action, or left out
    at the end. Observations of one turn are one message. The last one of a won trajectory gets " [SUCCESS]" where the prompts say
    so. A trajectory in which the agent observed nothing is its system message alone. Arguments and errors are those of `render`.
    """
    name = _named(prompts, variant) if variant is not None else prompts.choose(identity(trajectory), stage, seed)
    values = dict.fromkeys(PLACEHOLDERS, "") | _values(prompts) | {"context": write_context(trajectory.context)}
    if any(_is_masked(observation) for _, _, observation in trajectory.observed()):
        values["masked"] = prompts.masked
    observed = [[_marked(o, prompts) for o in turn.observations] for turn in trajectory.turns]
    if prompts.success and trajectory.success:
        _mark_last(trajectory.turns, observed)
    blocks = list(sides(trajectory.turns, observed))
    while blocks and blocks[-1][0] == "actor":
        blocks.pop()
    system = _fill(prompts.variants[name].system, values)
    return Rendered(_messages(_joined(system, prompts.dialogue), blocks), name)


def _is_masked(observation: Observation) -> bool:
    return observation.data.get("schema") is True


def _mark_last(turns: Sequence[Turn], observed: list[list[str]]) -> None:
    """Marks the agent's last observation, unless one is marked already."""
    seen = [(n, turn) for n, turn in enumerate(turns) if turn.actor == "agent" and turn.observations]
    if seen and not any(o.data.get("success") is True for _, turn in seen for o in turn.observations):
        observed[seen[-1][0]][-1] += SUCCESS


def _marked(observation: Observation, prompts: Prompts) -> str:
    won = prompts.success and observation.data.get("success") is True
    return observation.text + SUCCESS if won else observation.text


def _messages(system: str, blocks: Iterable[tuple[Side, str]]) -> list[Message]:
    """Blocks of one side after the other are one message."""
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


def _joined(system: str, dialogue: str) -> str:
    return "\n\n".join(filter(None, (system, dialogue.strip())))


def _values(prompts: Prompts) -> dict[str, str]:
    return {
        name: "\n".join(f"- {line.strip()}" for line in value) if isinstance(value, list) else value.strip()
        for name, value in prompts.fields.items()
    }


def _named(prompts: Prompts, variant: str) -> str:
    if variant not in prompts.variants:
        raise UserError(f"{prompts.name}: there is no variant {variant!r}{nearest(variant, prompts.variants)}")
    return variant
