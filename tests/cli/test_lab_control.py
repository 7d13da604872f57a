"""`wm lab control` from flags to samples that `wm data build` makes for each kind of training."""

import json
from pathlib import Path

import pytest

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


RUN = ("lab", "control", "rows.jsonl", "--out", "x.jsonl", "--config", "control.yaml")


def test_figures(wm, folder):
    found = wm.json(*RUN)
    assert (found["trajectories"], found["controlled"]) == (20, 20)
    counts = found["perturbations"]
    assert counts["withhold"]["trajectories"] == counts["paginate"]["trajectories"] == 20
    assert counts["withhold"]["observations"] >= 20
    assert counts["paginate"]["observations"] == 40  # of each list two pages
    assert 8 <= counts["error"]["observations"] <= 30
    assert found["turns_put_in"] == counts["error"]["observations"] + 20
    assert found["turns"] == 40 + found["turns_put_in"]
    assert sum(len(row.turns) for row in read("x.jsonl")) == found["turns"]


def test_seed_and_share_and_the_block_of_a_run_s_config(wm, folder):
    Path("run.yaml").write_text("environment: docs\ncontrol:" + CONFIG.replace("\n", "\n  "))
    written = []
    for flags in ((), ("--config", "run.yaml"), ("--seed", 1)):
        wm.json(*RUN, *flags)
        written.append(Path("x.jsonl").read_bytes())
    assert written[0] == written[1] != written[2]
    found = wm.json(*RUN, "--share", 0.5)
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
def test_each_kind_shows_the_instructions_and_no_target_the_answer(wm, folder, kind):
    wm.json(*RUN)
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
        ("perturbations: [{name: eror}]", [], "control.perturbations[0].name is 'eror'; did you mean 'error'?"),
        ("perturbations: [", [], "control.yaml is not YAML"),
        (CONFIG, ["--share", "2"], "--share is 2; write a number"),
        (CONFIG, ["--config", "none.yaml"], "--config: 'none.yaml' cannot be read"),
        (CONFIG, ["--out", "rows.jsonl"], "rows.jsonl"),
    ],
)
def test_mistakes_are_one_line(wm, folder, text, arguments, message):
    Path("control.yaml").write_text(text)
    before = Path("rows.jsonl").read_bytes(), Path("control.yaml").read_text()
    assert message in wm.error(*RUN, *arguments)
    assert (Path("rows.jsonl").read_bytes(), Path("control.yaml").read_text()) == before
