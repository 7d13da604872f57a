"""The kinds of training samples, each with its paper's prompts, form (fine-tuning or RL) and choice of turns.

| kind | form | a sample is | paper |
|---|---|---|---|
| rwml-sft | sft | a transition: prompt, and an empty thought with the next state | RWML, the baseline WM-SFT |
| rwml | rl | a transition: prompt, and the target for the reward | RWML |
| word2world | sft | a trajectory: a dialogue in which the assistant is the world | Word2World |
| agentworld-sft | sft | a transition, as rwml-sft with prompts of a domain | Qwen-AgentWorld |
| agentworld | rl | one transition a trajectory, with prompts of a domain and what judges and rules read | Qwen-AgentWorld |
| cpt | sft | a trajectory, as word2world, always with turn information; or a text of the user's | Qwen-AgentWorld |
| imitation, rft | sft | a trajectory as the agent saw it; for rft, only successful ones | RWML, the baselines |

Turn information (Qwen-AgentWorld, table 3): an observation counts with its category's probability. One that does not count stays
as context: in a dialogue its tokens have no loss; as a transition it is no sample, but stays in the history of the others. The
draw is the same in both. Several results of one action are one message of a dialogue, and are drawn once, together.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from wm_plugin.data.columns import reward_columns
from wm_plugin.data.constructions import documents, imitation, rft
from wm_plugin.data.contexts import Contexts
from wm_plugin.data.errors import RowError
from wm_plugin.data.failures import DOMAINS, domain_of
from wm_plugin.data.hidden import Shown
from wm_plugin.data.host_dumps import Lacking
from wm_plugin.data.prompts import Prompts, dialogue, load, observed, render, target
from wm_plugin.data.readers import read
from wm_plugin.data.sample import Sample
from wm_plugin.data.schema import Trajectory, Transition
from wm_plugin.data.transitions import expand, holds_transitions, identity, one_each, read_transitions
from wm_plugin.data.turn_texts import action_text
from wm_plugin.errors import UserError, nearest
from wm_plugin.objectives.information import KEEP, category


@dataclass(frozen=True)
class Kind:
    """How to make the samples of a kind."""

    form: Literal["sft", "rl"]
    of: Literal["transitions", "dialogues", "turns"]  # turns: the agent's own
    prompts: str | None = None  # the default family; None if the user must name one, or if there are no prompts
    turns: str = "all"  # which turns to expand, if the source holds trajectories
    judged: bool = False  # whether rows have the columns of judges and rules
    world_context: bool = False  # whether the world model is shown the hidden state, unless the user decides

    @property
    def single(self) -> bool:
        """Whether only the last message counts."""
        return self.of == "transitions"

    @property
    def prompted(self) -> bool:
        """Whether samples are made with prompts."""
        return self.of in ("transitions", "dialogues")


KINDS = {
    "rwml-sft": Kind("sft", "transitions", "rwml"),
    "rwml": Kind("rl", "transitions", "rwml"),
    "word2world": Kind("sft", "dialogues", "word2world", world_context=True),
    "agentworld-sft": Kind("sft", "transitions"),
    "agentworld": Kind("rl", "transitions", turns="one", judged=True),
    "cpt": Kind("sft", "dialogues"),
    "imitation": Kind("sft", "turns"),
    "rft": Kind("sft", "turns"),
}


@dataclass
class Exclusions:
    """Counts of excluded samples, and of the draws by turn information."""

    reasons: Counter[str] = field(default_factory=Counter)  # samples, by reason
    kept: Counter[str] = field(default_factory=Counter)  # observations that count, by category
    dropped: Counter[str] = field(default_factory=Counter)
    lacking: Lacking = field(default_factory=Lacking)  # tool schemas, of what samples were made of


def samples(
    source: str | Path,
    kind: str,
    *,
    prompts: str | None = None,
    domain: str | None = None,
    history: int | None = None,
    turn_information: bool = False,
    world_context: Shown | None = None,
    contexts: Contexts | None = None,
    corpora: Sequence[str | Path] = (),
    threshold: float | None = None,
    per_task: int | None = None,
    seed: int = 0,
    exclusions: Exclusions | None = None,
) -> Iterator[Sample]:
    """The samples of a file.

    Args:
        source: trajectories in any format that `read` knows, or transitions for kinds that are made of these.
        kind: one of `KINDS`.
        prompts: a family of prompts or the path of a file; None takes the kind's default.
        domain: for `agentworld`, what the judge's guidance is chosen by, where prompts of a file do not say it.
        history: how many turns before the action a transition keeps; None keeps all.
        turn_information: draw by category whether an observation counts. Always on for `cpt`.
        world_context: what of the state the world model is shown (`trajectories.hidden`): True for all that rollouts carry,
            False for what the agent sees. None: only `word2world` shows all, as the paper for ALFWorld and ScienceWorld. For
            RWML the policy itself predicts, and must not see it.
        contexts: hidden contexts by hand, which fill those of the source.
        corpora: for `cpt`, files of the user's own texts, which follow the trajectories (see `constructions.documents`).
        threshold, per_task: for `rft`, see `constructions.rft`.
        seed: of all draws. Each depends only on the seed, the trajectory's identity and the turn.
        exclusions: counts, updated with every sample.

    Raises:
        UserError: an argument that the kind does not have, or a row that cannot be read.
    """
    if kind not in KINDS:
        raise UserError(f"there is no kind {kind!r}{nearest(kind, KINDS)}")
    chosen = KINDS[kind]
    exclusions = Exclusions() if exclusions is None else exclusions
    family = _prompts(chosen, kind, prompts)
    has_transitions = holds_transitions(source) if chosen.single or Path(source).suffix != ".parquet" else False
    if not chosen.single:
        if has_transitions:
            raise UserError(
                f"{source} holds transitions, but {kind} is made of trajectories: give what wm data convert wrote"
            )
        if history is not None or (turn_information and not chosen.prompted):
            name = "history" if history is not None else "turn information"
            raise UserError(f"{kind} has no {name}: leave it out")
    if (world_context is not None or contexts is not None) and not chosen.prompted:
        raise UserError(f"{kind} is what the agent saw, which has no world context: leave it out")
    if turn_information and chosen.form == "rl":
        raise UserError(f"{kind} has a reward and no loss on tokens: leave turn information out")
    if corpora and kind != "cpt":
        raise UserError(f"{kind} has no corpora, only cpt has: leave them out")
    if domain is not None and not chosen.judged:
        raise UserError(f"{kind} has no judge that asks for a domain: leave it out")
    if kind != "rft" and (threshold is not None or per_task is not None):
        raise UserError(f"{kind} takes every trajectory: a threshold and a number a task are for rft")

    asked_as = "" if family is None else family.domain or domain or ""

    def trajectories() -> Iterator[Trajectory]:
        for trajectory in exclusions.lacking(read(source)):
            _check_domain(domain_of(trajectory), asked_as, identity(trajectory))
            yield trajectory

    if kind == "rft":
        return rft(trajectories(), threshold=threshold, per_task=per_task, seed=seed)
    if family is None:
        return imitation(trajectories())
    hidden = chosen.world_context if world_context is None else world_context
    if not chosen.single:
        informed = turn_information or kind == "cpt"
        whole = trajectories() if contexts is None else contexts.fill_all(trajectories())
        dialogues = _dialogue_samples(whole, family, kind, seed, informed, hidden, exclusions)
        return chain(dialogues, documents(corpora))
    transitions = (
        exclusions.lacking(one_each(source, seed) if chosen.turns == "one" else read_transitions(source))
        if has_transitions
        else expand(trajectories(), turns=chosen.turns, history=history, seed=seed)
    )
    if contexts is not None:
        transitions = contexts.fill_all(transitions)
    judged_as = family.domain if domain is None else domain
    return _transition_samples(transitions, family, chosen, seed, turn_information, hidden, exclusions, judged_as)


def _prompts(chosen: Kind, kind: str, family: str | None) -> Prompts | None:
    if not chosen.prompted:
        if family is not None:
            raise UserError(f"{kind} has no prompts: leave them out")
        return None
    name = family or chosen.prompts
    if name is None:
        raise UserError(f"{kind} needs prompts: name a domain (mcp, search, terminal, swe, android, web, os) or a path")
    return load(name)


def _transition_samples(
    transitions: Iterable[Transition],
    prompts: Prompts,
    kind: Kind,
    seed: int,
    informed: bool,
    hidden: Shown,
    exclusions: Exclusions,
    domain: str,
) -> Iterator[Sample]:
    """A sample per transition: the prompt that asks for its observation, and for fine-tuning also the answer."""
    sft = kind.form == "sft"
    for transition in informative(transitions, seed, exclusions) if informed else transitions:
        observation = transition.observation
        _check_domain(observation.data.get("domain"), prompts.domain, transition.trajectory)
        try:
            answer = target(observation, prompts)
        except RowError as error:
            exclusions.reasons[error.kind] += 1
            continue
        made = render(transition, prompts, stage=kind.form, seed=seed, thinking=not sft, world_context=hidden)
        messages = made.messages
        columns = {
            "target": observed(observation, prompts),
            "observer": observation.kind,
            "tool": observation.tool or "",
            "task_id": transition.task_id,
            "trajectory": transition.trajectory,
            "turn": transition.turn,
            **(reward_columns(transition, domain) if kind.judged else {}),
        }
        if sft:
            messages = [*messages, {"role": "assistant", "content": answer}]
        yield Sample(messages, [sft and message is messages[-1] for message in messages], columns=columns)


def _check_domain(named: Any, prompts: str, trajectory: str) -> None:
    """Refuse data of one domain with the prompts of another, and so the wrong rubric.

    Raises:
        UserError: they differ.
    """
    if prompts in DOMAINS and named in DOMAINS and named != prompts:
        raise UserError(
            f"{trajectory} is of the domain {named}, and the prompts are those of {prompts}; build each domain from a file of "
            f"its own, this one with --prompts {named}"
        )


def informative(transitions: Iterable[Transition], seed: int, exclusions: Exclusions) -> Iterator[Transition]:
    """The transitions whose observations count by turn information; the others are counted."""
    for transition in transitions:
        observation = transition.observation
        action = action_text(transition.action, observation.call)
        where = f"{transition.trajectory}/{transition.turn}/{observation.call}"
        if _counts(action, observation.text, where, seed, exclusions):
            yield transition
        else:
            exclusions.reasons["turn information"] += 1


def _dialogue_samples(
    trajectories: Iterable[Trajectory],
    prompts: Prompts,
    kind: str,
    seed: int,
    informed: bool,
    hidden: Shown,
    exclusions: Exclusions,
) -> Iterator[Sample]:
    """A sample per trajectory: a dialogue in which the assistant is the world."""
    for trajectory in trajectories:
        stage = "cpt" if kind == "cpt" else "sft"
        messages = dialogue(trajectory, prompts, stage=stage, seed=seed, world_context=hidden).messages
        train = [message["role"] == "assistant" for message in messages]
        if not any(train):
            exclusions.reasons["nothing observed"] += 1
            continue
        # each of the agent's turns with observations is one assistant message
        numbers = [n for n, turn in enumerate(trajectory.turns) if turn.actor == "agent" and turn.observations]
        places = [place for place, counts in enumerate(train) if counts]
        for number, place in zip(numbers, places, strict=True):
            observations = trajectory.turns[number].observations
            train[place] = not any(observation.data.get("target") is False for observation in observations)
        if informed:
            for number, place in zip(numbers, places, strict=True):
                if not train[place]:
                    continue
                turn = trajectory.turns[number]
                call = (
                    turn.observations[0].call if len(turn.observations) == 1 else None
                )  # several results are drawn together
                action = action_text(turn.action, call)
                texts = "\n\n".join(observation.text for observation in turn.observations)
                train[place] = _counts(action, texts, f"{identity(trajectory)}/{number}/{call}", seed, exclusions)
        if not any(train):
            exclusions.reasons["turn information" if informed else "no target"] += 1
            continue
        columns = {"task_id": trajectory.task_id, "trajectory": identity(trajectory)}
        yield Sample(messages, train, columns=columns)


def _counts(action: str, observation: str, where: str, seed: int, exclusions: Exclusions) -> bool:
    """Draw whether an observation counts, with its category's ratio. The draw depends only on the seed and `where`."""
    name = category(action, observation)
    counts = random.Random(f"keep/{seed}/{where}".encode(errors="surrogatepass")).random() < KEEP[name]
    (exclusions.kept if counts else exclusions.dropped)[name] += 1
    return counts
