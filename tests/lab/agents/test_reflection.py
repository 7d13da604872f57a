"""Thoughts that compare an expert's action with others."""

import json
import random
from collections import Counter

import pytest

from wm_plugin.lab.agents.reflection import INSTRUCTION, asking, question, reflection
from wm_plugin.worlds import grid
from wm_plugin.worlds.agents import play
from wm_plugin.worlds.agents.scripted import directions, scripted
from wm_plugin.worlds.grid import GridEnvironment

pytest.importorskip("transformers")

pytestmark = pytest.mark.host


@pytest.fixture
def expert():
    rows = grid.dataset_rows(40, 3)
    played = [play(GridEnvironment(), row, scripted(grid.expert(random.Random(0))), max_turns=6) for row in rows]
    return next(trajectory for trajectory in played if len(trajectory.turns) >= 4)


def run(trajectories, ask, propose=None, **options):
    counts = Counter()
    propose = propose or directions(random.Random(0))
    return list(reflection(trajectories, GridEnvironment(), propose, ask, counts=counts, **options)), counts


def test_a_sample_is_the_history_a_thought_and_the_experts_action(expert):
    samples, counts = run([expert], lambda conversations: ["Left is a wall."] * len(conversations))
    assert counts == {"samples": len(expert.turns)}
    for number, sample in enumerate(samples):
        assert sample.columns["turn"] == number
        assert sample.train == [False] * (1 + 2 * number) + [True]
        last = sample.messages[-1]
        assert last["reasoning_content"] == "Left is a wall."
        arguments = json.loads(last["tool_calls"][0]["function"]["arguments"])
        assert arguments == expert.turns[number].action.calls[0].arguments
    assert samples[0].tools == expert.context.action_space


def test_a_thought_in_the_text(expert):
    samples, _ = run([expert], lambda conversations: ["Hm."] * len(conversations), inline=True)
    assert samples[0].messages[-1]["content"] == "<think>\nHm.\n</think>\n\n"
    assert "reasoning_content" not in samples[0].messages[-1]


def test_the_question_holds_what_was_tried_and_what_came_of_it(expert):
    questions = []
    run([expert], lambda conversations: questions.extend(conversations) or [None] * len(conversations))
    for number, (system, user) in enumerate(questions):
        assert system == {"role": "system", "content": INSTRUCTION}
        situation = json.loads(user["content"])
        turn = expert.turns[number]
        assert len(situation["conversation"]) == 1 + 2 * number
        assert situation["chosen"]["answers"] == [turn.observations[0].text]
        assert situation["chosen"]["action"]["calls"][0]["arguments"] == turn.action.calls[0].arguments
        assert 2 <= len(situation["others"]) <= 3
        assert situation["chosen"]["action"] not in [other["action"] for other in situation["others"]]


def test_control_tokens_in_a_question_are_plain_text(expert):
    said = expert.model_copy(
        update={"context": expert.context.model_copy(update={"initial_state": "<|im_end|>\n</s>[INST]"})}
    )
    text = question(said, 0, [])[1]["content"]
    assert json.loads(text)["conversation"][0]["content"].endswith("< |im_end|>\n< /s>[ INST]")


def test_bad_replies_are_left_out_and_counted(expert):
    replies = iter([None, "  ", "<think>much</think>\n", "<think>Let me", "x" * 21, "<think>hm</think> Up it is. "])
    samples, counts = run(
        [expert] * 2, lambda conversations: [next(replies, "Fine.") for _ in conversations], max_chars=20
    )
    states = 2 * len(expert.turns)
    assert counts == {"no reply": 1, "empty": 3, "too long": 1, "samples": states - 5}
    assert samples[0].messages[-1]["reasoning_content"] == "Up it is."


def test_states_without_another_action_are_not_asked_about(expert):
    expected = iter(turn.action for turn in expert.turns)
    samples, counts = run([expert], lambda conversations: 1 / 0, propose=lambda *_: [next(expected)])
    assert samples == []
    assert counts == {"no alternative": len(expert.turns)}


def test_questions_go_out_in_batches_across_trajectories(expert):
    sizes = []
    run([expert] * 3, lambda conversations: sizes.append(len(conversations)) or ["Fine."] * len(conversations), batch=5)
    assert sizes[:-1] == [5] * (len(sizes) - 1)
    assert sum(sizes) == 3 * len(expert.turns)


def test_a_predictor_can_be_asked():
    class Half:
        settings = {}  # noqa: RUF012

        def __call__(self, conversations, *, k, seed):
            assert (k, seed) == (1, 7)
            return [["a"] if n % 2 else [] for n, _ in enumerate(conversations)]

    assert asking(Half(), seed=7)([[], [], []]) == [None, "a", None]
