"""`wm lab search-prompts`."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from wm_plugin.cli.flags import ModelFlags, Output, prefixed
from wm_plugin.cli.output import prints, table
from wm_plugin.cli.support import progress, search_here
from wm_plugin.client.answers import Model, ServerModel
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.search_prompts import SearchOptions
from wm_plugin.lab.evaluation.search_prompts import search_prompts as search
from wm_plugin.options import Options, default, option


class SearchFlags(SearchOptions):
    """How prompts are searched."""

    world_context: Annotated[bool | None, Parameter(negative="--no-world-context")] = default(
        SearchOptions, "world_context", None
    )


PROPOSER = Group("Proposer", sort_key=2)


@Parameter(name="*", group=PROPOSER)
class ProposerFlags(Options):
    """Who proposes prompts."""

    proposer_model: str = option("The name that its server has for it.")
    proposer_server: str | None = option("Its server (default: --server).", default=None)


def show(result: dict[str, Any]) -> None:
    by_style = {(one["name"], one["group"]): one for one in result["measures"] if one["by"] == "style"}
    stages = {style: stage for stage, styles in result["stages"].items() for style in styles}
    rows = []
    for style, number in {"start": None, **result["settings"]["chosen"]}.items():
        test, gain = by_style["test", style], by_style.get(("gain", style), {})
        low, high = gain.get("low"), gain.get("high")
        row = {"style": style, "stage": stages.get(style, "-"), "round": number}
        row |= {
            "search": by_style["search", style]["with_failed"],
            "test": test["with_failed"],
            "gain": gain.get("value"),
        }
        row |= {"95%": "" if low is None else f"{low:+.3f} to {high:+.3f}", "failed": test["failed"]}
        rows.append(row | {"refused": by_style.get(("refused", style), {}).get("value")})
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
    options: SearchFlags,
    proposer: ProposerFlags,
    output: Annotated[Output, prefixed("proposer"), Parameter(group=PROPOSER)] = Output(max_new_tokens=32768),
    model: ModelFlags = ModelFlags(),
) -> dict[str, Any]:
    """Propose prompts, try them on held-out transitions, and refine the best (Qwen-AgentWorld).

    In each style a model proposes templates for a family of prompts, a world model predicts held-out transitions with them, and
    the best is refined with its worst predictions. Writes the family, a variant a style, and what each scored, on transitions
    of other tasks too. A run that was killed continues where it was.

    As JSON: the evaluation, `prompts` (the file), `stages`, `asked` of each model, and `ok`: there is a family.

    Args:
        source: Held-out transitions, or trajectories of any format that convert reads.
        out: A folder for the family FAMILY.yaml, result.json, rows.jsonl, and work.
    """
    search_here()
    model.check()

    def models() -> tuple[Model, Model]:
        if not (address := proposer.proposer_server or model.server):
            raise UserError("--proposer-server URL is missing: with --model, the proposer has a server of its own")
        writer = model.replace(**output.model_dump())
        # a specification is long, and so are the thoughts before it
        return ServerModel(writer.client(address, proposer.proposer_model, timeout=1800.0)), model.asked()

    return search(
        source,
        out,
        models,
        model.name,
        options,
        model_folder=model.model,
        watch=lambda rounds: progress(rounds, "rounds"),
    )
