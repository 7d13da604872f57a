"""A pipeline's file: names, cases, loops, what a step comes after; and mistakes in one line."""

import textwrap
from pathlib import Path

import pytest

from wm_plugin.errors import UserError
from wm_plugin.lab.pipelines import expand, read
from wm_plugin.lab.pipelines.records import Records

STEPS = """
settings: {host: trl, seeds: [0, 1], rate: 1.0e-4, model: "{folder}{end}"}
for: {arm: [a, b], seed: "{seeds}"}
cases:
  host: {trl: {end: ""}, verl: {end: /deep}}
  arm: {b: {flags: [--json, '{"n": {seed}, "of": [1]}', "{rate}"]}}
values:
  folder: "{work}/{arm}_s{seed}"
  flags: []
env: {A: "{here}/x"}
steps:
  last:
    run: cat {@train} {1} ${trainer.x}
    makes: "{work}/last"
  train:
    for: [arm, seed]
    run:
      - mkdir -p {folder}
      - run 'two words' --model {model} {flags}
    makes: "{folder}"
  only:
    for: arm
    when: {host: trl, arm: [b]}
    needs: ["{work}/b_s1/deep"]
    run: touch '{work}/only {arm}'
    makes: "{work}/only {arm}"
"""


def steps(tmp_path, text=STEPS, sets=(), out=None):
    path = tmp_path / "p.yaml"
    path.write_text(textwrap.dedent(text))
    return {step.name: step for step in expand(read(path, sets), out)}


def test_names_are_replaced_and_braces_of_others_stay(tmp_path):
    found = steps(tmp_path)
    assert list(found) == ["train:a:0", "train:a:1", "train:b:0", "train:b:1", "last", "only:b"]
    step = found["train:b:1"]
    folder = "runs/p/b_s1"
    assert step.commands == (
        ("mkdir", "-p", folder),
        ("run", "two words", "--model", folder, "--json", '{"n": 1, "of": [1]}', "1.0e-4"),
    )
    assert (step.family, step.env) == ("train", {"A": f"{tmp_path}/x"})
    assert found["train:a:0"].commands[1] == ("run", "two words", "--model", "runs/p/a_s0")
    folders = ("runs/p/a_s0", "runs/p/a_s1", "runs/p/b_s0", "runs/p/b_s1")
    assert found["last"].commands == (("cat", *folders, "{1}", "${trainer.x}"),)
    assert found["last"].needs == folders
    assert found["last"].after == tuple(f"train:{one[-4]}:{one[-1]}" for one in folders)
    assert found["only:b"].commands == (("touch", "runs/p/only b"),)
    assert found["only:b"].after == ("train:b:1",)  # it needs a part of what that makes


def test_settings_choose_cases_seeds_and_folders(tmp_path):
    found = steps(tmp_path, sets=["host=verl", "seeds=7", "rate=2"], out="elsewhere/")
    assert list(found) == ["train:a:7", "train:b:7", "last"]
    assert found["train:b:7"].commands[1][3:] == ("elsewhere/b_s7/deep", "--json", '{"n": 7, "of": [1]}', "2")


def test_where_the_file_lies_is_no_part_of_its_commands(tmp_path):
    text = "steps: {a: {run: 'cp {here}/x {here}/../y {work}/a', makes: '{work}/a'}}"
    keys = set()
    for name in ("one", "two"):
        (tmp_path / name / "in").mkdir(parents=True)
        step = steps(tmp_path / name / "in", text)["a"]
        assert step.commands[0][1] == f"{tmp_path}/{name}/in/x"
        keys.add(step.key)
    assert len(keys) == 1


def test_words_of_a_shell_and_open_braces_are_left_where_they_are_meant(tmp_path):
    text = """
    steps:
      a:
        run: ["grep '|x' {work}/b", "bash -c 'x > {work}/b && y'", "x ${work/a '{work: 1' {other/a {b"]
        makes: "{work}/a"
    """
    found = steps(tmp_path, text)["a"].commands
    assert found[0] == ("grep", "|x", "runs/p/b")
    assert found[1] == ("bash", "-c", "x > runs/p/b && y")
    assert found[2] == ("x", "${work/a", "{work: 1", "{other/a", "{b")


def test_the_folder_of_results_may_be_where_one_is(tmp_path):
    text = "steps: {a: {run: x, makes: '{work}/a'}, b: {run: 'x {@a}', makes: '{work}/b/c'}}"
    found = steps(tmp_path, text, out=".")
    assert (found["b"].needs, found["b"].after, found["b"].makes) == (("a",), ("a",), ("b/c",))
    with pytest.raises(UserError, match="step a: makes ../a, which is not in"):
        steps(tmp_path, "steps: {a: {run: x, makes: '{work}/../a'}}", out=".")


def test_names_that_agree_in_200_characters_have_records_of_their_own(tmp_path):
    names = ["x" * 250 + end for end in "ab"]
    text = f"for: {{name: {names}}}\nsteps: {{a: {{for: name, run: x, makes: '{{work}}/{{name}}'}}}}"
    records = Records(tmp_path, "p")
    logs = {records.log(step).name for step in steps(tmp_path, text).values()}
    assert len(logs) == 2
    assert max(map(len, logs)) <= 204


QUOTED = "'x {c}',"
X = "steps: {a: {run: x, makes: '{work}/a'}}"
MISTAKES = {
    "": "is no pipeline; write `steps:`",
    "steps: [a]": "is no pipeline",
    "[" * 3000: "cannot be read (maximum recursion depth",
    "steps:\n  a: {run: x, makes: '{work}/a'}\n  a: {run: y, makes: '{work}/b'}": "a key appears twice, 'a' in line 3; keep one",
    "steps: {a: {run: x}}": "steps['a'].makes is missing",
    "steps: {a: {makes: '{work}/a'}}": "steps['a'].run is missing",
    "steps: {a: {run: x, neds: y, makes: '{work}/a'}}": "has no field 'neds'; did you mean 'needs'?",
    f"stps: {{}}\n{X}": "has no field 'stps'; did you mean 'steps'?",
    "steps: {a: {run: 'x {sed}', makes: '{work}/a'}}\nsettings: {seed: 0}": "step a: there is no {sed}; did you mean 'seed'?",
    "steps: {a: {run: x, makes: out/a}}": "step a: makes out/a, which is not in runs/p; begin it with {work}/",
    "steps: {a: {run: x, makes: '{work}/a'}, b: {run: x, makes: '{work}/a'}}": "step b: makes runs/p/a, which a makes, too",
    "steps: {a: {run: x, makes: '{work}/a'}, b: {run: x, makes: '{work}/a/b'}}": "step b: makes what lies in runs/p/a of a",
    "steps: {a: {run: x, makes: '{work}/a', needs: '@b'}, b: {run: x, makes: '{work}/b', needs: '@a'}}": "wait for each other",
    "steps: {a: {run: x, makes: '{work}/a', needs: '@c'}}": "step a: there is no step 'c'; there is 'a'",
    "steps: {a: {run: x, makes: '{work}/a', for: seed}}": "step a: for: the file's `for` has no 'seed'; there is none",
    "for: {seed: [0, 0]}\nsteps: {a: {run: x, makes: '{work}/{seed}', for: seed}}": "for: seed is ['0', '0']; write values",
    "for: {seed: [0]}\nsteps: {a: {run: 'x {seed}', makes: '{work}/a'}}": "step a: {seed} is of the loop seed; write `for",
    f"for: {{arm: [b]}}\ncases: {{arm: {{b: {{c: d}}}}}}\n{X.replace('x,', QUOTED)}": "{c} is of the loop arm",
    "values: {v: '{w}', w: '{v}'}\nsteps: {a: {run: 'x {v}', makes: '{work}/a'}}": "is made of itself",
    f"cases: {{h: {{x: {{v: 1}}}}}}\nsettings: {{h: y}}\n{X}": "h is 'y'; there is 'x'",
    f"cases: {{g: {{x: {{v: 1}}}}}}\nsettings: {{h: y}}\n{X}": "cases: there is no loop or setting 'g'; there is 'h'",
    "values: {v: [1, 2]}\nsteps: {a: {run: 'x a{v}', makes: '{work}/a'}}": "{v} is a list; in 'a{v}' only a text can stand",
    f"values: {{work: 1}}\n{X}": "'work' cannot be a name here",
    f"settings: {{v: {{a: 1}}}}\n{X}": "settings['v'] is {'a': '1'}; write",
    "steps: {a: {run: 'x \"', makes: '{work}/a'}}": "cannot be split into words",
    "steps: {a: {run: ' ', makes: '{work}/a'}}": "step a: run has a command without words",
    "steps: {a: {run: x, makes: '{work}/a', when: {host: [trl]}}}": "when: 'host' is no setting, and not in the step's `for`",
    "steps: {a: {run: x, makes: '{work}/a', resumes: maybe}}": "steps['a'].resumes is 'maybe'; write true or false",
    "steps: {a: {run: 'x > y', makes: '{work}/a'}}": "step a: run: > is for a shell, and none runs commands; write a list",
    "values: {v: []}\nsteps: {a: {run: x, makes: '{v}'}}": "step a: makes nothing; write what it writes",
    "for: {a: ['x:y', x], b: [z, 'y:z']}\nsteps: {s: {for: [a, b], run: x, makes: '{work}/{a}_{b}'}}": "two steps s:x:y:z",
    "steps: {a b: {run: x, makes: '{work}/a'}}": "a step's name has letters, digits and _ only",
}


@pytest.mark.parametrize(("text", "said"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_mistakes_are_one_line_with_the_file_and_the_step(tmp_path, text, said):
    with pytest.raises(UserError) as raised:
        steps(tmp_path, text)
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{tmp_path}/p.yaml: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        ("sed=1", "has no setting 'sed'; did you mean 'seeds'?"),
        ("seeds", "write NAME=VALUE"),
        ("seeds=,", "write one value or more, with commas between them"),
    ],
)
def test_mistakes_in_settings(tmp_path, one, said):
    with pytest.raises(UserError, match="--set") as raised:
        steps(tmp_path, sets=[one])
    assert said in str(raised.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read(Path(tmp_path / "none.yaml"))
