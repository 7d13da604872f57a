"""The columns of an agent's dialogues for fine-tuning, by hand; the hosts' losses on them are in on_trl and on_verl."""

import math

import pytest

from wm_plugin.errors import UserError
from wm_plugin.hosting.dialogues import ENVIRONMENT, Dialogue, Dialogues, check_objectives
from wm_plugin.objectives.echo import EchoConfig
from wm_plugin.objectives.run import TOOL_IDS, WEIGHTS, Objectives, RunObjective, column
from wm_plugin.tokens.spans import Span


def dialogue(*parts, reward=None):
    """A row whose tokens are characters. Parts are (who, text): the prompt, the agent, a user, or a tool by its name."""
    ids, trained, spans = [], [], []
    for who, text in parts:
        if who not in ("prompt", "agent"):
            role, tool = ("user", None) if who == "user" else ("tool", who)
            spans.append(Span(len(ids), len(ids) + len(text), role, tool, True))
        ids += map(ord, text)
        trained += [int(who == "agent")] * len(text)
    return Dialogue(ids, trained, spans, reward)


ROW = dialogue(("prompt", "Q"), ("agent", "ab"), ("look", "xyz"), ("agent", "c"), ("user", "uv"), ("agent", "d"))


def of(**objectives):
    running = [
        RunObjective(name.strip("_"), one, limit="max_length", tools=["look"]) for name, one in objectives.items()
    ]
    return Dialogues(running, lambda ids: "".join(map(chr, ids)))


def weights(dialogues, row=ROW, *args, name="", **kwargs):
    return dialogues.columns(row, *args, **kwargs)[column(WEIGHTS, name)].tolist()


def test_columns_by_hand():
    dialogues = of(tools=EchoConfig(1.0, roles=["tool"]), users=EchoConfig(1.0, roles=["user"]))
    found = dialogues.columns(ROW)
    assert found[ENVIRONMENT].tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 1, 0]
    assert found[column(WEIGHTS, "tools")].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert found[column(TOOL_IDS, "tools")].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert found[column(WEIGHTS, "users")].tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1, 0]


def test_a_part_of_a_row_has_the_columns_of_its_tokens_and_nothing_predicts_its_first():
    dialogues = of(_=EchoConfig(1.0))
    assert weights(dialogues, ROW, 4, 8) == [0, 1, 0, 1]
    assert weights(dialogues, ROW, 6) == [0, 1, 1, 0]
    assert weights(dialogues, ROW, 0, 3) == [0, 0, 0]
    assert dialogues.columns(ROW, 4, 8)[ENVIRONMENT].tolist() == [0, 1, 0, 1]
    whole = of(_=EchoConfig(1.0, include_truncated=False))
    assert (sum(weights(whole)), sum(weights(whole, ROW, 4))) == (5, 3)
    assert weights(whole, ROW, 0, 8) == [0] * 8  # cut


def test_a_selection_sees_what_the_tokens_say():
    seen = []

    def select(span, message):
        seen.append(message)
        return "y" in message["content"]

    assert weights(of(_=EchoConfig(1.0, select=select))) == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert seen == [{"role": "tool", "content": "xyz", "name": "look"}, {"role": "user", "content": "uv"}]


def test_a_turn_that_repeats_its_action_weighs_less():
    row = dialogue(("agent", "look at the door"), ("look", "look at the door"), ("agent", "go"), ("look", "a red key"))
    found = weights(of(_=EchoConfig(1.0, turn_information=True)), row)
    assert found[16:32] == pytest.approx([0.05] * 16)  # an echo, by Qwen-AgentWorld's table 3
    assert found[34:] == [1.0] * 9


def test_a_dialogue_is_left_out_by_its_messages_and_reward_but_never_of_an_evaluation():
    seen = []

    def select_rollout(messages, reward):
        seen.append((messages, reward))
        return reward == 1

    dialogues = of(_=EchoConfig(1.0, select_rollout=select_rollout))
    assert sum(weights(dialogues, ROW._replace(reward=1.0))) == 5
    assert sum(weights(dialogues)) == 0
    assert sum(weights(dialogues, held_out=True)) == 5
    assert seen[0][0] == [
        {"role": "assistant", "content": "ab"},
        {"role": "tool", "content": "xyz", "name": "look"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "uv"},
        {"role": "assistant", "content": "d"},
    ]
    assert (seen[0][1], math.isnan(seen[1][1]), len(seen)) == (1.0, True, 2)
    assert sum(weights(dialogues, ROW._replace(trained=[]))) == 5  # nothing is known of its messages
    assert len(seen) == 2
    assert sum(weights(of(_=EchoConfig(1.0, zero_variance_groups="drop")))) == 5  # there are no groups


@pytest.mark.parametrize(
    ("objective", "rows", "message"),
    [
        (
            EchoConfig(1.0),
            [dialogue(("agent", "ab"))],
            "rows.parquet has no observations, on which the objective trains",
        ),
        (EchoConfig(1.0, tools=["take"]), [ROW], "rows.parquet: the objective has no token to train on: .*tools"),
    ],
)
def test_rows_on_which_nothing_can_be_trained_are_refused(objective, rows, message):
    with pytest.raises(UserError, match=message):
        of(_=objective).check(rows, "rows.parquet", "max_length")


def test_one_row_that_counts_is_enough_and_coefficient_0_needs_none():
    of(_=EchoConfig(1.0)).check([dialogue(("agent", "ab")), ROW], "rows", "max_length")
    of(_=EchoConfig(0.0)).check([dialogue(("agent", "ab"))], "rows", "max_length")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zero_variance_groups": "drop"}, "echo_zero_variance_groups is drop"),
        ({"tempered": True}, "echo_tempered is true"),
    ],
)
def test_options_that_only_rollouts_give_a_meaning_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        check_objectives(Objectives.read(EchoConfig(1.0, **options)), "echo_")
    check_objectives(
        Objectives.read(EchoConfig(preset="verl-recipe")), "echo_"
    )  # tempered, as its own trainer's rollouts
