"""forth-lang through TRL's trainer: compile errors are targets, and ECHO (code) leaves the glossary out."""

import json
import shutil
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset
from packaging.version import Version

from support.on_trl import Batches, call, config, make_model, make_tokenizer
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.forth import ForthEnvironment, dataset_rows, problems

pytestmark = [
    pytest.mark.skipif(not (shutil.which("gforth") and shutil.which("bwrap")), reason="needs gforth and bubblewrap"),
    pytest.mark.skipif(Version(trl.__version__) < Version("1.8"), reason="environments need trl >= 1.8"),
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
    environment = ForthEnvironment()
    tokenizer = make_tokenizer([environment.submit_code, environment.run_code, environment.lookup_doc])
    trainer = Ours(
        model=make_model(tokenizer),
        args=config(max_steps=1, max_completion_length=1200),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=ForthEnvironment,
        world_model=EchoConfig(0.5, tools),
        reward_funcs=[],
    )
    trainer.problem = rows[0]["problem"]
    torch.manual_seed(0)
    trainer.train()
    row = trainer.state.log_history[0]
    learned = ""
    for batch in trainer.batches:
        for ids, weights in zip(batch["completion_ids"], batch["wm_weights"], strict=True):
            learned += tokenizer.decode(ids[weights > 0])
    assert "Undefined word" in learned
    assert "Compiled." in learned
    assert problems()[trainer.problem].example[1] in learned
    assert ("dup ( w -- w w )" in learned) is (tools is None)
    assert not [test for test, _ in problems()[trainer.problem].tests if json.dumps(test) in learned]
    assert row["wm/env/success"] == 0.5
    assert row["wm/env/compile_error_share"] == 0.5
    assert row["wm/env/budget"] == 10
