"""`wm data control` from flags to samples that `wm data build` makes for each kind of training."""

import json
from pathlib import Path

import pytest

from wm_plugin.cli import main
from wm_plugin.data import read
from wm_plugin.data.kinds import samples
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn

CONFIG = """
perturbations:
  - {name: error, rate: 0.4}
  - {name: paginate, tools: [search], size: 2}
  - {name: withhold, column: answer, query: question}
"""


def recorded(number):
    def turn(name, text, **arguments):
        observation = Observation(kind="tool", text=text, tool=name, call=0)
        return Turn(action=Action(calls=(Call(name=name, arguments=arguments),)), observations=(observation,))

    answer = f"Lumen X{number}"
    return Trajectory(
        turns=(
            turn("search", json.dumps([f"a {answer} phone", "b", "c"]), q="phones"),
            turn("finish", "Right.", answer=answer),
        ),
        context=Context(task="Answer.", initial_state="Which phone sold best?"),
        task_id=f"t{number}",
        success=True,
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_bytes(b"".join(recorded(number).to_bytes() + b"\n" for number in range(20)))
    Path("control.yaml").write_text(CONFIG)
    return tmp_path


def run(*arguments):
    return main.main(["data", "control", "rows.jsonl", "--out", "x.jsonl", "--config", "control.yaml", *arguments])


def result(capsys, *arguments):
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_figures(folder, capsys):
    found = result(capsys)
    assert (found["trajectories"], found["controlled"]) == (20, 20)
    counts = found["perturbations"]
    assert counts["withhold"]["trajectories"] == counts["paginate"]["trajectories"] == 20
    assert counts["withhold"]["observations"] >= 20
    assert counts["paginate"]["observations"] == 40  # of each list two pages
    assert 8 <= counts["error"]["observations"] <= 30
    assert found["turns_put_in"] == counts["error"]["observations"] + 20
    assert found["turns"] == 40 + found["turns_put_in"]
    rows = list(read("x.jsonl"))
    assert sum(len(row.turns) for row in rows) == found["turns"]
    run()
    assert "20 trajectories have an instruction" in capsys.readouterr().out


def test_seed_and_share(folder, capsys):
    result(capsys)
    first = Path("x.jsonl").read_bytes()
    result(capsys)
    assert Path("x.jsonl").read_bytes() == first
    result(capsys, "--seed", "1")
    assert Path("x.jsonl").read_bytes() != first
    found = result(capsys, "--share", "0.5")
    assert 0 < found["controlled"] < 20
    assert sum(bool(row.context.simulation_instruction) for row in read("x.jsonl")) == found["controlled"]


# The kinds that a world model is trained on, with the prompts that each needs.
KINDS = {
    "rwml-sft": None,
    "rwml": None,
    "word2world": None,
    "agentworld-sft": "search",
    "agentworld": "search",
    "cpt": "word2world",
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_shows_the_instructions_and_no_target_the_answer(folder, capsys, kind):
    result(capsys)
    made = list(samples("x.jsonl", kind, prompts=KINDS[kind]))
    assert made
    told = 0
    for sample in made:
        texts = [message["content"] for message in sample.messages]
        asked, answers = "\n".join(texts), []
        number = sample.columns["task_id"].removeprefix("t")
        assert f"The answer, for you alone: Lumen X{number}" in asked
        answers = [text for text, train in zip(texts, sample.train, strict=True) if train]
        answers += [sample.columns["target"]] if "target" in sample.columns else []
        assert answers or kind == "cpt"
        assert not any(f"Lumen X{number}" in text for text in answers)
        told += "# Simulation instruction for this turn\nThis call fails" in asked
    assert told


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (
            "perturbations: [{name: eror}]",
            [],
            "control.yaml: control.perturbations[0].name is 'eror'; did you mean 'error'?",
        ),
        ("perturbations: [", [], "control.yaml is not YAML"),
        ("3", [], "control.yaml: control is 3; write a mapping"),
        (CONFIG, ["--share", "2"], "--share is 2.0; write a number between 0 and 1"),
        (CONFIG, ["--config", "none.yaml"], "--config: 'none.yaml' cannot be read"),
        (CONFIG, ["--out", "control.yaml"], ""),
        (CONFIG, ["--out", "rows.jsonl"], "rows.jsonl"),
    ],
)
def test_mistakes_are_one_line(folder, capsys, text, arguments, message):
    Path("control.yaml").write_text(text)
    before = Path("rows.jsonl").read_bytes(), Path("control.yaml").read_text()
    assert run(*arguments) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert (Path("rows.jsonl").read_bytes(), Path("control.yaml").read_text()) == before


def test_the_block_of_a_run_s_config(folder, capsys):
    indented = CONFIG.replace("\n", "\n  ")
    Path("control.yaml").write_text(f"environment: docs\ncontrol:{indented}")
    assert result(capsys)["controlled"] == 20
