"""The world-model objective inside TRL's GRPO trainer: a mixin of overrides, each of which calls the host and adds to its result.

The term uses the log-probabilities that the host's own forward pass computes; there is no second forward. Nothing of the host's
loss is recomputed, so that every loss type, and every subclass of GRPOTrainer, keeps its meaning.

Where exactness needs care:

* N is counted over one accumulation window and all ranks before the window's first backward. TRL's own `num_items_in_batch`
  leaves environment tokens out and, for some loss types, is an average over a generation batch.
* DDP, FSDP and ZeRO average gradients over ranks: the term is multiplied by their number.
* TRL switches the division by accumulation steps off (`num_items_in_batch` loss); ours is divided by the window's N alone.
"""

import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast_object_list
from transformers.utils import get_json_schema
from trl import GRPOTrainer

from wm_plugin.data.host_dumps import COLUMN, EVERY, Shown, Writer
from wm_plugin.errors import UserError
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.hosting.config import read_field
from wm_plugin.hosting.episode import EpisodePort, end_together
from wm_plugin.hosting.figures import check_lost, summary
from wm_plugin.hosting.tags import REMINDER, TOOL, begins_to_think
from wm_plugin.hosting.world import resets
from wm_plugin.objectives.base import Objective
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.metrics import learn_tools
from wm_plugin.objectives.run import RunObjective, Weighed
from wm_plugin.objectives.weigh import without_variance
from wm_plugin.rewards.empty import EmptyRewardMonitor
from wm_plugin.tokens.chat import Chat, make_locator
from wm_plugin.tokens.message import as_text
from wm_plugin.tokens.spans import SPAN_FIELD, ContentLocator, Ending, Origin, SpanError, ToolBlock
from wm_plugin.trl import _compat, optimizers, sharding, support, tags
from wm_plugin.trl.callbacks import KEY, STRENGTH_KEY, EndCallback, StateCallback
from wm_plugin.trl.refill import Prompts, groups_to_sample, join, move, split
from wm_plugin.trl.rewards import check_truth
from wm_plugin.trl.rollout import Rollouts, Turns, called, parsing_within_bounds, unanswered
from wm_plugin.trl.settings import MAX_LOST
from wm_plugin.trl.term import EvaluatedMixin, no_coefficient_warning, resolve

logger = logging.getLogger(__name__)
_TURNS = "wm_turns"  # a micro-batch's column: (B, T), what turns add to the advantages

if TYPE_CHECKING:
    from trl import GRPOTrainer as _Host  # the mixin is put in front of one
else:
    _Host = object


class WorldModelMixin(EvaluatedMixin, _Host):
    """Adds the world-model term to any subclass of GRPOTrainer: `class Mine(WorldModelMixin, MyGRPOTrainer)`.

    With `coeff` 0 for the whole run, loss, gradients, parameters and random numbers are those of the host, bit by bit; the
    environment tokens' NLL is still measured and logged. Without any configuration that is not measured either, and a warning
    says so. What episodes in an `environment_factory`'s environments look like is always logged, as `wm/env/...` (see
    `wm_plugin.hosting.figures`).

    Args:
        world_model: the objective, or several by name, {name: EchoConfig(...)}. The `echo_*` fields of a
            `WorldModelGRPOConfig` are the same thing; giving both is an error.
        turn_budget: annealing of the turns that an episode may take (WMAct), logged as `wm/turn_budget` and saved with
            checkpoints. A `WorldModelGRPOConfig` has it too. Evaluations have its first value.

    Raises:
        UserError: a combination that is not known to be exact (see `wm_plugin.trl.support`), with the way out.
    """

    _sync_tool_dicts: list[Any]  # the host's, {name: tool} of each completion
    _async_tool_dicts: list[Any]
    _wm_ahead: Mapping[str, Any] = MappingProxyType({})  # of evaluation sets, by name

    def __init__(
        self,
        *args: Any,
        world_model: Objective | Mapping[str, Any] | None = None,
        turn_budget: TurnBudget | None = None,
        **kwargs: Any,
    ) -> None:
        support.check_trainer_class(self)
        support.check_arguments(*args[:1], **kwargs)
        self._wm_tags: Any = None  # how results are written in the protocol of tags
        super().__init__(*args, **kwargs)
        sharding.warn(self)
        support.warn_untested()
        support.check_rows(self.train_dataset, self.eval_dataset, environments=_compat.has_environments(self))
        check_truth(self.reward_funcs, self.train_dataset, warns=self.accelerator.is_main_process)
        optimizers.put(self)
        objectives = resolve(world_model, self.args)
        problem = support.hooks_problem()
        self._wm_hooked = problem is None  # else every override leaves the host alone
        self._wm_ahead = read_field("look_ahead", getattr(self.args, "look_ahead", None)) or {}
        scored = support.predictions_of(_compat.all_environments(self))
        if problem:
            if turn_budget is not None or self._wm_ahead or objectives.active or scored:
                raise UserError(problem)
            logger.warning("episodes and environment tokens are not measured: %s", problem)
            return
        self._wm_budget = support.check_turn_budget(self, turn_budget)
        if self._wm_budget is not None:
            self.add_callback(StateCallback(KEY, self._wm_budget, "turn budget", "starts at {0.turns}"))
        if self._wm_ahead:
            from wm_plugin.trl import look_ahead

            look_ahead.check(self, self._wm_ahead)
        self._wm_predictions = scored
        if scored is not None:
            from wm_plugin.trl import predictions

            predictions.check(scored, self.args)
        self._wm_strength = support.check_control(self)
        if self._wm_strength is not None:
            starts = "starts at {0.value:g}"
            self.add_callback(StateCallback(STRENGTH_KEY, self._wm_strength, "curriculum of the control", starts))
        end_ids = self.model.generation_config.eos_token_id
        self._wm_end_ids = {
            self.processing_class.eos_token_id,
            self.processing_class.pad_token_id,
            *(end_ids if isinstance(end_ids, list) else [end_ids]),
        }
        if support.check_tags(self):
            self._answer_in_tags()
        self._wm_dumped = self._describe_dump() if self.args.log_completions else {}
        watch = next(iter(objectives.values()), Objective())
        self._wm_reward_monitor = EmptyRewardMonitor(stop=watch.on_silence == "stop", batches=watch.silent_batches)
        self.add_callback(EndCallback(self._wm_end))
        self._wm_log(no_coefficient_warning(world_model, self.args, self.reward_funcs))
        if not objectives or not (objectives.active or objectives.refills or support.has_tokens(self)):
            return
        try:
            support.check(self, objectives)
            self._wm_locator = self._make_locator()
            running = self._wm_make_running(objectives, {tool.__name__ for tool in self.tools})
        except (UserError, SpanError) as error:
            if objectives.active or objectives.refills:
                raise
            logger.warning("environment tokens are not measured (coeff is 0): %s", error)
            return
        self._wm_start(objectives, running)
        self._wm_logps: list[torch.Tensor] | None = None  # a list while the host computes a loss
        if objectives.refills:
            self._wm_prompts = Prompts(len(self.train_dataset), self.args.seed)

    def _describe_dump(self) -> dict[str | None, str]:
        """Save beside TRL's log of completions what it lacks: the tools that prompts show, and which columns are rewards.

        Returns:
            the name of this for the rows of each environment; that of None is every row's.
        """
        names: list[Any] = [{}]
        if self.accelerator.is_main_process:
            chat = self._wm_tags or Chat(self.processing_class, self.chat_template, self.chat_template_kwargs)
            rewards = dict(zip(self.reward_func_names, self.reward_weights.tolist(), strict=True))
            own = {"rewards": rewards, "chat_template_kwargs": self.chat_template_kwargs}
            wanted = []
            for environment, tools in _compat.tools_of_prompts(self).items():
                schemas = [get_json_schema(tool) for tool in tools]
                shown = Shown(tools=tuple(schemas), fingerprint=chat.fingerprint(schemas), **own)
                wanted.append((environment, shown))
            found = Writer(os.path.join(self.args.output_dir, "completions")).declare(
                (name or EVERY, shown) for name, shown in wanted
            )
            names = [{environment: name for (environment, _), name in zip(wanted, found, strict=True)}]
        broadcast_object_list(names)  # a resumed run may add names
        return names[0]

    def _wm_end(self) -> None:
        super()._wm_end()
        self._wm_log(self._wm_reward_monitor.at_end())

    def _answer_in_tags(self) -> None:
        template = self.processing_class, self.chat_template, self.chat_template_kwargs
        self._wm_tags = Chat(*template, reminder=REMINDER)
        asked = self.args.generation_kwargs or {}  # in the words of vLLM, or of transformers
        _compat.answer_in_text(
            self,
            tags.reader,
            thinking=begins_to_think(self._wm_tags.render_results((TOOL,), ("",))),
            limit=asked.get("max_tokens", asked.get("max_new_tokens", self.max_completion_length)),
            end_ids=self._wm_end_ids,
            predictions=self._wm_left_out,
        )

    # -- rollouts: a weight for every token ------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if self._wm and id(inputs) in self._wm_window.generated:
            return self._wm_window.generated.pop(id(inputs))
        if not self._wm_hooked:
            return super()._generate_and_score_completions(inputs)
        self._wm_episodes: list[dict[str, float]] = []  # of this rank
        refill = self._wm.refills and self.model.training
        output = self._refilled(inputs) if refill else self._generate_once(inputs)
        if self.environments:
            self._log_episodes()
        return output

    def _generate_once(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what the host generates of these rows, with our columns."""
        self._wm_rollouts = Rollouts(
            self.num_generations if self.model.training else self.num_generations_eval,
            end_ids=self._wm_end_ids,
            limit=self.max_completion_length,
        )
        if self._wm_budget is not None:
            self.max_tool_calling_iterations = self._wm_budget.turns if self.model.training else self._wm_budget.start
        training = self.model.training
        strength = 1.0 if self._wm_strength is None else self._wm_strength.value
        parsing = parsing_within_bounds(self.processing_class, self._wm_left_out)
        with parsing, resets(training=training, strength=strength):
            output = super()._generate_and_score_completions(inputs)
        if training:  # the host has averaged the figures of rewards over ranks
            metrics = {name: values[-1] for name, values in self._metrics["train"].items() if values}
            self._wm_log(self._wm_reward_monitor.record(metrics))
        if self.environments:
            self._wm_episodes += self._episodes(output.get("tool_mask"))
        if training and self._wm_predictions is not None and self._wm_predictions.of_turns:
            output[_TURNS] = self._turn_advantages(output, self._wm_predictions.coeff)
        if self._wm:
            output.update(self._environment_columns(inputs, output))
        return output

    @property
    def _wm_left_out(self) -> str | None:
        """The tag whose content is left out before an answer's calls are parsed."""
        return None if self._wm_predictions is None else self._wm_predictions.left_out

    def _turn_advantages(self, output: dict[str, Any], coeff: float) -> torch.Tensor:
        """Return (B, T), what the scores of turns add to the advantages of this rank's completions."""
        from wm_plugin.trl import predictions

        rollouts, mask = self._wm_rollouts, output["completion_mask"]
        return predictions.advantages(
            (port.environment for port in rollouts.ports),
            mask * output["tool_mask"] if "tool_mask" in output else mask,
            coeff,
            group_size=rollouts.group_size,
            process=self.accelerator.process_index,
        )

    def _tool_call_loop(self, *args: Any, **kwargs: Any) -> Any:
        if not self._wm_hooked or (not self.environments and all(one.include_errors for one in self._wm.values())):
            return super()._tool_call_loop(*args, **kwargs)
        tools = self._sync_tool_dicts, self._async_tool_dicts
        rollouts, ports = self._wm_rollouts, [EpisodePort(environment) for environment in self.environments or ()]
        completions = kwargs["completions"] if "completions" in kwargs else args[3]
        rollouts.turns = Turns(ports, completions)
        self._sync_tool_dicts, self._async_tool_dicts = (rollouts.calls.wrap(dicts, ports) for dicts in tools)
        try:
            return super()._tool_call_loop(*args, **kwargs)
        finally:
            self._sync_tool_dicts, self._async_tool_dicts = tools

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        ahead = None if self.model.training else self._wm_ahead.get(self._wm_eval_set.removesuffix("_"))
        if ahead is None:
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        limit, taken = self.max_tool_calling_iterations, self._wm_rollouts.turns_taken
        self._wm_rollouts.turns_taken += 1
        from wm_plugin.trl import look_ahead

        return look_ahead.turns(self, ahead, prompt_ids, limit and limit - taken), None

    def _get_tool_suffix_ids(self, tool_messages: list[dict[str, Any]]) -> list[int]:
        if self._wm_tags is None:
            suffix: list[int] = super()._get_tool_suffix_ids(tool_messages)
            return suffix
        names, contents = zip(
            *((message["name"], as_text(message["content"])) for message in tool_messages), strict=True
        )
        ids: list[int] = self._wm_tags.result_ids(names, contents)
        return ids

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list, completions: list, completion_ids_list: list
    ) -> torch.Tensor:
        if self._wm_hooked:
            rollouts, limit = self._wm_rollouts, self.max_tool_calling_iterations
            rollouts.ports = [EpisodePort(environment) for environment in self.environments or ()]
            answers = [
                unanswered(completion, port, rollouts.calls.outcomes.get(row, ()), limit)
                for row, (port, completion) in enumerate(zip(rollouts.ports, completions, strict=False))
            ]
            rollouts.turns.tell(last=True)
            end_together(rollouts.ports, answers)
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if not self._wm_hooked:
            return rewards
        if self._wm_dumped and {*self._wm_dumped.values()} != {EVERY}:
            names = (self._wm_dumped.get(None) or self._wm_dumped[row["environment"]] for row in inputs)
            self._log_completion_extra(COLUMN, list(names))
        self._wm_rollouts.completions = completions
        self._wm_rollouts.completion_ids = completion_ids_list
        if self._wm:
            totals = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)  # of all ranks
            totals[rewards.isnan().all(dim=1)] = torch.nan
            groups = [row // self._wm_rollouts.group_size for row in range(len(totals))]
            equal = without_variance(groups, totals.tolist())
            start = self.accelerator.process_index * len(prompts)
            self._wm_rollouts.without_variance = equal[start : start + len(prompts)]
            self._wm_rollouts.rewards = totals[start : start + len(prompts)].tolist()
            self._wm_rollouts.silent_groups = equal[:: self._wm_rollouts.group_size]
        return rewards

    def _refilled(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a generation batch in which groups without an advantage have given way to groups of further prompts."""
        from accelerate.utils import gather_object

        names, rank, ranks = list(inputs[0]), self.accelerator.process_index, self.accelerator.num_processes
        output = self._generate_once(inputs)
        silent = self._wm_rollouts.silent_groups
        missing = [group for group, equal in enumerate(silent) if equal]
        most, sampled, replaced, without = self._wm.max_refills * len(silent), 0, 0, len(missing)
        rows = split(output) if missing else []
        while missing and sampled < most:
            count = groups_to_sample(
                len(missing), batch=len(silent), rows=len(inputs), group_size=self.num_generations, ranks=ranks
            )
            count = min(count, most - sampled)  # both are multiples of whole groups on every rank
            share = count * self.num_generations // ranks  # completions of a rank
            prompts = [
                prompt
                for prompt in self._wm_prompts.draw(self.state.global_step, count)
                for _ in range(self.num_generations)
            ]
            # one by one: the host, rewards and environments may write into a row
            further_inputs = [
                {name: value for name, value in self.train_dataset[prompt].items() if name in names}
                for prompt in prompts[rank * share : (rank + 1) * share]
            ]
            further = split(self._generate_once(further_inputs))
            sampled += count
            without += sum(self._wm_rollouts.silent_groups)
            groups = [group for group, equal in enumerate(self._wm_rollouts.silent_groups) if not equal]
            places = dict(zip(groups, missing, strict=False))
            move(rows, further, places, group_size=self.num_generations, rank=rank, gather=gather_object)
            missing, replaced = missing[len(places) :], replaced + len(places)
        prefix = next(one.prefix for one in self._wm_running if one.objective.refills)
        for name, value in {"prompts": sampled, "without_advantage": without, "unfilled": len(missing)}.items():
            self._metrics["train"][f"{prefix}/refill/{name}"].append(float(value))
        if missing:
            self._wm_warn_once(
                "unfilled",
                f"zero_variance_groups refill: after {sampled} further prompts (max_refills {self._wm.max_refills}) the "
                f"rewards of {len(missing)} of {len(silent)} groups are all equal; they stay, and their environment "
                "tokens do not count",
            )
        if replaced:
            padding = dict.fromkeys(("prompt_ids", "completion_ids"), self.processing_class.pad_token_id)
            output |= join(rows, padding | {"tool_mask": 1})
            if "num_items_in_batch" in output:  # the host's normaliser of some loss types
                mask = output["completion_mask"] * output.get("tool_mask", 1)
                output["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()
        return output

    def _environment_columns(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Weights and tool numbers of a generation batch, as tensors that the host shuffles and splits with the rest."""
        mask = output["completion_mask"]
        # mask_truncated_completions takes whole rows out, and zeroes their tool_mask too
        present = mask.any(dim=1).tolist()
        ids = self._wm_rollouts.completion_ids
        masked = [bool(row) and not here for row, here in zip(ids, present, strict=True)]
        observed = self._environment_mask(output).sum(dim=1).tolist()
        tally = Tally(environment=sum(observed), masked=sum(masked))
        if self.max_tool_calling_iterations:  # else the host makes no call
            rollouts = zip(self._wm_rollouts.completions, present, observed, strict=True)
            tally.unanswered = sum(len(called(completion)) for completion, here, some in rollouts if here and not some)
        try:
            rows = self._origins(inputs, output.get("tool_mask"), present)
        except (SpanError, UserError) as error:
            if self._wm.active:
                raise
            self._wm_warn_once("spans", f"environment tokens of a batch are not measured (coeff is 0): {error}")
            rows = [[] for _ in inputs]
        # a 0-d tensor would be repeated in every micro-batch of the generation batch
        columns = {"wm_masked": torch.tensor(masked, dtype=torch.float32, device=mask.device)}
        for one in self._wm_running:
            scored = list(zip(self._wm_rollouts.completions, self._wm_rollouts.rewards, strict=True))
            held_out = not self.model.training
            spans = one.weigh(rows, self._wm_rollouts.without_variance, tally, rollouts=scored, held_out=held_out)
            if self.rollout_func is not None and one.objective.tool_names is None:
                self._learn_tool_names(one, spans)
            for name, values in one.columns(spans, mask.size(1)).items():
                values = values.to(mask.device)
                columns[name] = values * mask.to(values.dtype) if values.ndim == 2 else values
        return columns

    def _origins(self, inputs: list[dict[str, Any]], tool_mask: Any, present: list[bool]) -> list[list[Origin]]:
        """Return the environment's spans of each completion and what is known of them."""
        rollouts = self._wm_rollouts
        if tool_mask is None and any(SPAN_FIELD in row for row in inputs):
            raise UserError(
                f"rollout_func returns {SPAN_FIELD!r} but no env_mask: TRL would train on the environment's tokens"
            )
        if tool_mask is None:
            return [[] for _ in inputs]
        tool_mask = tool_mask.cpu().numpy()  # whose rows are taken fifty times faster
        masks = {row: tool_mask[row, : len(ids)] for row, ids in enumerate(rollouts.completion_ids) if present[row]}
        decode = partial(self.processing_class.decode, skip_special_tokens=True)
        found = rollouts.origins(
            masks, inputs, self._wm_locator, self._get_tool_suffix_ids, decode, categorize=self._wm.categorize
        )
        return [found.get(row, []) for row in range(len(inputs))]

    def _learn_tool_names(self, one: RunObjective, rows: list[Weighed | None]) -> None:
        """Learn a rollout_func's tools, which are only known from its spans. Every rank must number them alike."""
        from accelerate.utils import gather_object

        names = {span.tool for spans in rows for span, _ in spans or () if span.tool is not None}
        one.tools = learn_tools(one.tools, gather_object(sorted(names)))

    def _make_locator(self) -> ContentLocator:
        reminder = None if self._wm_tags is None else REMINDER
        locator = make_locator(self.processing_class, self.chat_template, self.chat_template_kwargs, reminder)
        if self.rollout_func is None:  # a template that cannot be followed must not surface after the first rollout
            names = [tool.__name__ for tool in self.tools]
            pairs = {(names[0], names[-1])} if self._wm_tags is None else set()  # an answer with tags is one call
            for tools in {*((name,) for name in names), *pairs}:
                contents = tuple(f"result {index}" for index in range(len(tools)))
                messages = [{"role": "tool", "name": n, "content": c} for n, c in zip(tools, contents, strict=True)]
                locator.locate([ToolBlock(tools, contents, self._get_tool_suffix_ids(messages))])
        return locator

    # -- the count: N of one optimizer step, before its first backward --------------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        inputs = super()._prepare_inputs(generation_batch)
        if not self._wm:
            return inputs
        if self.model.training:
            return {**inputs, "wm_num_tokens": self._wm_num_tokens()}
        return {**inputs, "wm_num_tokens": self.accelerator.reduce(self._count(inputs), reduction="sum")[:, 0]}

    def _environment_mask(self, inputs: dict[str, Any]) -> torch.Tensor:
        """(B, T), 1 = an environment token that is neither padding nor of a completion that the host masks."""
        mask = inputs["completion_mask"]
        return mask * (1 - inputs["tool_mask"]) if "tool_mask" in inputs else torch.zeros_like(mask)

    def _count(self, inputs: dict[str, Any]) -> torch.Tensor:
        return self._wm.counts(inputs, self._environment_mask(inputs))

    def _wm_count_window(self) -> torch.Tensor:
        """Return this rank's share of what `_count` counts.

        Generation batches that the window has yet to reach are generated now: the policy does not change within a window, so
        these are the completions that the host would generate later.
        """
        per_generation = self.args.steps_per_generation
        every = per_generation * self.num_iterations
        total = torch.zeros(len(self._wm), 3, dtype=torch.int64, device=self.accelerator.device)
        for offset, raw in enumerate(self._wm_window.batches):
            step = self._step + offset
            if step // every == self._step // every:
                total += self._count(self._buffered_inputs[step % per_generation])
            elif step % every == 0:
                generated = self._generate_and_score_completions(raw)
                self._wm_window.generated[id(raw)] = generated
                total += self.num_iterations * self._count(generated)
        return total

    # -- the loss ---------------------------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._wm and self._wm_logps is not None:
            self._wm_logps.append(result[0])
        return result

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        if _TURNS in inputs:
            inputs = {**inputs, "advantages": inputs["advantages"].unsqueeze(1) + inputs[_TURNS]}
        if not self._wm:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self._wm_logps = []
        try:
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            captured = self._wm_logps
        finally:
            self._wm_logps = None
        if len(captured) != 1:
            raise RuntimeError(
                f"the policy loss computed per-token log-probabilities {len(captured)} times instead of once; "
                "which of them the world-model term should use is not known"
            )
        return self._wm_add(loss, captured[0], inputs)

    # -- the metrics ------------------------------------------------------------------------------------------------------------

    def _episodes(self, tool_mask: torch.Tensor | None) -> list[dict[str, float]]:
        """Return the figures of each of this rank's episodes."""
        ids, texts = self._wm_rollouts.completion_ids, self._wm_rollouts.completions
        budget = None if self.max_tool_calling_iterations == sys.maxsize else self.max_tool_calling_iterations
        own = []
        for row, (port, completion) in enumerate(zip(self._wm_rollouts.ports, texts, strict=False)):
            mask = None if tool_mask is None else tool_mask[row, : len(ids[row])]
            sampled = len(ids[row]) if mask is None else int(mask.sum())
            own.append(
                port.figures(
                    called(completion),
                    budget=budget,
                    truncated=self._wm_rollouts.ending(row, mask) is Ending.TRUNCATED,
                    policy_tokens=sampled,
                    environment_tokens=len(ids[row]) - sampled,
                )
            )
        return own

    def _log_episodes(self) -> None:
        """The figures of a generation batch's episodes, `wm/env/...`, over all ranks; also those that a refill left out."""
        from accelerate.utils import gather_object

        episodes = gather_object(self._wm_episodes)
        figures, mode, prefix = summary(episodes), "eval", self._wm_eval_set
        if self.model.training:
            mode, prefix = "train", ""
            check_lost(episodes, getattr(self.args, "max_lost", MAX_LOST))
            for follower in (self._wm_budget, self._wm_strength):
                figures |= follower.take(episodes) if follower is not None else {}
        for name, value in figures.items():
            self._metrics[mode][prefix + name].append(value)


class WorldModelGRPOTrainer(WorldModelMixin, GRPOTrainer):
    """`trl.GRPOTrainer` with the world-model term."""
