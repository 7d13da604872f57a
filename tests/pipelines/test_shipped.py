"""The pipelines of this package: each expands for both hosts, and what they call is there, flags included."""

import json
import re
from pathlib import Path

import pytest

from wm_plugin.cli.main import main, make_parser
from wm_plugin.cli.pipeline import shipped
from wm_plugin.errors import UserError
from wm_plugin.pipelines import expand, read
from wm_plugin.pipelines.engine import check_inputs, chosen

RECIPES = Path(__file__).parents[2] / "recipes"
METHODS = ("baselines", "early_experience", "lwm_warm_up", "rwml_rl", "sim_rl", "wm_sft_rl")
CASES = [
    (name, host, world)
    for name in sorted(shipped())
    for host in ("trl", "verl")
    for world in (("",) if name.endswith("_tiny") or name in ("baselines", "sim_rl") else ("alfworld", "tau2"))
]


def steps_of(name, host, world):
    sets = [f"host={host}", *([f"world={world}"] if world else [])]
    return expand(read(shipped()[name], sets))


def test_each_method_has_a_full_and_a_tiny_one():
    assert sorted(shipped()) == sorted(f"{name}{size}" for name in METHODS for size in ("", "_tiny"))


def calls(step):
    """The words after `wm` of a step's commands, those included that run beside a server."""
    for command in step.commands:
        words = list(command)
        if "wm" in words:
            yield words[words.index("wm") + 1 :]
        elif "wm_plugin.cli.main" in words:
            yield words[words.index("wm_plugin.cli.main") + 1 :]


@pytest.mark.parametrize(("name", "host", "world"), CASES)
def test_each_call_of_wm_has_flags_that_there_are(name, host, world):
    parser, verbs = make_parser()
    seen = 0
    for step in steps_of(name, host, world):
        for words in calls(step):
            seen += 1
            verb = verbs[words[0]]
            if verb.get_default("hands_over"):
                continue  # on_trl/test_pipelines.py reads these
            args, extras = parser.parse_known_args(words)
            assert not extras, (step.name, extras)
            assert args.run is not None
    assert seen >= 3


@pytest.mark.parametrize(("name", "host", "world"), CASES)
def test_files_of_recipes_are_there_and_no_name_is_left(name, host, world):
    steps = steps_of(name, host, world)
    check_inputs(steps)
    for step in steps:
        for word in [word for command in step.commands for word in command]:
            assert not re.search(r"(?<!\$)\{@?[a-z_]+\}", word), word
            if word.startswith(str(RECIPES)) and word.endswith((".sh", ".yaml")):
                assert Path(word).is_file(), word


@pytest.mark.parametrize(("name", "host", "world"), CASES)
def test_each_ends_with_a_report_of_all_arms_and_seeds(name, host, world):
    steps = {step.name: step for step in steps_of(name, host, world)}
    arms = {step.loops["arm"] for step in steps.values() if "arm" in step.loops}
    (report,) = steps["report"].commands
    assert {one.partition("=")[0] for one in report if "=*/" in one} == arms
    assert "--against" not in report or report[report.index("--against") + 1] in arms
    assert [Path(path).name for path in steps["report"].makes] == ["report.html", "report.json"]
    evaluated = [step for step in steps.values() if step.family == "evaluate"]
    assert len(evaluated) == 3 * len(arms)
    assert {path for step in evaluated for path in step.makes} <= set(report)
    assert [step.name for step in steps.values() if step.show] == ["report"]


@pytest.mark.parametrize("name", METHODS)
def test_full_ones_have_the_papers_constants(name):
    text = " ".join(word for step in steps_of(name, "trl", "") for command in step.commands for word in command)
    if name in ("rwml_rl", "wm_sft_rl", "lwm_warm_up"):
        assert "--count 2048 --per-task 3 --max-turns 30" in text
    if name == "rwml_rl":
        assert "--k 10 --tau-easy 0 --keep 0.1 --threshold 0.1" in text
        assert '"threshold": 0.2, "step": 0.2' in text
        tau2 = " ".join(word for step in steps_of(name, "trl", "tau2") for c in step.commands for word in c)
        assert "--keep 0.1 --threshold 0.15" in tau2
        assert '"threshold": 0.4' in tau2
        assert "--mask-values --profile" in tau2
    if name == "early_experience":
        assert text.count("--count 1000") == 2
    if name == "lwm_warm_up":
        assert "--turns one" in text
        assert "rwml_alfworld_gspo.yaml" in text
        assert {"--echo_coeff 0.05", "--echo_coeff 0.0"} <= set(re.findall(r"--echo_coeff \S+", text))
    if name == "baselines":
        assert text.count("--alternatives 3") == 2


def test_they_are_listed_and_a_misspelt_one_is_found(capsys):
    assert main(["pipeline", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["pipelines"]
    assert [one["name"] for one in found] == sorted(shipped())
    assert all(one["about"] for one in found)
    assert main(["pipeline", "rwml_rl_tinny", "--list"]) == 2
    assert "did you mean 'rwml_rl_tiny'?" in capsys.readouterr().err


def test_a_list_is_for_people_and_programs(capsys):
    assert main(["pipeline", "sim_rl_tiny", "--list", "--set", "seeds=4"]) == 0
    shown = capsys.readouterr().out
    assert "--set seeds=4\n" in shown
    assert (
        "\ntrain:mixed:4\n    python -m wm_plugin.tiny.serve --model runs/sim_rl_tiny/trl/world --port 8434 python -m"
        in shown
    )
    assert main(["pipeline", "sim_rl_tiny", "--list", "--json", "--out", "x"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert steps[-1]["name"] == "report"
    assert steps[-1]["makes"] == ["x/report.html", "x/report.json"]


def test_jobs_and_launchers_are_checked(capsys):
    assert main(["pipeline", "sim_rl_tiny", "--jobs", "0"]) == 2
    assert "--jobs is 0; write a number >= 1" in capsys.readouterr().err
    with pytest.raises(UserError, match="no such step"):
        chosen(steps_of("sim_rl_tiny", "trl", ""), ["nothing_like_it"])
