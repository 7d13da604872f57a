import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.benchmark import checkout, row
from support.examples import examples
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import bench_rows, published, published_replies
from wm_plugin.lab.evaluation.published import figures
from wm_plugin.lab.evaluation.published_replies import Verdict, prediction, verdict, without_thoughts
from wm_plugin.rewards.rubric import DIMENSIONS

TAG = "final_evaluation"


def read_row(value):
    return bench_rows._row("x", value)


def scores(text):
    """The five scores of a reply in order, and their mean; None without a verdict."""
    found = verdict(text, TAG)
    return found and ([found.scores[name] for name in DIMENSIONS], found.total)


# The expected values are those of the published evaluator at commit cd0aa83, which this was compared with on 84,000 texts.


def test_a_question_is_filled_in_word_for_word(tmp_path):
    evaluator = published.read(checkout(tmp_path))
    turns = (("ls", "a.txt"), ("cat {context}", "{{x}} \n"), ("later", "unseen"))
    asked = read_row(row(turns=turns, turn=2) | {"current_prompt": "own"})
    output = evaluator.output(asked, "<think>no</think><predicted_observation>\n **Environment Observation:** p\n")
    assert evaluator.question(asked, output) == [
        {"role": "system", "content": "You judge terminal.\n"},
        {
            "role": "user",
            "content": "Before:\n\n### Turn\n**Action:**\n```\nls\n```\n\n**Environment Observation:**\na.txt\n\n\n\n"
            'Now:\n\nown\n== predicted [p] ==\nreal [{{x}}]\nScore like {"scores": {...}}.',
        },
    ]


def test_the_first_turn_has_no_history_and_an_unknown_domain_no_prompt(tmp_path):
    evaluator = published.read(checkout(tmp_path))
    first = read_row(row("suite/other", turn=1))
    system, user = evaluator.question(first, evaluator.output(first, ""))
    assert system["content"] == ""
    assert user["content"].startswith("Now:\n\n### Turn")
    assert "predicted [No output]" in user["content"]
    assert "real [**Environment Observation:**\na.txt]" in user["content"]  # the heading of no domain


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("lwm_eval_utils/task_configs.py", "TASK_CONFIGS", "OTHER", "there is no TASK_CONFIGS"),
        ("lwm_eval_utils/task_configs.py", "TASK_CONFIGS = {", "TASK_CONFIGS = open('x') or {", "no constant"),
        ("lwm_eval_utils/task_configs.py", "{ground_truth}", "{another}", "cannot be filled in"),
        ("lwm_eval_utils/task_configs.py", "{ground_truth}", "{ground_truth", "cannot be filled in"),
        ("lwm_eval_utils/task_configs.py", "prompts/web/", "prompts/none/", "cannot be read"),
        ("lwm_eval_utils/task_configs.py", "'mcp'", "'mcq'", "has no 'mcp'"),
        ("lwm_eval_utils/task_configs.py", "raise", "(" * 5000, "no Python"),
        ("eval.py", "raise SystemExit", "def (", "no Python"),
        ("eval.py", "{current_prompt}", "{open('x')}", "another value"),
        ("eval.py", "world_model_input", "other_input", "no formatted string of world_model_input"),
    ],
)
def test_a_checkout_that_is_not_one_is_one_line(tmp_path, file, old, new, reason):
    path = checkout(tmp_path) / "eval" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=reason) as caught:
        published.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_another_folder_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no checkout of github"):
        published.read(tmp_path)


ALL = '"format": 5, "factuality": 4, "consistency": 3, "realism": 2, "quality": 1'


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (f'<{TAG}>\n```json\n{{"scores": {{{ALL}}}}}\n```\n</{TAG}>', ([5, 4, 3, 2, 1], 3.0)),
        (f'It holds. {{"scores": {{{ALL}}}}} And so on.', ([5, 4, 3, 2, 1], 3.0)),  # no tag, prose around it
        (f'<{TAG}>{{"scores": {{{ALL}}}}}', ([5, 4, 3, 2, 1], 3.0)),  # never closed, as of a reply that was cut
        ('{"scores": {"format": 9, "factuality": "4/5", "quality": true}}', ([5, 4, 0, 0, 1], 10 / 3)),
        ('{"scores": {"format": 2.5, "factuality": 3.5, "realism": 0.5}}', ([2, 4, 0, 0, 0], 3.0)),  # half to even
        (
            '{"scores": {"format": -3, "factuality": 2, "realism": 0}}',
            ([-3, 2, 0, 0, 0], 2.0),
        ),  # below 1: not in the mean
        ('{"scores": {"format": "-3", "factuality": "x", "realism": null}}', ([-3, 0, 0, 0, 0], 0)),
        ('{"scores": {}}', ([0, 0, 0, 0, 0], 0)),
        ('{"scores": {"format": NaN, "quality": 3}}', None),
        ('{"scores": {"format": 1e999, "quality": 3}}', None),
        ('{"scores": [5, 5, 5, 5, 5]}', None),
        (f"{{{ALL}}}", None),
        ("", None),
        ("no verdict", None),
        (f'<think>{{"scores": {{{ALL}}}}}</think>', None),  # none from thoughts that are closed
        (f'<think>{{"scores": {{{ALL}}}}}', None),  # an open one takes all
        (f'<think>x<{TAG}>{{"scores": {{{ALL}}}}}', ([5, 4, 3, 2, 1], 3.0)),  # but for the tag
        (f'{{"scores": {{{ALL},}},}}', ([5, 4, 3, 2, 1], 3.0)),
        ("{scores: {format: 5, 'quality' : 4}}", ([5, 0, 0, 0, 4], 4.5)),
        (
            '{"weaknesses": ["late, so: no"], "scores": {"format": 4}}',
            ([4, 0, 0, 0, 0], 4.0),
        ),  # its mending breaks a text
        ('{"scores": {"format": 4}} {"other": 1}', ([4, 0, 0, 0, 0], 4.0)),
        ('{"scores": {"format": 4}} {"scores": {"format": 2}}', ([2, 0, 0, 0, 0], 2.0)),
        ('```{"scores": {"format": 4}}``` {"scores": {"format": 2}}', ([4, 0, 0, 0, 0], 4.0)),  # fences first
        ('{ {"scores": {"format": 4}}', ([4, 0, 0, 0, 0], 4.0)),
        ('"{" {"scores": {"format": 4}} \\"', ([4, 0, 0, 0, 0], 4.0)),
    ],
)
def test_replies_are_read_as_published(reply, expected):
    assert scores(reply) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "No output"),
        ("<think>only</think> ", "No output"),
        ("whole text", "whole text"),
        ("thought</think> rest", "rest"),
        ("a<think>b</think>c<think>d</think>e", "ace"),
        ("a<think>b<think>c</think>d</think>e", "ae"),
        ("a <THINK>b", "a"),
        ("a<think>b<p>c</p>", "c"),
        ("<p>a</p><P>b</P>x", "b"),
        ("<p>a</p><p>b", "b"),
        ("<p></p>", ""),
        ("<think>a<think>b</think>", "No output"),
        ("x</think><think>a", "No output"),
        ("</think>y<think>a</think><think>b<p>c<think>d", "c"),
    ],
)
def test_predictions_are_read_as_published(text, expected):
    assert prediction(text, "p") == expected


def test_the_figures_that_are_printed_by_hand():
    def one(total, **given):
        return Verdict(dict.fromkeys(DIMENSIONS, 0) | given, total)

    by_domain, overall, counted = figures(
        [
            ("web", one(3.0, format=2, quality=4)),
            ("web", one(5.0, format=5, quality=-3)),  # below 1: in the mean of its dimension alone
            ("web", None),
            ("os", one(0)),  # without any score: valid in its domain, and not overall
            ("mcp", None),
        ]
    )
    assert (overall, counted) == (75.0, 2)
    assert by_domain["web"] == {
        "format": 62.5,
        "factuality": -25.0,
        "consistency": -25.0,
        "realism": -25.0,
        "quality": pytest.approx((0.5 - 1) / 4 * 100),
        "total_score": 75.0,
    }
    assert by_domain["os"]["total_score"] == -25.0
    assert "mcp" not in by_domain
    assert figures([]) == ({}, None, 0)


def naive_last_object(text):
    """Every brace in turn, with a scan of its own: the square of the text."""

    def end_of(start):
        depth, inside, escaped = 0, False, False
        for place in range(start, len(text)):
            sign = text[place]
            if inside:
                inside, escaped = (True, False) if escaped else (sign != '"', sign == "\\")
            elif sign == '"':
                inside = True
            elif sign in "{}":
                depth += 1 if sign == "{" else -1
                if not depth:
                    return place + 1
        return None

    objects, place = [], 0
    while (place := text.find("{", place)) >= 0:
        end = end_of(place)
        objects += [text[place:end]] if end else []
        place = end or place + 1
    return ([one for one in objects if '"scores"' in one] or objects or [None])[-1]


def test_objects_are_those_of_a_naive_search():
    rng = random.Random(0)
    for _ in range(400):
        text = "".join(rng.choice(["{", "}", '"', "\\", "a", '"scores"']) for _ in range(rng.randint(1, 30)))
        assert published_replies._last_object(text) == naive_last_object(text), text


@settings(max_examples=examples(300), deadline=None)
@given(st.text(st.sampled_from("{}[]\"\\':,`<>/think5a \n")))
def test_no_text_makes_it_raise(text):
    for whole in (text, f'{{"scores": {{{text}}}}}', f"<{TAG}>{text}"):
        found = verdict(whole, TAG)
        assert found is None or set(found.scores) == set(DIMENSIONS)
        prediction(whole, "a")


def test_thoughts_go_and_the_rest_stays():
    assert without_thoughts(" no marks ", "a") == " no marks "
    assert without_thoughts("x<think>a<think>b</think>c", "a") == "x"  # the second mark takes all up to the end
