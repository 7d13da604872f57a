"""WMAct's text protocol in verl's loop: what is read, what is shown, which tokens are whose, and what a turn may take."""

import pytest

pytest.importorskip("verl")

from on_verl.test_agent_loop import Server, content, make_tokenizer, rollout
from wm_plugin.errors import UserError
from wm_plugin.verl.names import ERROR, INFO

BOARD = "#####\n#A.G#\n#####"
ROW = {"extra_info": {"board": BOARD, "max_turns": 4}}
WM = {"environment": "maze", "protocol": "tags", "episode_reward": {"rescale": True, "format_penalty": 0.1}}


@pytest.fixture(scope="module", params=[True, False], ids=["merges", "bytes"])
def tokenizer(request):
    return make_tokenizer(merges=request.param)


BAD, GOOD, FLY = (
    f'<tool_call>{{"name": "{name}", "arguments": {{"{parameter}": "R; R"}}}}</tool_call>'
    for name, parameter in (("move", "wrong"), ("move", "direction"), ("fly", "direction"))
)


def says(actions, thought="hm"):
    return f"<think>{thought}</think><action>{actions}</action>"


def test_answers_act_and_observations_are_the_users(tokenizer):
    turns = [says("move left", "or <action>move up</action>"), says("move right; move right"), "done"]
    output = rollout(tokenizer, turns, WM, row=ROW, response_length=4000)
    assert ERROR not in output.extra_fields
    prompt, response = tokenizer.decode(output.prompt_ids), tokenizer.decode(output.response_ids)
    assert f"Go.{BOARD}>" in prompt
    assert prompt.count("<action>first action; second action</action>") == 1
    assert '"function"' not in prompt  # no tools
    first, last = "#####\n#A.G#\n#####>", "#####\n#..P#\n#####!"
    assert content(tokenizer, output) == [("act", first), ("act", last)]
    user = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n".format
    assert response == "<|im_end|>\n".join([turns[0], user(first) + turns[1], user(last) + turns[2]]) + "<|im_end|>"
    sampled = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert tokenizer.decode(sampled) == "".join(f"{turn}<|im_end|>" for turn in turns)
    assert output.reward_score == pytest.approx(2 / 3)
    info = output.extra_fields[INFO]
    assert (info["turns"], info["actions"], info["effective"], info["calls/act"]) == (2, 3, 2, 2)


@pytest.mark.parametrize(
    ("turns", "more", "reward"),
    [
        ([says("fly"), says("move right; move right"), "done"], {}, 2 / 3 - 0.1),
        ([says(""), says("move right; move right"), "done"], {}, 2 / 3 - 0.1),
        (["I give up"], {}, -0.1),  # as dear as an invalid action
        ([says("fly"), "I give up"], {}, -0.1),
        (["<think><action>move right</action>"], {}, -0.1),  # it never stops to think
        ([*[says("move right; move right")] * 2, "done"], {}, 1.0),  # after the end nothing is asked for
        ([says("move right"), "done"], {"max_turns": 2}, 0.0),  # nor after the last turn
        ([says("move right"), "done"], {"max_turns": 3}, -0.1),
        ([says("x" * 400)], {"response_length": 100}, -0.1),  # cut
    ],
)
def test_an_answer_without_an_action_costs_an_invalid_action(turns, more, reward):
    wm = {name: value for name, value in more.items() if name != "response_length"}
    output = rollout(make_tokenizer(), turns, WM | wm, row=ROW, response_length=more.get("response_length", 4000))
    assert output.reward_score == pytest.approx(reward)


@pytest.mark.parametrize(
    ("turns", "reward"),
    [
        (["no call"], -0.1),
        (['<tool_call>{"name": "fly", "arguments": {}}</tool_call>', "x"], -0.1),
        (['<tool_call>{"name": "move", "arguments": {"wrong": 1}}</tool_call>', "x"], -0.1),
        (['<tool_call>{"name": "move", "arguments": {"direction": "R; R"}}</tool_call>', "x"], 1.0),
        (["<tool_call>{</tool_call>"], -0.1),
        ([BAD + BAD, GOOD, "x"], 2 / 3 - 0.1),  # one answer, however many calls fail
        ([BAD + GOOD, "x"], 1.0),  # one of its calls is an action
        ([GOOD, BAD, "x"], 1.0),  # after the end
        ([FLY, GOOD, FLY, "x"], 2 / 3 - 0.1),
    ],
)
def test_so_it_does_with_tool_calls(turns, reward):
    wm = {name: value for name, value in WM.items() if name != "protocol"}
    assert rollout(make_tokenizer(), turns, wm, row=ROW).reward_score == pytest.approx(reward)


class Limits(Server):
    """Honours `max_tokens`, as verl's servers do, and notes it."""

    asked: list = []  # noqa: RUF012

    async def generate(self, prompt_ids, sampling_params=None, **more):
        output = await super().generate(prompt_ids, **more)
        most = (sampling_params or {}).get("max_tokens")
        self.asked.append(most)
        output.token_ids, output.log_probs = output.token_ids[:most], output.log_probs[:most]
        return output


@pytest.mark.parametrize("cap", [None, 60, 25])
def test_a_cap_on_the_tokens_of_a_turn(monkeypatch, cap):
    """A turn that it cuts has no action and ends the episode; the last one has what the response has left."""
    tokenizer = make_tokenizer(merges=False)
    monkeypatch.setattr("on_verl.test_agent_loop.Server", Limits)
    Limits.asked = []
    turns = [says("move left"), says("move right"), "d" * 400]
    output = rollout(tokenizer, turns, WM | {"max_turn_tokens": cap}, row=ROW, response_length=200)
    lengths = [len(tokenizer.encode(f"{turn}<|im_end|>", add_special_tokens=False)) for turn in turns]
    if cap is None:
        assert Limits.asked == [None] * 3
    elif cap == 60:
        left = 200 - sum(lengths[:2]) - output.response_mask.count(0)
        assert Limits.asked == [60, 60, left]
        assert left < 60
    else:
        assert Limits.asked == [25]
        assert output.response_mask == [1] * 25
        assert output.reward_score == pytest.approx(-0.1)
    assert len(output.response_ids) <= 200


@pytest.mark.parametrize(
    ("wm", "message"),
    [
        ({"environment": "sql", "protocol": "tags"}, "wm.protocol: tags writes one text of actions"),
        ({"environment": "maze", "protocol": "xml"}, "wm.protocol is 'xml'; write tools or tags"),
        ({"environment": None, "protocol": "tags"}, "wm.protocol is of actions in an environment"),
        ({"max_turn_tokens": 0}, "wm.max_turn_tokens is 0; write a whole number"),
    ],
)
def test_what_does_not_fit(wm, message):
    with pytest.raises(UserError) as error:
        rollout(make_tokenizer(), ["x"], wm, row=ROW)
    assert str(error.value).startswith(message)
