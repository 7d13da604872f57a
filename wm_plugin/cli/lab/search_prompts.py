"""`wm lab search-prompts`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from wm_plugin.cli.flags import Count, EmbeddingFlags, ModelFlags, Sampling, Share, default
from wm_plugin.cli.output import prints, table
from wm_plugin.cli.support import progress, read_json, reward_arguments, search_here
from wm_plugin.errors import UserError
from wm_plugin.options import Number, Options, Whole, option

if TYPE_CHECKING:
    from wm_plugin.client.answers import Model

NAME = "search-prompts"


@Parameter(name="*", group=Group("Proposer", sort_key=2))
class ProposerFlags(Options):
    proposer_model: str = option("The name that its server has for it.")
    proposer_server: str | None = option("Its server (default: --server).", default=None)
    proposer_temperature: Number = default(Sampling, "temperature", 1.0)
    proposer_max_new_tokens: Whole = option("Longest proposal, in tokens, thoughts included.", default=32768, ge=1)

    def asked(self, model: ModelFlags) -> "Model":
        from wm_plugin.client.answers import ServerModel

        if not (address := self.proposer_server or model.server):
            raise UserError("--proposer-server URL is missing: with --model, the proposer has a server of its own")
        sampling = Sampling(
            temperature=self.proposer_temperature,
            max_new_tokens=self.proposer_max_new_tokens,
            concurrency=model.concurrency,
            no_seed=model.no_seed,
        )
        # a specification is long, and so are the thoughts before it
        return ServerModel(sampling.client(address, self.proposer_model, timeout=1800.0))


def show(result: dict[str, Any]) -> None:
    by_style = {(one["name"], one["group"]): one for one in result["measures"] if one["by"] == "style"}
    stages = {style: stage for stage, styles in result["stages"].items() for style in styles}
    rows = []
    for style, number in {"start": None, **result["settings"]["chosen"]}.items():
        test, gain = by_style[("test", style)], by_style.get(("gain", style), {})
        low, high = gain.get("low"), gain.get("high")
        row = {
            "style": style,
            "stage": stages.get(style, "-"),
            "round": number,
            "search": by_style[("search", style)]["with_failed"],
            "test": test["with_failed"],
            "gain": gain.get("value"),
            "95%": "" if low is None else f"{low:+.3f} to {high:+.3f}",
            "failed": test["failed"],
            "refused": by_style.get(("refused", style), {}).get("value"),
        }
        rows.append(row)
    table(rows)
    print("failed: rows of the test without a score, which count 0; refused: answers that were no templates")
    for note in result["notes"]:
        print(note)
    if result["prompts"]:
        print(f"{result['prompts']}: read it, and try it with wm lab prompts {result['prompts']} --data SRC")


@prints(show)
def search_prompts(
    source: str,
    /,
    *,
    out: Path,
    prompts: str,
    proposer: ProposerFlags,
    model: ModelFlags = ModelFlags(),
    variant: str | None = None,
    styles: str | None = None,
    rounds: Count = 10,
    examples: Count = 4,
    limit: Count = 100,
    test_share: Share = 0.5,
    direct: bool = False,
    world_context: Annotated[bool | None, Parameter(negative="--no-world-context")] = None,
    reward: str = "rouge",
    reward_args: str = "{}",
    embedding: EmbeddingFlags = EmbeddingFlags(),
    seed: int = 0,
) -> dict[str, Any]:
    """Propose prompts, try them on held-out transitions, and refine the best (Qwen-AgentWorld).

    In each style a model proposes templates for a family of prompts, a world model predicts held-out transitions with them, and
    the best is refined with its worst predictions. Writes the family, a variant a style, and what each scored, on transitions
    of other tasks too. A run that was killed continues where it was.

    As JSON: the evaluation, `prompts` (the file), `stages`, `asked` of each model, and `ok`: there is a family.

    Args:
        source: Held-out transitions, or trajectories of any format that convert reads.
        out: A folder for the family FAMILY.yaml, result.json, rows.jsonl, and work.
        prompts: rwml, word2world, a domain (mcp, search, ...), or your own file: its tag, fields and texts stay.
        variant: The variant of --prompts that the search starts from (default: the first one of RL).
        styles: A file with styles of your own, as NAME: TEXT (default: twelve that come with this package).
        rounds: Rounds of proposals.
        examples: Wrong predictions that the proposer is shown.
        limit: Transitions of the search, and of the test.
        test_share: Share of the tasks that is kept for the test.
        direct: Ask for predictions without reasoning, as wm lab prompts --direct.
        world_context: Show the world model the hidden state that rollouts carry (default: for word2world alone).
        reward: The score: rouge, word_f1, rubric, rwml, ..., or package.module:NAME.
        reward_args: Its arguments as JSON, such as the server of a judge.
        seed: Seed of all draws.
    """
    from wm_plugin.data.outputs import check_apart, files_in
    from wm_plugin.data.predictions import Repeatable
    from wm_plugin.data.prompts import load
    from wm_plugin.data.scores import NO_MODEL, real_valued
    from wm_plugin.data.transitions import transitions_in
    from wm_plugin.lab.evaluation import measures
    from wm_plugin.lab.evaluation.prompt_family import check_family, write_family
    from wm_plugin.lab.evaluation.prompt_search import Search, split
    from wm_plugin.lab.evaluation.proposals import load_styles

    search_here()
    model.check()
    start, told = load(prompts), load_styles(styles)
    arguments = reward_arguments(reward, reward_args, "--reward-args")
    family = out / f"{start.name}.yaml"
    inputs = [source, model.model, prompts, styles, embedding.embedding_model, *files_in(arguments)]
    outs = {name: out / name for name in (measures.RESULT, measures.ROWS, measures.MANIFEST)}
    check_apart(inputs, {"--out": family, **outs})
    proposes, predicts = proposer.asked(model), model.asked()
    held = split(Repeatable(lambda: transitions_in(source)), limit=limit, test_share=test_share, seed=seed)
    only_tools = all(one.observation.kind == "tool" for one in (*held.search, *held.test))
    if reward == "rwml" and not (embedding.embedding_model or only_tools):
        raise UserError(f"not all observations are tools' results: {NO_MODEL}")

    measures.open_folder(out, NAME, model.name, source)
    check_family(family)
    work = out / "work"
    if "no_verdict" in arguments:  # keep a judge's replies, which a killed run would pay for twice; few may fail
        arguments = {"cache": str(work / "judge.sqlite"), "max_failure_share": 0.05, **arguments}
    scored_by = {"reward": reward, "reward_args": read_json(reward_args, "--reward-args")}
    if embedding.embedding_model:
        scored_by["embedding_model"] = embedding.embedding_model
    variant = variant or start.names("rl")[0]
    options: dict[str, Any] = {
        "rounds": rounds,
        "examples": examples,
        "seed": seed,
        "thinking": not direct,
        "world_context": start.name == "word2world" if world_context is None else world_context,
    }
    score = real_valued(reward, embedding.embedding_model, embedding.embedding_server, arguments)
    search = Search(start, variant, told, held, predicts, proposes, score, work, settings=scored_by, **options)
    outcome = search.run(lambda rounds: progress(rounds, "rounds"))
    settings = {
        **scored_by,
        **options,
        "prompts": prompts,
        "variant": variant,
        "styles": list(told),
        "transitions": {"search": len(held.search), "test": len(held.test)},
        "world_model": predicts.settings,
        "proposer": proposes.settings,
        "chosen": {one.style: one.round for one in outcome.chosen},
    }
    evaluation = measures.Evaluation(
        NAME, model.name, source, settings, outcome.measures, outcome.failures, outcome.notes
    )
    found = outcome.prompts
    if found is not None:
        write_family(found, outcome.chosen, family)
    measures.write_rows(outcome.rows, out)
    measures.write_result(evaluation, out)
    return {
        **evaluation.as_dict(),
        "prompts": None if found is None else str(family),
        "stages": {} if found is None else found.stages,
        "asked": {"proposer": outcome.proposed, "world model": outcome.predicted},
        "ok": found is not None,
    }
