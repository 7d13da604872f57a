"""The flags that verbs of `wm lab` share."""

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from wm_plugin.cli.flags import Sampling, prefixed
from wm_plugin.cli.support import find, work_folder
from wm_plugin.client.answers import Answers
from wm_plugin.data.sample import Sample
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.proposing import ModelProposals, Proposer, RandomProposals
from wm_plugin.options import Options, Whole, option
from wm_plugin.tokens.tokenizer import load_tokenizer
from wm_plugin.worlds.worlds import World

Work = Annotated[
    str | None,
    Parameter(
        help="Folder that keeps answers, from which a killed run continues (default: X.work beside X); remove it afterwards."
    ),
]


class SampleFlags(Options):
    """How samples whose last message alone counts become rows."""

    host: Literal["trl", "verl"] = option("Which trainer reads the rows.", default="trl")
    tokenizer: str | None = option("Write tokens and a mask, the same for both hosts.", default=None)
    max_tokens: Whole | None = option("Leave longer samples out, and count them.", default=None, ge=1)

    def check(self, out: Path) -> None:
        """Check before hours of work that rows can be written."""
        from wm_plugin.data.rows import check_rows_out  # imports torch

        check_rows_out(out, self.host, "sft")
        if self.max_tokens is not None and self.tokenizer is None:
            raise UserError(f"--max-tokens is {self.max_tokens}, and needs a --tokenizer to count with")

    def write(self, samples: Iterable[Sample], out: Path, left_out: Counter[str] | None = None) -> int:
        """Write rows of samples, and return their number.

        Args:
            left_out: receives the numbers of samples that are left out, by reason.
        """
        from wm_plugin.data.building import last_message_rows
        from wm_plugin.data.rows import write_rows
        from wm_plugin.data.tokenize import Tokeniser

        tokeniser = Tokeniser(load_tokenizer(self.tokenizer, field="--tokenizer")) if self.tokenizer else None
        rows = last_message_rows(samples, self.host, tokeniser, self.max_tokens, left_out)
        return write_rows(rows, out, left_out)


@Parameter(name="*", group=Group("Proposals", sort_key=2))
class ProposalFlags(Options):
    """Who proposes other actions in the states of an expert's trajectories."""

    world: str = option("The world of the trajectories, by name or as package.module:Class.")
    propose: str = option(
        "Who proposes them: random, or the model that is to be trained, as a folder or the URL of an OpenAI-compatible server."
    )
    alternatives: Whole = option("Other actions in each state, at most.", default=3, ge=1)
    propose_model: str | None = option("The name under which the server has the model.", default=None)
    draws: Whole | None = option(
        "Answers of a model in each state (default: twice --alternatives).", default=None, ge=1
    )
    sampling: Annotated[Sampling, prefixed("propose")] = Sampling()
    work: Work = None
    seed: Whole = option("Seed of all draws.", default=0)

    def check(self, out: Path) -> tuple[World, Path]:
        """Return the world, and the folder for answers."""
        if self.propose == "expert":
            raise UserError(
                "--propose expert: its actions are those of the trajectories; name a model, or write random"
            )
        return find(self.world), work_folder(out, self.work)

    def proposer(self, world: World, folder: Path, counts: Counter[str], held: ExitStack) -> Proposer:
        """Return who proposes.

        Args:
            folder: for answers.
            counts: receives the numbers of proposals that are no actions.
            held: closes the answers at the end.
        """
        if self.propose == "random":
            return RandomProposals(world, self.seed)
        model = self.sampling.actor(self.propose, self.propose_model, "--propose", ["random"])
        answers: Answers = held.enter_context(Answers(model, folder / "proposals.jsonl"))
        draws = 2 * self.alternatives if self.draws is None else self.draws
        return ModelProposals(answers, draws=draws, seed=self.seed, counts=counts)
