"""The world-model objective inside verl's PPO trainers: overrides, each of which calls the host and adds to it.

Exactness needs care in three places:

* The agent loop decides which tokens count as a rollout ends. They become columns of the batch once its padding rows are known,
  which verl copies from a real row.
* N is counted by the workers, over all ranks, when a mini-batch is complete and before it is split into micro-batches. Which
  weights sampled its rows does not matter: the term is the actor's own likelihood of what the environment wrote.
* verl averages metrics over ranks and updates: the workers send sums, and the figures are computed here.
"""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode, PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_from_nested

from wm_plugin.errors import UserError, nearest
from wm_plugin.hosting.annealing import Strength
from wm_plugin.hosting.figures import check_lost, summary
from wm_plugin.hosting.tags import REMINDER
from wm_plugin.hosting.world import check_columns, layers_of
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.metrics import learn_tools, size, token_sums
from wm_plugin.objectives.run import Objectives, RunObjective, Weighed, column
from wm_plugin.objectives.turns import on_tokens, turn_advantages
from wm_plugin.objectives.weigh import origins_of_tokens, without_variance
from wm_plugin.tokens.spans import SPAN_FIELD, Origin, ending, read_spans, zero_runs
from wm_plugin.verl import dumps, state, support
from wm_plugin.verl.config import WorldModelConfig
from wm_plugin.verl.names import (
    AGENT_LOOP,
    AGENT_NAME,
    COEFF,
    COUNTS,
    ERROR,
    INFO,
    MAX_TURNS,
    MESSAGES,
    NUM_TOOLS,
    ORIGINS,
    PROMPT,
    RESULTS,
    SCORES,
    SUMS,
    TOOL_IDS,
    TOOLS,
    TRAINER_MODES,
    TRAINING,
    WEIGHTS,
)
from wm_plugin.verl.spans import end_token_ids
from wm_plugin.verl.worker import (
    WorldModelActorRolloutRefWorker,
    WorldModelDetachActorWorker,
    WorldModelTrainingWorker,
)

HELD_OUT = ("nll", "perplexity", "tokens", "tool", "information")  # the objective's figures that validations log
EVICTED = "training/filter_groups/evicted_samples"  # verl's count of the groups that it removed from a step

WORKERS = {  # ours for each of verl's actor workers, by name since Ray copies classes
    ActorRolloutRefWorker.__name__: WorldModelActorRolloutRefWorker,
    DetachActorWorker.__name__: WorldModelDetachActorWorker,
}

logger = logging.getLogger(__name__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))


if TYPE_CHECKING:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer as _Host  # the mixin is put in front of one
else:
    _Host = object


class WorldModelTrainerMixin(_Host):
    """Adds the world-model term to one of verl's trainers, as its first base.

    With `wm.coeff` 0 for the whole run, loss, gradients and parameters are verl's own, bit for bit; the NLL of the environment's
    tokens is still measured and logged.

    Raises:
        UserError: a combination is not known to be exact (see `wm_plugin.verl.support`); the message says what to change.
    """

    _wm_mode: str  # verl's name of the trainer behind the mixin
    _wm_running: list[RunObjective]
    _wm_strength: Strength | None = None  # of the control's curriculum
    _wm_saved = -1  # the step of the last checkpoint

    def __init__(self, config: Any) -> None:
        self._wm = support.check_config(config)
        reason = support.refusal(config, self._wm)
        self._wm_on = reason is None
        if reason:
            logger.warning("environment tokens are not measured (wm.coeff is 0): %s", reason)
        with open_dict(config):
            config.trainer.v1.trainer_mode = self._wm_mode  # verl reads its settings by it
            if self._wm.objectives.refills:
                config.algorithm.filter_groups.enable = True
        super().__init__(config)
        rollout = config.actor_rollout_ref.rollout
        self._wm_turn_budget = self._wm.turn_budget
        if self._wm.control is not None and self._wm.control.curriculum is not None:
            self._wm_strength = Strength(self._wm.control.curriculum)
        self._wm_episodes: list[dict[str, float]] = []  # of this step, for the budget and the curriculum
        self._wm_expected = config.data.train_batch_size * rollout.n  # trajectories that this step should bring
        self._wm_replaced = 0  # trajectories of the groups that verl replaced for this step because one of them failed
        self._wm_failed = 0  # and how many of them failed
        self._wm_refilled = 0  # prompts that this step sampled beside those of its batch
        self._wm_selected: dict[str, int] = {}  # tokens of this step's batch that count, by objective
        tempered = rollout.temperature != 1.0
        self._wm_running = [
            RunObjective(name, one, limit="data.max_response_length", tempered=tempered)
            for name, one in self._wm.objectives.items()
        ]
        for one in self._wm_running:
            for text in one.notices:
                logger.warning(text)
        self._wm_warned: set[str] = set()
        self._wm_prompts = dumps.Prompts()

    # -- before the first step ---------------------------------------------------------------------------------------------

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()
        if not self._wm_on:
            return
        template_kwargs = self.config.data.get("apply_chat_template_kwargs", {})
        reminder = REMINDER if self._wm.protocol == "tags" else None
        model_type = _model_type(self.config)
        parallel = self.config.actor_rollout_ref.rollout.multi_turn.max_parallel_calls > 1
        try:
            support.check_tokenizer(
                self.tokenizer, self.processor, template_kwargs, model_type, reminder, parallel=parallel
            )
        except UserError as error:
            if self._wm.objectives.active:
                raise
            self._wm_on = False
            logger.warning("environment tokens are not measured (wm.coeff is 0): %s", error)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        if self._wm.environment is not None:
            _check_rows(self._wm, self.train_dataset, "data.train_files")
            _check_rows(self._wm, self.val_dataset, "data.val_files")
        for one in self._wm_running:
            if one.guard is not None:
                _check_sets(one.guard.config.sets or (), self.val_dataset)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role, remote in self.role_worker_mapping.items():
            worker = remote.__ray_metadata__.modified_class
            if issubclass(worker, WorldModelActorRolloutRefWorker) or not issubclass(worker, ActorRolloutRefWorker):
                continue  # a subclass of our worker, or the critic
            if worker.__name__ not in WORKERS:
                raise UserError(
                    f"the actor's worker is {worker.__name__}; make it a subclass of "
                    "wm_plugin.verl.worker.WorldModelActorRolloutRefWorker"
                )
            self.role_worker_mapping[role] = ray.remote(WORKERS[worker.__name__])

    def _setup(self) -> None:
        super()._setup()
        # selected where spans are weighed; a user's function need not be importable by the workers
        objectives = self._wm.objectives.transportable() if self._wm_on else Objectives()
        expected = {"worker": WorldModelTrainingWorker.__name__, "objectives": list(objectives)}
        for rank, answer in enumerate(self.actor_rollout_wg.wm_configure(objectives)):
            if answer != expected:
                raise RuntimeError(
                    f"wm: the actor's worker {rank} runs {answer}, not {expected}: its wm_plugin differs"
                )

    # -- rollouts ----------------------------------------------------------------------------------------------------------

    def fit(self, agent_loop_manager: Any) -> Any:
        """Train with our tool loop on rows that name verl's, as verl's own tool data do; ours is built on it."""
        generate, ours = agent_loop_manager.generate_sequences, support.in_place_of_verls(self.config)

        def generate_sequences(prompts: Any) -> Any:  # of training, of validation, and of an earlier checkpoint
            names = tu.get(prompts, AGENT_NAME)
            if isinstance(names, list):
                tu.assign_non_tensor_stack(prompts, AGENT_NAME, [ours.get(name, name) for name in names])
            return generate(prompts)

        agent_loop_manager.generate_sequences = generate_sequences
        return super().fit(agent_loop_manager)

    def _next_train_batch(self, *args: Any, **kwargs: Any) -> Any:
        batch = super()._next_train_batch(*args, **kwargs)
        if self._wm_turn_budget is not None:
            turns = self._wm_turn_budget.turns + 1  # and the turn that ends
            # one value a row: an asynchronous mode's checkpoint keeps waiting rows, but no values of a whole batch
            tu.assign_non_tensor_stack(batch, MAX_TURNS, [turns] * len(batch))
        if any(one is not None for one in (self._wm.control, self._wm.simulation, self._wm.prediction_reward)):
            strength = 1.0 if self._wm_strength is None else self._wm_strength.value
            tu.assign_non_tensor_stack(batch, TRAINING, [strength] * len(batch))
        return batch

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> Any:
        self._wm_expected = sample_batch_size * self.config.actor_rollout_ref.rollout.n
        if not self._wm.objectives.refills:
            return super()._step_once(metrics, timing_raw, sample_batch_size)
        self._wm_refilled, filtered_by = 0, self.replay_buffer.filter_groups_metric
        try:
            batch = super()._step_once(metrics, timing_raw, sample_batch_size)
        finally:
            self.replay_buffer.filter_groups_metric = filtered_by
        prefix = self._refill_prefix()
        metrics[f"{prefix}/prompts"] = self._wm_refilled
        metrics[f"{prefix}/without_advantage"] = metrics.get(EVICTED, 0) + metrics[f"{prefix}/unfilled"]
        return batch

    def _refill_prefix(self) -> str:
        return f"{next(one.prefix for one in self._wm_running if one.objective.refills)}/refill"

    def _add_prompts_to_generate(self, num_prompts: int) -> int:
        """Stop filtering at the bound: verl would replace groups without an advantage forever."""
        most = self._wm.objectives.max_refills * self.config.data.train_batch_size
        if self._wm.objectives.refills and self._wm_refilled >= most:
            self.replay_buffer.filter_groups_metric = None
        self._wm_refilled += num_prompts
        return super()._add_prompts_to_generate(num_prompts)

    def _balance_batch(self, batch: Any, metrics: dict, *args: Any, **kwargs: Any) -> Any:
        self._count_lost(batch, metrics)  # verl adds padding rows next
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def _build_replay_buffer(self) -> Any:
        """Count failures in the groups that verl evicts, and read validation rows before verl clears them.

        verl replaces groups with a failed trajectory, in its asynchronous modes at least without a bound.
        """
        buffer = super()._build_replay_buffer()
        if not isinstance(buffer, ReplayBuffer):  # a user's own may be another class
            return buffer
        evict = buffer._evict_terminal_groups

        def counted_evict(global_steps: int, partition_id: str, eviction_reasons: Any) -> Any:
            _stale, _without_advantage, failed, _ = eviction_reasons
            self._count_failed(failed, buffer.partitions[partition_id])
            return evict(global_steps, partition_id, eviction_reasons)

        buffer._evict_terminal_groups = counted_evict
        if self._wm.measures_validation or self.config.trainer.get("validation_data_dir"):
            sample = buffer.sample

            def measured_sample(global_steps: int, partition_id: str, *args: Any, **settings: Any) -> Any:
                batch, metrics = sample(global_steps, partition_id, *args, **settings)
                if partition_id == "val" and batch.keys:  # verl clears these rows next
                    if self.config.trainer.get("validation_data_dir"):
                        self._keep_prompts(batch)
                    if self._wm.measures_validation and self._wm_on:
                        self._measure(batch)
                return batch, metrics

            buffer.sample = measured_sample
        return buffer

    def _count_failed(self, prompts: Collection[str], keys: Iterable[str]) -> None:
        """Count the trajectories of these prompts that left no output, and so failed; keys are prompt_session_output."""
        if prompts:
            finished = {key.rpartition("_")[0] for key in keys if key.partition("_")[0] in prompts}
            trajectories = len(prompts) * self.config.actor_rollout_ref.rollout.n
            self._wm_replaced += trajectories
            self._wm_failed += trajectories - len(finished)
            self._check_lost(self._wm_failed)

    def _count_lost(self, batch: Any, metrics: dict) -> None:
        sessions = {key.rpartition("_")[0] for key in batch.keys}
        metrics["wm/lost"] = self._check_lost(max(0, self._wm_expected - len(sessions)) + self._wm_failed)
        self._wm_replaced = self._wm_failed = 0

    def _check_lost(self, lost: int) -> float:
        """Return the share of this step's trajectories that failed."""
        trajectories = self._wm_expected + self._wm_replaced
        share = lost / trajectories
        if not lost:
            return share
        text = (
            f"{lost} of {trajectories} trajectories failed in the agent loop (the log shows each as 'Error in _run_prompt'), "
            "and verl replaces them with padding, or their groups with further prompts"
        )
        ours = self._wm.objectives.active or self._wm.environment is not None  # else the run must go as without us
        if (ours and share > self._wm.max_lost) or lost == trajectories:
            raise RuntimeError(f"wm: {text}; fix the environment, or allow more with wm.max_lost")
        self._warn_once("lost", text)
        return share

    # -- the columns -------------------------------------------------------------------------------------------------------

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        if not (self._wm_on or self._wm.environment is not None or self._wm.objectives.refills):
            return super()._compute_advantage(batch, metrics)
        # read first: a rollout correction takes sampled tokens out of `response_mask`
        names = ["uid", "responses", "response_mask", "rm_scores", "extra_fields"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        batch = super()._compute_advantage(batch, metrics)
        rows = _read_rows(data, batch.tags, [float(score.sum()) for score in data["rm_scores"].unbind()])
        episodes = [row.extra[INFO] for row in rows if row.extra.get(INFO)]
        self._check_worlds(episodes)
        self._record_episodes(episodes, metrics)
        self._record_cuts([row.extra[RESULTS] for row in rows if row.extra.get(RESULTS)], metrics)
        if self._wm.objectives.refills:
            self._record_unfilled(rows, metrics)
        if self._wm.prediction_reward is not None and self._wm.prediction_reward.of_turns:
            batch = self._add_turn_advantages(batch, rows, self._wm.prediction_reward.coeff)
        if not self._wm_on:
            return batch
        columns = TensorDict(batch_size=len(rows))
        for one, spans in self._weighted_spans(rows):
            columns.update(make_columns(one, spans, rows))
            self._wm_selected[one.name] = int(torch.count_nonzero(columns[column(WEIGHTS, one.name)].values()))
        # the meta that comes back names the new columns: with the old one the workers would never see them
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=columns)

    def _add_turn_advantages(self, batch: Any, rows: Sequence["Row"], coeff: float) -> Any:
        """Add the scores of turns to the advantages of their tokens, after the host's own estimator. Returns are left alone."""
        advantages = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["advantages"])[
            "advantages"
        ]
        scores = [row.extra.get(SCORES) or [] for row in rows]
        groups = [(number if row.padding else "", row.uid) for number, row in enumerate(rows)]
        values = turn_advantages(scores, groups, coeff)
        sampled = [torch.zeros_like(row.sampled) if row.padding else row.sampled for row in rows]
        added = on_tokens(values, torch.nn.utils.rnn.pad_sequence(sampled, batch_first=True))
        summed = [own + more[: len(own)].to(own.dtype) for own, more in zip(advantages.unbind(), added, strict=True)]
        fields = TensorDict({"advantages": torch.nested.as_nested_tensor(summed, layout=torch.jagged)}, len(rows))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _record_episodes(self, episodes: list[dict[str, float]], metrics: dict) -> None:
        metrics.update(summary(episodes))
        followers = [one for one in (self._wm_turn_budget, self._wm_strength) if one is not None]
        if not followers:
            return
        self._wm_episodes += episodes
        if _last_update(self):
            for one in followers:
                metrics.update(one.take(self._wm_episodes))
            self._wm_episodes = []

    def _check_worlds(self, episodes: Sequence[Mapping[str, float]]) -> None:
        """Check that not too many episodes lost their world, and that simulated ones were simulated."""
        if self._wm.simulates_all and any("simulation/requests" not in episode for episode in episodes):
            raise RuntimeError(
                f"wm: episodes of a step were not simulated, though wm.simulation is set: the column {TRAINING} did not "
                "reach the agent loop; report it with your verl version"
            )
        check_lost(episodes, self._wm.max_lost, "wm.max_lost")

    def _record_unfilled(self, rows: Sequence["Row"], metrics: dict) -> None:
        """Log how many groups of the batch have no advantage, and warn if there are any."""
        members = [row for row in rows if not row.padding]
        equal = without_variance([row.uid for row in members], [row.reward for row in members])
        unfilled = len({row.uid for row, same in zip(members, equal, strict=True) if same})
        groups = len({row.uid for row in members})
        metrics[f"{self._refill_prefix()}/unfilled"] = unfilled
        if unfilled:
            self._warn_once(
                "unfilled",
                f"zero_variance_groups refill: after {self._wm_refilled} further prompts (wm.max_refills "
                f"{self._wm.objectives.max_refills}) the rewards of {unfilled} of {groups} groups are all equal; "
                "they stay, and their environment tokens do not count",
            )

    def _record_cuts(self, results: Sequence[tuple[int, int]], metrics: dict) -> None:
        """Log the share of tool results that verl cut, and warn if there are any."""
        total, cut = sum(count for count, _ in results), sum(cuts for _, cuts in results)
        if not total:
            return
        metrics["wm/results_cut"] = cut / total
        if cut:
            name = "actor_rollout_ref.rollout.multi_turn.max_tool_response_length"
            limit = OmegaConf.select(self.config, name)
            self._warn_once(
                "cut",
                f"{cut} of the {total} tool results of a step ({cut / total:.0%}) were longer than {limit} characters, and verl "
                f"cut them: the policy sees and the objective learns the cut texts; write a larger {name}",
            )

    def _weighted_spans(
        self, rows: Sequence["Row"], *, held_out: bool = False
    ) -> Iterator[tuple[RunObjective, list[Weighed | None]]]:
        """Yield each objective with the environment's spans of each row and their weights, once it knows the rows' tools."""
        # a padding row is a copy of a real one: it is no member of the group
        groups = [(number if row.padding else "", row.uid) for number, row in enumerate(rows)]
        equal = without_variance(groups, [row.reward for row in rows])
        origins: list[list[Origin]] = []
        facts = Tally()
        for row in rows:
            try:
                origins.append([] if row.padding else self._origins(row))
            except UserError as error:
                if self._wm.objectives.active:
                    raise
                self._warn_once("spans", f"environment tokens of a batch are not measured (wm.coeff is 0): {error}")
                origins.append([])
            if not row.padding:
                observed = int((row.sampled == 0).sum())
                facts.environment += observed
                if not observed and row.extra.get(RESULTS):
                    facts.unanswered += row.extra[RESULTS][0]
        for one in self._wm_running:
            if not held_out:
                one.tallies.clear()  # of this step only
            rollouts = [None if row.padding else (row.extra.get(MESSAGES), row.reward) for row in rows]
            if one.objective.select_rollout and not held_out and any(r is not None and r[0] is None for r in rollouts):
                raise UserError(
                    f"wm.select_rollout reads a completion's messages, and an agent loop gave none: it must be ours, or put them "
                    f"into extra_fields[{MESSAGES!r}]"
                )
            spans = one.weigh(origins, equal, facts, rollouts=rollouts, held_out=held_out)
            _learn_tool_names(one, rows, spans)
            yield one, spans

    def _origins(self, row: "Row") -> list[Origin]:
        """Return a response's environment spans and what is known of each, from our agent loop or a user's own."""
        if row.extra.get(ERROR):
            raise UserError(row.extra[ERROR])
        if ORIGINS in row.extra:
            return [Origin.unpack(values) for values in row.extra[ORIGINS]]
        if row.extra.get(SPAN_FIELD) is not None:
            spans = read_spans(row.extra[SPAN_FIELD], row.sampled)
            end_ids, limit = end_token_ids(self.tokenizer), self.config.data.max_response_length
            how = ending(row.ids, row.sampled, end_ids=end_ids, limit=limit)
            decode = partial(self.tokenizer.decode, skip_special_tokens=True)
            categorize = self._wm.objectives.categorize
            return origins_of_tokens(spans, row.ids, row.sampled, decode, how, categorize=categorize)
        if zero_runs(row.sampled):
            raise UserError(
                f"an agent loop other than {AGENT_LOOP} made this batch, and it does not say where its environment tokens come "
                f"from: {self._way_to_our_loop()}; or put WorldModelLoopMixin in front of your loop, or return env_spans in "
                "extra_fields"
            )
        return []

    def _way_to_our_loop(self) -> str:
        """Return what to write so that our agent loop plays: verl asks the dataset first, then the config."""
        if AGENT_NAME in getattr(getattr(self.train_dataset, "dataframe", None), "column_names", ()):
            return f"drop the dataset's column {AGENT_NAME}, which wins over default_agent_loop"
        return f"write {support.OUR_LOOP}"

    # -- dumps of rollouts -------------------------------------------------------------------------------------------------

    def _keep_prompts(self, batch: Any) -> None:
        names = ["extra_fields"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        for key, extra in zip(batch.keys, data["extra_fields"], strict=True):
            self._wm_prompts.keep(key, (getattr(extra, "data", extra) or {}).get(PROMPT))

    def _log_rollout_data(self, batch: Any, *args: Any, **kwargs: Any) -> None:
        self._keep_prompts(batch)
        super()._log_rollout_data(batch, *args, **kwargs)

    def _dump_generations(
        self, inputs: Any, outputs: Any, gts: Any, scores: Any, reward_extra_infos_dict: Any, dump_path: str
    ) -> None:
        columns = self._wm_prompts.columns(reward_extra_infos_dict.get("uid", ()), dump_path)
        super()._dump_generations(inputs, outputs, gts, scores, reward_extra_infos_dict | columns, dump_path)

    # -- validations -------------------------------------------------------------------------------------------------------

    def _validate(self) -> Any:
        for one in self._wm_running:
            one.meters.clear()
        metrics = super()._validate()
        if self._wm.measures_validation and not any(one.meters for one in self._wm_running):
            self._warn_once("validation", "no environment tokens of a validation were measured")
        for one in self._wm_running:
            for name, meter in one.meters.items():
                meter.end_step(0.0, torch.zeros(()))
                values = meter.result(lambda sums: sums)  # of all ranks already
                kept = (key for key in values if key.removeprefix(f"{one.prefix}/").split("/")[0] in HELD_OUT)
                metrics |= {f"val-aux/{name}/{key}": values[key] for key in kept}
            if one.guard is not None and self._wm_on:
                sums = {name: (meter.nll, meter.tokens) for name, meter in one.meters.items()}
                self._warn(one.guard.after_evaluation(self.global_steps, sums))
        guarded = any(one.guard is not None for one in self._wm_running)
        if guarded and self._wm_on and self._wm_saved == self.global_steps:  # verl saves before it validates
            self._save_state()
        return metrics

    def _measure(self, batch: Any) -> None:
        """Add the environment tokens of some validation rollouts to the figures of their sets."""
        own = type(batch)(partition_id=batch.partition_id, keys=list(batch.keys), tags=list(batch.tags))
        own = super()._balance_batch(own, {})  # which pads it for the ranks, and reorders it
        temperature = self.config.actor_rollout_ref.rollout.temperature
        own.extra_info.update({"calculate_entropy": False, "compute_loss": False, "temperature": temperature})
        with self._room_for_the_actor():
            self.actor_rollout_wg.compute_log_prob(own)
        names = ["uid", "responses", "response_mask", "extra_fields", "data_source", "log_probs"]
        data = tq.kv_batch_get(keys=own.keys, partition_id=own.partition_id, select_fields=names)
        rows = _read_rows(data, own.tags, [0.0] * len(own.keys))
        if padding := [key for key, row in zip(own.keys, rows, strict=True) if row.padding]:
            tq.kv_clear(keys=padding, partition_id=own.partition_id)
        logps = response_from_nested(data["log_probs"], data["response_mask"]).to_padded_tensor(0.0)
        sources = data["data_source"] if "data_source" in data.keys() else ["unknown"] * len(rows)  # noqa: SIM118
        sets = [str(getattr(source, "data", source)) for source in sources]
        nothing = torch.zeros(())
        for one, spans in self._weighted_spans(rows, held_out=True):
            columns = one.columns(spans, logps.size(1))
            weights, tool_ids = (columns[column(base, one.name)] for base in (WEIGHTS, TOOL_IDS))
            for name in {*sets}:
                here = [number for number, row in enumerate(rows) if sets[number] == name and not row.padding]
                if here:
                    own = logps[here], weights[here], tool_ids[here], len(one.tools)
                    sums = token_sums(*own, loss_weights=weights[here], loss=nothing, masked=nothing)
                    one.meter(name).add(sums, one.tools)

    @contextmanager
    def _room_for_the_actor(self) -> Iterator[None]:
        """Let the rollout engines sleep meanwhile, as in an update."""
        self.checkpoint_manager.sleep_replicas()
        yield
        self.checkpoint_manager.update_weights(self.global_steps)

    # -- the update --------------------------------------------------------------------------------------------------------

    def _update_actor(self, batch: Any, metrics: dict) -> Any:
        if not self._wm_on:
            return super()._update_actor(batch, metrics)
        coeffs = {one.name: one.coeff(self.global_steps - 1) for one in self._wm_running}
        for one in self._wm_running:
            values = {COEFF: coeffs[one.name], NUM_TOOLS: len(one.tools)}
            batch.extra_info.update({column(name, one.name): value for name, value in values.items()})
        rows = len(batch.keys)
        batch = super()._update_actor(batch, metrics)
        silent = metrics.pop(f"actor/{SUMS}/silent", None)
        for one in self._wm_running:
            self._record_update(one, metrics, coeffs[one.name], silent, rows)
        return batch

    def _record_update(self, one: RunObjective, metrics: dict, coeff: float, silent: Any, rows: int) -> None:
        """Log an objective's figures of an update, and pass them to its guard and monitor."""
        names = [f"actor/{column(SUMS, one.name)}/{index}" for index in range(size(len(one.tools)))]
        sums = [metrics.pop(name, None) for name in names]
        nll, tokens, in_loss, *_ = sums
        self._check_counts(tokens, self._wm_selected[one.name], rows)
        # verl has taken the mean over updates already
        found = one.objective.figures(sums, one.tools, steps=1, coeff=coeff, silent=silent)
        metrics.update({f"{one.prefix}/{key}": value for key, value in found.items()})
        if one.guard is not None:
            self._warn(one.guard.after_step(nll=nll, tokens=tokens, entropy=metrics.get("actor/entropy")))
            metrics.update(one.guard_figures())
        if silent and coeff > 0 and in_loss and self._wm.objectives.policy_loss:
            self._warn_once("silent", one.term_alone_warning())
        tally = Tally.sum(one.tallies)
        due = one.monitor.record(coeff=coeff, environment=tally.environment, counted=in_loss)
        last = self.global_steps >= self.total_training_steps and _last_update(self)
        if due or (last and one.monitor.at_end()):
            selected = self._wm_selected[one.name]
            text = one.monitor.report(
                tally, environment=tally.environment, selected=selected, policy_silent=silent == 1
            )
            logger.warning(text)

    def _check_counts(self, counted: float | None, selected: int, rows: int) -> None:
        """Check that the workers counted as many tokens in an update as the trainer selected."""
        if counted is None:
            raise RuntimeError(
                "wm: the actor's update reported nothing of the world-model term: its workers run another loss; "
                "report it with your verl version"
            )
        actor, n = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout.n
        updates = rows // (actor.ppo_mini_batch_size * n)
        expected = selected / updates
        if abs(counted - expected) > 1e-6 * max(1.0, expected):
            raise RuntimeError(
                f"wm: the workers saw {counted} environment tokens an update, the trainer wrote {expected}; "
                "report it with your verl version"
            )

    # -- checkpoints -------------------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        self._save_state()
        super()._save_checkpoint()  # marks the checkpoint as complete, last
        self._wm_saved = self.global_steps

    def _save_state(self) -> None:
        values: dict[str, Any] = {
            "max_turns": self._wm.max_turns,
            "turn_budget": None if self._wm_turn_budget is None else self._wm_turn_budget.state_dict(),
            "control": None if self._wm_strength is None else self._wm_strength.state_dict(),
        }
        for one in self._wm_running:
            own = {
                "objective": state.describe(one.objective),
                "tools": one.tools,
                "guard": None if one.guard is None else one.guard.state_dict(),
            }
            values |= {column(key, one.name): value for key, value in own.items()}
        state.save(os.path.join(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}"), values)

    def _load_checkpoint(self) -> None:
        trainer = self.config.trainer
        if trainer.resume_mode == "auto" and (whole := state.last_whole(trainer.default_local_dir)):
            logger.warning("resuming from %s", whole)
            trainer.resume_mode, trainer.resume_from_path = "resume_path", whole
        super()._load_checkpoint()
        if self.global_steps == 0:
            return
        folder = os.path.join(trainer.default_local_dir, f"global_step_{self.global_steps}")
        folder = trainer.resume_from_path if trainer.resume_mode == "resume_path" else folder
        values = state.load(folder, self._wm.objectives)
        if values is None:
            self._check_restored(folder)
            logger.warning(
                "the checkpoint is of a run without wm: the schedule goes on from step %d", self.global_steps
            )
            return
        now: dict[str, Any] = {"max_turns": self._wm.max_turns}
        before: dict[str, Any] = {"max_turns": values["max_turns"]}
        for one in self._wm_running:
            saved = values[column("tools", one.name)]
            one.tools = saved + [name for name in one.tools if name not in saved]
            path = f"{one.name}." if one.name else ""
            for found, described in (
                (now, state.describe(one.objective)),
                (before, values[column("objective", one.name)]),
            ):
                found |= {f"{path}{key}": value for key, value in described.items()}
            if one.guard is not None and not one.guard.load_state_dict(values[column("guard", one.name)]):
                logger.warning("the checkpoint has no guard with these settings: it starts anew")
        if self._wm_turn_budget is not None and not self._wm_turn_budget.load_state_dict(values["turn_budget"] or {}):
            logger.warning(
                "the checkpoint's wm.turn_budget has other settings: it starts at %d", self._wm_turn_budget.turns
            )
        if self._wm_strength is not None and not self._wm_strength.load_state_dict(values["control"] or {}):
            logger.warning(
                "the checkpoint's wm.control.curriculum has other settings: it starts at %g", self._wm_strength.value
            )
        changed = [f"wm.{key}: {before.get(key)} -> {now[key]}" for key in now if before.get(key) != now[key]]
        if changed:
            logger.warning("the config is not the checkpoint's: %s", ", ".join(changed))

    def _check_restored(self, folder: str) -> None:
        """Refuse rollouts of a run without the term, which an asynchronous mode's checkpoint keeps until they are trained on."""
        if self.trainer_mode == "sync" or not (self._wm_on and self._wm.objectives.active):
            return
        items = tq.kv_list("train").get("train", {})
        done = {key for key, tag in items.items() if tag.get("is_prompt") and tag["status"] == "finished"}
        keys = [key for key in items if key.partition("_")[0] in done - {key}]
        if not keys:
            return
        extras = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["extra_fields"])["extra_fields"]
        known = {ORIGINS, ERROR, SPAN_FIELD}
        if silent := sum(known.isdisjoint(getattr(extra, "data", extra) or {}) for extra in extras):
            raise UserError(
                f"the checkpoint is of a run without wm, and {silent} rollouts that it keeps do not say which tokens are the "
                f"environment's; move {os.path.join(folder, 'transfer_queue')} away to continue with later prompts"
            )

    def _warn(self, text: str | None) -> None:
        if text is not None:
            logger.warning(text)

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._wm_warned:
            logger.warning(message)
        self._wm_warned.add(kind)


class WorldModelTrainer(WorldModelTrainerMixin, PPOTrainerSync):
    """`trainer.v1.trainer_mode=world_model`."""

    _wm_mode = "sync"


class WorldModelColocateAsyncTrainer(WorldModelTrainerMixin, PPOTrainerColocateAsync):
    """`trainer.v1.trainer_mode=colocate_async`: generation continues where training interrupted it, with the new weights."""

    _wm_mode = "colocate_async"

    @contextmanager
    def _room_for_the_actor(self) -> Iterator[None]:
        self.checkpoint_manager.abort_replicas()  # rollouts for training, which continue later
        with super()._room_for_the_actor():
            yield
        self.checkpoint_manager.resume_generation_replicas()


class WorldModelSeparateAsyncTrainer(WorldModelTrainerMixin, PPOTrainerSeparateAsync):
    """`trainer.v1.trainer_mode=separate_async`: generation has its own devices, and gets new weights from time to time."""

    _wm_mode = "separate_async"

    @contextmanager
    def _room_for_the_actor(self) -> Iterator[None]:
        if self.current_mode == HybridEngineMode.ROLLOUT:  # the devices of the actor help with rollouts
            self.switch_to_trainer()
        yield


TRAINERS = {
    TRAINER_MODES[cls._wm_mode]: cls
    for cls in (WorldModelTrainer, WorldModelColocateAsyncTrainer, WorldModelSeparateAsyncTrainer)
}


class Row(NamedTuple):
    """One row of a batch, as verl's loop and reward workers left it."""

    uid: Any  # of its prompt
    ids: list[int]  # (T,) the response
    sampled: torch.Tensor  # (T,), 1 = sampled by the policy
    reward: float
    extra: Mapping[str, Any]  # the trajectory's `extra_fields`
    padding: bool  # verl pads a batch with copies


def _read_rows(data: Any, tags: Sequence[Mapping[str, Any]], rewards: Sequence[float]) -> list[Row]:
    """Return a batch's rows, from verl's columns."""
    return [
        Row(
            uid=getattr(uid, "data", uid),
            ids=response.tolist(),
            sampled=mask,
            reward=reward,
            extra={} if pad else (getattr(extra, "data", extra) or {}),
            padding=pad,
        )
        for uid, response, mask, reward, extra, pad in zip(
            data["uid"],
            data["responses"].unbind(),
            data["response_mask"].unbind(),
            rewards,
            data["extra_fields"],
            (bool(tag.get("is_padding", False)) for tag in tags),
            strict=True,
        )
    ]


def _last_update(trainer: Any) -> bool:
    """Return whether a trainer is at the last update of a step, of which `separate_async` has several."""
    return bool(trainer.local_trigger_step + 1 == trainer.parameter_sync_step)


def _check_rows(wm: WorldModelConfig, dataset: Any, files: str) -> None:
    """Refuse rows with which their world cannot begin, before a rollout fails on one. Of a single world's rows only the first is
    read, since all have its columns.
    """
    if not len(dataset):
        return
    rows: Iterable[Any]
    if isinstance(wm.environment, Mapping) and type(dataset).__getitem__ is RLHFDataset.__getitem__:
        rows = dataset.dataframe["extra_info"] if "extra_info" in dataset.dataframe.column_names else [None]
    else:  # a user's own class makes its rows as it likes
        rows = [dataset[0].get("extra_info")]
    checked = set()
    for number, row in enumerate(rows):
        try:
            environment = wm.class_of({} if row is None else row)
            columns = wm.columns_of(row)
            if environment is None or (kind := (environment, *sorted(columns))) in checked:
                continue
            check_columns(environment, columns)
            for _, options, _ in layers_of(environment):  # a control withholds what columns say
                if check := getattr(options, "check_columns", None):
                    check(columns, environment.__name__)
        except UserError as error:
            raise UserError(f"extra_info in row {number} of {files}: {error}") from None
        checked.add(kind)


def _check_sets(names: Iterable[str], dataset: Any) -> None:
    """Refuse names of evaluation sets that no row of the validation files has."""
    rows: Any = getattr(dataset, "dataframe", None)  # a user's own class may lack it
    if "data_source" not in getattr(rows, "column_names", ()):
        return
    sources = sorted({str(name) for name in rows["data_source"]})
    for name in names:
        if name not in sources:
            raise UserError(
                f"wm.guard.sets: no row of data.val_files has the data_source {name!r}{nearest(name, sources)}"
            )


def _learn_tool_names(one: RunObjective, rows: Sequence[Row], spans: Sequence[Weighed | None]) -> None:
    """Number the tools of an objective that names none. Numbers never change, since names are only appended.

    Our agent loop reports all tools, called or not; of another loop's tools only those in its spans are known.
    """
    if one.objective.tool_names is not None:
        return
    declared = {name for row in rows for name in row.extra.get(TOOLS, ())}
    one.tools = one.tools + sorted(declared - set(one.tools))
    others = (weighed for row, weighed in zip(rows, spans, strict=True) if TOOLS not in row.extra)
    names = {span.tool for weighed in others for span, _ in weighed or () if span.tool is not None}
    one.tools = learn_tools(one.tools, names)


def make_columns(one: RunObjective, spans: Sequence[Weighed | None], rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Return an objective's columns of a batch, jagged like verl's: tokens' weights and tool numbers, and a row's share of N."""
    lengths = [len(row.ids) for row in rows]
    columns = one.columns(spans, max(lengths))
    counts = []
    for row, own, weight in zip(rows, spans, columns[column(WEIGHTS, one.name)], strict=True):
        environment = torch.zeros_like(row.sampled) if row.padding else 1 - row.sampled
        counted = not row.padding and own is not None
        counts.append(one.objective.count(weight, environment, int(counted)))
    jagged = {name: _jagged(values, lengths) for name, values in columns.items() if values.ndim == 2}
    return {**jagged, column(COUNTS, one.name): torch.stack(counts).unsqueeze(1)}


def _jagged(padded: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    rows = [row[:length] for row, length in zip(padded, lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _model_type(config: Any) -> str | None:
    """Return the root model type, by which verl chooses how to join a model's turns."""
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    return getattr(model.hf_config, "model_type", None)
