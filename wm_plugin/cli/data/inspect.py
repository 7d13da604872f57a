"""`wm data inspect`."""

from pathlib import Path
from typing import Any

from wm_plugin.cli.numbers import NotNegative
from wm_plugin.cli.output import prints, table
from wm_plugin.cli.support import progress, token_counter
from wm_plugin.data.outputs import check_apart, check_out
from wm_plugin.data.summary import Summary, scores_beside, summarize
from wm_plugin.data.summary_page import rows, share, write_page
from wm_plugin.errors import UserError


def show(result: dict[str, Any]) -> None:
    columns = {name: dict(rows(figures)) for name, figures in result["datasets"].items()}
    labels = dict.fromkeys(label for lines in columns.values() for label in lines)
    table([{"": label, **{name: lines.get(label, "-") for name, lines in columns.items()}} for label in labels])
    for name, figures in result["datasets"].items():
        tools = [
            {
                "tool, or (kind)": tool,
                "observations": f"{counts['observations']:,}",
                "errors": share(counts["error_share"]),
                "empty": share(counts["empty_share"]),
                figures["unit"]: f"{counts['length']['median']:,.0f} (max {counts['length']['max']:,.0f})",
            }
            for tool, counts in figures["tools"].items()
        ]
        if tools:
            table(tools, f"\n{name}")
        whole = figures["transitions"]
        shares = [f"{kind} {share(value, whole)}" for kind, value in figures["categories"].items() if value]
        print(f"turn information: {', '.join(shares) or 'no transition'}")
        for note in figures.get("notes", ()):
            print(f"note: {note}")
    if "html" in result:
        print(f"page: {result['html']}")


@prints(show)
def inspect(
    sources: list[str],
    /,
    *,
    html: Path | None = None,
    tokenizer: str | None = None,
    samples: NotNegative = 8,
    seed: int = 0,
) -> dict[str, Any]:
    """Show what datasets hold: lengths, tools, errors, categories, samples.

    Several datasets are shown side by side, for example before and after a filter. As JSON, `datasets` has the figures of each.

    Args:
        sources: Trajectories, transitions, or any format that convert reads.
        html: Write a page too, with samples (needs the extra report).
        tokenizer: Measure lengths in its tokens instead of characters.
        samples: Transitions of each dataset to show on the page.
        seed: Seed of which samples are drawn.
    """
    if len(set(sources)) < len(sources):
        raise UserError("a source is named twice; name each once")
    if html:
        check_out(html)
        check_apart([*sources, tokenizer, *(scores_beside(one) for one in sources if one)], {"--html": html})
    measure = token_counter(tokenizer)
    summaries = {}
    for source in sources:
        summary = Summary(measure, samples=samples, seed=seed)
        summaries[source] = summary, summarize(source, summary, lambda records: progress(records, "records"))
    result: dict[str, Any] = {"datasets": {name: figures for name, (_, figures) in summaries.items()}}
    if html:
        result["html"] = str(write_page(summaries, html))
    return result
