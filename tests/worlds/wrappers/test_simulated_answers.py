"""Simulated worlds that answer by a tool: what the answer is, who checks it, and what the reward is."""

import pytest

import wm_plugin.worlds.agents.rollout as rollout
from support.openai_server import OpenAIServer
from wm_plugin.data.readers.word2world import SUCCESS
from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.worlds import scenarios
from wm_plugin.worlds.fictional import written
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.simulated import simulated

pytestmark = pytest.mark.host  # schemas of tools are transformers'

TOOLS = {"sql": ("submit_answer", "answer"), "docs": ("finish", "answer"), "fictional": ("answer", "table")}


def right_answer(name, row):
    world = load(name).make()
    world.reset(**row)
    return written(world._table) if name == "fictional" else row["answer"]


def half_right(table):
    """The right table without its last row."""
    return table.rpartition("\n")[0]


def answering(name, text, words=""):
    """An episode that answers by the tool, and then says something."""
    tool, parameter = TOOLS[name]
    actions = [Action(calls=(Call(name=tool, arguments={parameter: text}),))]
    return [*actions, Action(text=words)] if words else actions


def play(name, row, actions, **settings):
    """The episode in a world model that says of everything that it is a success."""
    with OpenAIServer(lambda body: f"The answer is right.{SUCCESS}") as server:
        config = {"url": server.base_url, "model": "world", **settings}
        return rollout.replay(simulated(load(name).environment, config)(), row, actions)


@pytest.mark.parametrize("name", TOOLS)
def test_the_real_world_checks_the_answer(name):
    row = load(name).rows(1)[0]
    for text, reward in ((right_answer(name, row), 1.0), ("nonsense", 0.0), (7.5, 0.0), (None, 0.0), (["x"], 0.0)):
        played = play(name, row, answering(name, text), success="answer")
        assert (played.reward, played.success) == (reward, reward == 1.0)
        believed = play(name, row, answering(name, text))  # predicted
        assert (believed.reward, believed.success) == (1.0, True)
        for one in (played, believed):
            assert one.metadata["figures"]["simulation/answer"] == reward
            assert (one.metadata["figures"]["actions"], one.metadata["figures"]["lost"]) == (1, 0)


def test_f1_of_items_and_rows_can_be_the_reward():
    row = load("fictional").rows(1)[0]
    played = play(
        "fictional", row, answering("fictional", half_right(right_answer("fictional", row))), success="answer"
    )
    figures = played.metadata["figures"]
    assert 0.0 < figures["row_f1"] <= figures["item_f1"] < 1.0
    assert played.reward == pytest.approx((figures["item_f1"] + figures["row_f1"]) / 2)
    assert not played.success


def test_a_rule_reads_the_argument_of_the_tool_and_not_the_words_after_it():
    row = load("sql").rows(1)[0]
    rule = {"success": "rule", "rule": "support.world_models:is_answer"}
    for text, words, reward in ((row["answer"], "", 1.0), (row["answer"], "Done.", 1.0), ("x", row["answer"], 0.0)):
        assert play("sql", row, answering("sql", text, words), **rule).reward == reward
    assert play("sql", row, [Action(text=row["answer"])], **rule).reward == 1.0  # words, where the tool was not called


def test_an_answer_ends_the_task_and_the_next_one_does_not_count():
    row = load("sql").rows(1)[0]
    for row_answers in (("x", row["answer"]), (row["answer"], "x")):
        with OpenAIServer(lambda body: "Hm.") as server:
            world = simulated(load("sql").environment, {"url": server.base_url, "model": "w", "success": "answer"})()
            world.reset(**row)
            assert world.run_query("SELECT 1") == "Hm."
            assert not world.over
            assert world.submit_answer(row_answers[0]) == "Hm."
            assert world.over
            with pytest.raises(ValueError, match="over"):
                world.submit_answer(row_answers[1])
            assert world.get_reward() == float(row_answers[0] == row["answer"])
            # the next episode has no answer yet
            world.reset(**row)
            assert (world.get_reward(), world.success, world.metrics["simulation/answer"]) == (0.0, False, 0.0)


def test_scenarios_have_questions_of_their_own(tmp_path):
    """The row's columns are the seed's, so that their answer is not this question's; the row's rule reads what was submitted."""
    row = load("sql").rows(1)[0]
    columns = {name: row[name] for name in ("database_seed", "answer", "query")}
    scenario = scenarios.Scenario(query="Another question?", verifier={"regex": "^blue$"}, columns=columns)
    rule = {"success": "rule", "rule": "wm_plugin.worlds.scenarios:verified", "scenarios": True}
    for text, reward in (("blue", 1.0), (row["answer"], 0.0)):
        played = play("sql", scenarios.row_of(scenario), answering("sql", text), **rule)
        assert played.reward == reward
        assert "simulation/answer" not in played.metadata["figures"]


def test_what_no_answer_decides_is_refused():
    config = {"url": "http://localhost:1/v1", "model": "w", "success": "answer"}
    with pytest.raises(UserError, match="GridEnvironment has no tool whose argument is the answer"):
        simulated(load("grid").environment, config)
    with pytest.raises(UserError, match="scenarios have others; write verifier or rule"):
        simulated(load("sql").environment, {**config, "scenarios": True})
    row = load("sql").rows(1, level="hard-2")[0]
    with pytest.raises(UserError, match="not decided by an answer but by a state"):
        simulated(load("sql").environment, config)().reset(**row)
    played = play("sql", row, answering("sql", "done"))
    assert (played.reward, "simulation/answer" in played.metadata["figures"]) == (1.0, False)


def test_a_world_model_that_decides_alone_is_warned_of(caplog):
    def made(name, **settings):
        caplog.clear()
        simulated(load(name).environment, {"url": "http://localhost:1/v1", "model": "warned", **settings})
        return "success: answer to have the world check it" in caplog.text

    from wm_plugin.worlds.wrappers.simulated import _warn_of_answers

    _warn_of_answers.cache_clear()
    assert not made("grid")
    assert not made("docs", success="answer")
    assert made("docs")
