"""WMAct's text protocol in verl's loop: what is read, what is shown, which tokens are whose, and what a turn may take."""

import copy
import itertools

import pytest

pytest.importorskip("verl")

from on_verl.test_agent_loop import TEMPLATE, content, make_tokenizer, rollout
from support.agent_loop import Server
from support.scripted_on_verl import run_script
from support.wmact import GIVES_UP, plans, says
from wm_plugin.hosting.tags import REMINDER
from wm_plugin.verl.data import verl_rows
from wm_plugin.verl.names import ERROR, INFO
from wm_plugin.worlds.mixture import dataset_rows

BOARD = "#####\n#A.G#\n#####"
ROW = {"extra_info": {"board": BOARD, "max_turns": 4}}
WM = {"environment": "maze", "protocol": "tags", "episode_reward": {"rescale": True, "format_penalty": 0.1}}


@pytest.fixture(scope="module", params=[True, False], ids=["merges", "bytes"])
def tokenizer(request):
    return make_tokenizer(merges=request.param)


GOOD = '<tool_call>{"name": "move", "arguments": {"direction": "R; R"}}</tool_call>'


def test_answers_act_and_observations_are_the_users(tokenizer):
    turns = [says("move left", "or <action>move up</action>"), says("move right; move right"), "done"]
    output = rollout(turns, WM, row=ROW, response_length=4000, tokenizer=tokenizer)
    assert ERROR not in output.extra_fields
    prompt, response = tokenizer.decode(output.prompt_ids), tokenizer.decode(output.response_ids)
    assert f"Go.{BOARD}>" in prompt
    assert prompt.count("<action>first action; second action</action>") == 1
    assert '"function"' not in prompt  # no tools
    first, last = "#####\n#A.G#\n#####>", "#####\n#..P#\n#####!"
    assert content(output, tokenizer=tokenizer) == [("act", first), ("act", last)]
    user = f"<|im_start|>user\n{{}}{REMINDER}<|im_end|>\n<|im_start|>assistant\n".format
    assert response == "<|im_end|>\n".join([turns[0], user(first) + turns[1], user(last) + turns[2]]) + "<|im_end|>"
    sampled = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert tokenizer.decode(sampled) == "".join(f"{turn}<|im_end|>" for turn in turns)
    assert output.reward_score == pytest.approx(2 / 3)
    info = output.extra_fields[INFO]
    assert (info["turns"], info["actions"], info["effective"], info["calls/act"]) == (2, 3, 2, 2)


@pytest.mark.parametrize(
    ("turns", "more", "reward"),
    [
        ([says("move right"), "done"], {"max_turns": 2}, 0.0),  # nothing is asked for after the last turn
        ([says("move right"), "done"], {"max_turns": 3}, -0.1),
        ([says("x" * 400)], {"response_length": 100}, -0.1),  # cut
    ],
)
def test_an_answer_without_an_action_costs_an_invalid_action(turns, more, reward):
    wm = {name: value for name, value in more.items() if name != "response_length"}
    output = rollout(turns, WM | wm, row=ROW, response_length=more.get("response_length", 4000))
    assert output.reward_score == pytest.approx(reward)


class Limits(Server):
    """Honours `max_tokens`, as verl's servers do, and notes it."""

    asked: list = []  # noqa: RUF012

    async def generate(self, prompt_ids, sampling_params=None, **more):
        output = await super().generate(prompt_ids, **more)
        most = (sampling_params or {}).get("max_tokens")
        self.asked.append(most)
        output.token_ids, output.log_probs = output.token_ids[:most], output.log_probs[:most]
        return output


@pytest.mark.parametrize(
    ("turn", "wm"),
    [
        (says("move right; move right") + "d" * 400, WM),
        (GOOD + "d" * 400, {name: value for name, value in WM.items() if name != "protocol"}),
    ],
    ids=["tags", "tools"],
)
@pytest.mark.parametrize("cap", [150, 600])
def test_a_turn_that_was_cut_has_no_action(monkeypatch, turn, wm, cap):
    """Not even where one stands in it before the cut: the results would follow a turn without an end."""
    monkeypatch.setattr("support.agent_loop.Server", Limits)
    Limits.asked = []
    tokenizer = make_tokenizer(merges=False)
    output = rollout([turn, "x"], wm | {"max_turn_tokens": cap}, row=ROW, response_length=2000, tokenizer=tokenizer)
    if cap == 150:
        assert output.response_mask == [1] * 150
        assert output.reward_score == pytest.approx(-0.1)
    else:
        assert output.reward_score == pytest.approx(1.0)
        assert output.response_mask.count(0) > 0


THINKS = TEMPLATE.replace("<|im_start|>assistant\\n' }}", "<|im_start|>assistant\\n<think>\\n' }}")


def test_a_template_that_begins_to_think(tokenizer):
    """What is thought is not run, in the first turn and in later ones, whether or not the answer says when it ends."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = THINKS
    assert THINKS != TEMPLATE
    maybe = "maybe <action>move left</action>"
    turns = [f"{maybe}</think><action>move right</action>", f"{maybe} or <action>move right</action>", "x"]
    output = rollout(turns, WM, row=ROW, response_length=4000, tokenizer=own)
    assert own.decode(output.prompt_ids).endswith("<think>\n")
    assert output.extra_fields[INFO]["actions"] == 2
    assert output.reward_score == pytest.approx(-0.1)  # the second answer never acted
    (shown,) = content(output, tokenizer=own)
    assert shown == ("act", "#####\n#.AG#\n#####>")


@pytest.mark.parametrize("cap", [None, 60, 25])
def test_a_cap_on_the_tokens_of_a_turn(monkeypatch, cap):
    """A turn that it cuts has no action and ends the episode; the last one has what the response has left."""
    tokenizer = make_tokenizer(merges=False)
    monkeypatch.setattr("support.agent_loop.Server", Limits)
    Limits.asked = []
    turns = [says("move left"), says("move right"), "d" * 400]
    length = 200 + 2 * len(REMINDER)  # a token a character
    output = rollout(turns, WM | {"max_turn_tokens": cap}, row=ROW, response_length=length, tokenizer=tokenizer)
    lengths = [len(tokenizer.encode(f"{turn}<|im_end|>", add_special_tokens=False)) for turn in turns]
    if cap is None:
        assert Limits.asked == [None] * 3
    elif cap == 60:
        left = length - sum(lengths[:2]) - output.response_mask.count(0)
        assert Limits.asked == [60, 60, left]
        assert left < 60
    else:
        assert Limits.asked == [25]
        assert output.response_mask == [1] * 25
        assert output.reward_score == pytest.approx(-0.1)
    assert len(output.response_ids) <= length


@pytest.mark.slow
def test_levels_are_solved_in_tags_from_rows_to_what_is_logged(tmp_path):
    """verl's own main_ppo: trains on Sokoban, and validates worlds and numbers of turns apart."""
    for module in ("reasoning_gym", "mazelib", "gymnasium"):
        pytest.importorskip(module)
    held_out = {"count": 2, "held_out": True}
    sets = {
        "train": {"sokoban": {"count": 4}},
        "sokoban": {"sokoban": held_out},
        "sokoban_single": {"sokoban": held_out | {"max_turns": 1, "seed": 2}},
        "maze_single": {"maze": held_out | {"max_turns": 1, "view": "wmact"}},
        "taxi_256_over_60": {"taxi": held_out | {"repeat": True}},
    }
    rows = {name: dataset_rows(worlds, seed=1) for name, worlds in sets.items()}
    answers = plans(itertools.chain.from_iterable(rows.values()), per_turn=4)
    lost = next(
        key for key in answers if "|" in key
    )  # in the first of the taxi's levels it says nothing to the purpose
    answers[lost] = [GIVES_UP]
    run = run_script(
        "wmact_ppo_tiny",
        tmp_path,
        {name: verl_rows(those, name) for name, those in rows.items()},
        answers,
        [row["prompt"] for those in rows.values() for row in those],
        "wm.environment={sokoban: sokoban, maze: maze, taxi: taxi}",
        "wm.protocol=tags",
        "wm.max_turn_tokens=1000",
        "wm.turn_budget.start=30",
        "wm.coeff=1.0",
        "critic.ppo_mini_batch_size=2",
        "critic.ppo_micro_batch_size_per_gpu=2",
        "trainer.total_training_steps=1",
        "trainer.test_freq=1",
        batch=4,
        policy="tiny_verl",
    )
    assert run.code == 0, run.output[-3000:]
    (step,) = run.steps
    assert step["critic/score/mean"] == pytest.approx(1.0)  # every action has an effect
    assert (step["wm/env/success"], step["wm/env/effective_share"], step["wm/env/invalid_share"]) == (1, 1, 0)
    turns = [len(answers[key]) - 1 for key in plans(rows["train"], per_turn=4)]
    assert step["wm/env/turns"] == step["wm/env/calls/act"] == pytest.approx(sum(turns) / len(turns))
    assert step["wm/lost"] == 0
    assert step["echo/tokens"] > 0
    for name in ("sokoban", "sokoban_single", "maze_single"):
        assert step[f"val-core/{name}/reward/mean@1"] == pytest.approx(1.0)
        assert step[f"val-aux/{name}/success/mean@1"] == 1
    for name in ("sokoban_single", "maze_single"):
        assert step[f"val-aux/{name}/turns/mean@1"] == 1
    assert step["val-core/taxi_256_over_60/reward/mean@1"] == pytest.approx((1.0 - 0.1) / 2)
    assert step["val-aux/taxi_256_over_60/success/mean@1"] == 0.5
