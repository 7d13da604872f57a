"""The flags that verbs of `wm lab` share."""

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import Group, Parameter

from wm_plugin.cli.flags import Requests, Sampling, check_folder, default, is_url
from wm_plugin.cli.support import find, work_folder
from wm_plugin.errors import UserError
from wm_plugin.options import Number, Options, Whole, option

if TYPE_CHECKING:
    from wm_plugin.client.answers import Model
    from wm_plugin.data.sample import Sample
    from wm_plugin.lab.agents.proposing import Proposer
    from wm_plugin.worlds.worlds import World


@Parameter(name="*", group=Group("Model", sort_key=1))
class ServerFlags(Requests):
    """The model behind a server that a verb asks."""

    server: str = option("An OpenAI-compatible server, like http://localhost:8000/v1.", default=...)
    server_model: str = option("The name under which the server has the model.", default=...)
    max_new_tokens: Whole = default(Requests, "max_new_tokens", 8192)

    def asked(self) -> "Model":
        from wm_plugin.client.answers import ServerModel

        return ServerModel(self.client(self.server, self.server_model))


@Parameter(name="*")
class SampleFlags(Options):
    """How samples whose last message alone counts become rows."""

    host: Literal["trl", "verl"] = option("Which trainer reads the rows.", default="trl")
    tokenizer: str | None = option("Write tokens and a mask, the same for both hosts.", default=None)
    max_tokens: Whole | None = option("Leave longer samples out, and count them.", default=None, ge=1)

    def check(self, out: Path) -> None:
        """Check before hours of work that rows can be written.

        Raises:
            UserError: they cannot.
        """
        from wm_plugin.data.rows import check_rows_out

        check_rows_out(out, self.host, "sft")
        if self.max_tokens is not None and self.tokenizer is None:
            raise UserError(f"--max-tokens is {self.max_tokens}, and needs a --tokenizer to count with")

    def write(self, samples: "Iterable[Sample]", out: Path, left_out: "Counter[str] | None" = None) -> int:
        """Write rows of samples, and return their number.

        Args:
            left_out: receives the numbers of samples that are left out, by reason.
        """
        from wm_plugin.data.building import last_message_rows
        from wm_plugin.data.rows import write_rows
        from wm_plugin.data.tokenize import Tokeniser
        from wm_plugin.tokens.tokenizer import load_tokenizer

        tokeniser = Tokeniser(load_tokenizer(self.tokenizer, field="--tokenizer")) if self.tokenizer else None
        return write_rows(last_message_rows(samples, self.host, tokeniser, self.max_tokens, left_out), out)


@Parameter(name="*", group=Group("Proposals", sort_key=2))
class ProposalFlags(Options):
    """Who proposes other actions in the states of an expert's trajectories."""

    world: str = option("The world of the trajectories, by name or as package.module:Class.", default=...)
    alternatives: Whole = option("Other actions in each state, at most.", default=3, ge=1)
    propose: str = option(
        "Who proposes them: random, or the model that is to be trained, as a folder or the URL of an OpenAI-compatible server.",
        default=...,
    )
    propose_model: str | None = option("The name under which the server has the model.", default=None)
    draws: Whole | None = option(
        "Answers of a model in each state (default: twice --alternatives).", default=None, ge=1
    )
    propose_temperature: Number = default(Sampling, "temperature", 1.0)
    propose_max_new_tokens: Whole = default(Sampling, "max_new_tokens", 1024)
    propose_concurrency: Whole = default(Sampling, "concurrency", 32)
    propose_batch_size: Whole = default(Sampling, "batch_size", 64)
    propose_no_seed: bool = default(Sampling, "no_seed", False)
    work: str | None = option(
        "Folder that keeps answers, from which a killed run continues (default: X.work beside X); remove it afterwards.",
        default=None,
    )
    seed: Whole = option("Seed of all draws.", default=0)

    def check(self, out: Path) -> "tuple[World, Path]":
        """Return the world, and the folder for answers.

        Raises:
            UserError: a flag does not fit.
        """
        if self.propose == "expert":
            raise UserError(
                "--propose expert: its actions are those of the trajectories; name a model, or write random"
            )
        return find(self.world), work_folder(out, self.work)

    def proposer(self, world: "World", folder: Path, counts: "Counter[str]", held: ExitStack) -> "Proposer":
        """Return who proposes.

        Args:
            folder: for answers.
            counts: receives the numbers of proposals that are no actions.
            held: closes the answers at the end.
        """
        from wm_plugin.client.answers import Answers
        from wm_plugin.lab.agents.proposing import ModelProposals, RandomProposals

        if self.propose == "random":
            return RandomProposals(world, self.seed)
        answers: Answers = held.enter_context(Answers(self._model(), folder / "proposals.jsonl"))
        draws = 2 * self.alternatives if self.draws is None else self.draws
        return ModelProposals(answers, draws=draws, seed=self.seed, counts=counts)

    def _model(self) -> "Model":
        from wm_plugin.worlds.agents.acting import LocalActor, ServerActor

        sampling = Sampling(
            temperature=self.propose_temperature,
            max_new_tokens=self.propose_max_new_tokens,
            concurrency=self.propose_concurrency,
            batch_size=self.propose_batch_size,
            no_seed=self.propose_no_seed,
        )
        if is_url(self.propose):
            if self.propose_model is None:
                raise UserError("--propose is a server; name its model with --propose-model")
            return ServerActor(sampling.client(self.propose, self.propose_model))
        check_folder(self.propose, "--propose", ["random"])
        return LocalActor(sampling.load(self.propose))
