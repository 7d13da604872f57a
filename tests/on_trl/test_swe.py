"""swe through TRL's trainer: what bash, Python and the editor print is learnt, and no hidden test is in it."""

from typing import Any

import pytest
import torch

from support.on_trl import NEEDS_ENVIRONMENTS, Batches, call, make
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.kit import shell
from wm_plugin.worlds.swe import SweEnvironment, dataset_rows, judge, tasks
from wm_plugin.worlds.swe.tasks import package

pytestmark = [pytest.mark.slow, pytest.mark.system, NEEDS_ENVIRONMENTS]


class Ours(Batches, WorldModelGRPOTrainer):
    """Every other completion runs the tests, mends the fault and runs the tests again. The others mend it wrongly."""

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list, None]:
        path = f"{self.task.package}/{self.task.module}"
        spoken = []
        for row, ids in enumerate(prompt_ids):
            depth = self.processing_class.decode(ids).count("<tool_response>")
            self.lazy[row] = row % 2 if depth == 0 else self.lazy.get(row, 0)
            old, new = self.task.fix if not row % 2 else self.task.wrong
            turns = [
                call("bash", command="python3 -m unittest 2>&1 | tail -n 1"),
                call("edit", path=path, old=old, new=new),
                call("bash", command="python3 -m unittest 2>&1 | tail -n 3; exit 3"),
            ]
            spoken.append(turns[depth] if depth < len(turns) else "done")
        return [self.processing_class(f"{text}<|im_end|>").input_ids for text in spoken], None


def test_what_the_trainer_learns_of_a_repository():
    """With the term on what bash prints alone; `recipes/trl/echo_swe.yaml` has it on both tools."""
    try:
        judge.check()
        shell.check()
    except UserError as error:
        pytest.skip(str(error))
    rows = dataset_rows(1, seed=3, max_turns=6) * 4
    args, echo = {"max_steps": 2, "max_completion_length": 2000, "learning_rate": 1e-3}, EchoConfig(0.05, ("bash",))
    trainer = make(Ours, args=args, rows=rows, environment=SweEnvironment, world_model=echo, reward_funcs=[])
    trainer.task, trainer.lazy = tasks()[rows[0]["task"]], {}
    torch.manual_seed(0)
    trainer.train()
    steps = [row for row in trainer.state.log_history if "loss" in row]
    assert len(steps) == 2
    learnt = masked = ""
    for batch in trainer.batches:
        for ids, weights in zip(batch["completion_ids"], batch["wm_weights"], strict=True):
            learnt += trainer.processing_class.decode(ids[weights > 0])
            masked += trainer.processing_class.decode(ids[weights == 0])
    for printed in ("FAILED (", "Ran 4 tests in 0.001s\n\nOK", "[exit code 3, the shell ended; a new shell has"):
        assert printed in learnt
        assert printed not in masked
    for not_learnt in ("was edited. Here it is now:\n", '"name": "edit"', '"name": "bash"', "done"):
        assert not_learnt in masked
        assert not_learnt not in learnt
    hidden = [test for number, test in enumerate(package(trainer.task.package).tests) if not test.visible]
    assert not [test.says for test in hidden if test.says.replace(" ", "_") in learnt + masked]
    for row in steps:
        assert row["wm/env/success"] == 0.5
        assert row["wm/env/turns"] == 4  # the answer in words is one
        assert row["wm/env/calls/bash"] == 2 * row["wm/env/calls/edit"] > 0
        assert row["echo/coeff"] == 0.05
    assert steps[0]["echo/nll"] != steps[1]["echo/nll"]
