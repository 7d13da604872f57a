"""A search for prompts from a file of transitions to a folder with the family, its scores and the test's predictions."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from wm_plugin.client.answers import Model
from wm_plugin.data.outputs import atomic, check_apart, check_derived, files_in
from wm_plugin.data.predictions import Repeatable
from wm_plugin.data.prompts import Prompts, load
from wm_plugin.data.scores import NO_MODEL, ScoringOptions, real_valued, reward_arguments
from wm_plugin.data.transitions import transitions_in
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.proposals import load_styles
from wm_plugin.options import Number, Whole, option
from wm_plugin.untrusted import loads

if TYPE_CHECKING:
    from wm_plugin.lab.evaluation.prompt_search import Candidate

NAME = "search-prompts"
_HEAD = "# Prompts of wm lab search-prompts. A copy of your own may be changed, this file not: sha256 "


class SearchOptions(ScoringOptions):
    """How prompts are searched."""

    prompts: str = option(
        "rwml, word2world, a domain (mcp, search, ...), or your own file: its tag, fields and texts stay.", default=...
    )
    variant: str | None = option(
        "The variant of --prompts that the search starts from (default: the first one of RL).", default=None
    )
    styles: str | None = option(
        "A file with styles of your own, as NAME: TEXT (default: twelve that come with this package).", default=None
    )
    rounds: Whole = option("Rounds of proposals.", default=10, ge=1)
    examples: Whole = option("Wrong predictions that the proposer is shown.", default=4, ge=1)
    limit: Whole = option("Transitions of the search, and of the test.", default=100, ge=1)
    test_share: Number = option("Share of the tasks that is kept for the test.", default=0.5, ge=0, le=1)
    direct: bool = option("Ask for predictions without reasoning, as wm lab prompts --direct.", default=False)
    world_context: bool | None = option(
        "Show the world model the hidden state that rollouts carry (default: for word2world alone).", default=None
    )
    reward: str = option("The score: rouge, word_f1, rubric, rwml, ..., or package.module:NAME.", default="rouge")
    reward_args: str = option("Its arguments as JSON, such as the server of a judge.", default="{}")


def search_prompts(
    source: str | Path,
    out: Path,
    models: Callable[[], tuple[Model, Model]],
    subject: str,
    options: SearchOptions,
    *,
    model_folder: str | None = None,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> dict[str, Any]:
    """Search a family of prompts. Returns the evaluation, with the family's file and stages.

    Args:
        models: makes the proposer and the world model, once everything else is in order.
        model_folder: the world model's folder, which is not written over.
    """
    # these import torch, and `wm lab search-prompts --help` does not
    from wm_plugin.lab.evaluation import measures
    from wm_plugin.lab.evaluation.prompt_search import Search, split

    start, styles = load(options.prompts), load_styles(options.styles)
    arguments = reward_arguments(options.reward, options.reward_args, "--reward-args")
    family = out / f"{start.name}.yaml"
    inputs = [source, model_folder, options.prompts, options.styles, options.embedding_model, *files_in(arguments)]
    outs = {name: out / name for name in (measures.RESULT, measures.ROWS, measures.MANIFEST)}
    check_apart(inputs, {"--out": family, **outs})
    proposer, world = models()
    transitions = Repeatable(lambda: transitions_in(source))
    held = split(transitions, limit=options.limit, test_share=options.test_share, seed=options.seed)
    only_tools = all(one.observation.kind == "tool" for one in (*held.search, *held.test))
    if options.reward == "rwml" and not (options.embedding_model or only_tools):
        raise UserError(f"not all observations are tools' results: {NO_MODEL}")

    measures.open_folder(out, NAME, subject, str(source))
    check_family(family)
    work = out / "work"
    if "no_verdict" in arguments:  # keep a judge's replies, for which a killed run would pay twice; few may fail
        arguments = {"cache": str(work / "judge.sqlite"), "max_failure_share": 0.05, **arguments}
    reward = real_valued(options.reward, options.embedding_model, options.embedding_server, arguments)
    scored_by = {"reward": options.reward, "reward_args": loads(options.reward_args)}
    if options.embedding_model:
        scored_by["embedding_model"] = options.embedding_model
    variant = options.variant or start.names("rl")[0]
    own: dict[str, Any] = {
        "rounds": options.rounds,
        "examples": options.examples,
        "seed": options.seed,
        "thinking": not options.direct,
        "world_context": start.name == "word2world" if options.world_context is None else options.world_context,
    }
    search = Search(start, variant, styles, held, world, proposer, reward, work, settings=scored_by, **own)
    outcome = search.run(watch)
    settings = {
        **scored_by,
        **own,
        "prompts": options.prompts,
        "variant": variant,
        "styles": list(styles),
        "transitions": {"search": len(held.search), "test": len(held.test)},
        "world_model": world.settings,
        "proposer": proposer.settings,
        "chosen": {one.style: one.round for one in outcome.chosen},
    }
    evaluation = measures.Evaluation(
        NAME, subject, str(source), settings, outcome.measures, outcome.failures, outcome.notes
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


def family_text(prompts: Prompts, chosen: "Sequence[Candidate]") -> str:
    """Write a family as a file of prompts, with a hash of the rest in its first line."""
    stages = {name: stage for stage, names in prompts.stages.items() for name in names}
    lines = [
        f"# {one.style}: {stages[one.style]}, of round {one.round}, {one.score:.4f} in the search" for one in chosen
    ]
    values = prompts.model_dump(exclude={"name"}, exclude_defaults=True)
    values["variants"] = values.pop("variants")  # last
    body = "\n".join(lines) + "\n" + yaml.dump(values, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=130)
    return f"{_HEAD}{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def write_family(prompts: Prompts, chosen: "Sequence[Candidate]", path: Path) -> None:
    """Write a family, completely or not at all, unless somebody changed the file that an earlier search wrote there."""
    with atomic(path, check=lambda: check_family(path)) as unfinished:
        unfinished.write_text(family_text(prompts, chosen), encoding="utf-8", newline="\n")


def check_family(path: Path) -> None:
    """Raise UserError if another file than an earlier search's is at `path`, or it cannot be written."""
    check_derived(path, _is_unchanged, "the prompts that a search wrote", "move it, or name another folder")


def _is_unchanged(path: Path) -> bool:
    head, _, body = path.read_bytes().partition(b"\n")
    return head == f"{_HEAD}{hashlib.sha256(body).hexdigest()}".encode()


class _Dumper(yaml.SafeDumper):
    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Write a text of several lines as a block."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.represent_text)
