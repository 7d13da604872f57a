"""What counts as no prediction, and what every registered reward makes of it."""

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("re2")

import torch

from support.openai_server import OpenAIServer
from wm_plugin.rewards import REWARDS

SERVED = ("embedding", "hybrid", "judge", "reference", "rubric", "rwml", "turing")
# An output, and whether it has a prediction by each tag: None takes it as it is, "" takes what follows the reasoning.
OUTPUTS = {
    "missing": (None, (False, False, False)),
    "empty": ("", (True, True, False)),
    "blank": (" \n ", (True, True, False)),
    "without a tag": ("p", (True, True, False)),
    "reasoning alone": ("<think>p", (True, False, False)),
    "in the reasoning": ("<think><next_state>p</next_state></think>", (True, True, False)),
    "an empty prediction": ("<next_state></next_state>", (True, True, True)),
    "a blank prediction": ("<think>x</think><next_state> \n </next_state>", (True, True, True)),
    "a prediction": ("<think>x</think><next_state>p</next_state>", (True, True, True)),
}


def reply(body):
    scores = ", ".join(f'"{name}": 5' for name in ("format", "factuality", "consistency", "realism", "quality"))
    return f'<final_evaluation>{{"score": 1, "closer": "tie", "real": "first", {scores}}}</final_evaluation>'


def make(name, server, tag):
    model = {"base_url": server.base_url, "model": "m"}
    judge = {"server": {**model, "max_retries": 0}}
    settings = {
        **dict.fromkeys(("embedding", "rwml"), model),
        "guarded": {"reward": "exact"},
        "hybrid": {"rubric": judge},
        **dict.fromkeys(("judge", "reference", "rubric", "turing"), judge),
    }
    reward = REWARDS.get(name)(**settings.get(name, {}), tag=tag)
    if name in ("embedding", "rwml"):
        embedding = getattr(reward, "embedding", reward)
        embedding._vectors = lambda *texts: (
            server.bodies.append(texts) or dict.fromkeys((*texts[0], *texts[1]), torch.ones(2))
        )
    return reward


@pytest.mark.parametrize("name", list(REWARDS))
def test_a_row_without_a_prediction_gets_0_is_counted_and_never_leaves_the_process(name):
    rows = list(OUTPUTS.values())
    columns = {"observer": ["user"], "reference": ["other"], "verifier": [{"equals": "t"}]}
    for place, tag in enumerate((None, "", "next_state")):
        absent = [output for output, present in rows if not present[place]]
        with OpenAIServer(reply) as server:
            reward = make(name, server, tag)
            scores = reward(absent, ["t"] * len(absent), **{key: value * len(absent) for key, value in columns.items()})
            assert scores == [0.0] * len(absent)
            assert reward.figures["no_prediction"] == 1.0
            assert server.bodies == []
            outputs = [output for output, _ in rows]
            reward(outputs, ["t"] * len(rows), **{key: value * len(rows) for key, value in columns.items()})
            assert reward.figures["no_prediction"] == pytest.approx(len(absent) / len(rows))
            assert bool(server.bodies) == (name in SERVED)


@pytest.mark.parametrize("name", list(REWARDS))
def test_the_same_outputs_have_a_prediction_for_every_reward(name):
    with OpenAIServer(reply) as server:
        for place, tag in enumerate((None, "", "next_state")):
            reward = make(name, server, tag)
            for output, present in OUTPUTS.values():
                (text,) = reward.extracted([output], ["t"])
                assert (text is not None) == present[place], (name, tag, output)
