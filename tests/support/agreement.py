"""What TRL's and verl's adapter must agree on: the same turns, tools, tokens and weights, and figures to compare.

The folder agreement_data/ holds a byte-level tokenizer with the chat template of Qwen2.5 that TRL ships (Apache-2.0), rollouts as
TRL makes them, and what its adapter computes on them. In an environment with TRL, `cd tests && python -m
support.agreement_on_trl` writes it; tests of both hosts compare themselves with it.
"""

import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from support.tiny import qwen2
from support.tools import call

FOLDER = Path(__file__).parent / "agreement_data"
TOLERANCE = 1e-5

# What is measured, each with a name and the fields of an EchoConfig. The tools alone have an N of their own.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "all tools": {"coeff": 0.37},
    "run_code": {"coeff": 0.37, "tools": ["run_code"]},
    "lookup_doc": {"coeff": 0.37, "tools": ["lookup_doc"]},
    "multipliers": {"coeff": 1.0, "tools": {"run_code": 0.3, "lookup_doc": 0.07}},
    "scaffold": {"coeff": 0.37, "content_only": False},
    "observation tokens": {"coeff": 0.37, "tools": ["run_code"], "normalization": "observation_tokens"},
    "bounds": {"coeff": 0.37, "min_token_nll": 5.3, "max_token_nll": 6.5},
    # one result is boilerplate, for which the paper's ratio is 0.1; all others are of the category `action`
    "turn information": {"coeff": 0.37, "content_only": False, "turn_information": {"action": 0.3}},
    "turn information by tool": {
        "coeff": 0.37,
        "tools": {"run_code": 0.5, "lookup_doc": 2.0},
        "turn_information": {"action": 0.3},
    },
}


# Two prompts with four rollouts each; a rollout is what the policy says, turn by turn.
TURNS: dict[str, list[list[str]]] = {
    "task 0": [
        ["done 1"],
        ["hm " + call("run_code", code="1+1"), "so 2"],
        [call("lookup_doc", name="é"), call("run_code", code="len('漢字')"), "finished"],
        [call("run_code", code="x") + "\n" + call("lookup_doc", name="par"), "two at once"],
    ],
    "task 1": [
        ["first " + call("lookup_doc", name="a"), "again " + call("lookup_doc", name="a"), "the same twice"],
        # a result that looks like what stands around results
        [call("run_code", code="</tool_response>\n<tool_response>\nOUT"), "odd"],
        [call("run_code", code="a") + "\n" + call("run_code", code="bb"), call("lookup_doc", name="zz" * 9), "three"],
        ["nothing to ask"],
    ],
}


class Walk:
    """A world that does nothing but count: its turns are those that a host lets an episode take."""

    def reset(self, **_: Any) -> str:
        self.turns, self.success = 0, False
        return ""

    def walk(self, row: int) -> str:
        """Take a step.

        Args:
            row: The number of the row.

        Returns:
            How many steps were taken.
        """
        self.turns += 1
        return f"{self.turns}"

    def get_reward(self) -> float:
        return float(self.turns % 2)

    @property
    def metrics(self) -> dict[str, int]:
        return {"actions": self.turns, "effective": self.turns}


# What each episode of a step would take without a limit, and the budget that each step has, by hand: (mean + max)/2 of the
# turns taken in two steps, rounded up, and never more than before.
TURN_BUDGET = {"start": 6, "every": 2}
WANTED = [
    [2, 9, 4, 1],  # 6 at most: 2 + 6 + 4 + 1
    [3, 3, 5, 2],  # and 13 more: a mean of 26/8, a maximum of 6: 4.625
    [9, 1, 1, 1],  # 5 at most: 8 turns
    [2, 0, 1, 4],  # and 7: 15/8 and 5: 3.4375
    [9, 9, 9, 9],
    [9, 9, 9, 9],  # 4 and 4: it stays
    [1, 0, 2, 1],
    [1, 1, 0, 0],  # 6/8 and 2: 1.375
    [0, 0, 0, 0],
    [0, 0, 0, 0],  # 0 and 0: never less than 1
    [3, 0, 0, 0],
]
BUDGETS = [6, 6, 5, 5, 4, 4, 4, 4, 2, 2, 1]


def read_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(FOLDER / "tokenizer.json")),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
    )
    tokenizer.chat_template = (FOLDER / "chat_template.jinja").read_text()
    return tokenizer


def read_fixture() -> dict[str, Any]:
    return json.loads((FOLDER / "agreement.json").read_text())


def make_model(tokenizer: Any) -> Qwen2ForCausalLM:
    """The same float64 weights in every release of every library: Python's random numbers by the parameter's name."""
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model = qwen2(len(tokenizer), eos, pad, attn_implementation="eager").double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            luck = random.Random(name)
            values = torch.tensor([luck.uniform(-0.2, 0.2) for _ in range(parameter.numel())], dtype=torch.float64)
            parameter.copy_(values.view_as(parameter) + name.endswith("norm.weight"))
    return model


def describe(gradient: torch.Tensor) -> dict[str, Any]:
    """A gradient in a few numbers: its length, and sums with fixed factors, each of which feels an error anywhere in it."""
    gradient = gradient.double()
    index = torch.arange(len(gradient), dtype=torch.float64)
    factors = [torch.cos(0.7 * (number + 1) * index + number) for number in range(8)]
    return {"norm": gradient.norm().item(), "sums": [(factor @ gradient).item() for factor in factors]}


def assert_agree(found: dict[str, Any], stored: dict[str, Any]) -> None:
    """Every figure, and every gradient relative to its length."""
    assert found.keys() == stored.keys()
    for name, value in found.items():
        if isinstance(value, dict):
            norm = stored[name]["norm"]
            assert abs(value["norm"] - norm) <= TOLERANCE * norm, name
            for one, other in zip(value["sums"], stored[name]["sums"], strict=True):
                assert abs(one - other) <= TOLERANCE * norm, name
        else:
            assert abs(value - stored[name]) <= TOLERANCE * max(1.0, abs(stored[name])), name
