"""verl's asynchronous trainers with the term: what a run trains on is what plain transformers makes of it."""

import pickle

import pytest

pytest.importorskip("verl")

import ray
from tensordict import NonTensorData, NonTensorStack
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import replay_buffer, trainer_base
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from support.bare_on_verl import bare
from support.queue_on_verl import Store
from support.recorded_on_verl import check_updates, recorded
from support.verl_recipes import stock
from wm_plugin.errors import UserError
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.objectives import EchoConfig
from wm_plugin.verl import registration, support
from wm_plugin.verl.names import MAX_TURNS, TRAINER_MODES
from wm_plugin.verl.trainer import TRAINERS, WorldModelColocateAsyncTrainer, WorldModelTrainer, WorldModelTrainerMixin
from wm_plugin.verl.worker import WorldModelDetachActorWorker, WorldModelTrainingWorker
from wm_plugin.worlds.kit.rows import turn_limit

HOSTS = {
    "sync": PPOTrainerSync,
    "colocate_async": PPOTrainerColocateAsync,
    "separate_async": PPOTrainerSeparateAsync,
}


def configured(mode="world_model", **values):
    config = stock("actor_rollout_ref.model.path=Qwen/Qwen3-4B")
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


class Outcomes(Store):
    """`outcome` says of each prompt how many of its 2 trajectories fail."""

    def add(self, count, step=1):
        for number in range(self.added, self.added + count):
            failed = self.outcome(number)
            status = "failure" if failed else "finished"
            self.items[f"u{number}"] = {"is_prompt": True, "status": status, "global_steps": step}
            self.items |= {f"u{number}_{session}_0": {} for session in range(failed, 2)}
        self.added += count


def sampling(monkeypatch, outcome, *, max_lost=0.5, coeff=1.0, threshold=None):
    """Our trainer of `colocate_async` with verl's own buffer in front of `Outcomes`, and that; batches are of 4 prompts of 2."""
    store = Outcomes(outcome)
    monkeypatch.setattr(replay_buffer, "tq", store)
    monkeypatch.setattr(replay_buffer.time, "sleep", lambda _: pytest.fail("it waits for ever"))
    mode = "colocate_async"
    ours = bare(
        EchoConfig(coeff),
        WorldModelColocateAsyncTrainer,
        config=configured(mode),
        wm={"max_lost": max_lost},
        trainer_mode=mode,
        _wm_expected=4 * 2,
    )
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
    ours = bare(kind=WorldModelColocateAsyncTrainer)
    monkeypatch.setattr(trainer_base.PPOTrainer, "_build_replay_buffer", lambda self: "theirs")
    assert ours._build_replay_buffer() == "theirs"


# -- several updates a step -----------------------------------------------------------------------------------------------------


def test_a_turn_budget_is_annealed_by_steps_and_not_by_their_updates():
    separate = TRAINERS[TRAINER_MODES["separate_async"]]
    ours = bare(kind=separate, _wm_turn_budget=TurnBudget(6, 2), parameter_sync_step=2)
    logged = []
    for turns in ([6], [1, 2], [4], [1], [1], [1]):
        ours.local_trigger_step, metrics = len(logged) % 2, {}
        ours._record_episodes([{"turns": float(count)} for count in turns], metrics)
        logged.append(metrics.get("wm/turn_budget"))
    # two steps are a window: (mean 14/5 + longest 6) / 2
    assert logged == [None, 6.0, None, 6.0, None, 5.0]


def test_the_workers_of_separate_async_are_ours(monkeypatch):
    """verl puts its own, which can lay weights aside, in the place of the base class's; the critic is left alone."""
    ours = bare(kind=TRAINERS[TRAINER_MODES["separate_async"]])

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
    ours = bare(EchoConfig(0), kind, _wm_turn_budget=TurnBudget(5, 2))
    rows = tu.get_tensordict({"uid": ["a", "b"]})
    monkeypatch.setattr(trainer_base.PPOTrainer, "_next_train_batch", lambda self, count: rows)
    batch = ours._next_train_batch(2)
    kept = batch.select(*[key for key in batch.keys() if not isinstance(batch.get(key), NonTensorData)])  # noqa: SIM118
    for part in pickle.loads(pickle.dumps(kept)).chunk(2):  # as rows reach the workers of the agent loop
        column = dict(part.items())[MAX_TURNS]
        assert isinstance(column, NonTensorStack)
        assert turn_limit(column[0].data, 0) == 6


# -- whole runs ---------------------------------------------------------------------------------------------------------------


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
        f"{rollout}.checkpoint_engine.custom_backend_module=support.gloo_on_verl",
        "ray_kwargs.ray_init.num_gpus=2",
    )
    assert run.series("training/global_step") == [1, 2, 3]
    assert max(run.series("training/off_policy/trajectory_staleness_worst/max")) >= 1  # rows of older weights
    assert run.series("wm/lost") == [0] * 3
    assert run.series("echo/nll")[-1] < run.series("echo/nll")[0]
    check_updates(run, *written, updates=2)
