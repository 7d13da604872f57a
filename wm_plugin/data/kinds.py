"""The kinds of training samples, each with its options, its paper's prompts, form (fine-tuning or RL) and choice of turns.

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

from wm_plugin.data.constructions import documents, imitation, rft
from wm_plugin.data.contexts import Contexts, Item
from wm_plugin.data.errors import RowError
from wm_plugin.data.failures import DOMAINS, domain_of
from wm_plugin.data.hidden import Shown
from wm_plugin.data.host_dumps import Lacking
from wm_plugin.data.prompts import Prompts, dialogue, load, observed, render, target
from wm_plugin.data.readers import read
from wm_plugin.data.render import reward_columns
from wm_plugin.data.sample import Sample
from wm_plugin.data.schema import Trajectory, Transition, Turn
from wm_plugin.data.transitions import expand, holds_transitions, identity, one_each, read_transitions, shortened
from wm_plugin.data.turn_texts import action_text
from wm_plugin.errors import UserError, nearest
from wm_plugin.objectives.information import KEEP, category
from wm_plugin.options import Options, option

Form = Literal["sft", "rl"]


@dataclass
class Exclusions:
    """Counts of excluded samples, and of the draws by turn information."""

    reasons: Counter[str] = field(default_factory=Counter)  # samples, by reason
    kept: Counter[str] = field(default_factory=Counter)  # observations that count, by category
    dropped: Counter[str] = field(default_factory=Counter)
    lacking: Lacking = field(default_factory=Lacking)  # tool schemas, of what samples were made of


class Kind(Options):
    """What all kinds have in common."""

    name: ClassVar[str]
    form: ClassVar[Form] = "sft"
    of: ClassVar[Literal["transitions", "dialogues", "turns"]] = "turns"  # turns: the agent's own

    seed: int = option("Seed of all draws; each depends only on it, the trajectory's identity and the turn.", default=0)

    def samples(self, source: str | Path, exclusions: Exclusions) -> Iterator[Sample]:
        """Make the samples of a file. `exclusions` is updated with every sample."""
        raise NotImplementedError

    def _trajectories(self, source: str | Path, exclusions: Exclusions, domain: str = "") -> Iterator[Trajectory]:
        if Path(source).suffix != ".parquet" and holds_transitions(source):
            raise UserError(
                f"{source} holds transitions, but {self.name} is made of trajectories: give what wm data convert wrote"
            )
        return self._read(source, exclusions, domain)

    def _read(self, source: str | Path, exclusions: Exclusions, domain: str) -> Iterator[Trajectory]:
        for trajectory in exclusions.lacking(read(source)):
            _check_domain(domain_of(trajectory), domain, identity(trajectory))
            yield trajectory


class Imitation(Kind):
    """Experts' rollouts as the agent saw them."""

    name = "imitation"

    def samples(self, source: str | Path, exclusions: Exclusions) -> Iterator[Sample]:
        return imitation(self._trajectories(source, exclusions), left_out=exclusions.reasons)


class Rft(Kind):
    """The agent's own successes (see `constructions.rft`)."""

    name = "rft"
    threshold: float | None = option("A reward of this or more counts as a success, too.", default=None)
    per_task: int | None = option("At most so many trajectories of each task.", default=None)

    def samples(self, source: str | Path, exclusions: Exclusions) -> Iterator[Sample]:
        return rft(
            self._trajectories(source, exclusions),
            threshold=self.threshold,
            per_task=self.per_task,
            seed=self.seed,
            left_out=exclusions.reasons,
        )


class Prompted(Kind):
    """A kind whose samples are made with prompts."""

    family: ClassVar[str | None] = None  # the default family; None if the user must name one
    world_context_shown: ClassVar[Shown] = False  # what of the state is shown, unless the user decides

    prompts: str | None = option(
        "A family of prompts (rwml, word2world, a domain such as mcp), or the path of a file (default: the kind's).",
        default=None,
    )
    world_context: Shown | None = option(
        "What of the state the world model is shown (`data.hidden`): all that rollouts carry, or what the agent sees. By "
        "default only word2world shows all, as its paper for ALFWorld and ScienceWorld: RWML's policy itself predicts.",
        default=None,
    )
    contexts: Contexts | None = option("Hidden contexts by hand, which fill those of the source.", default=None)

    @property
    def shown(self) -> Shown:
        """What of the state the world model is shown."""
        return self.world_context_shown if self.world_context is None else self.world_context

    def load_prompts(self) -> Prompts:
        """Load the family of prompts."""
        if (name := self.prompts or self.family) is None:
            raise UserError(
                f"{self.name} needs prompts: name a domain (mcp, search, terminal, swe, android, web, os) or a path"
            )
        return load(name)

    def filled(self, items: Iterable[Item]) -> Iterable[Item]:
        """Fill the contexts of trajectories or transitions by hand, if there are such contexts."""
        return items if self.contexts is None else self.contexts.fill_all(items)


class Word2World(Prompted):
    """Dialogues in which the assistant is the world."""

    name = "word2world"
    of = "dialogues"
    family: ClassVar[str | None] = "word2world"
    world_context_shown = True
    stage: ClassVar[str] = "sft"

    turn_information: bool = option("Draw by category whether an observation counts.", default=False)

    def samples(self, source: str | Path, exclusions: Exclusions) -> Iterator[Sample]:
        prompts = self.load_prompts()
        trajectories = self.filled(self._trajectories(source, exclusions, prompts.domain))
        return self._dialogues(trajectories, prompts, exclusions)

    def _dialogues(
        self, trajectories: Iterable[Trajectory], prompts: Prompts, exclusions: Exclusions
    ) -> Iterator[Sample]:
        for trajectory in trajectories:
            name = identity(trajectory)  # it may read all of the turns
            rendered = dialogue(trajectory, prompts, stage=self.stage, seed=self.seed, world_context=self.shown)
            train = [message["role"] == "assistant" for message in rendered.messages]
            if not any(train):
                exclusions.reasons["nothing observed"] += 1
                continue
            # each of the agent's turns with observations is one assistant message
            numbers = [n for n, turn in enumerate(trajectory.turns) if turn.actor == "agent" and turn.observations]
            places = [place for place, counts in enumerate(train) if counts]
            for number, place in zip(numbers, places, strict=True):
                train[place] = self._turn_counts(trajectory.turns[number], f"{name}/{number}", exclusions)
            if not any(train):
                exclusions.reasons["turn information" if self.turn_information else "no target"] += 1
                continue
            columns = {"task_id": trajectory.task_id, "trajectory": name}
            yield Sample(rendered.messages, train, columns=columns)

    def _turn_counts(self, turn: Turn, where: str, exclusions: Exclusions) -> bool:
        if any(observation.data.get("target") is False for observation in turn.observations):
            return False
        if not self.turn_information:
            return True
        call = turn.observations[0].call if len(turn.observations) == 1 else None  # several results are drawn together
        texts = "\n\n".join(observation.text for observation in turn.observations)
        return _counts(action_text(turn.action, call), texts, f"{where}/{call}", self.seed, exclusions)


class Cpt(Word2World):
    """Dialogues and texts for continual pre-training."""

    name = "cpt"
    family = None
    world_context_shown = False
    stage = "cpt"

    turn_information: bool = option("Draw by category whether an observation counts: always on.", default=True)
    corpora: tuple[str | Path, ...] = option(
        "Files of your own texts, which follow the trajectories: .txt and .md, a text each; .jsonl, one a line in `text`.",
        default=(),
    )

    def samples(self, source: str | Path, exclusions: Exclusions) -> Iterator[Sample]:
        return chain(super().samples(source, exclusions), documents(self.corpora))


class Rwml(Prompted):
    """Transitions for RL: the prompt that asks for the observation, and columns for the reward."""

    name = "rwml"
    form: ClassVar[Form] = "rl"
    of = "transitions"
    family: ClassVar[str | None] = "rwml"
    turns: ClassVar[str] = "all"  # which turns to expand, if the source holds trajectories

    history: int | None = option("How many turns before the action a transition keeps (default: all).", default=None)

    def samples(self, source: str | Path, exclusions: Exclusions) -> Iterator[Sample]:
        prompts = self.load_prompts()
        if holds_transitions(source):
            read = one_each(source, self.seed) if self.turns == "one" else read_transitions(source)
            transitions: Iterable[Transition] = exclusions.lacking(shortened(read, self.history))
        else:
            trajectories = self._read(source, exclusions, prompts.domain or getattr(self, "domain", None) or "")
            transitions = expand(trajectories, turns=self.turns, history=self.history, seed=self.seed)
        return self._questions(self.filled(transitions), prompts, exclusions)

    def _columns(self, transition: Transition, prompts: Prompts) -> dict[str, Any]:
        """Return the columns that rewards read."""
        observation = transition.observation
        return {
            "target": observed(observation, prompts),
            "observer": observation.kind,
            "tool": observation.tool or "",
            "task_id": transition.task_id,
            "trajectory": transition.trajectory,
            "turn": transition.turn,
        }

    def _questions(
        self, transitions: Iterable[Transition], prompts: Prompts, exclusions: Exclusions
    ) -> Iterator[Sample]:
        """Yield a sample per transition: the prompt that asks for its observation, and for fine-tuning also the answer."""
        sft = self.form == "sft"
        for transition in transitions:
            _check_domain(transition.observation.data.get("domain"), prompts.domain, transition.trajectory)
            try:
                answer = target(transition.observation, prompts)
            except RowError as error:
                exclusions.reasons[error.kind] += 1
                continue
            made = render(
                transition, prompts, stage=self.form, seed=self.seed, thinking=not sft, world_context=self.shown
            )
            answers = [{"role": "assistant", "content": answer}] if sft else []
            train = [False] * len(made.messages) + [True] * len(answers)
            yield Sample([*made.messages, *answers], train, columns=self._columns(transition, prompts))


class RwmlSft(Rwml):
    """Transitions for fine-tuning: the prompt, and the observation as the answer."""

    name = "rwml-sft"
    form = "sft"

    turn_information: bool = option("Draw by category whether an observation counts.", default=False)

    def _questions(
        self, transitions: Iterable[Transition], prompts: Prompts, exclusions: Exclusions
    ) -> Iterator[Sample]:
        if self.turn_information:
            transitions = informative(transitions, self.seed, exclusions)
        return super()._questions(transitions, prompts, exclusions)


class AgentWorldSft(RwmlSft):
    """As `rwml-sft`, with prompts of a domain."""

    name = "agentworld-sft"
    family = None


class AgentWorld(Rwml):
    """One transition of each trajectory for RL, with what judges and rules read."""

    name = "agentworld"
    family = None
    turns = "one"

    domain: str | None = option(
        "The domain of the judge's guidance, where prompts of a file do not say it.", default=None
    )

    def _columns(self, transition: Transition, prompts: Prompts) -> dict[str, Any]:
        domain = prompts.domain if self.domain is None else self.domain
        return super()._columns(transition, prompts) | reward_columns(transition, domain)


_MODELS: tuple[type[Kind], ...] = (RwmlSft, Rwml, Word2World, AgentWorldSft, AgentWorld, Cpt, Imitation, Rft)
KINDS = {model.name: model for model in _MODELS}


def kind_of(name: str, **options: Any) -> Kind:
    """Make a kind with its options. What is None, an empty list or a flag that is off counts as not given."""
    if name not in KINDS:
        raise UserError(f"there is no kind {name!r}{nearest(name, KINDS)}")
    model = KINDS[name]
    given = {key: value for key, value in options.items() if value not in (None, (), [])}
    if not given.get("turn_information"):
        given.pop("turn_information", None)
    for key in sorted(given.keys() - model.model_fields.keys()):
        if having := [other.name for other in _MODELS if key in other.model_fields]:
            raise UserError(f"{name} has no option {key}, which is for {', '.join(having)}: leave it out")
    return model(**given)


def samples(
    source: str | Path, kind: str | Kind, *, exclusions: Exclusions | None = None, **options: Any
) -> Iterator[Sample]:
    """Make the samples of a file.

    Args:
        kind: one of `KINDS`, whose fields are the `options`; or a kind with its options.

    Raises:
        UserError: an option that the kind does not have, or a row that cannot be read.
    """
    chosen = kind_of(kind, **options) if isinstance(kind, str) else kind
    return chosen.samples(source, Exclusions() if exclusions is None else exclusions)


def _check_domain(named: Any, prompts: str, trajectory: str) -> None:
    """Refuse data of one domain with the prompts of another, and so the wrong rubric."""
    if prompts in DOMAINS and named in DOMAINS and named != prompts:
        raise UserError(
            f"{trajectory} is of the domain {named}, and the prompts are those of {prompts}; build each domain from a file of "
            f"its own, this one with --prompts {named}"
        )


def informative(transitions: Iterable[Transition], seed: int, exclusions: Exclusions) -> Iterator[Transition]:
    """Yield the transitions whose observations count by turn information; the others are counted."""
    for transition in transitions:
        observation = transition.observation
        action = action_text(transition.action, observation.call)
        where = f"{transition.trajectory}/{transition.turn}/{observation.call}"
        if _counts(action, observation.text, where, seed, exclusions):
            yield transition
        else:
            exclusions.reasons["turn information"] += 1


def _counts(action: str, observation: str, where: str, seed: int, exclusions: Exclusions) -> bool:
    """Draw whether an observation counts, with its category's ratio. The draw depends only on the seed and `where`."""
    name = category(action, observation)
    counts = random.Random(f"keep/{seed}/{where}".encode(errors="surrogatepass")).random() < KEEP[name]
    (exclusions.kept if counts else exclusions.dropped)[name] += 1
    return counts
