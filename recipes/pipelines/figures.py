"""Measure a policy before and after training: how it plays, how well it predicts its world, and general text.

    PIPELINES=wm_plugin.recipes.pipelines
    python -m $PIPELINES.figures --model DIR --name cloned --episodes E.jsonl --played P.jsonl --out figures.jsonl
    python -m $PIPELINES.figures --table figures.jsonl --out figures.md

The measured environment tokens are those that the world-model term counts, predicted from the real tokens before them. A result
is exact if each of its tokens is the model's first choice. General text is Python's documentation of its language, which every
installation has.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from wm_plugin.recipes.pipelines import tables

from wm_plugin.data import files
from wm_plugin.data.chat import chat
from wm_plugin.data.outputs import write_text
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Trajectory
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.inspect import Inspector
from wm_plugin.lab.evaluation.one_step import evaluate
from wm_plugin.lab.evaluation.perplexity import score, windows
from wm_plugin.objectives.echo import EchoConfig
from wm_plugin.runtime.command import exit_code, output

WINDOW = 512  # tokens of general text at once


def tokens_of(tokenizer: Any, episodes: Iterable[Trajectory]) -> tuple[list[list[int]], list[list[int]]]:
    """Return episodes' token ids as the policy reads them, and masks: 1 = an environment token, without scaffold."""
    inspector = Inspector(tokenizer, EchoConfig(1.0))
    ids, masks = [], []
    for episode in episodes:
        messages = chat(episode.context, episode.turns)
        first = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        if first == len(messages):
            continue
        inspection = inspector.messages(messages[:first], messages[first:], list(episode.context.action_space))
        mask = [0] * len(inspection.ids)
        for piece in inspection.pieces:
            if piece.weight:
                mask[piece.start : piece.end] = [1] * (piece.end - piece.start)
        ids.append(inspection.ids)
        masks.append(mask)
    return ids, masks


def perplexity(model: Any, tokenizer: Any, texts: Sequence[str], *, tokens: int = 4 * WINDOW) -> float:
    """Return the perplexity of the texts' first `tokens` tokens in windows of 512, whose first tokens do not count."""
    rows = windows(tokenizer, "\n\n".join(texts), WINDOW, tokens)
    if not rows:
        raise UserError("the texts have less than two tokens; give longer ones with --texts")
    return math.exp(score(model, rows, batch_size=1).mean_nll)


def figures(
    model: Any, tokenizer: Any, episodes: Sequence[Path], played: Path | None, texts: Sequence[str], tokens: int
) -> dict[str, Any]:
    """Return all figures as JSON values; those of the model's own episodes only if `played` names them."""
    row: dict[str, Any] = {}
    for path in episodes:
        ids, masks = tokens_of(tokenizer, read(path))
        step = evaluate(model, ids, masks, batch_size=1)
        row[f"nll_{path.stem}"], row[f"exact_{path.stem}"] = step.mean_nll, step.exact_share
        row[f"tokens_{path.stem}"], row[f"results_{path.stem}"] = int(step.tokens.sum()), int(step.observations.sum())
    if played is not None:
        own = list(read(played))
        row["episodes"] = len(own)
        row["success"] = sum(episode.success is True for episode in own) / len(own)
        row["calls"] = sum(len(turn.action.calls) for episode in own for turn in episode.turns) / len(own)
    row["perplexity"] = perplexity(model, tokenizer, texts, tokens=tokens)
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Write the rows in Markdown; the last row of a name counts."""
    by_name = {row["name"]: row for row in rows}
    columns = list(dict.fromkeys(column for row in by_name.values() for column in row))
    return tables.markdown(columns, [[_cell(row.get(column)) for column in columns] for row in by_name.values()])


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value).replace("|", "\\|")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m wm_plugin.recipes.pipelines.figures", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="X.jsonl, to which a line is added; with --table, X.md")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the lines of this file as a table")
    parser.add_argument("--model", help="folder of the model")
    parser.add_argument("--name", help="name of the row")
    parser.add_argument("--episodes", type=Path, nargs="+", default=[], help="files of held-out episodes to predict")
    parser.add_argument("--played", type=Path, help="episodes that the model has played")
    parser.add_argument("--texts", type=Path, nargs="+", help="UTF-8 files of general text (default: Python's own)")
    parser.add_argument("--text-tokens", type=int, default=4 * WINDOW, metavar="N")
    options = parser.parse_args(arguments)
    if options.table is not None:
        text = table(list(_rows(options.table)))
        write_text(options.out, text)
        with output():
            print(text, end="")
        return 0
    if options.model is None or options.name is None:
        raise UserError("--model and --name are missing; give the model and the name of its row")
    from transformers import AutoModelForCausalLM

    from wm_plugin.tokens.tokenizer import load_tokenizer

    texts = [_text(path) for path in options.texts] if options.texts else [topics[name] for name in sorted(topics)]
    tokenizer = load_tokenizer(options.model, field="--model")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype="auto")
    row = {"name": options.name} | figures(
        model, tokenizer, options.episodes, options.played, texts, options.text_tokens
    )
    with options.out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    with output():
        print(json.dumps(row))
    return 0


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for record in files.lines(path):
        if not isinstance(record.value, dict) or not isinstance(record.value.get("name"), str):
            raise UserError(f"{path}, row {record.row}: {record.error or 'no figures of a model, with its name'}")
        yield record.value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error})") from None


if __name__ == "__main__":
    sys.exit(exit_code(main, "wm_plugin.recipes.pipelines.figures"))
