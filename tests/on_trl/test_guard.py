"""The guard on TRL's trainer: it sees what the run logs, lowers the coefficient of the next steps, and survives a resume."""

import json
import logging

import pytest
import torch
from datasets import Dataset

from support.on_trl import (
    Ours,
    ToolEnvironment,
    call,
    dataset,
    make,
    reward,
    run,
    series,
)
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.objectives.guard import Guard, GuardConfig
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.docs import DocsEnvironment, dataset_rows


class Told(ToolEnvironment):
    """Every result is a word of the row's: a run learns that of its rows, and unlearns others."""

    def reset(self, word: str, **_) -> None:
        super().reset()
        self.word = word

    def _printed(self, code):
        return self.word * 4

    def _shown(self, name):
        return self.word * 2


def rows(word, count=8):
    return dataset(count).add_column("word", [word] * count)


def told(guard=None, *, rewards=reward, **fields):
    objective = {name: fields.pop(name) for name in ("zero_variance_groups",) if name in fields}
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "learning_rate": 1e-2}
    trainer = make(
        Ours,
        reward_funcs=[rewards],
        args={"max_steps": 4, "gradient_accumulation_steps": 1, **settings, **fields},
        rows=rows("abc"),
        eval_dataset={"same": rows("abc", 1), "other": rows("xyz", 1)},
        environment=Told,
        world_model=EchoConfig(0.5, guard=guard, **objective),
    )
    torch.manual_seed(11)
    return trainer


def replayed(trainer, guard):
    """The multiplier of each step, and what is said, by a guard that reads the log."""
    multipliers, texts = [], []
    for row in trainer.state.log_history:
        if "echo/nll" in row:
            multipliers.append(guard.multiplier)
            tokens = row["echo/tokens"]
            texts.append(guard.after_step(nll=row["echo/nll"] * tokens, tokens=tokens, entropy=row["entropy"]))
            assert row["echo/guard/multiplier"] == guard.multiplier
            assert row["echo/guard/entropy"] == pytest.approx(guard.figures()["guard/entropy"])
        elif "eval_other_echo/nll" in row:
            texts.append(guard.after_evaluation(row["step"], {"other": (row["eval_other_echo/nll"], 1)}))
    return multipliers, [text for text in texts if text]


@pytest.mark.slow
def test_it_acts_on_what_the_run_logs_and_goes_on_after_a_resume(tmp_path, caplog):
    guard = {"k": 1, "factor": 0.5, "share": 0.5, "sets": ["other"]}
    saved = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 2}
    with caplog.at_level(logging.WARNING):
        whole = told(guard, **saved)
        whole.train()
    multipliers, texts = replayed(whole, Guard(GuardConfig(**guard)))
    assert series(whole, "echo/coeff") == [0.5 * multiplier for multiplier in multipliers]
    assert multipliers[0] == 1.0 > multipliers[-1]
    assert [record.message for record in caplog.records if record.message.startswith("guard: ")] == texts
    assert any("held-out" in text for text in texts)
    for name in ("same", "other"):  # each set has figures of its own
        assert len(series(whole, f"eval_{name}_echo/nll")) == 4
    assert series(whole, "eval_same_echo/nll")[-1] < series(whole, "eval_other_echo/nll")[-1]
    resumed = told(guard, **saved)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name in ("echo/coeff", "echo/guard/multiplier", "loss", "eval_other_echo/nll"):
        assert series(resumed, name) == series(whole, name), name
    state = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["stateful_callbacks"]["wm_guard"]
    assert state["state"]["step"] == 2  # with the evaluation of that step


def test_held_out_figures_are_of_all_groups():
    """Those of a training step leave out groups without an advantage, if they are to be dropped."""
    trainer = told(zero_variance_groups="drop", rewards=lambda completions, **_: [1.0] * len(completions), max_steps=1)
    trainer.train()
    assert series(trainer, "echo/tokens") == [0]
    assert series(trainer, "eval_same_echo/tokens")[0] > 0


@pytest.mark.slow
def test_a_guard_of_other_settings_starts_anew(tmp_path, caplog):
    saved = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 1}
    for guard in (None, {"k": 2}):
        trainer = told(guard, **saved, max_steps=1)
        trainer.train()
        resumed = told({"k": 1}, **saved, max_steps=2)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert "the checkpoint has no guard: it starts anew" in caplog.text
    assert "the checkpoint has a guard of other settings: it starts anew" in caplog.text


@pytest.mark.parametrize(
    ("guard", "fields", "message"),
    [
        (True, {"eval_strategy": "no"}, "guard watches evaluations, and the run has none; give an eval_dataset"),
        ({"sets": ["othr"]}, {}, r"guard\.sets: there is no evaluation set 'othr'; did you mean 'other'"),
    ],
)
def test_a_guard_that_has_nothing_to_watch_is_refused(guard, fields, message):
    with pytest.raises(UserError, match=message) as error:
        told(guard, **fields)
    assert "\n" not in str(error.value)


class Reading(WorldModelGRPOTrainer):
    """A policy that opens the page that it is asked about, at a line which follows from the question."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        turns = []
        for ids in prompt_ids:
            text = self.processing_class.decode(ids)
            if "<tool_response>" in text:
                turn = f"read {int(torch.randint(10**6, ()).item())}"
            else:
                page, line = text.rpartition("page ")[2].split()[:2]
                turn = call("open_lines", page=page, lines=f"{line}-{int(line) + 2}")
            turns.append(self.processing_class(turn + "<|im_end|>").input_ids)
        return turns, None


def pages(count, split):
    """Questions of the world docs that name their place: its results can be learnt by heart and by nothing else."""
    questions = dataset_rows(count, seed=4, split=split)
    for number, row in enumerate(questions):
        row["prompt"] = [{"role": "user", "content": f"page {row['page']} {2 + 3 * (number % 4)} "}]
    return Dataset.from_list(questions)


def read(guard):
    args = {"max_steps": 80, "gradient_accumulation_steps": 1, "per_device_train_batch_size": 16, "num_generations": 2}
    args |= {"max_completion_length": 500, "learning_rate": 1e-2, "logging_steps": 5}
    args |= {"eval_strategy": "steps", "eval_steps": 5, "per_device_eval_batch_size": 16}
    trainer, _ = run(
        Reading,
        dtype=torch.float32,
        args=args,
        rows=pages(8, "train"),
        eval_dataset={"unseen": pages(16, "unseen")},
        environment=DocsEnvironment,
        world_model=EchoConfig(0.5, guard=guard),
    )
    return trainer


@pytest.mark.nightly
def test_it_acts_on_a_world_that_can_only_be_memorised_before_the_damage_is_done():
    pytest.importorskip("bm25s")
    without, with_guard = read(None), read(True)
    assert series(without, "echo/nll")[-1] < series(without, "echo/nll")[0] / 2
    before, after = series(without, "eval_unseen_echo/nll"), series(with_guard, "eval_unseen_echo/nll")
    assert min(before) + 0.3 < before[-1]  # learnt by heart
    multipliers = series(with_guard, "echo/guard/multiplier")
    assert multipliers[-1] < 1
    acted = next(number for number, value in enumerate(multipliers) if value < 1)
    assert before[:acted] == after[:acted]  # until then it is the same run
    assert after[acted] < (min(before) + before[-1]) / 2  # less than half of the damage
    assert after[-1] < before[-1] - 0.2
