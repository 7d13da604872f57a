"""How well a policy is its own world model: it continues the tool's part of a rollout, which it was trained to read.

An episode is written as the trainer writes a rollout: the prompt and the policy's turns by its chat template, and after each turn
with calls the tokens of their results. Everything is real up to a result's first token. From there the policy greedily decodes as
many tokens as the result has, since it never learned where a result ends: the objective counts its content, not what the template
writes after it. Exact match and likelihoods are those of `one_step`, token by token; the other measures are those of `fidelity`.
There is no success mark: a tool does not write it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any

import torch

from wm_plugin.client.answers import Answer, Answers, Conversation
from wm_plugin.client.predict import LocalPredictor
from wm_plugin.data.chat import conversation
from wm_plugin.data.host_dumps import RENDERED
from wm_plugin.data.render import write_action
from wm_plugin.data.schema import Trajectory
from wm_plugin.data.transitions import identity, with_success
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.cases import Case, Episode, Item, facts
from wm_plugin.lab.evaluation.fidelity import measure
from wm_plugin.lab.evaluation.inspect import Inspector, Inspectors
from wm_plugin.lab.evaluation.measures import Evaluation
from wm_plugin.lab.evaluation.one_step import TokenScores, greedy, token_scores
from wm_plugin.objectives.echo import EchoConfig
from wm_plugin.tokens.message import Message

KIND = "policy"  # of `wm eval one-step --as`
NO_SERVER = (
    "a server writes an assistant's turns, and has no way to go on with a tool's result; name the policy's folder "
    "with --model, or ask the server as a world model with another --as"
)
_ROLES = "a rollout of a policy has no {} message after its first turn"
_TWO = "two turns of the policy without a result between them"
_EMPTY = "the result has no token of its own"


class PolicyModel:
    """A policy in this process as a `Model`, so that `Answers` keeps what it writes. It is asked one question at a time.

    A question is one message, `{"ids": …, "start": …}`: the tokens of a rollout up to the end of a result, and where the result
    begins. The policy sees those before, and how many the result has.

    Args:
        predictor: the policy; its temperature and its limit of new tokens are not used.
    """

    batched = False

    def __init__(self, predictor: LocalPredictor) -> None:
        self.predictor = predictor

    @property
    def settings(self) -> dict[str, Any]:
        return {"weights": self.predictor.settings["weights"], "temperature": 0, "asked": KIND}

    def ask(
        self,
        conversations: Sequence[Conversation],
        seeds: Sequence[int],  # noqa: ARG002
        keep: Callable[[int, Answer], None],
    ) -> None:
        for index, (message,) in enumerate(conversations):
            tokens = _continued(self.predictor.model, message["ids"], message["start"])
            keep(index, Answer(_decoded(self.predictor.tokenizer, tokens)))


def policy_fidelity(
    items: Iterable[Item],
    answers: Answers,
    *,
    inspectors: Inspectors | None = None,
    limit: int | None = None,
    **more: Any,
) -> Evaluation:
    """Let a policy write every call's result, and compare.

    Args:
        items: trajectories in which an agent calls tools, such as those of `wm env rollout`.
        inspectors: of `inspectors_of`, which count the rollouts that had other tokens in training.
        more: `embedding`, `seed`, `subject`, `data` and `folder`, as in `measure`.
    """
    policy = answers.model
    if not isinstance(policy, PolicyModel):
        raise UserError(f"--as {KIND}: {NO_SERVER}")
    left_out: Counter[str] = Counter()
    inspectors = inspectors or inspectors_of(policy.predictor)
    asked = episodes(items, policy.predictor, inspectors, limit=limit, left_out=left_out)
    settings = {"kind": KIND, "prompts": "", "world_context": False, "shots": 0, "demonstrations": "", "limit": limit}
    likelihood = partial(_likelihood, policy.predictor.model)
    return measure(asked, answers, likelihood, None, "", settings, left_out, **more)


def inspectors_of(predictor: LocalPredictor, chat_template: str | None = None) -> Inspectors:
    """Make what writes rollouts as tokens of a policy. `chat_template`: the trainer's, if it is not the tokenizer's own."""
    tokenizer, config, ends = predictor.tokenizer, EchoConfig(coeff=1.0), predictor.ends
    return Inspectors(partial(Inspector, tokenizer, config, chat_template=chat_template, end_ids=ends))


def episodes(
    items: Iterable[Item],
    predictor: LocalPredictor,
    inspectors: Inspectors,
    *,
    limit: int | None = None,
    left_out: Counter[str],
) -> Iterator[Episode]:
    """Make the cases of trajectories' results, in order; what a filter marked as no target is left out."""
    for item in islice(items, limit):
        if not isinstance(item, Trajectory):
            raise UserError(f"--as {KIND} is asked about whole episodes, and these are transitions; give trajectories")
        if cases := _cases(item, inspectors, predictor.tokenizer, left_out):
            yield Episode(cases, None)


def _cases(trajectory: Trajectory, inspectors: Inspectors, tokenizer: Any, left_out: Counter[str]) -> list[Case]:
    messages = conversation(trajectory)
    first = next((place for place, one in enumerate(messages) if one["role"] == "assistant"), len(messages))
    prompt, completion = messages[:first], messages[first:]
    turns = [(n, turn) for n, turn in enumerate(with_success(trajectory).turns) if turn.actor == "agent"]
    observed = [(number, turn, one) for number, turn in turns for one in turn.observations]
    if reason := _no_rollout(completion):
        left_out[reason] += sum(bool(turn.observations) for _, turn in turns)
        return []
    if not observed:
        return []
    tools = list(trajectory.context.action_space) or None
    inspection = inspectors.of(trajectory.metadata.get(RENDERED), tools).messages(prompt, completion, tools)
    contents = {piece.result: piece for piece in inspection.pieces if piece.kind == "content"}
    name = identity(trajectory)
    known = trajectory.success is not None or any(one.data.get("success") is True for _, _, one in observed)
    cases: list[Case] = []
    before = trajectory.context.initial_state
    for result, (number, turn, one) in enumerate(observed):
        piece = contents.get(result)
        if one.data.get("target") is False or piece is None:
            left_out[_EMPTY if piece is None else "no target"] += 1
        else:
            found = facts(turn.action, [one])
            case = Case(
                name,
                number + 1,
                [{"ids": list(inspection.ids[: piece.end]), "start": piece.start}],
                _decoded(tokenizer, inspection.ids[piece.start : piece.end]),
                before,
                write_action(turn.action, one.call),
                known=known,
                **{**found, "tool": found["tool"] or piece.tool or ""},
            )
            cases.append(case)
        before = one.text
    return cases


def _no_rollout(completion: Sequence[Message]) -> str:
    """Say why messages are no rollout of a host's tool loop; "" if they are one."""
    roles = [str(message["role"]) for message in completion]
    if others := sorted({role for role in roles if role not in ("assistant", "tool")}):
        return _ROLES.format(" or ".join(others))
    doubled = any(role == "assistant" and len(list(group)) > 1 for role, group in groupby(roles))
    return _TWO if doubled else ""


def _likelihood(model: torch.nn.Module, episode: Episode) -> list[TokenScores]:
    """Score the results' tokens, without the template's tokens after them."""
    questions = [message for case in episode.cases for message in case.messages]
    ids = questions[-1]["ids"]  # each question begins with the one before
    mask = [0] * len(ids)
    for question in questions:
        start, end = question["start"], len(question["ids"])
        mask[start:end] = [1] * (end - start)
    runs = token_scores(model, ids, mask)  # two results without a token between them are one run
    columns = [torch.cat([getattr(run, name) for run in runs]) for name in ("nll", "confidence", "right")]
    sizes = [len(question["ids"]) - question["start"] for question in questions]
    return [TokenScores(*parts) for parts in zip(*(torch.split(column, sizes) for column in columns), strict=True)]


def _continued(model: torch.nn.Module, ids: Sequence[int], start: int) -> list[int]:
    """Decode greedily in the place of `ids[start:]`; one pass tells how far that equals the real tokens."""
    real = list(ids[start:])
    device = next(model.parameters()).device
    with torch.inference_mode():
        tokens = torch.tensor([ids], device=device)
        choices = model(input_ids=tokens[:, :-1]).logits[0, start - 1 :].argmax(-1).tolist()
        right = next((n for n, (one, other) in enumerate(zip(choices, real, strict=True)) if one != other), len(real))
        return real[:right] + greedy(model, tokens[:, : start + right], len(real) - right)


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
