"""One-step prediction by hand: perfect and wrong models, both readings of failures, kill and run again."""

import json
import math
from typing import ClassVar

import pytest

from support.said import Said
from wm_plugin.client.answers import Answer, Answers
from wm_plugin.data.prompts import load
from wm_plugin.data.schema import Action, Context, Observation, Trajectory, Turn
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import fidelity as module
from wm_plugin.lab.evaluation.fidelity import Cosines, fidelity, json_keys
from wm_plugin.lab.evaluation.measures import read_result, read_rows

PROMPTS = load("word2world")


def episode(*steps: tuple[str, str], success: bool | None, **more: object) -> Trajectory:
    turns = tuple(
        Turn(action=Action(text=action), observations=(Observation(kind="environment", text=text, **more),))
        for action, text in steps
    )
    return Trajectory(turns=turns, context=Context(task="Take it."), task_id=steps[0][0], success=success)


EPISODES = [
    episode(("go", "a hall"), ("open", "a drawer"), ("take", "yours"), success=True),
    episode(("jump", "Nothing happens."), success=False, error=True),
]
RIGHT = {"go": "a hall", "open": "a drawer", "take": "yours [SUCCESS]", "jump": "Nothing happens."}


def says(answers, **options):
    """A model that answers by the last action."""
    return Said(lambda messages: answers[messages[-1]["content"]], **options)


def run(answers, items=EPISODES, folder=None, prompts=PROMPTS, **settings):
    asked = Answers(says(answers), folder and folder / "answers.jsonl")
    return fidelity(items, asked, prompts, folder=folder, **settings)


def value(result, name, by="", group=""):
    return result.measure(name, by, group).value


def test_a_perfect_model():
    result = run({text: f" {answer}\n" for text, answer in RIGHT.items()})
    for one in result.measures:
        if one.name not in ("nll", "calibration_error"):
            assert (one.value, one.failed, one.with_failed) == (1.0, 0, 1.0), one
    assert (result.measure("exact").low, result.measure("exact").high) == (1.0, 1.0)
    assert result.failures == {}


def test_the_mean_is_of_all_turns_and_exact_includes_the_mark():
    result = run({**RIGHT, "take": "yours"})
    assert value(result, "exact") == 3 / 4  # a mean of episodes would be (2/3 + 1) / 2
    assert (value(result, "text"), value(result, "success_flag")) == (1.0, 3 / 4)  # only the mark was forgotten
    assert [value(result, "exact", "turn", turn) for turn in "123"] == [1.0, 1.0, 0.0]
    assert [result.measure("exact", "turn", turn).count for turn in "123"] == [2, 1, 1]
    assert (value(result, "exact", "success", "done"), value(result, "exact", "success", "not done")) == (0.0, 1.0)
    assert (value(result, "exact", "error", "error"), value(result, "exact", "error", "no error")) == (1.0, 2 / 3)
    assert value(result, "exact", "observer", "environment") == 3 / 4
    with pytest.raises(KeyError):
        result.measure("exact", "tool", "")


@pytest.mark.parametrize(
    ("answer", "exact", "text", "flag"),
    [
        ("yours [SUCCESS]", 1, 1, 1),
        ("yours [SUCCESS]  \n", 1, 1, 1),
        ("yours", 0, 1, 0),
        ("mine [SUCCESS]", 0, 0, 1),
        ("Yours [SUCCESS]", 0, 0, 1),
        ("yours[SUCCESS]", 0, 1, 1),
    ],
)
def test_a_last_turn(answer, exact, text, flag):
    result = run({"take": answer}, [episode(("take", "yours"), success=True)])
    assert [value(result, name) for name in ("exact", "text", "success_flag")] == [exact, text, flag]


def test_the_mark_is_not_judged_where_nobody_knows():
    result = run({"take": "yours"}, [episode(("take", "yours"), success=None)])
    assert value(result, "exact") == 1.0
    with pytest.raises(KeyError):
        result.measure("success_flag")


def test_similarities_by_hand():
    wrong = run(dict.fromkeys(RIGHT, "zzz [SUCCESS]"))
    assert [value(wrong, name) for name in ("exact", "text", "word_f1", "rouge")] == [0.0] * 4
    result = run({"go": "a long hall", "open": "", "jump": "x"}, [episode(("go", "a hall"), success=False)])
    assert value(result, "word_f1") == pytest.approx(2 * 2 / 5)
    assert value(result, "rouge") == pytest.approx(2 * 2 / 5)
    # the mark is no word
    assert value(run({"take": "mine yours"}, [episode(("take", "yours"), success=True)]), "word_f1") == 2 / 3


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer("", failure="timeout"), "timeout"),
        (Answer("a drawer", cut=True), "cut"),
        (Answer(" \n"), "empty"),
        (Answer("<think>a drawer"), "no prediction"),
    ],
)
def test_failures_are_in_both_readings(answer, kind):
    result = run({**RIGHT, "open": answer})
    for name in ("exact", "text", "success_flag", "word_f1", "rouge"):
        one = result.measure(name)
        assert (one.value, one.count, one.failed, one.with_failed) == (1.0, 3, 1, 3 / 4)
    assert result.failures == {kind: 1}
    assert value(result, "exact", "turn", "2") is None
    assert result.measure("exact", "turn", "2").with_failed == 0.0


def test_an_empty_observation_is_foreseen():
    silent = [episode(("wait", ""), success=False)]
    assert (value(run({"wait": "\n"}, silent), "exact"), run({"wait": ""}, silent).failures) == (1.0, {})
    assert value(run({"wait": "x"}, silent), "exact") == 0.0


def test_transitions_with_tags_and_a_line_on_completion():
    prompts = load("rwml-completion")
    right = "<think>so</think><next_state>yours\nTask completed: yes</next_state>"
    for answer, exact, text, flag in [
        (right, 1, 1, 1),
        (right.replace("yes", "no"), 0, 1, 0),
        (right.replace("\nTask completed: yes", ""), 0, 1, 0),
        (right.replace("yours", "mine"), 0, 0, 1),
    ]:
        asked = says({})
        asked.ask = lambda conversations, seeds, keep, text=answer: keep(0, Answer(text))
        items = [episode(("take", "yours"), success=True)]
        result = fidelity(items, Answers(asked), prompts, kind="rwml-sft")
        assert [value(result, name) for name in ("exact", "text", "success_flag")] == [exact, text, flag]
    asked.ask = lambda conversations, seeds, keep: keep(0, Answer("yours"))
    assert fidelity(items, Answers(asked), prompts, kind="rwml-sft").failures == {"no prediction": 1}


def test_keys_of_json():
    real = '{"a": {"b": 1}, "c": [{"d": 1}, {"d": 2, "e": 3}]}'  # a, a.b, c, c[].d, c[].e
    assert json_keys(real, real) == 1.0
    assert json_keys('{"c": [{"d": 9}], "a": 0}', real) == pytest.approx(2 * 3 / (3 + 5))
    assert json_keys('{"b": {"a": 1}}', real) == 0.0  # a key is right at its place only
    assert json_keys("no JSON", real) == 0.0
    for without in ("text", "[1, 2]", "{}", "3"):
        assert json_keys(real, without) is None
    deep = "[" * 200 + '{"a": 1}' + "]" * 200
    assert (json_keys(deep, deep), json_keys("[" * 10**5, deep)) == (1.0, 0.0)
    result = run({"go": '{"x": 1}'}, [episode(("go", '{"x": 2, "y": 3}'), success=True)])
    assert value(result, "json_keys") == pytest.approx(2 / 3)


def test_the_embedding_compares_texts_without_marks_and_failures(tmp_path):
    pairs = []

    def reward(predicted, real):
        pairs.extend(zip(predicted, real, strict=True))
        return [0.5] * len(predicted)

    answers = {**RIGHT, "open": Answer("x", cut=True), "jump": "Nothing."}
    for _ in range(2):  # the second run has them from the folder
        result = run(answers, folder=tmp_path, embedding=Cosines(reward, "e"))
        assert pairs == [("a hall", "a hall"), ("yours", "yours"), ("Nothing.", "Nothing happens.")]
        one = result.measure("embedding")
        assert (one.value, one.with_failed) == (0.5, 3 / 8)


def test_a_killed_run_ends_with_the_same(tmp_path):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = run(RIGHT, folder=tmp_path / "whole")
    killed, rest = says(RIGHT, last=2), says(RIGHT)
    for model in (killed, rest):
        answers = Answers(model, tmp_path / "killed" / "answers.jsonl")
        if model is killed:
            with pytest.raises(KeyboardInterrupt):
                fidelity(EPISODES, answers, PROMPTS, folder=tmp_path / "killed")
            assert not (tmp_path / "killed" / "result.json").exists()
        else:
            assert fidelity(EPISODES, answers, PROMPTS, folder=tmp_path / "killed") == whole
    assert sorted(one[-1]["content"] for one in killed.questions + rest.questions) == sorted(RIGHT)
    assert read_result(tmp_path / "killed") == whole == read_result(tmp_path / "whole")
    rows = list(read_rows(tmp_path / "killed"))
    assert rows == list(read_rows(tmp_path / "whole"))
    assert [row["real"] for row in rows] == list(RIGHT.values())
    assert rows[1]["context"] == "a hall"
    assert rows[1]["scores"]["exact"] == 1.0


def test_groups_beyond_the_largest_are_together(monkeypatch):
    monkeypatch.setattr(module, "_GROUPS", 2)
    result = run(RIGHT, [*EPISODES, episode(("go", "a hall"), ("open", "x"), success=True)])
    assert [one.group for one in result.measures if (one.name, one.by) == ("exact", "turn")] == ["1", "2", "(others)"]
    assert result.measure("exact", "turn", "(others)").count == 1


def test_a_model_that_samples_is_refused():
    with pytest.raises(UserError, match=r"temperature 0, not 1\.0"):
        fidelity(EPISODES, Answers(says({}, temperature=1.0)), PROMPTS)


def test_a_server_says_nothing_of_likelihood():
    one = run(RIGHT).measure("nll")
    assert one.value is None
    assert "--model" in one.note


@pytest.mark.host
def test_the_likelihood_of_the_real_tokens(tmp_path):
    import torch

    from support.predictions import save_tiny
    from wm_plugin.client.answers import LocalModel
    from wm_plugin.client.predict import LocalPredictor

    predictor = LocalPredictor(save_tiny(tmp_path / "model"), temperature=0.0, max_new_tokens=2)
    result = fidelity(EPISODES, Answers(LocalModel(predictor)), PROMPTS, folder=tmp_path)
    total, count, by_bin = 0.0, 0, {}
    for case in [
        case for one in module.episodes(EPISODES, "word2world", PROMPTS, world_context=True) for case in one.cases
    ]:
        tokenizer = predictor.tokenizer
        text = tokenizer.apply_chat_template(list(case.messages), add_generation_prompt=True, tokenize=False)
        before = len(tokenizer(text).input_ids)
        ids = tokenizer(text + case.real + tokenizer.eos_token).input_ids
        with torch.no_grad():
            logps = predictor.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for place in range(before, len(ids)):
            total, count = total - logps[place - 1, ids[place]].item(), count + 1
            confidence, choice = logps[place - 1].exp().max(-1)
            sums = by_bin.setdefault(math.ceil(10 * confidence.item()), [0, 0.0])
            sums[0] += choice.item() == ids[place]
            sums[1] += confidence.item()
    assert value(result, "nll") == pytest.approx(total / count, rel=1e-4)
    error = sum(abs(right - confidence) for right, confidence in by_bin.values()) / count
    assert value(result, "calibration_error") == pytest.approx(error, rel=1e-3)
    accuracies = [one for one in result.measures if one.name == "token_accuracy"]
    assert sum(one.count for one in accuracies) == count
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert all(row["scores"]["nll"] > 0 for row in rows)
    assert result.measure("exact").failed == 4  # cut after two tokens


@pytest.mark.parametrize(
    "text", ["\ud83d half", "\x00\x1b[31m", "[" * 10**5, "<think>" * 1000, "</think>", "a " * 10**5]
)
def test_any_text_is_measured(tmp_path, text):
    items = [episode(("go", text), ("open", "x"), success=True), episode(("jump", "y"), success=None)]
    result = run({"go": text, "open": text, "jump": text}, items, folder=tmp_path)
    assert read_result(tmp_path) == result
    assert [row["real"] for row in read_rows(tmp_path)] == [text, "x [SUCCESS]", "y"]
    assert result.measure("exact").count + result.measure("exact").failed == 3


def test_a_text_that_the_embedding_server_refuses_is_in_both_readings(tmp_path):
    class Reward:
        figures: ClassVar = {}

        def __call__(self, predicted, real):
            refused = [text == "a drawer" for text in predicted]
            self.figures["failures/refused"] = sum(refused) / len(refused)
            return [0.0 if one else 0.5 for one in refused]

    for _ in range(2):  # what was refused is not kept
        result = run(RIGHT, folder=tmp_path, embedding=Cosines(Reward(), "e"))
        one = result.measure("embedding")
        assert (one.value, one.count, one.failed, one.with_failed) == (0.5, 3, 1, 3 / 8)
        assert result.notes[0].startswith("embedding: 1 texts have no cosine")
        assert value(result, "exact") == 1
    assert [row["scores"].get("embedding") for row in read_rows(tmp_path)] == [0.5, None, 0.5, 0.5]
    assert len((tmp_path / "embeddings.jsonl").read_text().splitlines()) == 3
