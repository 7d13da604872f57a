"""TRL's side of the agreement: its real trainer on the turns of `support.agreement`.

cd tests && python -m support.agreement_on_trl     writes support/agreement_data/
"""

import json
from collections.abc import Iterable
from typing import Any

import torch
from trl import GRPOTrainer

from support import agreement
from support.agreement import FOLDER, OBJECTIVES, TURNS, describe, make_model
from support.on_trl import Batches, make_tokenizer, run
from support.tools import Tools
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer


class Played:
    """Says the turns of `turns`: a row is known by the tokens that it goes on from."""

    turns = TURNS

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], None]:
        tokenizer = self.processing_class
        if not hasattr(self, "_unplayed"):
            self._unplayed = {task: list(rollouts) for task, rollouts in self.turns.items()}
            self._playing: list[tuple[list[int], list[str]]] = []  # the tokens so far, and the turns left
        said = []
        for ids in prompt_ids:
            found = next((p for p in self._playing if p[1] and ids[: len(p[0])] == p[0]), None)
            if found is None:
                task = next(task for task in self.turns if task in tokenizer.decode(ids))
                turns = list(self._unplayed[task].pop(0))
            else:
                self._playing.remove(found)
                turns = found[1]
            turn = tokenizer(turns[0] + "<|im_end|>").input_ids
            self._playing.append(([*ids, *turn], turns[1:]))
            said.append(turn)
        return said, None


class Stock(Batches, Played, GRPOTrainer):
    pass


class Ours(Batches, Played, WorldModelGRPOTrainer):
    pass


def tokenizer() -> Any:
    tools = Tools()
    return make_tokenizer([tools.run_code, tools.lookup_doc])


def train(cls: type[GRPOTrainer], **kwargs: Any) -> tuple[GRPOTrainer, torch.Tensor]:
    """One optimizer step on all the rollouts; the trainer and the gradient."""
    args = {"max_steps": 1, "gradient_accumulation_steps": 1, "num_generations": 4, "loss_type": "dapo"}
    args |= {"per_device_train_batch_size": sum(map(len, TURNS.values())), "max_completion_length": 600}
    rows = [{"prompt": [{"role": "user", "content": task}]} for task in TURNS]
    kwargs |= {"model": make_model(tokenizer()), "processing_class": tokenizer()}
    trainer, (gradient,) = run(cls, seed=None, args=args, rows=rows, environment=Tools, **kwargs)
    return trainer, gradient


def measure(objectives: Iterable[str] = OBJECTIVES) -> dict[str, Any]:
    """The rollouts, and the figures of the objectives on them."""
    stock, before = train(Stock)
    (batch,) = stock.batches
    figures: dict[str, Any] = {"policy": {"loss": stock.state.log_history[0]["loss"], "gradient": describe(before)}}
    for name in objectives:
        ours, after = train(Ours, world_model=EchoConfig(**OBJECTIVES[name]))
        assert torch.equal(ours.batches[0]["completion_ids"], batch["completion_ids"])
        row = ours.state.log_history[0]
        logged = {key.removeprefix("echo/"): value for key, value in row.items() if key.startswith("echo/")}
        figures[name] = {**logged, "gradient": describe(after - before)}
    rollouts = []
    for row in range(len(batch["completion_ids"])):
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row] == 1]
        inside = batch["completion_mask"][row] == 1
        rollouts.append(
            {
                "prompt": prompt.tolist(),
                "response": batch["completion_ids"][row][inside].tolist(),
                "mask": batch["tool_mask"][row][inside].tolist(),
                "advantage": batch["advantages"][row].item(),
            }
        )
    return {"rollouts": rollouts, "figures": figures}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "tokenizer.json").write_text(tokenizer().backend_tokenizer.to_str() + "\n")
    (FOLDER / "chat_template.jinja").write_text(tokenizer().chat_template)
    fixture = measure()
    text = ",\n".join(json.dumps(rollout) for rollout in fixture["rollouts"])
    figures = json.dumps(fixture["figures"], indent=1)
    (FOLDER / "agreement.json").write_text(f'{{"rollouts": [\n{text}\n],\n"figures": {figures}}}\n')
    assert agreement.read_fixture() == fixture


if __name__ == "__main__":
    main()
