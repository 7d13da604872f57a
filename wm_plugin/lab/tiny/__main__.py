"""Write a tiny policy that can walk and predict its world, as a directory that `from_pretrained` and the trainers load."""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from wm_plugin.errors import UserError
from wm_plugin.lab.tiny import words
from wm_plugin.lab.tiny.folder import check_out, load, save
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.lab.tiny.warm_start import HEADS, STOP_AT, behaviour_cloning, world_model_sft
from wm_plugin.lab.tiny.world_model import FORESIGHT_TEMPLATE, world_tokenizer
from wm_plugin.runtime.command import exit_code, output

MARK = "tiny.json"  # a file in every folder that this command wrote
WORDY: dict[str, Any] = {"heads": 4, "layers": 4, "width": 128, "positions": 4096, "theta": 10_000.0}  # 1.2M parameters


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m wm_plugin.lab.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", action="store_true", help="leave the weights untrained (seconds; for smoke tests)")
    parser.add_argument(
        "--texts", action="store_true", help="write texts up to the end token instead of calls, as a world model does"
    )
    parser.add_argument(
        "--foresees",
        type=Path,
        metavar="DIR",
        help="write the tiny policy in this folder so that it predicts the board after a move (rows of wm data build with "
        "recipes/pipelines/rwml_grid_prompts.yaml); it writes no end, so sample the 20 tokens of a board",
    )
    parser.add_argument(
        "--words",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="write an untrained world model of other worlds, whose tokenizer has the words of these files (texts, or .jsonl "
        f"from wm data build); {WORDY['layers']} layers; implies --random and --texts",
    )
    parser.add_argument(
        "--vocabulary", type=int, metavar="N", help=f"at most this many tokens for --words (default: {words.SIZE})"
    )
    options = parser.parse_args(arguments)
    if options.vocabulary is not None and not options.words:
        raise UserError("--vocabulary needs --words; name the files with it")
    check_out(options.out, MARK, "a tiny policy")
    torch.set_num_threads(1)  # more threads are slower with so small a model
    if options.foresees:
        _foresees(options.foresees, options.out)
        return 0
    tokenizer = (
        words.make_tokenizer(options.words, options.vocabulary or words.SIZE) if options.words else make_tokenizer()
    )
    if options.words:
        model = make_model(tokenizer, options.seed, **WORDY)
    elif options.random:
        model = make_model(tokenizer, options.seed)
    else:
        model = make_model(tokenizer, options.seed, HEADS)
        console = Console(stderr=True)
        with Progress(console=console, disable=not console.is_terminal) as bars:
            learning = bars.add_task("predict the world")
            exact = world_model_sft(
                model, tokenizer, options.seed, progress=lambda n, of: bars.update(learning, completed=n, total=of)
            )
            cloning = bars.add_task("clone the shortest way")
            behaviour_cloning(
                model, tokenizer, options.seed, progress=lambda n, of: bars.update(cloning, completed=n, total=of)
            )
        if exact < STOP_AT:
            console.print(
                f"The world model reached an exact match of {exact:.2f}, less than {STOP_AT}: a weak start; try another seed."
            )
    if options.texts or options.words:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        for name in ("response_template", "response_schema"):  # they would parse letters as moves
            setattr(tokenizer, name, None)
    save(model, tokenizer, options.out, MARK, {"seed": options.seed, "random": options.random or bool(options.words)})
    with output():
        print(options.out)
    return 0


def _foresees(policy: Path, out: Path) -> None:
    """Write a policy's weights with a tokenizer for predicting boards."""
    tokenizer, model = world_tokenizer(FORESIGHT_TEMPLATE), load(policy, "--foresees")
    model.generation_config.eos_token_id = tokenizer.eos_token_id  # a policy's turn ends at each move
    save(model, tokenizer, out, MARK, {"foresees": True})
    with output():
        print(out)


if __name__ == "__main__":
    sys.exit(exit_code(main, "wm_plugin.lab.tiny"))
