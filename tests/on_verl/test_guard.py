"""The NLL of validation rollouts on verl, and the guard that watches it. `test_main_ppo.py` has both in a whole run."""

from types import SimpleNamespace

import pytest

pytest.importorskip("verl")

import datasets
import torch
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from support.bare_on_verl import bare
from wm_plugin.errors import UserError
from wm_plugin.objectives import EchoConfig, Span
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.tokens.spans import Origin
from wm_plugin.verl import trainer as trainer_module
from wm_plugin.verl.config import WorldModelConfig
from wm_plugin.verl.names import COEFF, ORIGINS, SUMS, TOOLS
from wm_plugin.verl.trainer import TRAINERS

GUARD = {"k": 1, "factor": 0.5}


class Batch:
    """Of verl's KVBatchMeta what is used of it."""

    def __init__(self, partition_id, keys, tags, extra_info=None):
        self.partition_id, self.keys, self.tags, self.extra_info = partition_id, keys, tags, extra_info or {}

    def __len__(self):
        return len(self.keys)


def jagged(rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


class Queue:
    """Validation rollouts: two tokens of the policy around two of the environment's, of which the first is content."""

    def __init__(self, sources, nll):
        self.sources, self.nll, self.cleared = sources, nll, []

    def kv_batch_get(self, keys, partition_id, select_fields):
        assert partition_id == "val"
        spans = [Span(1, 2, "tool", "look", True), Span(2, 3, "tool", "look", False)]
        origins = [Origin(span).pack() for span in spans]
        numbers = [0 if key.startswith("pad") else int(key[1:]) for key in keys]
        log_probs = [[0.0, 0.0, -9.0, -self.nll[number], -9.0, -9.0, 0.0] for number in numbers]  # of a prompt of 3
        columns = {
            "uid": keys,
            "responses": jagged([[1, 2, 3, 4]] * len(keys)),
            "response_mask": jagged([[1, 0, 0, 1]] * len(keys)),
            "extra_fields": [{ORIGINS: origins, TOOLS: ["look"]}] * len(keys),
            "data_source": [self.sources[number] for number in numbers],
            "log_probs": jagged(log_probs),
        }
        return {name: columns[name] for name in select_fields}

    def kv_clear(self, keys, partition_id):
        self.cleared += keys


def made(monkeypatch, mode, guard=None, folder=None, **fields):
    """A trainer with a validation of three rollouts; making one starts Ray."""
    kind, calls = TRAINERS[mode], []
    queue = Queue(["near", "far", "near"], [1.0, 4.0, 2.0])
    monkeypatch.setattr(trainer_module, "tq", queue)

    def sample(self, global_steps, partition_id, batch_size):
        keys = [f"u{number}" for number in range(batch_size)]
        return Batch(partition_id, keys, [{"seq_len": 7}] * batch_size), {}

    def balance(self, batch, metrics):
        keys, tags = batch.keys[::-1], [*batch.tags, {"seq_len": 2, "is_padding": True}]
        return Batch(batch.partition_id, [*keys, "pad_0_0"], tags, batch.extra_info)

    def validate(self):
        batch, _ = self.replay_buffer.sample(global_steps=self.global_steps, partition_id="val", batch_size=3)
        return {"val-core/near/reward/mean@1": 1.0, "rows": len(batch)}

    def build(self):
        buffer = object.__new__(ReplayBuffer)
        buffer.sample = sample.__get__(buffer)
        return buffer

    for name, method in (("_balance_batch", balance), ("_validate", validate), ("_build_replay_buffer", build)):
        monkeypatch.setattr(trainer_base.PPOTrainer, name, method)
    for name in ("_save_checkpoint", "_load_checkpoint"):
        monkeypatch.setattr(trainer_base.PPOTrainer, name, lambda self: None)
    places = {"default_local_dir": str(folder), "resume_mode": "auto"}
    config = {"actor_rollout_ref": {"rollout": {"temperature": 1.0}}, "trainer": places}
    ours = bare(EchoConfig(1.0, guard=guard), kind, config=config, wm=fields, total_training_steps=99)

    def noted(name):
        return lambda *_, **__: calls.append(name)

    names = ("abort_replicas", "sleep_replicas", "update_weights", "resume_generation_replicas")
    ours.checkpoint_manager = SimpleNamespace(**{name: noted(name) for name in names})
    ours.actor_rollout_wg = SimpleNamespace(compute_log_prob=noted("compute_log_prob"))
    ours.current_mode, ours.switch_to_trainer = trainer_module.HybridEngineMode.ROLLOUT, noted("switch_to_trainer")
    ours.replay_buffer = ours._build_replay_buffer()
    return ours, queue, calls


CALLS = {
    "world_model": ["sleep_replicas", "compute_log_prob", "update_weights"],
    "world_model_colocate_async": [
        *("abort_replicas", "sleep_replicas", "compute_log_prob", "update_weights", "resume_generation_replicas")
    ],
    "world_model_separate_async": ["switch_to_trainer", "compute_log_prob"],
}


@pytest.mark.parametrize("mode", CALLS)
def test_validations_measure_each_set(monkeypatch, mode):
    ours, queue, calls = made(monkeypatch, mode, validation_nll=True)
    figures = ours._validate()
    assert figures.pop("rows") == 3  # verl goes on with its own batch
    assert figures == pytest.approx(
        {
            "val-core/near/reward/mean@1": 1.0,
            "val-aux/near/echo/nll": 1.5,
            "val-aux/near/echo/perplexity": 4.48169,
            "val-aux/near/echo/tokens": 2.0,
            "val-aux/near/echo/tool/look/nll": 1.5,
            "val-aux/near/echo/tool/look/tokens": 2.0,
            "val-aux/far/echo/nll": 4.0,
            "val-aux/far/echo/perplexity": 54.59815,
            "val-aux/far/echo/tokens": 1.0,
            "val-aux/far/echo/tool/look/nll": 4.0,
            "val-aux/far/echo/tool/look/tokens": 1.0,
        },
        rel=1e-5,
    )
    assert calls == CALLS[mode]
    assert queue.cleared == ["pad_0_0"]


def test_without_the_setting_a_validation_is_verls(monkeypatch):
    ours, _, calls = made(monkeypatch, "world_model")
    assert ours._validate() == {"val-core/near/reward/mean@1": 1.0, "rows": 3}
    assert calls == []


def update(monkeypatch, ours, nll, entropy):
    """An update whose workers report these figures; the coefficient that they got, and what is logged."""
    batch = SimpleNamespace(extra_info={}, keys=["a"])

    def host(self, batch, metrics):
        sums = [nll * 10, 10.0, 10.0, 0.0, 0.0, 10.0, *[0.0] * 2 * (len(self._wm_running[0].tools) + 1)]
        metrics |= {f"actor/{SUMS}/{index}": value for index, value in enumerate(sums)}
        metrics |= {f"actor/{SUMS}/silent": 0.0, "actor/entropy": entropy}
        return batch

    monkeypatch.setattr(trainer_base.PPOTrainer, "_update_actor", host)
    ours._check_counts = lambda *_: None
    ours._wm_running[0].tallies.append(Tally(environment=10))
    ours._wm_selected = {"": 10}
    metrics = {}
    ours._update_actor(batch, metrics)
    assert metrics["echo/coeff"] == batch.extra_info[COEFF]
    return batch.extra_info[COEFF], metrics


def test_it_lowers_the_coefficient_of_the_next_update_and_survives_a_resume(monkeypatch, tmp_path, caplog):
    """verl saves before it validates: the file is written again, and a resumed run may validate the same step anew."""
    ours, queue, _ = made(monkeypatch, "world_model", GUARD, tmp_path)
    coefficients, nlls = [], [2.0, 1.5, 1.0]
    for step, nll in enumerate(nlls, 1):
        ours.global_steps = step
        coefficients.append(update(monkeypatch, ours, nll, 3.0)[0])
        if step == 2:
            ours._save_checkpoint()
        queue.nll = [1.0 + step, 4.0, 2.0]  # held out it rises
        ours._validate()
    assert coefficients == [1.0, 1.0, 0.5]
    assert "rose in an evaluation (2.667 to 3.000) while that of training fell (2.000 to 1.500)" in caplog.text
    again, queue, _ = made(monkeypatch, "world_model", GUARD, tmp_path)
    again.global_steps = 2
    again._load_checkpoint()
    queue.nll = [9.0, 9.0, 9.0]
    again._validate()
    again.global_steps = 3
    coefficient, metrics = update(monkeypatch, again, nlls[2], 3.0)
    assert coefficient == 0.5
    assert metrics["echo/guard/multiplier"] == 0.5
    queue.nll = [4.0, 4.0, 2.0]
    again._validate()
    assert again._wm_running[0].guard.state_dict() == ours._wm_running[0].guard.state_dict()
    assert "it starts anew" not in caplog.text
    other, _, _ = made(monkeypatch, "world_model", {"k": 2}, tmp_path)
    other.global_steps = 2
    other._load_checkpoint()
    assert "the checkpoint has no guard with these settings: it starts anew" in caplog.text


def test_an_entropy_that_collapses_lowers_it_too(monkeypatch, caplog):
    ours, _, _ = made(monkeypatch, "world_model", {"share": 0.5})
    steps = []
    for step, entropy in enumerate((4.0, 1.0, 1.0), 1):
        ours.global_steps = step
        steps.append(update(monkeypatch, ours, 1.0, entropy))
    assert [coefficient for coefficient, _ in steps] == [1.0, 1.0, 0.5]
    assert [metrics["echo/guard/entropy"] for _, metrics in steps] == [1.0, 0.25, 0.25]
    assert caplog.text.count("the policy's entropy is 1, under 0.5 of its start (4)") == 1


def test_sets_that_no_row_is_of_are_refused_before_the_run():
    dataset = SimpleNamespace(dataframe=datasets.Dataset.from_list([{"data_source": "near"}, {"data_source": "far"}]))
    trainer_module._check_sets(("near", "far"), dataset)
    trainer_module._check_sets(("near",), ["a dataset of the user's own"])
    with pytest.raises(
        UserError, match=r"wm\.guard\.sets: no row of data\.val_files has the data_source 'nera'; did you"
    ):
        trainer_module._check_sets(("nera",), dataset)


def test_what_is_configured():
    assert WorldModelConfig(EchoConfig(1.0, guard=True)).measures_validation
    assert not WorldModelConfig(EchoConfig(1.0)).measures_validation
    with pytest.raises(UserError, match="validation_nll is 'maybe'; write true or false"):
        WorldModelConfig(EchoConfig(1.0), validation_nll="maybe")
