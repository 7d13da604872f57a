"""Each preset in two steps of verl's own `main_ppo`: the term is its trainer's formula, at the weights of each step."""

import json
import re

import pytest

pytest.importorskip("verl")

import torch

from support.reference import SAID, term
from support.run_on_verl import run_recipe, walking_policy
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

# the board that answers a move, or what verl writes after the episode's end, and the scaffold that opens the next turn
ANSWER = re.compile(r"(?<=[UDLR])([#.AGP\n]{19}[>!]|Error executing tool 'move': The episode is over\.)(:)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verl")
    walking_policy(folder / "runs" / "tiny_random")
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("name", SAID)
def test_two_steps(folder, name):
    coeff, normalization, content_only, errors, temperature = SAID[name]
    run = run_recipe(
        "echo_grpo_tiny",
        folder,
        *(f"wm.preset={name}", "wm.coeff=null", f"actor_rollout_ref.rollout.temperature={temperature}"),
        *("trainer.total_training_steps=2", "trainer.save_freq=1", f"trainer.rollout_data_dir={folder / name}"),
        f"trainer.default_local_dir={folder / name / 'checkpoints'}",
        *(["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64"] if name == "openenv" else []),  # one a step
        timeout=800,
    )
    assert run.code == 0, run.output[-5000:]
    prefix = "echo_tempered" if temperature != 1.0 else "echo"
    assert run.series(f"{prefix}/coeff") == pytest.approx([coeff] * 2)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0)
    saved = folder / name / "checkpoints" / "global_step_1/actor/model_world_size_1_rank_0.pt"
    after = {key: _local(value) for key, value in torch.load(saved, weights_only=False).items()}
    before = type(model).from_pretrained(folder / "runs" / "tiny_random").state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    for step, weights in enumerate((before, after)):
        model.load_state_dict(weights)
        rows = [json.loads(line) for line in (folder / name / f"{step + 1}.jsonl").read_text().splitlines()]
        batch, mask = tensors(rows, tokenizer, content_only, errors)
        loss, _ = term(model, [batch], [mask], normalization=normalization, temperature=temperature)
        assert run.series(f"{prefix}/tokens")[step] == int(mask.sum()) > 0
        assert run.series(f"{prefix}/loss")[step] == pytest.approx(coeff * loss.item(), rel=1e-4)


def _local(value):
    return value.to_local() if hasattr(value, "to_local") else value


def tensors(rows, tokenizer, content_only, errors):
    """Dumped rollouts as `reference.term` takes a batch, a character a token, and (B, T) which of them count."""
    prompts, responses = ([row[part] for row in rows] for part in ("input", "output"))
    assert len({len(prompt) for prompt in prompts}) == 1
    longest = max(map(len, responses))
    mask = torch.zeros(len(rows), longest, dtype=torch.float64)
    for row, text in enumerate(responses):
        for answer in ANSWER.finditer(text):
            if errors or not answer[1].startswith("Error"):
                mask[row, answer.start() : answer.end(1 if content_only else 2)] = 1
    ids = [tokenizer(texts).input_ids for texts in (prompts, [text.ljust(longest, "-") for text in responses])]
    batch = dict(zip(("prompt_ids", "completion_ids"), map(torch.tensor, ids), strict=True))
    return {**batch, **{f"{key[:-3]}mask": torch.ones_like(value) for key, value in batch.items()}}, mask
