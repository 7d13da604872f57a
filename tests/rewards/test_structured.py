"""Judges that ask their server to hold them to the form of a verdict."""

import asyncio
import json
import re

import pytest

pytest.importorskip("aiohttp")

from support.openai_server import OpenAIServer, judge_at
from wm_plugin.client.server import Server
from wm_plugin.errors import UserError
from wm_plugin.rewards.comparison import ReferenceReward, TuringReward
from wm_plugin.rewards.judge import JudgedReward, JudgeReward
from wm_plugin.rewards.rubric import DIMENSIONS, RubricReward


def reply(verdict):
    return f"<final_evaluation>\n{verdict}\n</final_evaluation>"


def five(*scores):
    return json.dumps(dict(zip(DIMENSIONS, scores, strict=True)))


CASES = {  # a judge, verdicts that have its form, others
    "judge": (JudgeReward, {}, ['{"score": 0}', '{"score": 0.25}'], ['{"score": 2}', '{"score": "1"}']),
    "binary": (JudgeReward, {"binary": True}, ['{"score": 0}', '{"score": 1}'], ['{"score": 0.5}', '{"score": 10}']),
    "rubric": (RubricReward, {}, [five(1, 2, 3, 4, 5)], [five(0, 1, 1, 1, 1), five(1, 1, 1, 1, 55), '{"format": 1}']),
    "reference": (ReferenceReward, {}, ['{"closer": "first"}', '{"closer": "tie"}'], ['{"real": "first"}']),
    "turing": (TuringReward, {}, ['{"real": "second"}'], ['{"real": "tie"}', "{}"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_judge_asks_for_its_own_form_and_reads_it(name):
    judge, settings, verdicts, others = CASES[name]
    replies = iter(reply(verdict) for verdict in verdicts for _ in range(2))
    with OpenAIServer(lambda _: next(replies)) as server:
        plain, structured = (judge(judge_at(server), structured=chosen, **settings) for chosen in (False, True))
        for _ in verdicts:
            assert structured(["p"], ["t"], reference=["r"]) == plain(["p"], ["t"], reference=["r"])
            assert structured.figures["failure_share"] == plain.figures["failure_share"] == 0
    asked, unasked = server.bodies[:2]
    regex = asked.pop("structured_outputs")["regex"]
    assert json.dumps(asked) == json.dumps(unasked)  # in this order
    assert list(unasked) == ["model", "messages", "temperature", "max_tokens", "seed"]
    assert all(re.fullmatch(regex, reply(verdict)) for verdict in verdicts)
    assert not any(re.fullmatch(regex, text) for text in [*map(reply, others), f"I say: {reply(verdicts[0])}"])


def test_a_judge_that_is_asked_again_is_held_to_it_too():
    with OpenAIServer(lambda _: "prose") as server:
        JudgeReward(judge_at(server, max_retries=1), structured=True)(["p"], ["t"])
        asyncio.run(JudgeReward(judge_at(server, max_retries=1), structured=True).call_async(["p"], ["t"]))
    assert ["structured_outputs" in body for body in server.bodies] == [True] * 4


def test_a_server_and_a_cache_that_judges_share(tmp_path):
    with OpenAIServer(lambda _: reply('{"score": 1}')) as server:
        shared = Server(**judge_at(server))
        for structured in (False, True, True, False):
            judge = JudgeReward(shared, structured=structured, cache=tmp_path / "cache.db")
            assert judge(["p"], ["t"]) == [1.0]
    assert ["structured_outputs" in body for body in server.bodies] == [False, True]


def test_judges_that_cannot_be_structured():
    class Own(JudgedReward):
        default_prompt = "judge_real"

        def _texts(self, row):
            return {}

        def _read(self, row, reply, notes):
            return None

    server = {"base_url": "http://localhost:8000/v1", "model": "judge"}
    with pytest.raises(UserError, match="structured: Own does not define the form of its verdicts; leave it out"):
        Own(server, structured=True)
    server["parameters"] = {"structured_outputs": {"regex": "a"}}
    JudgeReward(server)
    with pytest.raises(UserError, match="parameters has structured_outputs, which structured: true sets"):
        JudgeReward(server, structured=True)
