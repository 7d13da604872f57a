"""The terminal through TRL's trainer: what commands print counts, exactly, and nothing else."""

from typing import Any

import torch

from support.on_trl import NEEDS_ENVIRONMENTS, Batches, call, make
from support.shell import needs_shell
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.terminal import TerminalEnvironment, dataset_rows
from wm_plugin.worlds.terminal import tasks as of_terminal

pytestmark = [needs_shell, NEEDS_ENVIRONMENTS]


class Ours(Batches, WorldModelGRPOTrainer):
    """Every other completion runs the reference solution, after a command that fails; the others stop at once."""

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list, None]:
        turns = [call("run", command=command) for command in ("nothing-such", *self.solution)]
        spoken = []
        for row, ids in enumerate(prompt_ids):
            depth = self.processing_class.decode(ids).count("<tool_response>")
            lazy = depth == 0 and row % 2
            spoken.append("done" if lazy or depth == len(turns) else turns[depth])
        return [self.processing_class(f"{text}<|im_end|>").input_ids for text in spoken], None


def test_two_steps_learn_what_commands_print():
    rows = dataset_rows(1, seed=3) * 4
    task = of_terminal.make(rows[0]["task"], rows[0]["task_seed"])
    args = {"max_steps": 2, "max_completion_length": 3000}
    trainer = make(
        Ours, args=args, rows=rows, environment=TerminalEnvironment, world_model=EchoConfig(0.05), reward_funcs=[]
    )
    trainer.solution = task.solution
    torch.manual_seed(0)
    trainer.train()
    environment = TerminalEnvironment()
    environment.reset(**rows[0])
    printed = [environment.run(command) for command in ("nothing-such", *task.solution)]
    assert environment.success
    learned = set()
    for batch in trainer.batches:
        for ids, weights in zip(batch["completion_ids"], batch["wm_weights"], strict=True):
            learned.add(trainer.processing_class.decode(ids[weights > 0]).replace("\n", ""))
    assert learned == {"", "".join(printed).replace("\n", "")}
    steps = [row for row in trainer.state.log_history if "loss" in row]
    assert len(steps) == 2
    for step in steps:
        assert step["wm/env/success"] == 0.5
        assert step["wm/env/lost"] == 0
        assert step["echo/coeff"] == 0.05
        assert step["echo/tokens"] == step["echo/tool/run/tokens"] > 0
