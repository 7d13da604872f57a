"""What reproduce.yaml declares can be run, claims are judged by its rule, and answers are read from what pipelines leave."""

import json
from dataclasses import asdict
from statistics import fmean

import pytest

import reproduce
import stamps
from wm_plugin.errors import UserError
from wm_plugin.lab.pipelines.expand import expand
from wm_plugin.lab.pipelines.file import read
from wm_plugin.lab.pipelines.shipped import find, shipped

DECLARED = {f"{paper}: {name}": asked for paper, of in reproduce.questions().items() for name, asked in of.items()}


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("quick", [False, True])
def test_the_pipeline_has_the_settings_and_makes_every_arm(name, quick):
    asked = DECLARED[name]
    seeds, single = asked.all_seeds(), isinstance(asked.seeds, reproduce.Each)
    settings = {**asked.settings, **(asked.quick if quick else {}), ("seed" if single else "seeds"): seeds[0]}
    steps = expand(read(find(asked.pipeline), [f"{key}={value}" for key, value in settings.items()]), "work")
    made = json.dumps([asdict(step) for step in steps], default=str)
    if asked.pipeline == "verify_shop_tiny":  # a table of who checks, and how often
        tried = {":".join(step.name.split(":")[-2:]).replace("checked:", "model:") for step in steps}
        arms = {one.replace(":", "_") for one in tried} | {"none_0"}
        assert {asked.against, *asked.controls, *(arm for claim in asked.claims for arm in claim.arms)} <= arms
        return
    for arm in {asked.against, *(arm for claim in asked.claims for arm in claim.arms)}:
        assert (arm if single else f"{arm}_s{seeds[0]}") in made, arm
    for arm in asked.controls:
        assert f'/evaluations/{arm}_s{seeds[0]}"' in made, arm
    assert len(set(seeds)) == len(seeds)


def asked(**changes):
    fields = {
        "question": "?",
        "pipeline": "echo_alpha_tiny",
        "seeds": [20, 21, 22, 23, 24],
        "settings": {},
        "quick": {},
        "against": "rl",
        "claims": [{"measure": "exact", "arms": ["a10"], "expected": "higher"}],
    }
    return reproduce.Question.model_validate(fields | changes)


def evaluation(folder, **measures):
    measured = [{"name": name, "by": "", "value": value} for name, value in measures.items()]
    return {"folder": folder, "measures": [*measured, {"name": "exact", "by": "turn", "value": 0.0}]}


def test_a_verdict_is_that_of_the_interval_by_hand(tmp_path):
    pairs = {20: (0.5, 0.2), 21: (0.6, 0.1), 22: (0.7, 0.3), 23: (None, 0.9)}
    found = [evaluation(f"evaluations/a10_s{seed}", exact=own) for seed, (own, _) in pairs.items()]
    found += [evaluation(f"evaluations/rl_s{seed}", exact=other, success=0.5) for seed, (_, other) in pairs.items()]
    (tmp_path / "report.json").write_text(json.dumps({"evaluations": found}))
    (row,) = reproduce.judge(asked(), reproduce.read(asked(), [tmp_path]))
    assert (row["seeds"], row["values"], row["values_against"]) == ([20, 21, 22], [0.5, 0.6, 0.7], [0.2, 0.1, 0.3])
    half = 4.303 * 0.1 / 3**0.5  # Student's t of two degrees of freedom; the differences are 0.3, 0.5, 0.4
    assert row["difference"] == pytest.approx(0.4)
    assert row["interval"] == pytest.approx((0.4 - half, 0.4 + half))
    assert row["verdict"] == "higher"
    one = {**asked().model_dump(), "host": "trl", "cpu_minutes": 7, "claims": [row]}
    text = reproduce.markdown({"echo: hidden_rules": one})
    assert "| exact | a10 | 3 | 0.600 | 0.200 | +0.400 [+0.152, +0.648] | higher | higher |" in text
    others = [{**row, "verdict": one, "values": [at]} for at, one in enumerate(("lower", "null"))]
    others.append({**row, "expected": "–"})
    said, *table = reproduce.summary({"echo: hidden_rules": {**one, "claims": [row, row, *others]}})
    assert said == (  # the same figure twice counts once
        "Of 3 differences with a paper's direction 1 agree, 1 are null, and 1 have the other direction:\n"
    )
    assert table[2] == "| echo: hidden rules | exact | a10 | rl | +0.400 [+0.152, +0.648] | higher | higher |"
    assert len(table) == 2 + 3 + 1
    started = [evaluation(f"evaluations/start_s{seed}", exact=0.2) for seed in pairs]
    shared = evaluation("evaluations/shared", exact=0.2)
    (tmp_path / "report.json").write_text(json.dumps({"evaluations": [*found, *started, shared]}))
    claims = [{"measure": "exact", "arms": ["a10"], "expected": way} for way in ("higher", "–")]
    two = asked(controls=["start"], claims=claims)
    rows = reproduce.judge(two, reproduce.read(two, [tmp_path]))
    assert [row["arm"] for row in rows] == ["a10", "start", "a10"]  # a control stands once with its measure
    control = rows[1]
    assert (control["seeds"], control["values"]) == ([20, 21, 22, 23], [0.2] * 4)
    assert (control["expected"], control["difference"], control["verdict"]) == ("–", pytest.approx(-0.175), "null")
    with pytest.raises(UserError, match="no exact of shared and rl with a seed in common"):  # one for all seeds
        reproduce.judge(asked(controls=["shared"]), reproduce.read(two, [tmp_path]))
    with pytest.raises(UserError, match="no success of a10 and rl"):
        reproduce.judge(
            asked(claims=[{"measure": "success", "arms": ["a10"], "expected": "higher"}]),
            reproduce.read(asked(), [tmp_path]),
        )


def test_the_committed_page_is_of_the_committed_figures_and_the_directions_are_those_declared():
    path = reproduce.HERE / "results" / "reproduce.json"
    found = json.loads(path.read_text())
    assert path.with_suffix(".md").read_text() == stamps.headed(reproduce.markdown(found), stamps.read()["reproduce"])
    for key, one in found.items():
        asked = DECLARED[key.partition(" (")[0]]
        declared = {(claim.measure, claim.of, arm): claim.expected for claim in asked.claims for arm in claim.arms}
        for row in one["claims"]:
            direction = declared.get((row["measure"], row["of"], row["arm"]), "–")
            assert row["expected"] == direction, (key, row["measure"], row["arm"])


@pytest.mark.parametrize(
    ("count", "interval", "said"),
    [
        (3, (0.1, 0.2), "higher"),
        (3, (-0.2, -0.1), "lower"),
        (8, (-0.1, 0.2), "null"),
        (2, (0.1, 0.2), "no verdict"),
        (9, None, "no verdict"),
    ],
)
def test_the_rule(count, interval, said):
    assert reproduce.verdict(count, interval) == said


def test_runs_of_one_seed_and_tables_and_folders_of_several_evaluations_are_read(tmp_path):
    single = asked(seeds={"each": [20, 21, 22, 23, 24]})
    for seed in (20, 21):
        (tmp_path / str(seed)).mkdir()
        rows = [{"adviser": "model", "budget": 10, "success": {"value": seed / 100}}]
        (tmp_path / str(seed) / "table.json").write_text(json.dumps({"rows": rows}))
    assert reproduce.read(single, [tmp_path / "20", tmp_path / "21"]) == {
        ("model_10", "", "success"): {20: 0.2, 21: 0.21}
    }

    (tmp_path / "report.json").write_text(json.dumps({"evaluations": [evaluation("runs/after", together=0.5)]}))
    assert reproduce.read(single, [tmp_path]) == {("after", "", "together"): {20: 0.5}}

    told = {"name": "embedding", "by": "", "value": None, "with_failed": 0.25}
    report = {"evaluations": [{"folder": "evaluations/rwml_s3", "measures": [told]}]}
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert reproduce.read(asked(), [tmp_path]) == {("rwml", "", "embedding_with_failed"): {3: 0.25}}

    (tmp_path / "report.json").unlink()
    (tmp_path / "table1").mkdir()
    found = {"evaluations": [evaluation("w_s1/evaluations/15_s20/textworld", exact=0.1)]}
    (tmp_path / "table1" / "report.json").write_text(json.dumps(found))
    assert reproduce.read(asked(), [tmp_path]) == {("15", "textworld", "exact"): {20: 0.1}}


PIPELINE = """\
settings: {host: trl, seeds: [0], gain: "1"}
for: {seed: "{seeds}", arm: [rl, a10]}
steps:
  evaluate:
    for: [seed, arm]
    run: "python {here}/evaluate.py {work}/evaluations/{arm}_s{seed} {arm} {seed} {gain}"
    makes: "{work}/evaluations/{arm}_s{seed}"
  report:
    run: wm report {@evaluate} --out {work}/report.html --out {work}/report.json
    makes: ["{work}/report.html", "{work}/report.json"]
"""
EVALUATE = """\
import sys
from pathlib import Path
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, write_result

out, arm, seed, gain = sys.argv[1:]
value = int(seed) / 100 + (arm == "a10") * float(gain)
write_result(Evaluation("boards", arm, "boards", {}, [Measure("exact", value, "share", 8)]), Path(out))
"""


def test_from_a_question_by_a_pipeline_to_the_page(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.yaml").write_text(PIPELINE)
    (tmp_path / "evaluate.py").write_text(EVALUATE)
    first = asked(pipeline=str(tmp_path / "mine.yaml"), quick={"gain": 0.5})
    second = first.model_copy(update={"question": "the same runs?"})
    monkeypatch.setattr(reproduce, "questions", lambda: {"echo": {"first": first, "second": second}})
    assert reproduce.main(["echo", "--quick", "--work", str(tmp_path / "runs")]) == 0
    found = json.loads((tmp_path / "runs/quick/reproduce.json").read_text())
    assert list(found) == ["echo: first", "echo: second"]
    for one in found.values():
        (row,) = one["claims"]
        assert (row["seeds"], row["difference"], row["verdict"]) == ([20, 21], pytest.approx(0.5), "no verdict")
    assert "gain 0.5" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs/quick").glob("mine_*")  # one for both
    assert list(json.loads((tmp_path / "runs/quick/cpu_seconds.json").read_text())) == [folder.name]
    times = {path: path.stat().st_mtime_ns for path in folder.glob("evaluations/*/*")}
    assert reproduce.main(["echo", "--quick", "--work", str(tmp_path / "runs"), "--only", "second"]) == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("evaluations/*/*")} == times != {}


@pytest.mark.nightly
@pytest.mark.host
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("paper", reproduce.questions())
def test_a_trial_answers_every_question(paper, tmp_path):
    pytest.importorskip("trl")
    assert reproduce.main([paper, "--quick", "--work", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "quick" / "reproduce.json").read_text())
    assert found.keys() == {name for name in DECLARED if name.startswith(f"{paper}: ")}
    for table in tmp_path.glob("quick/verify_shop_tiny_*/table.json"):
        for row in json.loads(table.read_text())["rows"]:
            assert (row["checks"] > 0) == (row["adviser"] != "none")


def test_every_tiny_pipeline_and_arm_is_run_by_a_trial():
    """Nightly tests of `tests/on_trl/test_pipelines.py` run the rest."""
    tried = {asked.pipeline: set() for asked in DECLARED.values()}
    for asked in DECLARED.values():
        settings = read(find(asked.pipeline)).settings | asked.settings | asked.quick
        tried[asked.pipeline].update(arms_of(settings))
    tiny = {name: arms_of(read(path).settings) for name, path in shipped().items() if name.endswith("_tiny")}
    assert tiny.keys() - tried.keys() == {"consistency_tiny"}
    assert {name: arms - tried[name] for name, arms in tiny.items() if arms - tried.get(name, arms)} == {
        "sim_rl_tiny": {"mixed"}
    }


def arms_of(settings):
    arms = settings.get("arms", ())
    return set(arms.split(",") if isinstance(arms, str) else arms)


def test_an_unknown_question_is_named():
    with pytest.raises(UserError, match="echo has no question 'loger'; it has forgetting"):
        reproduce.main(["echo", "--only", "loger"])


def test_the_docs_table_of_coefficients_is_that_of_the_results():
    page = (reproduce.HERE.parent / "docs" / "echo.md").read_text()
    found = json.loads((reproduce.HERE / "results" / "reproduce.json").read_text())
    rows = found["echo: forgetting"]["claims"]
    for label, measure in {"success": "success", "next board exact": "exact", "environment NLL": "env_nll"}.items():
        (line,) = (line for line in page.split("\n") if line.startswith(f"| {label} |"))
        own = {row["arm"]: row["values"] for row in rows if row["measure"] == measure}
        alone = next(row["values_against"] for row in rows if row["measure"] == measure)
        arms = [own["base"], alone, *(own[arm] for arm in ("a0005", "a001", "a005", "a01", "a05", "a10"))]
        kinds = [(row["arm"], row["measure"], row["values"]) for row in found["echo: then_rl"]["claims"]]
        arms += [values for arm, name, values in kinds if (arm, name) == ("env_only", measure)]
        assert [cell.strip() for cell in line.split("|")[2:-1]] == [f"{fmean(arm):.3f}"[1:] for arm in arms]
