"""The careless shopper, and the table of its success by the budget of checks: figures by hand."""

import json
import random

import pytest
from wm_plugin.recipes.pipelines import verify_shop
from wm_plugin.recipes.pipelines.shopper import careless

import wm_plugin.worlds.agents.rollout as rollout
from support.openai_server import OpenAIServer
from wm_plugin.data.schema import Trajectory
from wm_plugin.errors import UserError
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.shop import ShopEnvironment, dataset_rows, expert

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
        ("model", 0): [
            episode("a", False, [(None, False)]),
            episode("b", True, [(None, True)]),
            episode("c", False, [(None, False)]),
        ],
        ("model", 2): [
            episode("a", True, [saved, right], {"checks": 2, "refused": 1}),
            episode("b", True, [kept, saved, ("spent", True)], {"checks": 2, "refused": 2, "spent": 1}),
            episode("c", False, [wrong], {"checks": 1}),
        ],
        ("coin", 2): [
            episode("a", False, [wrong], {"checks": 1}),
            episode("b", True, [right], {"checks": 1}),
            episode("c", True, [saved, right], {"checks": 2, "refused": 1}),
        ],
    }
    off, two, coin = verify_shop.table(played)["rows"]
    assert [(row["adviser"], row["budget"]) for row in (off, two, coin)] == [("none", 0), ("model", 2), ("coin", 2)]
    assert (off["success"]["value"], off["against_0"], off["model_against_it"]) == (pytest.approx(1 / 3), None, None)
    assert off["verdicts"] == {"TP": 0, "FP": 0, "FN": 0, "TN": 0, "accuracy": None}
    assert off["checks"] == 0
    assert two["success"]["value"] == pytest.approx(2 / 3)
    assert two["reward"]["value"] == pytest.approx(2.5 / 3)
    assert two["against_0"]["value"] == pytest.approx(1 / 3)
    assert two["verdicts"] == {"TP": 1, "FP": 1, "FN": 1, "TN": 2, "accuracy": pytest.approx(3 / 5)}
    assert [two[name] for name in ("checks", "refused", "spent", "unanswered")] == pytest.approx([5 / 3, 1, 1 / 3, 0])
    assert (coin["against_0"]["value"], coin["model_against_it"]["value"]) == (pytest.approx(1 / 3), 0.0)
    assert coin["verdicts"] == {"TP": 2, "FP": 1, "FN": 0, "TN": 1, "accuracy": 0.75}
    text = verify_shop.markdown({"rows": [off, two, coin]})
    assert "| none | 0 | 3 | 0.333 [" in text
    assert "| 1.67 | 1.00 | 0.33 | 0.00 | 0.600 | 1 | 1 | 1 | 2 |" in text
    assert "| coin | 2 | 3 | 0.667 [" in text


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
    data = list(verify_shop.rollouts(12, 0))
    assert {one.success for one in data} == {True, False}  # failed purchases are in the data
    calls = [[turn.action.calls[0].name for turn in one.turns] for one in data]
    assert any(names.count("search") > 1 for names in calls)  # and what comes after a purchase that is not made
    assert data == list(verify_shop.rollouts(12, 0))


def test_every_budget_has_the_same_tasks_and_the_shopper_tries_again(tmp_path, capsys):
    with OpenAIServer(
        lambda _: "Bought: something. It is not quite what was wanted (0.50 of 1). The episode is over."
    ) as server:
        who = {"model": ["--model", "w", "--url", server.base_url], "refuse": ["--control", "refuse"]}
        for adviser, budget in (("model", 0), ("model", 2), ("refuse", 2)):
            arguments = [*who[adviser], "--budget", str(budget), "--count", "3"]
            assert verify_shop.main([*arguments, "--out", str(tmp_path / "e" / f"{adviser}_{budget}.jsonl")]) == 0
    assert verify_shop.main(["--table", str(tmp_path / "e"), "--out", str(tmp_path / "t.json")]) == 0
    off, two, refuse = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert (off["episodes"], two["episodes"]) == (3, 3)
    assert (two["checks"], two["refused"], two["spent"]) == (2, 2, 1)  # it tries again until its purchase goes out
    verdicts = two["verdicts"]
    assert (verdicts["TP"], verdicts["FP"], verdicts["FN"] + verdicts["TN"]) == (0, 0, 6)
    assert verdicts["accuracy"] == pytest.approx(verdicts["TN"] / 6)
    assert {**refuse, "adviser": "model", "model_against_it": None} == two  # a world model that always says no
    assert refuse["model_against_it"]["value"] == 0.0
    assert (tmp_path / "t.md").read_text() in capsys.readouterr().out


def test_mistakes_are_one_line(tmp_path):
    (tmp_path / "e").mkdir()
    with pytest.raises(UserError, match=r"has no files like model_4.jsonl"):
        verify_shop.main(["--table", str(tmp_path / "e"), "--out", str(tmp_path / "x.json")])
    with pytest.raises(UserError, match="write X.json"):
        verify_shop.main(["--table", str(tmp_path / "e"), "--out", str(tmp_path / "x.md")])
    with pytest.raises(UserError, match="--model or --control: write"):
        verify_shop.main(["--out", str(tmp_path / "x.jsonl")])
    with pytest.raises(UserError, match=r"--count is 0"):
        verify_shop.main(["--model", "m", "--count", "0", "--out", str(tmp_path / "x.jsonl")])
