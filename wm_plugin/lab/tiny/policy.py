"""A character tokenizer with one-token tool calls, and a Qwen2 with 0.16M parameters. Nothing is downloaded.

A policy's turn is one token: a move (U, D, L or R) is a whole tool call, anything else a final answer.
"""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import transformers
import yaml
from packaging.version import Version
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from wm_plugin.worlds.grid import MAX_TURNS, GridEnvironment

ACTIONS = "UDLR"
PAD, EOS = "<pad>", "<|im_end|>"  # verl looks for this EOS name in Qwen tokenizers
HEADER = ":"  # opens a policy's turn: the template's only scaffold


def template(name: str) -> str:
    """Return the chat template in `name`.jinja, whose lines are one text."""
    return "".join(Path(__file__).with_name(f"{name}.jinja").read_text(encoding="utf-8").splitlines())


# A user's or a tool's message is its content alone. A `move` call is one character; other calls are spelt out, since TRL checks
# the template with them. Earlier messages never depend on later ones, so that prefixes are preserved.
CHAT_TEMPLATE = template("policy")
RESPONSES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("responses.yaml").read_text(encoding="utf-8"))


Tokenizer: TypeAlias = PreTrainedTokenizerBase


def make_tokenizer() -> Qwen2Tokenizer:
    """Make a tokenizer with one token for each printable ASCII character and the line end; other characters are dropped.

    It is a `Qwen2Tokenizer` (a byte-level BPE without merges), because `AutoTokenizer` loads that class for every Qwen2 model.
    It has the chat template and the response template (or schema) that TRL's tool loop needs.
    """
    # Byte-level BPE writes the space and the line end as these letters.
    characters = ["Ċ", "Ġ", *sorted(string.digits + string.ascii_letters + string.punctuation)]
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *characters])}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary, merges=[], unk_token=None, pad_token=PAD, eos_token=EOS, padding_side="left"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    if Version(transformers.__version__) >= Version("5.13.0.dev0"):
        tokenizer.response_template = RESPONSES["policy"]
    else:
        tokenizer.response_schema = RESPONSES["policy_before_5_13"]  # which is not saved
    return tokenizer


def make_model(
    tokenizer: Tokenizer,
    seed: int,
    heads: int = 2,
    *,
    layers: int = 3,
    width: int = 64,
    positions: int = 512,
    theta: float = 1000.0,
) -> Qwen2ForCausalLM:
    """Make an untrained Qwen2. Equal seeds give equal weights; the global generator keeps its state.

    Its generation config ends a turn after one token, whichever it is.

    Args:
        positions: the longest text.
        theta: the base of the rotary positions.
    """
    vocabulary = len(tokenizer) + -len(tokenizer) % 8
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 5 // 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=False,
        initializer_range=0.8 / width**0.5,  # 0.1 at width 64
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
        # Wide initial weights learn this fast only with small embeddings and a residual stream that does not grow.
        for name, parameter in model.named_parameters():
            if "embed" in name or "lm_head" in name:
                parameter.mul_(0.2)
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.div_((2 * layers) ** 0.5)
    model.generation_config.eos_token_id = list(range(vocabulary))
    return model


# Chooses moves in the policy's place: takes the episodes so far, as texts that end where the policy's turn begins, and how many
# turns are left; returns the index of a move for each, or None to let the policy move.
Adviser = Callable[[list[str], int], list[int | None]]


@dataclass(frozen=True)
class Played:
    """A policy's episode. `parts` is [observation, action, observation, ...]."""

    parts: list[str]
    success: bool
    turns: int


def play(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    boards: Sequence[str],
    seed: int,
    advise: Adviser | None = None,
    world: type[GridEnvironment] = GridEnvironment,
) -> list[Played]:
    """Sample an episode on each board at temperature 1, restricted to the four moves; `advise` may choose moves instead.

    The random numbers depend on board and turn only, so that two policies with one seed differ only by their preferences.
    """
    device = next(model.parameters(), torch.empty(0)).device
    draws = torch.rand(len(boards), MAX_TURNS, generator=torch.Generator().manual_seed(seed)).to(device)
    allowed = tokenizer(ACTIONS).input_ids
    environments = [world() for _ in boards]
    parts = [[environment.reset(board)] for environment, board in zip(environments, boards, strict=True)]
    training = model.training
    model.eval()
    alive, cache = list(range(len(boards))), None
    for turn in range(MAX_TURNS):
        new = ["".join(parts[index][-2:]) + HEADER for index in alive]  # a move and a board: all have one length
        with torch.no_grad():
            output = model(
                input_ids=torch.tensor(tokenizer(new).input_ids, device=device),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        below = output.logits[:, -1, allowed].float().softmax(-1).cumsum(-1) < draws[alive, turn, None]
        choices = below[:, :-1].sum(-1).tolist()
        if advise:
            advice = advise([transcript(parts[index]) for index in alive], MAX_TURNS - turn)
            choices = [own if move is None else move for own, move in zip(choices, advice, strict=True)]
        for index, choice in zip(alive, choices, strict=True):
            parts[index] += [ACTIONS[choice], environments[index].move(ACTIONS[choice])]
        going_on = [row for row, index in enumerate(alive) if not environments[index].over]
        if not going_on:
            break
        alive, cache = [alive[row] for row in going_on], output.past_key_values
        cache.batch_select_indices(torch.tensor(going_on, device=device))
    model.train(training)
    return [
        Played(episode, environment.success, environment.turns)
        for episode, environment in zip(parts, environments, strict=True)
    ]


def transcript(parts: Sequence[str]) -> str:
    """Write an episode [observation, action, ..., observation] as the policy reads it at its turn."""
    return "".join(part if index % 2 else part + HEADER for index, part in enumerate(parts))
