import html
import json
import math
import sys

import pytest
import torch

pytest.importorskip("trl", minversion="1.10")
pytest.importorskip("jinja2")

from transformers import AutoModelForCausalLM

from wm_plugin.cli import demo as command
from wm_plugin.cli.main import main
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.lab.evaluation.intervals import Ratio
from wm_plugin.lab.report.sources import collect
from wm_plugin.lab.tiny.held_out import Ahead, HeldOut, Measured
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.trl.demo import run_demo
from wm_plugin.trl.demo.report import Arm, make_claims, tell, tell_look_ahead

MEASURES = ("success", "look_ahead", "turns", "env_nll", "exact")
KEYS = {
    "coeff",
    *(f"{measure}_{when}" for measure in MEASURES for when in ("start", "end")),
    "cpu_seconds",
    "policy_tokens",
    "environment_tokens",
}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The whole demo, small: five steps a stage of the warm start, two of GRPO."""
    out = tmp_path_factory.mktemp("demo") / "new"
    seen: dict[str, tuple[int, int]] = {}
    threads = torch.get_num_threads()
    result = run_demo(2, 0, out, lambda what, *step: seen.update({what: step}), warm_steps=5, boards=40)
    assert torch.get_num_threads() == threads
    return out, result, seen


@pytest.mark.slow
def test_a_run_is_complete_and_the_same_in_its_file_and_report(smoke) -> None:
    out, result, seen = smoke
    assert seen == {
        "learn to predict the world": (5, 5),
        "learn to walk": (5, 5),
        "GRPO, RL alone": (2, 2),
        "GRPO, RL + world-model objective": (2, 2),
    }
    assert json.loads((out / "result.json").read_text()) == result
    assert [arm["coeff"] for arm in result["arms"]] == [0.0, 0.05]
    for arm in result["arms"]:
        assert set(arm) >= KEYS
        assert all(math.isfinite(arm[key]) for key in KEYS)
        assert [point["step"] for point in arm["evaluations"]] == [0, 1, 2]
        assert [step["step"] for step in arm["training"]] == [1, 2]
        assert all(step["echo/coeff"] == arm["coeff"] for step in arm["training"])
        assert all(math.isfinite(step["echo/nll"]) for step in arm["training"])
        # each of the 64 episodes has a policy token after every observation (20 tokens), the first included
        assert arm["policy_tokens"] == 2 * 64 + arm["environment_tokens"] / 20
    without, with_objective = result["arms"]  # which start alike
    assert all(without[key] == with_objective[key] for key in KEYS if key.endswith("_start"))
    assert without["training"][0] | {"echo/coeff": 0.05} == with_objective["training"][0]  # the same first rollouts
    assert with_objective["env_nll_end"] < without["env_nll_end"]
    document = (out / "report.html").read_text()
    assert "The warm start is incomplete" in document
    assert document.count("<figure") == 7  # the picture, and five curves
    assert all(sentence in html.unescape(document) for sentence in result["answers"])
    assert all(claim["verdict"] in document for claim in result["claims"])
    assert 'class="wm-policy"' in document
    assert 'class="wm-content wm-counts"' in document


def measured(shift: float, boards: int) -> Measured:
    generator = torch.Generator().manual_seed(0)
    ratios = {}
    for measure, count in (("exact", boards // 2), ("env_nll", boards // 2), ("success", boards), ("turns", boards)):
        noise = torch.randn(count, generator=generator)
        ratios[measure] = Ratio(noise + shift * (measure == "exact"), torch.ones(count))
    return Measured(ratios, [])


def test_claims_are_computed_from_the_arms() -> None:
    held_out = HeldOut(make_tokenizer(), 80)
    start, low, high = (measured(shift, 80) for shift in (0.0, -1.0, 0.5))
    arms = [Arm(0.0, start, evaluations=[(60, low)]), Arm(0.05, start, evaluations=[(60, high)])]
    verdicts = {
        (claim["measure"], claim["of"].partition(",")[0], claim["against"].partition(",")[0]): claim["verdict"]
        for claim in make_claims(arms, held_out, 60)
    }
    assert verdicts.pop(("exact", "RL alone", "the start")) == "lower"
    assert verdicts.pop(("exact", "RL + world-model objective", "the start")) == "higher"
    assert verdicts.pop(("exact", "RL + world-model objective", "RL alone")) == "higher"
    assert len(verdicts) == 9
    assert set(verdicts.values()) == {"no difference at this sample size"}


def ahead(*ways: list[float]) -> Ahead:
    """Outcomes on 20 boards: plain, looking ahead, and by both controls."""
    return Ahead(*(Ratio(torch.tensor(values), torch.ones(len(values))) for values in ways))


NONE, ALL, HALF = [0.0] * 20, [1.0] * 20, [0.0, 1.0] * 10


@pytest.mark.parametrize(
    ("ends", "between", "against"),
    [
        (
            (ahead(HALF, NONE, ALL, NONE), ahead(HALF, ALL, ALL, NONE)),
            "higher",
            ["lower", "no difference", "lower", "higher", "higher", "no difference"],
        ),
        (
            (ahead(HALF, HALF, HALF, HALF), ahead(NONE, HALF, ALL, ALL)),
            "no difference",
            ["no difference", "no difference", "no difference", "higher", "lower", "lower"],
        ),
    ],
)
def test_what_looking_ahead_is_worth_follows_the_intervals(ends, between: str, against: list[str]) -> None:
    start = measured(0.0, 80)
    arms = [
        Arm(coeff, start, [ahead(HALF, HALF, HALF, HALF), end], evaluations=[(60, start)])
        for coeff, end in zip((0.0, 0.05), ends, strict=True)
    ]
    held_out = HeldOut(make_tokenizer(), 80)
    told = tell_look_ahead(arms, held_out, 60)
    assert told["boards"] == 20
    verdicts = [claim["verdict"].removesuffix(" at this sample size") for claim in told["claims"]]
    assert verdicts == [between, *["no difference"] * 3, *against]
    assert [claim["against"] for claim in told["claims"][1:]] == ["not", "a coin", "the real world"] * 3
    first = told["claims"][0]
    assert first["difference"] == pytest.approx(ends[1].ahead.mean - ends[0].ahead.mean)
    interval = f"({first['difference']:+.3f}, 99% interval {first['low']:+.3f} to {first['high']:+.3f})"
    success, kept, good_for = tell(arms, make_claims(arms, held_out, 60), told)
    assert success.startswith("Does task success change? Not measurably (+0.000,")
    assert kept.startswith("Is the world kept?")
    assert f"; {first['verdict']} {interval}." in good_for
    assert f"{ends[1].ahead.mean:.0%} with the objective, {ends[0].ahead.mean:.0%} by RL alone, 50% before" in good_for
    for name, figures in (("start", ahead(HALF, HALF, HALF, HALF)), ("coeff 0", ends[0]), ("coeff 0.05", ends[1])):
        assert told["figures"][name] == {
            way: getattr(figures, way).mean for way in ("plain", "coin", "ahead", "oracle")
        }


def test_task_success_that_changes_is_called_so() -> None:
    held_out = HeldOut(make_tokenizer(), 80)
    start = measured(0.0, 80)
    noise = start.ratios["success"]
    better = Measured(start.ratios | {"success": Ratio(noise.total + 1, noise.count)}, [])
    same = ahead(HALF, HALF, HALF, HALF)
    arms = [Arm(0.0, start, [same], evaluations=[(60, start)]), Arm(0.05, start, [same], evaluations=[(60, better)])]
    success, *_ = tell(arms, make_claims(arms, held_out, 60), tell_look_ahead(arms, held_out, 60))
    assert success.startswith("Does task success change? Yes, it is higher (+1.000,")


def test_differences_of_the_same_boards_have_no_interval_where_every_board_says_the_same() -> None:
    """Success varies from board to board; what looking ahead adds does not: a pairing that is lost would show an interval."""
    plain, looking = [0.0, 0.2] * 10, [0.5, 0.7] * 10
    arms = [Arm(coeff, measured(0.0, 80), [ahead(plain, looking, plain, plain)]) for coeff in (0.0, 0.05)]
    for claim in tell_look_ahead(arms, HeldOut(make_tokenizer(), 80), 60)["claims"][1:]:
        assert (claim["low"], claim["high"]) == pytest.approx((0.5, 0.5))


@pytest.mark.slow
def test_the_command_calls_the_demo_and_prints_its_table(monkeypatch, capsys, smoke) -> None:
    _, result, _ = smoke
    calls = []
    monkeypatch.setattr("wm_plugin.trl.demo.run_demo", lambda *args: calls.append(args[:3]) or result)
    assert main(["demo", "--steps", "3", "--seed", "5", "--out", "x"]) == 0
    assert calls == [(3, 5, "x")]
    printed = capsys.readouterr().out
    assert printed.startswith("\n".join(result["answers"]))
    assert printed.strip().endswith("report.html")
    table = [line for line in printed.splitlines() if " before " in line or line.startswith("success, ")]
    assert len(table) == 5  # the head, and four ways to choose a move
    assert all(len(line) < 80 for line in table)  # whole in the narrowest terminal
    assert not any("…" in line for line in printed.splitlines())


def test_without_trl_the_command_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    for module in [name for name in sys.modules if f"{name}.".startswith("wm_plugin.trl.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MissingExtraError, match=r"the demo needs trl: pip install .*\[demo\]'"):
        command.demo(out="demo")


def test_without_jinja_it_stops_before_it_trains(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("wm_plugin.runtime.page._MISSING", "jinja2")
    with pytest.raises(MissingExtraError, match=r"the demo needs jinja2: pip install .*\[demo\]'"):
        run_demo(1, out=tmp_path / "out", warm_steps=1)
    assert not (tmp_path / "out").exists()


def test_what_cannot_run_is_refused_at_once(tmp_path) -> None:
    with pytest.raises(UserError, match="steps is 0"):
        run_demo(0, out=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="name a folder"):
        run_demo(1, out=tmp_path / "file")
    for name in ("report.html", "result.json", "held_out.jsonl"):
        (tmp_path / name).write_text('["mine"]')
        with pytest.raises(UserError, match=f"{name}: holds something else than what a demo writes"):
            run_demo(1, out=tmp_path)
        assert (tmp_path / name).read_text() == '["mine"]'
        (tmp_path / name).unlink()


def test_policies_of_somebody_else_are_left_alone(tmp_path) -> None:
    mine = tmp_path / "policies" / "coeff_0.05" / "config.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(UserError, match="coeff_0.05 holds something else than a policy of the demo"):
        run_demo(1, out=tmp_path)
    assert mine.read_text() == "mine"
    mine.unlink()
    mine.parent.rmdir()
    for there in (tmp_path / "policies" / "start", tmp_path / "policies"):
        there.rmdir() if there.is_dir() else None
        there.touch()
        with pytest.raises(UserError, match=f"{there.name}:? is a file; name a folder"):
            run_demo(1, out=tmp_path)
        there.unlink()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_policies_are_kept_as_they_were_measured(smoke) -> None:
    out, result, _ = smoke
    assert result["policies"] == {name: str(out / "policies" / name) for name in ("start", "coeff_0", "coeff_0.05")}
    held_out = HeldOut(make_tokenizer(), 40)
    ends = {"start": "start", "coeff_0": "end", "coeff_0.05": "end"}
    for (name, when), arm in zip(ends.items(), [result["arms"][0], *result["arms"]], strict=True):
        model = AutoModelForCausalLM.from_pretrained(result["policies"][name])
        assert held_out.measure(model).means()["env_nll"] == pytest.approx(arm[f"env_nll_{when}"], rel=1e-5)
        assert sum(parameter.numel() for parameter in model.parameters()) < 200_000


@pytest.mark.slow
def test_the_policies_get_a_full_report(smoke, tmp_path, capsys) -> None:
    """By the commands that the documentation names: both trainings, an evaluation of each policy, and predictions."""
    out, result, _ = smoke
    evaluations = tmp_path / "evals"
    for name, folder in result["policies"].items():
        flags = ["--as", "policy", "--model", folder, "--out", str(evaluations / name), "--limit", "8", "--json"]
        assert main(["eval", "one-step", result["held_out"], *flags]) == 0
        measured = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (measured["failures"], measured["settings"]["kind"]) == ({}, "policy")
    report = tmp_path / "report.html"
    assert main(["report", str(out), str(evaluations), "--out", str(report)]) == 0
    document = html.unescape(report.read_text())
    for text in (
        f"{out.name} coeff_0",
        f"{out.name} coeff_0.05",
        "echo/nll",
        "eval/env_nll",
        "one-step",
        "calibration_error",
    ):
        assert text in document
    without, with_objective = collect([str(out)]).runs
    assert (without.name, with_objective.name) == (f"{out.name} coeff_0", f"{out.name} coeff_0.05")
    for run, arm in zip((without, with_objective), result["arms"], strict=True):
        assert run.values["eval/env_nll"][2] == arm["env_nll_end"]
        assert run.values["echo/nll"] == {step["step"]: step["echo/nll"] for step in arm["training"]}


@pytest.mark.slow
def test_one_step_of_all_episodes_is_what_the_demo_measured(smoke, capsys) -> None:
    _, result, _ = smoke
    for name, arm in zip(("coeff_0", "coeff_0.05"), result["arms"], strict=True):
        flags = ["--as", "policy", "--model", result["policies"][name], "--json"]
        assert main(["eval", "one-step", result["held_out"], *flags]) == 0
        measures = json.loads(capsys.readouterr().out.splitlines()[-1])["measures"]
        whole = {one["name"]: one["value"] for one in measures if not one["by"]}
        assert whole["nll"] == pytest.approx(arm["env_nll_end"], rel=1e-5)
        assert whole["exact"] == pytest.approx(arm["exact_end"])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result(smoke, tmp_path) -> None:
    _, first, _ = smoke
    again = run_demo(2, 0, tmp_path, warm_steps=5, boards=40)
    for one, other in zip(first["arms"], again["arms"], strict=True):
        assert {key: one[key] for key in one if key != "cpu_seconds"} == {
            key: other[key] for key in other if key != "cpu_seconds"
        }
