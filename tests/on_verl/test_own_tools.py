"""A user's own tools, of verl's own kinds, and rows as verl's preprocessing writes them: with a column `agent_name`."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")

from verl.tools.tool_registry import load_all_tools
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils as tu

from on_verl.test_support import AGENT, BARE, DATA, MODEL, stock
from support.agent_loop import call, make_tokenizer, rollout
from support.scripted_on_verl import run_script
from support.verl_tools.answers import rows
from wm_plugin.errors import UserError
from wm_plugin.objectives.weigh import weigh
from wm_plugin.tokens.spans import Origin
from wm_plugin.verl import support
from wm_plugin.verl.data import write
from wm_plugin.verl.names import AGENT_NAME, ORIGINS, TOOLS
from wm_plugin.verl.trainer import TRAINERS

TOOLS_FILE = str(DATA / "answers.yaml")


def test_a_tool_of_verls_keeps_its_lifetime_and_its_results_count():
    tokenizer = make_tokenizer()
    (row,) = rows(1)
    given = {"raw_prompt": row["prompt"], "extra_info": row["extra_info"]}
    given["tools_kwargs"] = row["extra_info"]["tools_kwargs"]  # verl's dataset makes a column of them
    turns = [call("check_answer", answer="2"), call("check_answer", answer="1"), "#### 1"]
    output = rollout(tokenizer, turns, {}, tools=load_all_tools(TOOLS_FILE, None), row=given)
    spans = weigh([Origin.unpack(values) for values in output.extra_fields[ORIGINS]], output.extra_fields["objective"])
    told = [tokenizer.decode(output.response_ids[span.start : span.end]) for span, weight in spans if weight]
    assert told == ["2 is wrong", "1 is right"]
    assert output.extra_fields[TOOLS] == ["check_answer"]


@pytest.mark.parametrize("mode", TRAINERS)
def test_rows_of_verls_tool_loop_are_played_by_ours(mode, monkeypatch):
    """Those of training and of validation; loops of the user's own stay."""
    ours = object.__new__(TRAINERS[mode])  # making one starts Ray
    names = ["tool_agent", "mine", "single_turn_agent", "wm_tool_agent"]
    submitted = []
    manager = SimpleNamespace(generate_sequences=lambda batch: submitted.append(tu.get(batch, AGENT_NAME)))

    def fit(self, agent_loop_manager):
        self.agent_loop_manager = agent_loop_manager
        for columns in ({AGENT_NAME: names}, {AGENT_NAME: ["tool_agent"]}, {"uid": ["a"]}):
            agent_loop_manager.generate_sequences(tu.get_tensordict(columns))

    monkeypatch.setattr(trainer_base.PPOTrainer, "fit", fit)
    ours.config = stock()
    ours.fit(manager)
    assert submitted == [["wm_tool_agent", *names[1:]], ["wm_tool_agent"], None]


def test_a_loop_that_the_user_registers_by_the_name_of_verls_stays(tmp_path):
    (tmp_path / "loops.yaml").write_text("- {name: tool_agent, _target_: mine.MyLoop}\n")
    assert support.in_place_of_verls(stock(f"{AGENT}.agent_loop_config_path={tmp_path}/loops.yaml")) == {}
    assert support.in_place_of_verls(stock(f"{AGENT}.agent_loop_config_path={DATA}/loops.yaml"))


def named(path: Path, *names: str) -> str:
    made = [row for name in names for row in rows(1, name)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in made))
    else:
        write(made, path)
    return str(path)


FOREIGN = {  # the names in a file, overrides, what is said; None: the run may start
    "verl's tool loop": (["tool_agent"], [], None),
    "ours": (["wm_tool_agent"], [], None),
    "some rows of one turn": (["tool_agent", "single_turn_agent"], [], None),
    "a loop of the user's file": (["mine"], [f"{AGENT}.agent_loop_config_path={DATA}/loops.yaml"], None),
    "a loop that only the workers know": (["theirs"], [f"{MODEL}.external_lib=some.module"], None),
    "no such loop": (["tool_agent", "tool_agnet"], [], "agent_name 'tool_agnet', and there is no such agent loop; did"),
    "rows of one turn alone": (["single_turn_agent"], [], "agent_name 'single_turn_agent', which calls no tools; drop"),
    "rows of one turn in an environment": (
        ["tool_agent", "single_turn_agent"],
        ["wm.coeff=0", "wm.environment=grid"],
        "agent_name 'single_turn_agent', which calls no tools; drop the column, or write tool_agent, in whose place",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_agent_loops_that_rows_name_are_read_before_ray_starts(case, tmp_path):
    names, overrides, message = FOREIGN[case]
    path = named(tmp_path / "rows.parquet", *names)
    config = stock(*overrides, f"data.train_files={path}", f"data.val_files=[{path}]")
    if message is None:
        support.check_config(config)
        return
    with pytest.raises(UserError, match=message) as error:
        support.check_config(config)
    assert str(error.value).startswith("data.train_files: rows have the ")
    assert "\n" not in str(error.value)


def test_agent_loops_of_validation_rows_and_of_json_lines_are_read_too(tmp_path):
    (train, val) = (named(tmp_path / name, "tool_agent") for name in ("train.jsonl", "val.parquet"))
    support.check_config(stock(f"data.train_files={train}", f"data.val_files={val}"))
    for wrong, file in (("train_files", "wrong.jsonl"), ("val_files", "wrong.parquet")):
        files = {"train_files": train, "val_files": val, wrong: named(tmp_path / file, "react")}
        with pytest.raises(UserError, match=f"data.{wrong}: rows have the agent_name 'react'"):
            support.check_config(stock(*(f"data.{name}={path}" for name, path in files.items())))


def test_at_coefficient_0_rows_of_other_loops_are_verls(tmp_path):
    path = named(tmp_path / "rows.parquet", "react")
    support.check_config(stock("wm.coeff=0", f"data.train_files={path}"))
    with pytest.raises(UserError, match="no such agent loop"):
        support.check_config(stock("wm.coeff=0", f"wm.environment={BARE}", f"data.train_files={path}"))


@pytest.mark.slow
def test_verls_tool_data_with_verls_tools_in_main_ppo(tmp_path):
    """The documented command on stock tool data: training and validation have the objective, and the reward is verl's."""
    made = rows(4)
    script = {
        row["prompt"][0]["content"]: [
            call("check_answer", answer="0"),
            call("check_answer", answer=row["reward_model"]["ground_truth"]),
            f"#### {row['reward_model']['ground_truth'] if number % 2 else 0}",
        ]
        for number, row in enumerate(made)
    }
    run = run_script(
        "echo_grpo_tiny",
        tmp_path,
        {"train": made},
        script,
        [row["prompt"] for row in made],
        "wm.environment=null",
        "wm.max_turns=null",
        "wm.validation_nll=true",
        "wm.tools=[check_answer]",
        "reward.num_workers=1",
        "actor_rollout_ref.rollout.multi_turn.format=hermes",
        f"actor_rollout_ref.rollout.multi_turn.tool_config_path={TOOLS_FILE}",
        "trainer.total_training_steps=1",
        "trainer.test_freq=1",
        batch=4,
    )
    assert run.code == 0, run.output[-5000:]
    (step,) = run.steps
    assert step["wm/lost"] == 0
    assert step["echo/tokens"] == step["echo/tool/check_answer/tokens"] > 0
    assert step["critic/score/mean"] == 0.5
    assert step["val-aux/openai/gsm8k/echo/tokens"] == step["echo/tokens"] / 2  # one rollout of each row, and not two
