"""Write a tiny policy that can walk and predict its world, as a directory that `from_pretrained` and the trainers load."""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from wm_plugin.errors import UserError
from wm_plugin.lab.tiny import words
from wm_plugin.lab.tiny.folder import check_out, writing
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.lab.tiny.warm_start import HEADS, STOP_AT, behaviour_cloning, world_model_sft
from wm_plugin.lab.tiny.world_model import FORESIGHT_TEMPLATE, world_tokenizer
from wm_plugin.runtime.command import exit_code, output

MARK = "tiny.json"  # in a folder that this wrote
WORDY: dict[str, Any] = {"heads": 4, "layers": 4, "width": 128, "positions": 4096, "theta": 10_000.0}  # 1.2M parameters


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m wm_plugin.lab.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", action="store_true", help="leave the weights untrained (seconds; for smoke tests)")
    parser.add_argument(
        "--texts", action="store_true", help="it writes texts up to the end token, and no calls: to be a world model"
    )
    parser.add_argument(
        "--foresees",
        type=Path,
        metavar="DIR",
        help="the tiny policy in this folder, to be asked for the board after a move (rows of wm data build with "
        "recipes/pipelines/rwml_grid_prompts.yaml); as it writes no end, take the 20 tokens of a board",
    )
    parser.add_argument(
        "--words",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="an untrained world model of other worlds, whose tokenizer has the words of these files: texts, or .jsonl such as "
        f"wm data build writes; {WORDY['layers']} layers; implies --random and --texts",
    )
    parser.add_argument(
        "--vocabulary", type=int, metavar="N", help=f"tokens of --words at most (default: {words.SIZE})"
    )
    options = parser.parse_args(arguments)
    if options.vocabulary is not None and not options.words:
        raise UserError("--vocabulary is of --words; name the files with it")
    check_out(options.out, MARK, "a tiny policy")
    torch.set_num_threads(1)  # threads only get in each other's way in a model of this size
    if options.foresees:
        return _foresees(options.foresees, options.out)
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
                f"The world model reached an exact match of {exact:.2f} of {STOP_AT}: a weak start; try another seed."
            )
    if options.texts or options.words:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        for name in ("response_template", "response_schema"):  # would take letters for moves
            setattr(tokenizer, name, None)
    transformers_logging.disable_progress_bar()  # of writing 0.6 MB
    with writing(options.out, MARK, {"seed": options.seed, "random": options.random or bool(options.words)}) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    with output():
        print(options.out)
    return 0


def _foresees(policy: Path, out: Path) -> int:
    """Write a policy's weights with the tokenizer by which they foresee."""
    tokenizer = world_tokenizer(FORESIGHT_TEMPLATE)
    try:
        model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise UserError(f"--foresees: {policy} is no folder of a model ({str(error)[:100]})") from None
    model.generation_config.eos_token_id = tokenizer.eos_token_id  # a policy's turn ends at each move
    transformers_logging.disable_progress_bar()  # of writing 0.6 MB
    with writing(out, MARK, {"foresees": True}) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    with output():
        print(out)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, "wm_plugin.lab.tiny"))
