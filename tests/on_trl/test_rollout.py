"""Who made a tool's text: the tool, or the host in its place."""

import asyncio
import itertools

import pytest
import torch

from support import information
from support.information import CATEGORIES, RATIOS, Oracle, keep_ratio
from support.on_trl import (
    Batches,
    Ours,
    Scripted,
    ToolEnvironment,
    call,
    dataset,
    run,
)
from wm_plugin import EchoConfig
from wm_plugin.data.messages import Conversation
from wm_plugin.data.schema import Turn
from wm_plugin.tokens.spans import ContentLocator, SpanError
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.trl.rollout import CallRecorder, Rollouts


def message(name, content):
    return {"role": "tool", "name": name, "content": content}


def boom(text):
    if text == "raise":
        raise ValueError("boom")
    return "{'error': 'boom'}"  # the text that the host would write


async def later(text):
    await asyncio.sleep(0)
    return boom(text)


FAILURE = message("boom", "{'error': 'boom'}")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_tool_that_returns_the_text_of_a_failure_has_not_failed(asynchronous):
    calls = CallRecorder()
    first, second = calls.wrap([{"boom": later if asynchronous else boom}] * 2)

    def play(tools, text):
        return asyncio.run(tools["boom"](text=text)) if asynchronous else tools["boom"](text=text)

    assert play(first, "return") == FAILURE["content"]
    assert not calls.failed(0, FAILURE)
    with pytest.raises(ValueError, match="boom"):
        play(second, "raise")
    assert not calls.failed(0, FAILURE)  # failures belong to their row
    assert calls.failed(1, FAILURE)
    assert not calls.failed(1, FAILURE)  # each failure explains one message


def test_results_can_be_tokenized():
    async def odd():
        return "\ud800 a"

    (tools,) = CallRecorder().wrap([{"now": lambda: [{"type": "text", "text": "\ud800"}], "later": odd}])
    assert tools["now"]() == [{"type": "text", "text": "?"}]
    assert asyncio.run(tools["later"]()) == "? a"


def test_wrong_arguments_and_unknown_tools_are_the_hosts_failures():
    calls = CallRecorder()
    (tools,) = calls.wrap([{"boom": boom}])
    with pytest.raises(TypeError) as error:
        tools["boom"](no_such_argument=1)
    assert calls.failed(0, message("boom", str({"error": str(error.value)})))
    assert calls.failed(0, message("bom", "{'error': 'Tool bom not found.'}"))


def test_results_that_are_not_in_the_tokens_stop_the_run():
    pytest.importorskip("trl", minversion="1.9")  # before it the last result could be cut away whole
    rollouts = Rollouts(1)
    rollouts.completions = [[{"role": "assistant"}, message("boom", "x"), {"role": "assistant"}, message("boom", "y")]]
    rollouts.completion_ids = [[1, 2, 3, 4]]
    locator = ContentLocator(lambda texts: [], lambda tools, contents: "")
    with pytest.raises(SpanError, match="1 blocks of environment tokens but 2 groups of tool messages"):
        rollouts.origins({0: torch.tensor([1, 0, 0, 1])}, [{}], locator, lambda messages: [], str, categorize=False)


class Errors(ToolEnvironment):
    def _printed(self, code):
        return boom(code)


class Same(Batches, WorldModelGRPOTrainer):
    """Every completion: a tool's own error text, then the same text for an exception, then an answer."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        texts = []
        for ids in prompt_ids:
            depth = self.processing_class.decode(ids).count("<tool_response>")
            texts.append([call("run_code", code="return"), call("run_code", code="raise"), "done"][depth])
        return [self.processing_class(text + "<|im_end|>").input_ids for text in texts], None


def test_inside_the_trainer_only_the_tools_own_text_counts():
    for include, blocks in ((False, 1), (True, 2)):
        echo = EchoConfig(0.5, include_errors=include)
        trainer, _ = run(Same, args={"max_steps": 1}, environment=Errors, world_model=echo)
        counts = (trainer.batches[0]["wm_weights"] > 0).sum(1)
        assert counts.tolist() == [blocks * len("{'error': 'boom'}")] * 4


class Asking(Batches, WorldModelGRPOTrainer):
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        turns = information.said()
        depth = [self.processing_class.decode(ids).count("<|im_start|>assistant") - 1 for ids in prompt_ids]
        return [self.processing_class(turns[d] + "<|im_end|>").input_ids for d in depth], None


def test_turn_information_of_a_conversation_is_that_of_the_same_data():
    """Weights by hand, of the real trainer; tests/objectives/test_information.py has them of the reader."""
    echo, args = EchoConfig(0.5, turn_information=True), {"max_steps": 1, "max_completion_length": 1500}
    trainer, _ = run(Asking, args=args, environment=Oracle, world_model=echo)
    tokenizer = trainer.processing_class
    weights, ids = trainer.batches[0]["wm_weights"][0], trainer.batches[0]["completion_ids"][0]
    found = [
        (weight, list(group)) for weight, group in itertools.groupby(range(len(ids)), weights.tolist().__getitem__)
    ]
    found = [(pytest.approx(weight), tokenizer.decode(ids[group])) for weight, group in found if weight]
    assert found == list(zip(RATIOS, information.ANSWERS.values(), strict=True))
    conversation = Conversation()
    for number, message in enumerate(trainer._wm_rollouts.completions[0], 1):
        conversation.add(message, number)
    turns = [Turn.model_validate(turn) for turn in conversation.fields()]
    assert [keep_ratio(turn.action, seen) for turn in turns for seen in turn.observations] == RATIOS
    assert len(CATEGORIES) == len(found)


class Other(ToolEnvironment):
    def _shown(self, name):
        return f"OTHER {name}"


def test_several_environments_in_one_dataset():
    pytest.importorskip("trl", minversion="1.8")
    rows = dataset(16).map(lambda row, index: {"environment": ["one", "two"][index % 2]}, with_indices=True)
    worlds = {"one": ToolEnvironment, "two": Other}
    trainer, _ = run(Ours, rows=rows, environment=worlds, world_model=EchoConfig(0.5, ["lookup_doc"]))
    texts = "".join(
        trainer.processing_class.decode(batch["completion_ids"][row][batch["wm_weights"][row] > 0])
        for batch in trainer.batches
        for row in range(len(batch["completion_ids"]))
    )
    assert "DOC " in texts
    assert "OTHER " in texts
    assert "OUT[" not in texts


def deep(brackets, closing=""):
    return f'<tool_call>\n{{"name": "run_code", "arguments": {{"code": {brackets}{closing}}}}}\n</tool_call>'


@pytest.mark.parametrize("coeff", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_turns_that_the_hosts_parser_fails_on_are_plain_text(coeff):
    texts = [deep("[" * 1000), deep("[" * 300, "]" * 300), deep("[" * 220, "]" * 220)]
    unknown = '<tool_call>\n{"name": "\\ud800", "arguments": {"a": "\\ud800"}}\n</tool_call>'
    turns = itertools.cycle([*texts, call("run_code", code="1+1"), unknown])
    completions = []

    class Trainer(Scripted, WorldModelGRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            return [self.processing_class(f"{next(turns)}<|im_end|>").input_ids for _ in prompt_ids], None

        def _calculate_rewards(self, inputs, prompts, completions_, completion_ids_list):
            completions.extend(completions_)
            return super()._calculate_rewards(inputs, prompts, completions_, completion_ids_list)

    trainer, _ = run(Trainer, args={"max_steps": 1, "gradient_accumulation_steps": 1}, world_model=EchoConfig(coeff))
    contents = {turn["content"] for turns in completions for turn in turns}
    assert set(texts) <= contents
    # a lone surrogate, which no tokenizer accepts, is replaced
    assert {"run_code", "?"} == {turn["name"] for turns in completions for turn in turns if turn["role"] == "tool"}
    assert "parse_response" not in vars(trainer.processing_class)


class OddEnvironment:
    """Its tools return lists, and one is cancelled."""

    def reset(self, **_): ...

    def parts(self, word: str) -> list:
        """Content parts.

        Args:
            word: A word.
        """
        return [{"type": "text", "text": f"SEEN {word}"}, {"type": "text", "text": " and more"}]

    def numbers(self, word: str) -> list:
        """A plain list.

        Args:
            word: A word.
        """
        return [1, word]


async def cancelled(word: str) -> str:
    """Is cancelled.

    Args:
        word: A word.
    """
    raise asyncio.CancelledError("gone")


class Odd(WorldModelGRPOTrainer):
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        turns = []
        for number, ids in enumerate(prompt_ids):
            answered = "<tool_response>" in self.processing_class.decode(ids)
            tool = ("parts", "numbers", "cancelled")[number % 3]
            text = "done" if answered else call(tool, word=f"w{number}")
            turns.append(self.processing_class(text + "<|im_end|>").input_ids)
        return turns, None


@pytest.mark.parametrize("coeff", [0.0, 0.5])
def test_results_that_are_lists_or_were_cancelled_do_not_stop_a_run(coeff):
    """TRL passes a list on to the chat template, and makes a result of what was cancelled."""
    args = {"max_steps": 1, "gradient_accumulation_steps": 1}
    trainer, _ = run(Odd, args=args, environment=OddEnvironment, tools=[cancelled], world_model=EchoConfig(coeff))
    row = trainer.state.log_history[0]
    assert row["echo/tokens"] == row["echo/tool/parts/tokens"] + row["echo/tool/numbers/tokens"]
    assert row["echo/tool/parts/tokens"] > 0
    assert row["echo/tool/numbers/tokens"] == len("[1, 'w1']")
