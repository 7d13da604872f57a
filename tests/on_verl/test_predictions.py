"""Predictions inside an episode in verl's main_ppo, by the tiny recipe: advantages of turns by hand, and what is refused."""

import json

import pytest

pytest.importorskip("verl")

from transformers import AutoTokenizer

from support.scripted_on_verl import run_script
from support.verl_recipes import of_recipe
from wm_plugin.errors import UserError
from wm_plugin.verl.data import verl_rows
from wm_plugin.verl.support import check_config

BOARDS = {"A..G\n#...\n....\n....": ["#...\n.A.G", ".A.G\n#...\n....\n....>"], "A.G.\n.#..\n....\n....": ["x", "y"]}


@pytest.mark.slow
def test_a_turn_has_its_advantage_on_its_own_tokens(tmp_path):
    """Two prompts, whose rollouts say the same: the first one's second prediction is right, the others are wrong."""
    script, rows = {}, []
    for board, (wrong, right) in BOARDS.items():
        turns = [f"<p>{wrong}</p><action>L</action>", f"<p>{right}</p><action>R</action>", "done"]
        script[board] = turns
        rows.append({"prompt": [{"role": "user", "content": "Go. "}], "board": board})
    run = run_script(
        "prediction_grpo_tiny",
        tmp_path,
        {"train": verl_rows(rows, "train")},
        script,
        [],
        "wm.protocol=tags",
        "wm.max_turn_tokens=1000",
        "wm.prediction_reward.coeff=0.5",
        "trainer.total_training_steps=2",
        batch=2,
        policy="tiny_predicts_verl",
    )
    assert run.code == 0, run.output[-3000:]
    assert len(run.steps) == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "runs" / "tiny_predicts_verl")
    lengths = {
        board: [len(tokenizer.encode(f"{turn}<|im_end|>", add_special_tokens=False)) for turn in turns]
        for board, turns in script.items()
    }
    first, second, _ = lengths[next(iter(BOARDS))]
    total = sum(map(sum, lengths.values()))
    for step in run.steps:
        assert step["wm/env/prediction/score"] == 0.25
        assert step["wm/env/prediction/share"] == 1
        assert (step["critic/advantages/max"], step["critic/advantages/min"]) == (0.25, -0.25)
        assert step["critic/advantages/mean"] == pytest.approx(0.25 * (second - first) / total, abs=1e-6)
        assert step["critic/score/mean"] == 0  # the episode's reward is the world's own
        assert step["actor/grad_norm"] > 0
    assert json.loads((tmp_path / "script.json").read_text()).keys() == script.keys()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean", "actor.policy_loss.loss_mode is geo_mean"),
        ("trainer.v1.trainer_mode=sync", "trainer.v1.trainer_mode is 'sync'"),
    ],
)
def test_what_has_one_advantage_a_trajectory_is_refused(override, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        check_config(of_recipe("prediction_grpo_tiny", override))
    check_config(of_recipe("prediction_grpo_tiny", override, "wm.prediction_reward.level=sum"))
