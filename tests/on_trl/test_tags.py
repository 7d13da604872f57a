"""WMAct's text protocol in TRL's trainer: what is read, what is shown, which tokens are whose, and what the reward is."""

from pathlib import Path

import pytest
import yaml

from support.on_trl import NEEDS_ENVIRONMENTS, Batches, make_model, make_tokenizer, series
from support.play_on_trl import Speaker, spoken
from support.wmact import GIVES_UP, plans, says
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.hosting import config_file
from wm_plugin.hosting.tags import REMINDER, in_tags
from wm_plugin.trl import train
from wm_plugin.trl.tags import reader
from wm_plugin.worlds.maze import MazeEnvironment
from wm_plugin.worlds.wrappers.rewarded import rewarded

pytestmark = NEEDS_ENVIRONMENTS

BOARD = "#####\n#A.G#\n#####"
REWARDED = rewarded(MazeEnvironment, rescale=True)


class Kept(Batches, Speaker):
    """Keeps what was first shown to the policy."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        self.first = getattr(self, "first", self.processing_class.decode(prompt_ids[0]))
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)


def speaker(script, environment, **kwargs):
    return spoken(script, environment, {"board": BOARD, "max_turns": 4}, cls=Kept, **kwargs)


def test_answers_act_and_observations_are_the_users():
    turns = [says("move left", "or <action>move up</action>"), says("move right; move right"), "done"]
    script = [turns, turns, [says("move right; move right"), "end"], ["I give up"]]
    trainer = speaker(script, in_tags(REWARDED), world_model=EchoConfig(1.0))
    tokenizer, (kept,) = trainer.processing_class, trainer.batches
    assert f"Go.{BOARD}>" in trainer.first
    assert trainer.first.count("<action>first action; second action</action>") == 1
    assert "<tools>" not in trainer.first
    first, last = "#####\n#A.G#\n#####>", "#####\n#..P#\n#####!"
    user = f"<|im_start|>user\n{{}}{REMINDER}<|im_end|>\n<|im_start|>assistant\n".format
    ids, mask, counted = (kept[name][0] for name in ("completion_ids", "tool_mask", "wm_weights"))
    length = int(kept["completion_mask"][0].sum())
    ids, mask, counted = ids[:length], mask[:length], counted[:length]
    assert (
        tokenizer.decode(ids)
        == "<|im_end|>\n".join([turns[0], user(first) + turns[1], user(last) + turns[2]]) + "<|im_end|>"
    )
    assert tokenizer.decode(ids[mask.bool()]) == "".join(f"{turn}<|im_end|>" for turn in turns)
    assert tokenizer.decode(ids[counted > 0]) == first + last  # ECHO's tokens: what the world wrote, and nothing else
    assert series(trainer, "reward") == [pytest.approx((2 * 2 / 3 + 1.0 - 0.1) / 4)]
    assert "parse_response" not in vars(tokenizer)  # the user's own is as it was
    message = trainer._wm_rollouts.completions[0][0]
    assert message["content"] == turns[0]
    assert message["tool_calls"][0]["function"] == {"name": "act", "arguments": {"actions": "move left"}}


@pytest.mark.parametrize(("limit", "reward"), [(1, 0.0), (2, -0.1)])
def test_nothing_is_asked_for_after_the_last_turn(limit, reward):
    script = [[says("move right"), "done"]] * 2
    trainer = speaker(script, in_tags(REWARDED), args={"max_tool_calling_iterations": limit})
    assert trainer.outcomes == pytest.approx([reward] * 2)
    assert series(trainer, "reward") == [pytest.approx(reward)]


def test_worlds_in_tags_and_others_do_not_go_together():
    with pytest.raises(UserError, match="put all of them in tags, or none"):
        speaker([["x"]] * 4, {"a": in_tags(MazeEnvironment), "b": MazeEnvironment})


@pytest.mark.parametrize(
    ("answer", "settings", "actions"),
    [
        (says("a"), {}, "a"),
        (says("a") + "more", {"limit": 4}, None),  # cut: the results would follow a turn without an end
        (says("a") + "<|im_end|>", {"limit": 4}, "a"),
        (says("a"), {"limit": 4000}, "a"),  # ended by a stop string, say
        ("or <action>b</action>", {"thinking": True}, None),
        ("or <action>b</action></think><action>a</action>", {"thinking": True}, "a"),
    ],
)
def test_what_is_read(answer, settings, actions):
    tokenizer = make_tokenizer()
    settings = {"thinking": False, "limit": None, "end_ids": {tokenizer.eos_token_id}} | settings
    own = reader(tokenizer, **settings)
    for special in (False, True):  # some tokenizers count the tags among their special tokens
        if special:
            tags = ["<think>", "</think>", "<action>", "</action>"]
            tokenizer.add_special_tokens({"additional_special_tokens": tags})
            own = reader(tokenizer, **settings)
        message = own.parse_response(tokenizer(answer).input_ids, prefix=[1], tools=[])
        read = [call["function"]["arguments"]["actions"] for call in message.get("tool_calls", ())]
        assert read == ([] if actions is None else [actions])
    assert own.encode("<|im_start|>a") == tokenizer.encode("<|im_start|>a")
    assert own.eos_token_id == tokenizer.eos_token_id
    assert "parse_response" not in vars(tokenizer)


SMALL = """
{use_cpu: true, bf16: false, dtype: float32, gradient_checkpointing: false, use_vllm: false, report_to: [], save_strategy: "no",
generation_kwargs: {max_new_tokens: 900}, max_completion_length: 2500, max_steps: 1, gradient_accumulation_steps: 1,
num_generations: 2, per_device_train_batch_size: 4, eval_steps: 1, num_generations_eval: 2, per_device_eval_batch_size: 4}
"""
RECIPE = Path(__file__).parents[2] / "recipes/trl/wmact_grpo.yaml"


@pytest.mark.slow
def test_the_recipes_levels_are_solved_in_tags_from_the_file_to_what_is_logged(tmp_path, monkeypatch):
    """The recipe itself, of two levels a set and a small model, whose answers are an expert's."""
    for module in ("reasoning_gym", "mazelib", "gymnasium"):
        pytest.importorskip(module)
    recipe = config_file.read(str(RECIPE))
    for arguments in recipe["eval_rows_kwargs"].values():
        (options,) = arguments["environments"].values()
        options["count"] = 2
    recipe["train_rows_kwargs"]["environments"]["sokoban"] = 2
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    recipe |= yaml.safe_load(SMALL) | {"output_dir": f"{tmp_path}/out", "model_name_or_path": f"{tmp_path}/model"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(recipe))
    trainer, _ = train.build(["--config", str(tmp_path / "config.yaml")])
    tokenizer = trainer.processing_class
    script = {
        (first, name.endswith("_single")): turns
        for name, rows in {"train": trainer.train_dataset, **trainer.eval_dataset}.items()
        for first, turns in plans(rows, per_turn=20).items()
    }
    lost = next(key for key in script if "|" in key[0] and key[1])  # one of the taxi's, in one turn
    script[lost] = [GIVES_UP]

    def answer(self, prompt_ids, *_, **__):
        prompts = [tokenizer.decode(ids) for ids in prompt_ids]
        turns = [
            next(turns for (first, single), turns in script.items() if first in text and single == ("one turn" in text))
            for text in prompts
        ]
        said = [text.count("<|im_start|>assistant") - 1 for text in prompts]
        texts = [f"{turn[number]}<|im_end|>" for turn, number in zip(turns, said, strict=True)]
        return tokenizer(texts).input_ids, None

    monkeypatch.setattr(type(trainer), "_generate_single_turn", answer)
    trainer.train()
    (step,) = [row for row in trainer.state.log_history if "reward" in row]
    assert step["reward"] == step["wm/env/success"] == step["wm/env/effective_share"] == 1
    assert len(trainer.eval_dataset) == 12
    for name in trainer.eval_dataset:
        (logged,) = [row for row in trainer.state.log_history if f"eval_{name}_loss" in row]
        reward, success = (0.45, 0.5) if name == "taxi_256_over_60_single" else (1, 1)
        assert logged["eval_reward"] == pytest.approx(reward)
        assert logged[f"eval_{name}_wm/env/success"] == success
        if name.endswith("_single"):
            assert logged[f"eval_{name}_wm/env/single_turn_success"] == success
