"""swe in verl's own main_ppo: two training steps whose policy mends a repository, and what of its rollouts is a target."""

import pytest

pytest.importorskip("verl")

from support.agent_loop import call, make_tokenizer, rollout
from support.scripted_on_verl import run_script
from wm_plugin.errors import UserError
from wm_plugin.objectives.weigh import weigh
from wm_plugin.tokens.spans import Origin
from wm_plugin.verl.data import verl_rows
from wm_plugin.verl.names import ORIGINS
from wm_plugin.worlds.kit import shell
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.mixture import dataset_rows
from wm_plugin.worlds.swe import SweEnvironment, judge, tasks

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def works():
    try:
        judge.check()
        shell.check()
    except UserError as error:
        pytest.skip(str(error))


def turns_of(name, edit):
    """The tests, an edit, and the tests again."""
    task = tasks()[name]
    old, new = edit
    return [
        call("bash", command="python3 -m unittest 2>&1 | tail -n 1"),
        call("edit", path=f"{task.package}/{task.module}", old=old, new=new),
        call("bash", command="python3 -m unittest 2>&1 | tail -n 3; false"),
        "It is done.",
    ]


def test_what_is_printed_is_a_target_and_what_is_said_is_not():
    name, tokenizer = "slots/off-by-one-1", make_tokenizer()
    row = {"extra_info": {"task": name, "level": "standard", "max_turns": 6}}
    output = rollout(
        tokenizer, turns_of(name, tasks()[name].fix), {"environment": "swe"}, row=row, response_length=4000
    )
    spans = weigh([Origin.unpack(values) for values in output.extra_fields[ORIGINS]], output.extra_fields["objective"])
    told = [tokenizer.decode(output.response_ids[span.start : span.end]) for span, weight in spans if weight]
    assert told[0] == "FAILED (failures=1)"
    assert told[1].startswith(
        "slots/spans.py was edited. Here it is now:\n    13\t    for start, end in sorted(spans):"
    )
    assert told[2] == "Ran 5 tests in 0.001s\n\nOK\n[exit code 1]"
    assert len(told) == 3


@pytest.mark.slow
def test_two_steps_of_the_tiny_recipe_mend_repositories(tmp_path):
    """A mended package, one with a wrong fix, and a walk on the grid: the rewards and the figures are theirs."""
    rows = dataset_rows({"swe": {"count": 2, "level": "hard-1"}, "grid": {"count": 1}}, seed=3)
    script, edits = {}, iter(["fix", "wrong"])
    for row in rows:
        prompt = row["prompt"][0]["content"]
        if row["environment"] == "swe":
            turns = turns_of(row["task"], getattr(tasks()[row["task"]], next(edits)))
            script[prompt.strip().splitlines()[-1]] = turns
        else:
            script[prompt.strip() or row["board"]] = [call("move", direction="U"), "It is done."]
    schemas = [tool_schema(SweEnvironment.bash), tool_schema(SweEnvironment.edit)]
    run = run_script(
        "echo_swe_tiny",
        tmp_path,
        {"train": verl_rows(rows, "swe")},
        script,
        [schemas, *(row["prompt"] for row in rows)],
        "actor_rollout_ref.rollout.multi_turn.format=hermes",
        "trainer.total_training_steps=2",
        "trainer.total_epochs=2",
        "trainer.test_freq=-1",
        "wm.max_refills=10",  # the default
        "wm.zero_variance_groups=keep",  # both rollouts of a prompt say the same
        batch=3,
        policy="tiny_verl",
    )
    assert run.code == 0, run.output[-3000:]
    assert len(run.steps) == 2
    for step in run.steps:
        assert step["wm/lost"] == 0
        assert step["wm/env/success"] == pytest.approx(1 / 3)
        assert step["wm/env/calls/bash"] == 2 * step["wm/env/calls/edit"] > 0
        assert step["echo/coeff"] == pytest.approx(0.05)
        by_tool = {tool: step[f"echo/tool/{tool}/tokens"] for tool in ("bash", "edit", "move")}
        assert min(by_tool.values()) > 0
        assert step["echo/tokens"] == pytest.approx(sum(by_tool.values())), by_tool
    assert run.steps[0]["echo/nll"] != run.steps[1]["echo/nll"]
