"""verl's asynchronous trainers with the term: what a run trains on is what plain transformers makes of it."""

import copy
import functools
import os
import pickle
from itertools import groupby

import pytest

pytest.importorskip("verl")

import ray
import torch
from hydra import compose, initialize_config_module
from tensordict import NonTensorData, NonTensorStack
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import replay_buffer, trainer_base
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from support.run_on_verl import run_recipe
from wm_plugin.environments.annealing import TurnBudget
from wm_plugin.environments.kit.rows import turn_limit
from wm_plugin.errors import UserError
from wm_plugin.objectives import EchoConfig
from wm_plugin.tiny.policy import HEADER, make_model, make_tokenizer
from wm_plugin.tiny.warm_start import behaviour_cloning
from wm_plugin.verl import registration, support
from wm_plugin.verl.config import WorldModelConfig
from wm_plugin.verl.names import MAX_TURNS, TRAINER_MODES
from wm_plugin.verl.trainer import TRAINERS, WorldModelColocateAsyncTrainer, WorldModelTrainer, WorldModelTrainerMixin
from wm_plugin.verl.worker import WorldModelDetachActorWorker, WorldModelTrainingWorker

HOSTS = {
    "sync": PPOTrainerSync,
    "colocate_async": PPOTrainerColocateAsync,
    "separate_async": PPOTrainerSeparateAsync,
}


@functools.cache
def stock():
    """verl's own config with the Hydra group on top, as a user composes it."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        start = ["hydra.searchpath=[pkg://wm_plugin.recipes.verl]", "+wm=echo"]
        return compose("ppo_trainer", [*start, "actor_rollout_ref.model.path=Qwen/Qwen3-4B"])


def configured(mode="world_model", **values):
    config = copy.deepcopy(stock())  # composing takes most of a second
    config.trainer.v1.trainer_mode = mode
    config.wm.update(values)
    return config


# -- which trainer ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", HOSTS)
@pytest.mark.parametrize("coeff", [0.05, 0.0])
def test_the_users_mode_chooses_our_trainer_of_it(mode, coeff):
    config = configured(mode, coeff=coeff)
    registration._check(config)
    assert config.trainer.v1.trainer_mode == TRAINER_MODES[mode]
    registration._check(config)  # our own names may be written too
    assert config.trainer.v1.trainer_mode == TRAINER_MODES[mode]
    assert trainer_base.get_trainer_cls(config.trainer.v1.trainer_mode) is registration._make_trainer


@pytest.mark.parametrize("mode", HOSTS)
def test_a_reward_alone_leaves_verls_own_trainer(mode):
    config = configured(mode)
    for block in ({"reward": "rouge"}, None):
        config.wm = block
        support.choose_trainer(config)
        assert config.trainer.v1.trainer_mode == mode
    assert trainer_base.get_trainer_cls(mode) is HOSTS[mode]


@pytest.mark.parametrize("mode", HOSTS)
def test_the_trainer_that_is_made_is_verls_of_that_mode_with_ours_in_front(mode, monkeypatch):
    monkeypatch.setattr(trainer_base.PPOTrainer, "__init__", lambda self, config: vars(self).update(config=config))
    config = configured(TRAINER_MODES[mode])
    rollout, v1 = config.actor_rollout_ref.rollout, config.trainer.v1  # separate_async asks for these
    rollout.nnodes, rollout.checkpoint_engine.backend = 1, "nccl"
    v1.separate_async.parameter_sync_step = (
        config.data.train_batch_size // config.actor_rollout_ref.actor.ppo_mini_batch_size
    )
    made = registration._make_trainer(config)
    assert type(made) is TRAINERS[TRAINER_MODES[mode]]
    assert v1.trainer_mode == mode  # as verl reads its settings
    assert type(made).__mro__[1:3] == (WorldModelTrainerMixin, HOSTS[mode])
    for name in ("get_llm_client", "on_init_end", "on_train_begin", "on_sample_end", "on_step_end"):
        assert getattr(made, name).__func__ is getattr(HOSTS[mode], name)


def test_refills_have_a_bound_that_an_asynchronous_step_has_not():
    for mode in ("colocate_async", TRAINER_MODES["separate_async"]):
        for coeff in (0.05, 0.0):
            with pytest.raises(
                UserError, match="a step trains on prompts of others; write wm.zero_variance_groups=drop"
            ):
                registration._check(configured(mode, zero_variance_groups="refill", coeff=coeff))
    registration._check(configured(zero_variance_groups="refill"))
    registration._check(configured("colocate_async", zero_variance_groups="drop"))


def test_a_trainer_of_somebody_elses_is_refused():
    with pytest.raises(
        UserError, match="subclasses of verl's for sync, colocate_async, separate_async; write .*=world_model$"
    ):
        registration._check(configured("theirs"))


# -- groups that fail -----------------------------------------------------------------------------------------------------------


class Store:
    """Stands in for TransferQueue: the trajectories of a prompt end as soon as it is added, as `outcome` says of each prompt."""

    def __init__(self, outcome):
        self.outcome, self.items, self.added = outcome, {}, 0

    def add(self, count, step=1):
        for number in range(self.added, self.added + count):
            failed = self.outcome(number)  # of its 2 trajectories
            status = "failure" if failed else "finished"
            self.items[f"u{number}"] = {"is_prompt": True, "status": status, "global_steps": step}
            self.items |= {f"u{number}_{session}_0": {} for session in range(failed, 2)}
        self.added += count

    def kv_list(self):
        return {"train": dict(self.items)}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.items.pop(key)


def sampling(monkeypatch, outcome, *, max_lost=0.5, coeff=1.0, threshold=None):
    """Our trainer of `colocate_async` with verl's own buffer in front of a `Store`, and that; batches are of 4 prompts of 2."""
    store = Store(outcome)
    monkeypatch.setattr(replay_buffer, "tq", store)
    monkeypatch.setattr(replay_buffer.time, "sleep", lambda _: pytest.fail("it waits for ever"))
    ours = object.__new__(WorldModelColocateAsyncTrainer)  # making one starts Ray
    ours._wm, ours._wm_warned = WorldModelConfig(EchoConfig(coeff), max_lost=max_lost), set()
    ours._wm_expected, ours._wm_replaced, ours._wm_failed, ours._wm_refilled = 4 * 2, 0, 0, 0
    ours.trainer_mode = "colocate_async"
    ours.config = configured(ours.trainer_mode)
    ours.config.actor_rollout_ref.rollout.n = 2
    ours.config.trainer.v1.sampler.max_off_policy_threshold = threshold
    ours._submit_batch_to_rollout = store.add
    ours._next_train_batch = lambda count: count
    ours.replay_buffer = ours._build_replay_buffer()
    assert type(ours.replay_buffer) is replay_buffer.ReplayBufferAsync
    return ours, store


def sampled(ours, step=1):
    batch, metrics = ours.replay_buffer.sample(global_steps=step, partition_id="train", batch_size=4)
    ours._count_lost(batch, metrics)
    return metrics


def test_trajectories_that_fail_are_counted_though_verl_replaces_their_groups(monkeypatch, caplog):
    """3 of the first 7 prompts fail, one of them whole: 4 of 14 trajectories."""
    ours, store = sampling(monkeypatch, lambda prompt: {0: 1, 2: 2, 5: 1}.get(prompt, 0))
    store.add(4)
    assert sampled(ours)["wm/lost"] == pytest.approx(4 / 14)
    assert "4 of 14 trajectories failed in the agent loop" not in caplog.text  # it was said at the first of them
    assert "3 of 12 trajectories failed in the agent loop" in caplog.text
    store.add(4)
    assert sampled(ours)["wm/lost"] == 0  # a step later none does


def test_a_world_that_is_down_stops_the_run(monkeypatch):
    """verl itself would sample further prompts for ever."""
    ours, store = sampling(monkeypatch, lambda prompt: 2)
    store.add(4)
    with pytest.raises(RuntimeError, match="16 of 24 trajectories failed in the agent loop.*wm.max_lost"):
        sampled(ours)


def test_at_coefficient_0_verl_replaces_as_it_likes(monkeypatch):
    ours, store = sampling(monkeypatch, lambda prompt: 2 * (prompt < 20), coeff=0.0)
    store.add(4)
    assert sampled(ours)["wm/lost"] == 40 / 48


def test_stale_groups_are_not_lost(monkeypatch):
    ours, store = sampling(monkeypatch, lambda prompt: 0, threshold=2)
    store.add(6, step=1)
    monkeypatch.setattr(ours, "_submit_batch_to_rollout", lambda count: store.add(count, step=4))
    metrics = sampled(ours, step=4)
    assert metrics["training/off_policy/evicted_samples"] == 6
    assert metrics["wm/lost"] == 0


def test_a_sampler_of_the_users_own_is_left_as_it_is(monkeypatch):
    ours = object.__new__(WorldModelColocateAsyncTrainer)
    monkeypatch.setattr(trainer_base.PPOTrainer, "_build_replay_buffer", lambda self: "theirs")
    assert ours._build_replay_buffer() == "theirs"


# -- several updates a step -----------------------------------------------------------------------------------------------------


def test_a_turn_budget_is_annealed_by_steps_and_not_by_their_updates():
    ours = object.__new__(TRAINERS[TRAINER_MODES["separate_async"]])  # making one starts Ray
    ours._wm_turn_budget, ours._wm_episodes, ours.parameter_sync_step = TurnBudget(6, 2), [], 2
    logged = []
    for turns in ([6], [1, 2], [4], [1], [1], [1]):
        ours.local_trigger_step, metrics = len(logged) % 2, {}
        ours._record_episodes([{"turns": float(count)} for count in turns], metrics)
        logged.append(metrics.get("wm/turn_budget"))
    # two steps are a window: (mean 14/5 + longest 6) / 2
    assert logged == [None, 6.0, None, 6.0, None, 5.0]


def test_the_workers_of_separate_async_are_ours(monkeypatch):
    """verl puts its own, which can lay weights aside, in the place of the base class's; the critic is left alone."""
    ours = object.__new__(TRAINERS[TRAINER_MODES["separate_async"]])

    def init(self):
        roles = {Role.ActorRolloutRef: ActorRolloutRefWorker, Role.Critic: TrainingWorker}
        self.role_worker_mapping = {role: ray.remote(cls) for role, cls in roles.items()}

    monkeypatch.setattr(trainer_base.PPOTrainer, "_init_resource_pool_mgr", init)
    ours._init_resource_pool_mgr()
    made = {role: remote.__ray_metadata__.modified_class for role, remote in ours.role_worker_mapping.items()}
    assert issubclass(made[Role.ActorRolloutRef], WorldModelDetachActorWorker)
    assert issubclass(made[Role.ActorRolloutRef], DetachActorWorker)
    assert made[Role.ActorRolloutRef].actor_worker_cls is WorldModelTrainingWorker
    assert not issubclass(made[Role.Critic], WorldModelTrainingWorker)


# -- the turn budget ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [WorldModelTrainer, WorldModelColocateAsyncTrainer])
def test_the_budget_of_turns_is_in_the_rows_that_a_checkpoint_keeps(kind, monkeypatch):
    """verl puts every field but single values into TransferQueue, and starts prompts again from there after a resume."""
    ours = object.__new__(kind)
    ours._wm_turn_budget = TurnBudget(5, 2)
    rows = tu.get_tensordict({"uid": ["a", "b"]})
    monkeypatch.setattr(trainer_base.PPOTrainer, "_next_train_batch", lambda self, count: rows)
    batch = ours._next_train_batch(2)
    kept = batch.select(*[key for key in batch.keys() if not isinstance(batch.get(key), NonTensorData)])  # noqa: SIM118
    for part in pickle.loads(pickle.dumps(kept)).chunk(2):  # as rows reach the workers of the agent loop
        column = dict(part.items())[MAX_TURNS]
        assert isinstance(column, NonTensorStack)
        assert turn_limit(column[0].data, 0) == 6


# -- whole runs ---------------------------------------------------------------------------------------------------------------

# Loaded by verl's `external_lib` into the worker: what each update is made of, and the weights before it.
RECORDER = """
import functools
import os
import uuid

import torch
from wm_plugin.verl.worker import WorldModelTrainingWorker as Worker

COLUMNS = ("input_ids", "responses", "response_mask", "wm_weights", "wm_counts")
train_batch = Worker.train_batch


@functools.wraps(train_batch)
def recorded(self, data):
    record = {name: [row.clone() for row in data[name].unbind()] for name in COLUMNS}
    record["weights"] = {name: p.full_tensor().detach().clone() for name, p in self.engine.module.named_parameters()}
    path = os.path.join(os.environ["WM_TEST_RECORDS"], f"{len(os.listdir(os.environ['WM_TEST_RECORDS'])):03}.pt")
    output = train_batch(self, data)
    record["tokens"], record["coeff"] = data["wm_num_tokens"], data["wm_coeff"]
    torch.save(record, path)
    return output


if Worker.train_batch is not recorded:
    Worker.train_batch = recorded
"""


def environment_tokens(row, tokenizer):
    """(T,) 1 where the world wrote content, without the package: a run of its tokens ends with the header of the next turn."""
    mask, response = row["response_mask"].tolist(), row["responses"].tolist()
    content = [0.0] * len(mask)
    for sampled, run in groupby(range(len(mask)), key=lambda position: mask[position]):
        positions = list(run)
        text = tokenizer.decode([response[position] for position in positions])  # a token a character
        if not sampled and not text.startswith("Error executing tool"):
            for position in positions[: len(text.removesuffix(HEADER))]:
                content[position] = 1.0
    return torch.tensor(content)


def check_updates(run, records, policy, updates):
    """The figures that a run logged against those of plain transformers, from the rows and the weights of each update."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(policy), dtype=torch.float64)
    paths = sorted(records.iterdir())
    assert len(paths) == len(run.steps) * updates
    for number, metrics in enumerate(run.steps):
        nlls, losses, tokens = [], [], []
        for path in paths[number * updates : (number + 1) * updates]:
            record = torch.load(path)
            model.load_state_dict(record["weights"])
            columns = {name: values for name, values in record.items() if isinstance(values, list)}
            total, count = 0.0, 0
            for values in zip(*columns.values(), strict=True):
                row = dict(zip(columns, values, strict=True))
                naive = environment_tokens(row, tokenizer)
                assert torch.equal(row["wm_weights"], naive)
                assert row["wm_counts"].sum() == naive.sum()
                if naive.any():
                    total, count = total + (response_nll(model, row) * naive).sum().item(), count + int(naive.sum())
            assert record["tokens"] == count
            assert record["coeff"] == metrics["echo/coeff"] == 1.0
            nlls += [total / count] if count else []
            losses.append(total / max(count, 1))
            tokens.append(count)
        # verl takes the mean over the updates of a step that have the figure
        assert metrics["echo/tokens"] == pytest.approx(sum(tokens) / updates, rel=1e-9)
        assert metrics["echo/nll"] == pytest.approx(sum(nlls) / len(nlls), rel=1e-5)
        assert metrics["echo/loss"] == pytest.approx(sum(losses) / updates, rel=1e-5)


@torch.no_grad()
def response_nll(model, row):
    """(T,) of the tokens of a row's response."""
    ids = row["input_ids"][None]
    logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    return -logps.gather(-1, ids[0, 1:, None])[-len(row["responses"]) :, 0]


def recorded(folder, *overrides):
    """A run of a policy that walks, but has learnt nothing of the world, where its records are, and the policy."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed=0)
    behaviour_cloning(model, tokenizer, 0, steps=40, demonstrations=300, environment_weight=0.0)
    policy = folder / "runs" / "tiny_random"
    model.save_pretrained(policy)
    tokenizer.save_pretrained(policy)
    (folder / "recorder.py").write_text(RECORDER)
    records = folder / "records"
    records.mkdir()
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "WM_TEST_RECORDS": str(records)}
    overrides = [*overrides, "actor_rollout_ref.model.external_lib=recorder"]
    run = run_recipe("echo_grpo_tiny", folder, *overrides, environment=environment)
    assert run.code == 0, run.output[-5000:]
    return run, records, policy


@pytest.mark.nightly
def test_colocate_async_trains_on_what_plain_transformers_makes_of_it(tmp_path):
    run, *written = recorded(
        tmp_path,
        "trainer.v1.trainer_mode=colocate_async",
        "trainer.v1.colocate_async.num_warmup_batches=2",
        "trainer.total_training_steps=5",
    )
    assert run.series("training/global_step") == [1, 2, 3, 4, 5]
    assert max(run.series("training/off_policy/trajectory_staleness_worst/max")) >= 1  # rows of older weights
    assert run.series("wm/lost") == [0] * 5
    assert run.series("echo/nll")[-1] < run.series("echo/nll")[0]
    check_updates(run, *written, updates=1)


@pytest.mark.nightly
def test_separate_async_trains_on_what_plain_transformers_makes_of_it(tmp_path):
    """Two updates a step, and a rollout in processes of its own beside that in the trainer's."""
    rollout = "actor_rollout_ref.rollout"
    run, *written = recorded(
        tmp_path,
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        "trainer.total_training_steps=3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        f"{rollout}.nnodes=1",
        f"{rollout}.n_gpus_per_node=1",
        f"{rollout}.checkpoint_engine.backend=gloo_cpu",
        f"{rollout}.checkpoint_engine.custom_backend_module=support.verl_cpu.checkpoint",
        "ray_kwargs.ray_init.num_gpus=2",
    )
    assert run.series("training/global_step") == [1, 2, 3]
    assert max(run.series("training/off_policy/trajectory_staleness_worst/max")) >= 1  # rows of older weights
    assert run.series("wm/lost") == [0] * 3
    assert run.series("echo/nll")[-1] < run.series("echo/nll")[0]
    check_updates(run, *written, updates=2)
