"""The careless shopper, and the table of its success by the budget of checks: figures by hand."""

import json
import random

import pytest

import wm_plugin.agents.rollout as rollout
from support.openai_server import OpenAIServer
from wm_plugin.agents.scripted import scripted
from wm_plugin.environments.shop import ShopEnvironment, dataset_rows, expert
from wm_plugin.errors import UserError
from wm_plugin.tiny import verify_table
from wm_plugin.tiny.rollouts import shop_rollouts
from wm_plugin.tiny.shopper import careless
from wm_plugin.trajectories.schema import Trajectory

pytest.importorskip("bm25s")
pytestmark = pytest.mark.host


def episode(task, success, verdicts, figures=()):
    """Of verdicts and whether each purchase would have been right."""
    attempts = [{"verdict": verdict, "right": right} for verdict, right in verdicts]
    counts = {f"verify/{name}": value for name, value in dict(figures).items()}
    return Trajectory(
        turns=(),
        task_id=task,
        success=success,
        reward=1.0 if success else 0.5,
        metadata={"attempts": attempts, "figures": counts},
    )


def test_the_figures_are_those_by_hand():
    right, wrong = ("passed", True), ("passed", False)
    saved, kept = ("refused", False), ("refused", True)
    played = {
        0: [
            episode("a", False, [(None, False)]),
            episode("b", True, [(None, True)]),
            episode("c", False, [(None, False)]),
        ],
        2: [
            episode("a", True, [saved, right], {"checks": 2, "refused": 1}),
            episode("b", True, [kept, saved, ("spent", True)], {"checks": 2, "refused": 2, "spent": 1}),
            episode("c", False, [wrong], {"checks": 1}),
        ],
    }
    off, two = verify_table.table(played)["budgets"]
    assert (off["budget"], off["success"]["value"], off["success_against_0"]) == (0, pytest.approx(1 / 3), None)
    assert off["world_model"] == {"TP": 0, "FP": 0, "FN": 0, "TN": 0, "accuracy": None}
    assert off["checks"] == 0
    assert two["success"]["value"] == pytest.approx(2 / 3)
    assert two["reward"]["value"] == pytest.approx(2.5 / 3)
    assert two["success_against_0"]["value"] == pytest.approx(1 / 3)
    assert two["world_model"] == {"TP": 1, "FP": 1, "FN": 1, "TN": 2, "accuracy": pytest.approx(3 / 5)}
    assert [two[name] for name in ("checks", "refused", "spent", "unanswered")] == pytest.approx([5 / 3, 1, 1 / 3, 0])
    text = verify_table.markdown({"budgets": [off, two]})
    assert "| 0 | 3 | 0.333 [" in text
    assert "| 1.67 | 1.00 | 0.33 | 0.00 | 0.600 | 1 | 1 | 1 | 2 |" in text


def test_the_shopper_makes_its_mistakes_and_none_at_a_share_of_0():
    rows = dataset_rows(12)

    def shop(share):
        played = []
        for number, row in enumerate(rows):
            choose = careless(random.Random(number), share)
            played.append(rollout.play(ShopEnvironment(), row, scripted(choose), max_turns=30))
        return played

    experts = [rollout.play(ShopEnvironment(), row, scripted(expert()), max_turns=30) for row in rows]
    assert shop(0.0) == experts
    failed = [one for one in shop(1.0) if not one.success]
    assert len(failed) > 3
    assert all(one.turns[-1].action.calls[0].name == "buy" for one in failed)
    data = list(shop_rollouts(12, 0))
    assert {one.success for one in data} == {True, False}  # failed purchases are in the data
    assert data == list(shop_rollouts(12, 0))


def test_every_budget_has_the_same_tasks_and_the_shopper_tries_again(tmp_path, capsys):
    with OpenAIServer(
        lambda _: "Bought: something. It is not quite what was wanted (0.50 of 1). The episode is over."
    ) as server:
        for budget in (0, 2):
            arguments = ["--model", "w", "--url", server.base_url, "--budget", budget, "--count", 3]
            assert (
                verify_table.main([*map(str, arguments), "--out", str(tmp_path / "e" / f"budget_{budget}.jsonl")]) == 0
            )
    assert verify_table.main(["--table", str(tmp_path / "e"), "--out", str(tmp_path / "t.json")]) == 0
    off, two = json.loads((tmp_path / "t.json").read_text())["budgets"]
    assert (off["episodes"], two["episodes"]) == (3, 3)
    assert (two["checks"], two["refused"], two["spent"]) == (2, 2, 1)  # it tries again until its purchase goes out
    model = two["world_model"]
    assert (model["TP"], model["FP"], model["FN"] + model["TN"]) == (0, 0, 6)
    assert model["accuracy"] == pytest.approx(model["TN"] / 6)
    assert (tmp_path / "t.md").read_text() in capsys.readouterr().out


def test_mistakes_are_one_line(tmp_path):
    (tmp_path / "e").mkdir()
    with pytest.raises(UserError, match=r"has no files like budget_4.jsonl"):
        verify_table.main(["--table", str(tmp_path / "e"), "--out", str(tmp_path / "x.json")])
    with pytest.raises(UserError, match="write X.json"):
        verify_table.main(["--table", str(tmp_path / "e"), "--out", str(tmp_path / "x.md")])
    with pytest.raises(UserError, match="--model is missing"):
        verify_table.main(["--out", str(tmp_path / "x.jsonl")])
    with pytest.raises(UserError, match=r"--count is 0"):
        verify_table.main(["--model", "m", "--count", "0", "--out", str(tmp_path / "x.jsonl")])
