"""Every environment in verl's own main_ppo: two training steps, and the episodes that the rollout without a host has."""

import json

import pytest

pytest.importorskip("verl")

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from support.agreement import FOLDER
from support.environments import OWN, SEED, episodes, world
from support.run_on_verl import run_recipe
from support.verl_cpu.script import ENVIRONMENT_VARIABLE
from wm_plugin.hosting.figures import summary
from wm_plugin.hosting.world import tool_methods
from wm_plugin.verl.data import verl_rows, write
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.mixture import dataset_rows

PROMPT, RESPONSE = 4096, 2048


def make_tokenizer(conversations):
    """A byte-level BPE learnt from these prompts, with Qwen2.5's chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [json.dumps(conversation) for conversation in conversations]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    special = [AddedToken(text, special=True, normalized=False) for text in ("<|im_start|>", "<|im_end|>")]
    marks = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    fast.add_tokens([*special, *(AddedToken(text, normalized=False) for text in marks)])
    fast.chat_template = (FOLDER / "chat_template.jinja").read_text()
    return fast


def make_policy(path, tokenizer):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=PROMPT + RESPONSE,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)


@pytest.mark.slow
def test_every_environment_is_trained_in_for_two_steps_and_shows_what_it_shows_without_a_host(tmp_path):
    names = [name for name in OWN if not world(name, skip=False).missing()]
    assert len(names) >= 6
    found = {name: episodes(name, "verl", 1)[0] for name in names}
    rows = dataset_rows(dict.fromkeys(names, 1), seed=SEED)
    for row in rows:
        row["prompt"] = [dict(message) for message in row["prompt"]]
    write(verl_rows(rows, "worlds"), tmp_path / "rows.parquet")
    schemas = [
        tool_schema(method)
        for name in names
        for method in (getattr(world(name).environment, tool) for tool in tool_methods(world(name).make()))
    ]
    tokenizer = make_tokenizer([schemas, *(episode.played.model_dump(mode="json") for episode in found.values())])
    make_policy(tmp_path / "runs" / "tiny_random", tokenizer)
    (tmp_path / "runs/tiny_random/grid.parquet").touch()  # the script makes what is not there
    script = {e.played.context.initial_state: [f"{turn}<|im_end|>" for turn in e.turns] for e in found.values()}
    (tmp_path / "script.json").write_text(json.dumps(script))
    done = run_recipe(
        "echo_grpo_tiny",
        tmp_path,
        f"data.train_files={tmp_path}/rows.parquet",
        f"data.val_files={tmp_path}/rows.parquet",
        f"data.train_batch_size={len(names)}",
        f"data.max_prompt_length={PROMPT}",
        f"data.max_response_length={RESPONSE}",
        f"wm.environment={{{', '.join(f'{name}: {name}' for name in names)}}}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={len(names)}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.rollout.multi_turn.format=hermes",
        "actor_rollout_ref.rollout.multi_turn.max_tool_response_length=100000",
        "trainer.total_training_steps=2",
        "trainer.total_epochs=2",
        environment={ENVIRONMENT_VARIABLE: str(tmp_path / "script.json")},
    )
    assert done.code == 0, done.output[-3000:]
    figures = [episode.played.metadata["figures"] for episode in found.values()]
    rewards = [episode.played.reward for episode in found.values()]
    assert len(done.steps) == 2
    for step in done.steps:
        assert step["wm/lost"] == 0
        assert step["echo/tokens"] > 0
        assert step["critic/score/mean"] == pytest.approx(sum(rewards) / len(rewards))
        shown = {name: value for name, value in step.items() if name.startswith("wm/env/")}
        for name, value in summary(figures).items():
            assert shown[name] == pytest.approx(value), name
        assert shown["wm/env/truncated"] == 0
        assert 6 <= shown["wm/env/budget"] <= 7  # the recipe allows 7 turns, the grid itself 6
        called = sum(value for name, value in shown.items() if name.startswith("wm/env/calls/"))
        assert called > 0
    assert done.steps[0]["echo/nll"] != done.steps[1]["echo/nll"]  # the first step changed the weights
