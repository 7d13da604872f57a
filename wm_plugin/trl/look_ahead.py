"""Evaluation sets whose episodes the trainer's policy plays looking ahead with itself.

The host's own tool loop plays them; only where it would sample a turn, the policy imagines from the very tokens of the rollout,
and its best first action goes out, as it was sampled. Trainings are not touched.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from wm_plugin.client.predict import LocalPredictor, seed_of
from wm_plugin.data.schema import Context, Trajectory
from wm_plugin.errors import UserError, nearest
from wm_plugin.lab.agents.branches import Branch
from wm_plugin.lab.agents.imagined_worlds import OwnWorld
from wm_plugin.lab.agents.imaginers import LocalImaginer
from wm_plugin.lab.agents.lookahead import LookAhead, taken
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
from wm_plugin.trl import _compat
from wm_plugin.worlds.kit.protocol import tool_schema

_AT_ONCE = 512  # imagined episodes


class _TokenImaginer(LocalImaginer):
    """Begins with the tokens of rollouts, which a state's metadata carries."""

    def prompt_ids(self, state: Trajectory) -> list[int]:
        ids: list[int] = state.metadata["prompt_ids"]
        return ids


def check(trainer: Any, sets: Mapping[str, LookAheadConfig]) -> None:
    """Refuse what cannot be played by the trainer's model in this process."""
    known = list(trainer.eval_dataset) if isinstance(trainer.eval_dataset, dict) else []
    for name in sets:
        if name not in known:
            hint = (
                nearest(name, known) if known else "; give eval_dataset={name: rows} (eval_rows_kwargs in a YAML file)"
            )
            raise UserError(f"look_ahead: there is no evaluation set {name!r}{hint}")
    measure = "measure its checkpoints with wm eval lookahead"
    if trainer.args.use_vllm:
        raise UserError(
            f"look_ahead imagines with the trainer's model in this process, and use_vllm has another one; {measure}"
        )
    if _compat.batches_continuously(trainer.args):
        raise UserError(
            f"look_ahead imagines with the trainer's own model, which use_transformers_continuous_batching hands away; {measure}"
        )
    kind = trainer.accelerator.distributed_type.name
    if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise UserError(f"look_ahead needs the whole model in each process, and {kind} splits it; {measure}")
    if trainer.rollout_func is not None or not _compat.has_environments(trainer):
        raise UserError(
            "look_ahead is for episodes in an environment_factory's environments; give one, or leave it out"
        )


def turns(
    trainer: Any, config: LookAheadConfig, prompts: Sequence[Sequence[int]], left: int | None = None
) -> list[list[int]]:
    """Return the tokens of the next turn of each rollout.

    A rollout's seed depends on its tokens, on how many equal ones stand before it, and on the seed of the run.

    Args:
        prompts: the tokens of each rollout up to here.
        left: turns with calls that the rollouts have left; none is imagined beyond.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    config = config.replace(max_new_tokens=min(config.max_new_tokens, trainer.max_completion_length))
    predictor = LocalPredictor(model, trainer.processing_class, batch_size=_AT_ONCE)
    imaginer = _TokenImaginer(predictor, config, trainer.chat_template)
    looking = LookAhead(imaginer, OwnWorld(imaginer, config.marks), config, left=lambda _: left)
    tools = tuple(tool_schema(tool) for tool in trainer.tools)
    states, seeds, met = [], [], Counter[str]()
    for prompt in prompts:
        key = ",".join(map(str, prompt))
        seeds.append(seed_of(f"{trainer.args.seed}/{key}/{met[key]}"))
        met[key] += 1
        context = Context.model_construct(action_space=tools)
        states.append(Trajectory.model_construct(turns=(), context=context, metadata={"prompt_ids": list(prompt)}))
    chosen: list[Branch] = []
    with trainer.accelerator.autocast():
        for start in range(0, len(states), looking.at_once):
            chunk = slice(start, start + looking.at_once)
            chosen += [taken(group, config)[0] for group in looking.imagine(states[chunk], seeds[chunk])]
    return [branch.first_ids for branch in chosen]
