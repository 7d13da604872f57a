"""forth-lang through TRL's trainer: compile errors are targets, and ECHO (code) leaves the glossary out."""

import json
import shutil
from typing import Any

import pytest
import torch

from support.on_trl import NEEDS_ENVIRONMENTS, Batches, call, make
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.forth import ForthEnvironment, dataset_rows, problems

pytestmark = [
    pytest.mark.skipif(not (shutil.which("gforth") and shutil.which("bwrap")), reason="needs gforth and bubblewrap"),
    NEEDS_ENVIRONMENTS,
]


class Ours(Batches, WorldModelGRPOTrainer):
    """Every other completion looks a word up, submits what does not compile, then the solution, and runs it. The others give
    up."""

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list, None]:
        solution = problems()[self.problem].solution
        turns = [
            call("lookup_doc", query="dup"),
            call("submit_code", code=f"{solution} undefined-word"),
            call("submit_code", code=solution),
            call("run_code", line=problems()[self.problem].example[0]),
        ]
        spoken = []
        for row, ids in enumerate(prompt_ids):
            depth = self.processing_class.decode(ids).count("<tool_response>")
            lazy = depth == 0 and row % 2
            spoken.append("done" if lazy or depth == len(turns) else turns[depth])
        return [self.processing_class(f"{text}<|im_end|>").input_ids for text in spoken], None


@pytest.mark.parametrize(
    "tools", [pytest.param(None, marks=pytest.mark.slow), ("submit_code", "run_code")], ids=["all", "code"]
)
def test_what_the_trainer_learns_of_forth(tools):
    pytest.importorskip("bm25s")
    rows = dataset_rows(1, level="0", max_turns=10) * 4
    args, echo = {"max_steps": 1, "max_completion_length": 1200}, EchoConfig(0.5, tools)
    trainer = make(Ours, args=args, rows=rows, environment=ForthEnvironment, world_model=echo, reward_funcs=[])
    trainer.problem = rows[0]["problem"]
    torch.manual_seed(0)
    trainer.train()
    row = trainer.state.log_history[0]
    learned = ""
    for batch in trainer.batches:
        for ids, weights in zip(batch["completion_ids"], batch["wm_weights"], strict=True):
            learned += trainer.processing_class.decode(ids[weights > 0])
    assert "Undefined word" in learned
    assert "Compiled." in learned
    assert problems()[trainer.problem].example[1] in learned
    assert ("dup ( w -- w w )" in learned) is (tools is None)
    assert not [test for test, _ in problems()[trainer.problem].tests if json.dumps(test) in learned]
    assert row["wm/env/success"] == 0.5
    assert row["wm/env/compile_error_share"] == 0.5
    assert row["wm/env/budget"] == 10
