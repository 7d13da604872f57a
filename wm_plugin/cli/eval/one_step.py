"""`wm eval one-step`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from wm_plugin.cli import measures
from wm_plugin.cli.flags import Count, EmbeddingFlags, ModelFlags, StateFlags
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import progress, quiet
from wm_plugin.errors import UserError

if TYPE_CHECKING:
    from wm_plugin.data.host_dumps import Lacking

POLICY = "policy"  # of --as
_SHOTS = 3  # Word2World, table 1


@prints(measures.show)
def one_step(
    source: str,
    /,
    *,
    model: ModelFlags = ModelFlags(),
    kind: Annotated[str, Parameter(name="--as")] = "word2world",
    prompts: str | None = None,
    state: StateFlags = StateFlags(),
    chat_template: str | None = None,
    demonstrations: str | None = None,
    shots: Count | None = None,
    embeddings: EmbeddingFlags = EmbeddingFlags(),
    limit: Count | None = None,
    seed: int = 0,
    out: str | None = None,
) -> dict[str, Any]:
    """How well a world model writes the next observation.

    A world model writes, at temperature 0, what follows each action of real episodes: exact match with the success mark, word F1,
    ROUGE, the cosine of embeddings, JSON keys, the success mark alone; of a model in this process also the likelihood of the real
    tokens and its calibration. Of all turns, and by turn, tool, observer, error and category; with 95% intervals over
    trajectories.

    ```
    wm eval one-step held_out.jsonl --model runs/wm_sft_word2world --out evaluations/fine-tuned
    wm eval one-step held_out.jsonl --server http://localhost:8000/v1 --server-model m --demonstrations train.jsonl
    wm eval one-step demo/held_out.jsonl --model demo/policies/coeff_1 --as policy
    ```

    Args:
        source: Trajectories in any format that wm data convert reads, or transitions.
        kind: What it was trained on, as in wm data build: word2world, rwml-sft, rwml, agentworld-sft, agentworld, cpt; or
            policy: an agent's model, which goes on with the results of its calls as in its own rollouts.
        prompts: The prompts that the model was trained with (default: those of --as).
        chat_template: With --as policy: the chat template in place of the tokenizer's: a file, or the name of one that TRL ships.
        demonstrations: Few-shot: trajectories of training to draw from.
        shots: How many of them are shown (default: 3).
        limit: The first N trajectories.
        seed: Seed of the prompts' variants, as in wm data build, and of draws.
        out: Folder that keeps answers, rows and measures; a killed run goes on there.
    """
    from wm_plugin.client.server import KINDS
    from wm_plugin.data.host_dumps import Lacking
    from wm_plugin.lab.evaluation.cases import kind_of
    from wm_plugin.lab.evaluation.fidelity import NAME, Cosines
    from wm_plugin.lab.evaluation.measures import open_folder
    from wm_plugin.rewards import EmbeddingReward

    if shots and not demonstrations:
        raise UserError("--shots says how many demonstrations are shown; name their file with --demonstrations")
    lacking = Lacking()
    measure: Callable[..., Callable[..., Any]]
    if kind == POLICY:
        others = {"--prompts": prompts, "--demonstrations": demonstrations}
        _check_policy(model, others | {f"--{name.replace('_', '-')}": value for name, value in state})
        measure = partial(_policy, source, model, chat_template, lacking)
    else:
        trained = kind_of(kind, [POLICY])
        family = prompts or trained.family
        if family is None:
            raise UserError(f"--as {kind} needs --prompts: name a domain (mcp, search, ...) or a path")
        if chat_template:
            raise UserError(f"--chat-template is for --as {POLICY}; a world model is asked by its tokenizer's own")
        measure = partial(_world_model, source, kind, model, family, state, demonstrations, shots or _SHOTS, lacking)
    model.check()
    if embeddings.embedding_server and not embeddings.embedding_model:
        raise UserError("--embedding-server needs --embedding-model: the name under which it has the model")
    run = measure(seed=seed)
    folder = open_folder(out, NAME, model.name, source) if out else None
    embedding = None
    if embeddings.embedding_model:
        reward = EmbeddingReward(embeddings.embedding_model, base_url=embeddings.embedding_server)
        embedding = Cosines(reward, embeddings.embedding_model)
    result = run(embedding=embedding, limit=limit, seed=seed, subject=model.name, data=source, folder=folder)
    exact = result.measure("exact")
    lost = sum(result.failures.get(failure, 0) for failure in KINDS)
    return {**result.as_dict(), "notes": [*result.notes, *lacking.notes], "ok": exact.count + exact.failed > lost}


def _world_model(
    source: str,
    kind: str,
    model: ModelFlags,
    family: str,
    state: StateFlags,
    demonstrations: str | None,
    shots: int,
    lacking: "Lacking",
    *,
    seed: int,
) -> Callable[..., Any]:
    """`fidelity` of the flags; what is left are its arguments from `embedding` on."""
    from wm_plugin.client.answers import Answers
    from wm_plugin.data.prompts import load
    from wm_plugin.data.readers import read
    from wm_plugin.lab.evaluation.cases import Demonstrations, items_in
    from wm_plugin.lab.evaluation.fidelity import fidelity

    prompts, hidden, contexts = load(family), state.shown(), state.contexts()
    items = items_in(source, kind)
    shown = None
    if demonstrations:
        drawn_from = progress(read(demonstrations), "trajectories to draw from")
        shown = Demonstrations(drawn_from, shots, seed=seed, source=demonstrations)

    def measure(folder: Path | None, **more: Any) -> Any:
        return fidelity(
            progress(lacking(items), "episodes"),
            Answers(model.asked(), folder and folder / measures.ANSWERS),
            prompts,
            kind=kind,
            world_context=hidden,
            contexts=contexts,
            demonstrations=shown,
            folder=folder,
            **more,
        )

    return measure


def _check_policy(model: ModelFlags, others: dict[str, Any]) -> None:
    """Refuse what a policy is not asked with.

    Raises:
        UserError: a server, or a flag of world models.
    """
    from wm_plugin.lab.evaluation.policy_fidelity import NO_SERVER

    if model.server or model.server_model:
        raise UserError(f"--server: not with --as {POLICY}: {NO_SERVER}")
    for flag, value in others.items():
        if value is not None:
            raise UserError(f"{flag}: not with --as {POLICY}, whose prompt is the agent's own; leave it out")


def _policy(
    source: str, model: ModelFlags, chat_template: str | None, lacking: "Lacking", *, seed: int
) -> Callable[..., Any]:
    """`policy_fidelity` of the flags; what is left are its arguments from `embedding` on."""
    from wm_plugin.cli.templates import load_with_template, training_template
    from wm_plugin.client.answers import Answers
    from wm_plugin.client.predict import LocalPredictor
    from wm_plugin.data.readers import read
    from wm_plugin.data.transitions import holds_transitions
    from wm_plugin.lab.evaluation.policy_fidelity import PolicyModel, policy_fidelity

    del seed  # a policy is asked at temperature 0, and its prompts have no variants
    if holds_transitions(source):
        raise UserError(f"{source}: holds transitions, and --as {POLICY} is asked about whole trajectories")
    quiet()
    tokenizer = load_with_template(model.name, chat_template, field="--model")
    predictor = LocalPredictor(model.name, tokenizer, temperature=0)
    template = training_template(predictor.tokenizer)

    def measure(folder: Path | None, **more: Any) -> Any:
        answers = Answers(PolicyModel(predictor), folder and folder / measures.ANSWERS)
        items = progress(lacking(read(source)), "episodes")
        return policy_fidelity(items, answers, chat_template=template, folder=folder, **more)

    return measure
