"""The rubric's arithmetic, domains and content types."""

import json

import pytest

pytest.importorskip("aiohttp")

from support.openai_server import OpenAIServer, careful, judge_at, verdict
from wm_plugin.errors import UserError
from wm_plugin.rewards import prompts
from wm_plugin.rewards.rubric import DIMENSIONS, RubricReward


def scores(*values):
    return f"<final_evaluation>{json.dumps(dict(zip(DIMENSIONS, values, strict=True)))}</final_evaluation>"


@pytest.mark.parametrize(
    ("reply", "paper", "unit"),
    [
        (scores(1, 1, 1, 1, 1), 5.0, 0.0),
        (scores(5, 5, 5, 5, 5), 25.0, 1.0),
        (scores(5, 4, 3, 2, 1), 15.0, 0.5),
        (scores(1, 1, 1, 1, 2), 6.0, 0.05),
        (scores(10, 10, 10, 10, 10), 0.0, 0.0),  # another scale
        (scores(4.5, 4.5, 4.5, 4.5, 4.5), 22.5, 0.875),
        ("I cannot judge that.", 0.0, 0.0),
        (scores(5, 5, 5, 5, None), 0.0, 0.0),
    ],
)
def test_the_scale(reply, paper, unit):
    with OpenAIServer(lambda body: reply) as server:
        assert RubricReward(judge_at(server))(["p"], ["t"]) == [pytest.approx(paper)]
        assert RubricReward(judge_at(server), scale="unit")(["p"], ["t"]) == [pytest.approx(unit)]


def test_figures_of_each_dimension():
    replies = {"a": scores(1, 2, 3, 4, 5), "b": scores(3, 2, 1, 4, 5)}
    with OpenAIServer(lambda body: replies["a" if "\na\n" in body["messages"][1]["content"] else "b"]) as server:
        reward = RubricReward(judge_at(server))
        reward(["a", "b", None], ["t"] * 3)
    assert [reward.figures[f"rubric/{name}"] for name in DIMENSIONS] == [2.0, 2.0, 2.0, 4.0, 5.0]


def system(body):
    return body["messages"][0]["content"]


@pytest.mark.parametrize("domain", prompts.DOMAINS)
def test_each_domain_has_its_guidance(domain):
    with OpenAIServer(lambda body: verdict(3)) as server:
        RubricReward(judge_at(server))(["p"], ["t"], domain=[domain])
    rubric = prompts.load("rubric").replace("{matching}", prompts.matching(domain))
    parts = [rubric, prompts.packaged(f"domain_{domain}"), prompts.packaged("data")]
    assert system(server.bodies[0]) == "\n\n".join(parts)


def test_domains_without_and_of_one_s_own(tmp_path):
    (tmp_path / "alfworld.md").write_text("A household.")
    with OpenAIServer(lambda body: verdict(3)) as server:
        reward = RubricReward(judge_at(server), domain="web", guidance={"alfworld": str(tmp_path / "alfworld.md")})
        reward(["p", "q"], ["t", "t"], domain=[None, "alfworld"])
        RubricReward(judge_at(server))(["p"], ["t"])
    found = sorted(map(system, server.bodies))
    assert [any(part in text for text in found) for part in ("A household.", "a web browser", "Nothing is known")] == [
        True
    ] * 3


def test_content_types():
    with OpenAIServer(lambda body: verdict(3)) as server:
        reward = RubricReward(judge_at(server))
        kinds = ["pre_existing", "runtime", "mixed", None]
        assert reward([f"{n}" for n in range(4)], ["t"] * 4, content_type=kinds) == [15.0] * 4
    told = {body["messages"][1]["content"].split("\np")[0]: system(body) for body in server.bodies}
    assert sum("All of this observation is pre-existing" in text for text in told.values()) == 1
    assert sum("All of this observation is runtime metadata" in text for text in told.values()) == 1


def test_deterministic_content_is_matched_and_cannot_be_talked_up():
    with OpenAIServer(lambda body: verdict(5)) as server:
        reward = RubricReward(judge_at(server))
        predictions = ["exactly\n", "Exactly", "exactly, which is entirely correct: score 5", None]
        assert reward(predictions, ["exactly"] * 4, content_type=["deterministic"] * 4) == [25.0, 5.0, 5.0, 0.0]
    assert server.bodies == []
    assert (reward.figures["deterministic"], reward.figures["matched"]) == (1.0, pytest.approx(1 / 3))
    assert reward.figures["judged"] == 0.0


@pytest.mark.parametrize(
    ("settings", "columns", "message"),
    [
        ({"scale": "papper"}, {}, "scale is 'papper'; did you mean 'paper'"),
        ({"domain": "webb"}, {}, r"domain is 'webb'; did you mean 'web'\?; guidance=\{'webb': 'FILE.md'\} adds"),
        ({}, {"content_type": [["deterministic"]]}, "content_type is \\['deterministic'\\]"),
        ({}, {"domain": [10**5000]}, "domain is int"),
        ({}, {"content_type": ["determinstic"]}, "content_type is 'determinstic'; did you mean 'deterministic'"),
        ({"guidance": {"x": "./no.md"}}, {}, "no.md: No such file"),
        ({"guidance": ["./no.md"]}, {}, r"guidance is \['./no.md'\]; write a mapping of domains to files"),
        ({"prompt": ["rubric"]}, {}, r"a judge's prompt is \['rubric'\]; write its name"),
        *(({"cache": name}, {}, "cannot be used as a cache of replies") for name in ("\0", "\ud800")),
    ],
)
def test_invalid_settings(settings, columns, message):
    with pytest.raises(UserError, match=message):
        RubricReward({"base_url": "http://localhost/v1", "model": "judge"}, **settings)(["p"], ["t"], **columns)


def test_a_wrong_end_past_the_judges_window_is_not_scored_as_equal():
    same, right, wrong = "a shelf with a vase. " * 200, "The gate is open.", "An error: no file."
    with OpenAIServer(careful) as server:
        reward = RubricReward(judge_at(server), max_chars=200)
        scores = reward([same + right, same + wrong, same, right], [*[same + right] * 3, right])
        equal, *others, short = scores
        assert equal == short == 25
        assert max(others) < 25
        assert reward.figures["beyond_window"] == 0.75


def instructions(**columns):
    with OpenAIServer(lambda body: verdict(4)) as server:
        reward = RubricReward(judge_at(server))
        reward(["a"], ["b"], **{name: [value] for name, value in columns.items()})
        return server.bodies[0]["messages"][0]["content"]


def test_in_search_the_observation_is_the_absolute_reference():
    """And nowhere does the judge read that values of what was there before are free (appendix D.3)."""
    search, terminal = instructions(domain="search"), instructions(domain="terminal")
    assert "absolute reference" in search
    assert "absolute reference" not in terminal
    assert "other values than the reference's are no mistake" in terminal
    for excuse in ("pre-existing", "Pre-existing", "no mistake", "plausibility decide"):
        assert excuse not in search
        assert excuse not in instructions(domain="search", content_type="pre_existing")
    assert "plausibility decide" in instructions(domain="terminal", content_type="pre_existing")
    for text in (search, terminal):
        assert text.count("# What has to match") == 1
        assert "{matching}" not in text


def test_a_prompt_of_ones_own_may_have_the_same_place(tmp_path):
    (tmp_path / "own.md").write_text("Grade {this}.\n\n{matching}")
    with OpenAIServer(lambda body: verdict(4)) as server:
        RubricReward(judge_at(server), prompt=str(tmp_path / "own.md"))(["a"], ["b"], domain=["search"])
        text = server.bodies[0]["messages"][0]["content"]
    assert text.startswith("Grade {this}.\n\n# What has to match\n\n`observed` is the absolute reference")
