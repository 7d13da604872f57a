"""Each preset in two optimizer steps of the real trainer: the term is its trainer's formula, at the weights of each step."""

import pytest
import torch
from transformers import TrainerCallback

from support import reference
from support.on_trl import Ours, config, make, make_model, series
from support.reference import SAID
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.objectives.echo import PRESETS


class Weights(TrainerCallback):
    """The weights before each optimizer step."""

    def __init__(self):
        self.steps = []

    def on_step_begin(self, args, state, control, model=None, **_):
        self.steps.append({name: value.clone() for name, value in model.state_dict().items()})


def test_every_preset_is_here():
    assert list(SAID) == list(PRESETS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_two_steps(name):
    coeff, normalization, content_only, errors, temperature = SAID[name]
    accumulation, weights = 1 if name == "openenv" else 2, Weights()
    fields = {"gradient_accumulation_steps": accumulation, "learning_rate": 1e-3, "temperature": temperature}
    echo = EchoConfig(preset=name)
    trainer = make(Ours, args=fields, world_model=echo, dtype=torch.float64, callbacks=[weights])
    torch.manual_seed(11)
    trainer.train()
    prefix = "echo_tempered" if temperature != 1.0 else "echo"
    assert series(trainer, f"{prefix}/coeff") == pytest.approx([coeff] * 2)
    tokenizer = trainer.processing_class
    model = make_model(tokenizer, dtype=torch.float64)
    for step, state in enumerate(weights.steps):
        batches = trainer.batches[step * accumulation : (step + 1) * accumulation]
        masks = [reference.weights(b, tokenizer, None, content_only=content_only, errors=errors) for b in batches]
        model.load_state_dict(state)
        loss, counted = reference.term(model, batches, masks, normalization=normalization, temperature=temperature)
        assert series(trainer, f"{prefix}/loss")[step] == pytest.approx(coeff * loss.item(), rel=1e-6)
        assert series(trainer, f"{prefix}/tokens")[step] == sum(int(mask.sum()) for mask in masks) > 0
        if normalization != "per_micro_batch":  # which divides by no count of the whole batch
            assert {int(batch["wm_num_tokens"]) for batch in batches} == {counted}
    assert any(not torch.equal(*pair) for pair in zip(*(s.values() for s in weights.steps), strict=True))


def test_the_preset_that_depends_on_the_split_is_refused_with_accumulation_unless_asked():
    with pytest.raises(UserError, match="preset openenv divides by the tokens of each micro-batch"):
        make(Ours, args={"gradient_accumulation_steps": 2}, world_model=EchoConfig(preset="openenv"))
    coeff, normalization, content_only, *_ = SAID["openenv"]
    asked = EchoConfig(coeff, normalization=normalization, content_only=content_only, include_errors=True)
    assert make(Ours, args=config(gradient_accumulation_steps=2), world_model=asked)._wm.active
