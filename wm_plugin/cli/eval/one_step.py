"""`wm eval one-step`."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from wm_plugin.cli import measures
from wm_plugin.cli.flags import ModelFlags, StateFlags
from wm_plugin.cli.numbers import Count
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import progress, quiet, search_here
from wm_plugin.cli.templates import load_with_template, training_template
from wm_plugin.client.answers import Answers
from wm_plugin.client.predict import LocalPredictor
from wm_plugin.client.server import KINDS
from wm_plugin.data.host_dumps import Lacking
from wm_plugin.data.prompts import load
from wm_plugin.data.readers import read
from wm_plugin.data.scores import ScoringOptions
from wm_plugin.data.transitions import holds_transitions
from wm_plugin.errors import UserError

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
    tools: tuple[str, ...] = (),
    demonstrations: str | None = None,
    shots: Count | None = None,
    scoring: ScoringOptions = ScoringOptions(),
    limit: Count | None = None,
    out: measures.Out = None,
) -> dict[str, Any]:
    """How well a world model writes the next observation.

    A world model writes, at temperature 0, what follows each action of real episodes: exact match with the success mark, word F1,
    ROUGE, the cosine of embeddings, JSON keys, the success mark alone; of a model in this process also the likelihood of the real
    tokens and its calibration. Of all turns, and by turn, tool, observer, error and category; with 95% intervals over
    trajectories.

    ```
    wm eval one-step held_out.jsonl --model runs/wm_sft_word2world --out evaluations/fine-tuned
    wm eval one-step held_out.jsonl --server http://localhost:8000/v1 --server-model m --demonstrations train.jsonl
    wm eval one-step demo/held_out.jsonl --model demo/policies/coeff_0.05 --as policy
    ```

    Args:
        source: Trajectories in any format that wm data convert reads, or transitions.
        kind: What it was trained on, as in wm data build: word2world, rwml-sft, rwml, agentworld-sft, agentworld, cpt; or
            policy: an agent's model, which goes on with the results of its calls as in its own rollouts.
        prompts: The prompts that the model was trained with (default: those of --as).
        chat_template: With --as policy: the chat template in place of the tokenizer's: a file, or the name of one that TRL ships.
        tools: With --as policy: the agent's tools, for rollouts without tool schemas, as in wm data convert.
        demonstrations: Few-shot: trajectories of training to draw from.
        shots: How many of them are shown (default: 3).
        limit: The first N trajectories.
    """
    from wm_plugin.lab.evaluation.cases import Demonstrations, items_in, kind_of
    from wm_plugin.lab.evaluation.fidelity import NAME, Cosines, fidelity
    from wm_plugin.lab.evaluation.policy_fidelity import PolicyModel, inspectors_of, policy_fidelity
    from wm_plugin.rewards import EmbeddingReward

    if shots and not demonstrations:
        raise UserError("--shots says how many demonstrations are shown; name their file with --demonstrations")
    family = None
    if kind == POLICY:
        others = {"--prompts": prompts, "--demonstrations": demonstrations, "--temperature": model.temperature or None}
        _check_policy(model, others | {f"--{name.replace('_', '-')}": value for name, value in state})
    else:
        trained = kind_of(kind, [POLICY])
        if (family := prompts or trained.family) is None:
            raise UserError(f"--as {kind} needs --prompts: name a domain (mcp, search, ...) or a path")
        if chat_template:
            raise UserError(f"--chat-template is for --as {POLICY}; a world model is asked by its tokenizer's own")
        if tools:
            raise UserError(
                f"--tools is for --as {POLICY}; for a world model, wm data convert --tools adds the schemas"
            )
    model.check()
    if scoring.embedding_server and not scoring.embedding_model:
        raise UserError("--embedding-server needs --embedding-model: the name under which it has the model")
    lacking, inspectors = Lacking(), None
    if family is None:
        if holds_transitions(source):
            raise UserError(f"{source}: holds transitions, and --as {POLICY} is asked about whole trajectories")
        quiet()
        tokenizer = load_with_template(model.name, chat_template, field="--model")
        predictor = LocalPredictor(model.name, tokenizer, temperature=0)
        inspectors = inspectors_of(predictor, training_template(predictor.tokenizer))
        complete = None
        if tools:
            from wm_plugin.worlds.observed import observed

            search_here()
            complete = observed((), tools)

        def measured(answers: Path | None, **more: Any) -> Any:
            trajectories = read(source) if complete is None else map(complete, read(source))
            items = progress(lacking(trajectories), "episodes")
            return policy_fidelity(items, Answers(PolicyModel(predictor), answers), inspectors=inspectors, **more)

    else:
        shown = None
        if demonstrations:
            drawn_from = progress(read(demonstrations), "trajectories to draw from")
            shown = Demonstrations(drawn_from, shots or _SHOTS, seed=scoring.seed, source=demonstrations)
        own: dict[str, Any] = {"kind": kind, "world_context": state.shown(), "contexts": state.contexts()}
        loaded, cases = load(family), items_in(source, kind)

        def measured(answers: Path | None, **more: Any) -> Any:
            items, asked = progress(lacking(cases), "episodes"), Answers(model.asked(), answers)
            return fidelity(items, asked, loaded, demonstrations=shown, **own, **more)

    folder = measures.open_folder(out, NAME, model.name, source)
    embedding = None
    if scoring.embedding_model:
        reward = EmbeddingReward(scoring.embedding_model, base_url=scoring.embedding_server)
        embedding = Cosines(reward, scoring.embedding_model)
    result = measured(
        folder and folder / measures.ANSWERS,
        embedding=embedding,
        limit=limit,
        seed=scoring.seed,
        subject=model.name,
        data=source,
        folder=folder,
    )
    exact = result.measure("exact")
    lost = sum(result.failures.get(failure, 0) for failure in KINDS)
    return {
        **result.as_dict(),
        "without_schemas": lacking.count,
        "other_tokens": inspectors.differ if inspectors else 0,
        "notes": [*result.notes, *lacking.notes, *(inspectors.notes if inspectors else ())],
        "ok": exact.count + exact.failed > lost,
    }


def _check_policy(model: ModelFlags, others: dict[str, Any]) -> None:
    """Refuse what a policy is not asked with: a server, or a flag of world models."""
    from wm_plugin.lab.evaluation.policy_fidelity import NO_SERVER

    if model.server or model.server_model:
        raise UserError(f"--server: not with --as {POLICY}: {NO_SERVER}")
    for flag, value in others.items():
        if value is not None:
            raise UserError(
                f"{flag}: not with --as {POLICY}, which goes on at temperature 0 with the agent's own prompt; leave it out"
            )
