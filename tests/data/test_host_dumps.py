"""Results that a host made up are told in its dumps as in our own rollouts, so that both give the same data."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from wm_plugin.data.chat import chat
from wm_plugin.data.filter import Filter
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Action, Call, Trajectory
from wm_plugin.data.transitions import expand
from wm_plugin.worlds.agents.rollout import Host, replay

pytestmark = pytest.mark.host  # schemas


class Shop:
    """A tool that may say that something is wrong."""

    def reset(self) -> None:
        """Begin."""

    def buy(self, item: str) -> str:
        """Buy something.

        Args:
            item: What.
        """
        if item == "nothing":
            raise ValueError("what's\n'that'?")
        return "Error: sold out" if item == "milk" else f"You have {item}"


CALLS = [
    ("buy", {"item": "milk"}),  # the world's own error is worth learning
    ("buy", {"thing": "tea"}),
    ("nope", {"item": "tea"}),
    ("buy", {"item": "nothing"}),
    ("buy", {}),
    ("buy", {"item": "Error executing tool 'buy': no"}),
    ("buy", {"item": "tea"}),
]


def dump(trajectory: Trajectory, host: str) -> dict[str, Any]:
    messages = chat(trajectory.context, trajectory.turns)
    if host == "trl":
        return {"prompt": [{"role": "user", "content": "Shop."}], "completion": messages, "advantage": 0.5}
    output = ""
    for message in messages:
        if message["role"] == "tool":
            output += f"\nuser\n<tool_response>\n{message['content']}\n</tool_response>\nassistant\n"
        else:
            function = message["tool_calls"][0]["function"]
            arguments = json.loads(function["arguments"])
            output += f"<tool_call>{json.dumps({'name': function['name'], 'arguments': arguments})}</tool_call>"
    return {"input": "user\nShop.\nassistant\n", "output": output, "score": 1.0, "step": 1}


@pytest.mark.parametrize("host", get_args(Host))
def test_a_dump_gives_the_same_samples_as_our_rollouts(host: Host, tmp_path: Path) -> None:
    actions = [Action(calls=(Call(name=name, arguments=arguments),)) for name, arguments in CALLS]
    played = replay(Shop(), {}, actions, host=host)
    (tmp_path / "1.jsonl").write_text(json.dumps(dump(played, host)) + "\n")
    (dumped,) = read(tmp_path / "1.jsonl", host)
    seen = [[(one.text, one.error, one.data) for _, _, one in each.observed()] for each in (played, dumped)]
    assert seen[0] == [(text, failed, {"actions": 1, "invalid": 1} if failed else {}) for text, failed, _ in seen[1]]
    assert [failed for _, failed, _ in seen[1]] == [False, True, True, True, True, False, False]
    own, other = (
        [t.observation.text for t in expand(Filter(["invalid_actions"])([each]))] for each in (played, dumped)
    )
    assert own == other == ["Error: sold out", "You have Error executing tool 'buy': no", "You have tea"]
