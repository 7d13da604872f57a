import fcntl
import json

import pytest

import wm_plugin.client.answers as module
from wm_plugin.client.answers import Answer, Answers, ask_again
from wm_plugin.errors import UserError


class Echo:
    """Repeats the last message; counts what it is asked, and dies before question `last`."""

    batched = False

    def __init__(self, temperature=0.0, last=None, batched=False):
        self.settings = {"model": "echo", "temperature": temperature}
        self.last, self.batched, self.questions = last, batched, []

    def ask(self, conversations, seeds, keep):
        for index, (messages, seed) in enumerate(zip(conversations, seeds, strict=True)):
            if self.last is not None and len(self.questions) == self.last:
                raise KeyboardInterrupt
            self.questions.append(messages[-1]["content"])
            text = messages[-1]["content"]
            failed = text == "fail"
            keep(index, Answer("" if failed else f"{text}/{seed}", failure="timeout" if failed else ""))


def talk(*texts):
    return [[{"role": "user", "content": text}] for text in texts]


def test_a_killed_run_asks_nothing_twice(tmp_path):
    path, texts = tmp_path / "answers.jsonl", [f"q{number}" for number in range(7)]
    killed = Echo(last=4)
    with pytest.raises(KeyboardInterrupt):
        Answers(killed, path)(talk(*texts))
    rest = Echo()
    answers = Answers(rest, path)
    assert [answer.text for answer in answers(talk(*texts))] == [f"{text}/0" for text in texts]
    assert killed.questions + rest.questions == texts
    assert answers.asked == 3


def test_a_line_that_a_kill_cut_is_asked_again(tmp_path):
    path = tmp_path / "answers.jsonl"
    Answers(Echo(), path)(talk("a", "b"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    again = Echo()
    assert [answer.text for answer in Answers(again, path)(talk("a", "b"))] == ["a/0", "b/0"]
    assert again.questions == ["b"]
    assert path.read_bytes() == whole


def test_batches_stay_whole(tmp_path):
    path = tmp_path / "answers.jsonl"
    with pytest.raises(KeyboardInterrupt):
        Answers(Echo(last=3, batched=True), path)(talk(*"abcdef"), at_once=2)
    again = Echo(batched=True)
    assert len(Answers(again, path)(talk(*"abcdef"), at_once=2)) == 6
    assert again.questions == ["c", "d", "e", "f"]


def test_failures_are_not_kept(tmp_path):
    path = tmp_path / "answers.jsonl"
    for _ in range(2):
        model = Echo()
        assert [answer.trouble for answer in Answers(model, path)(talk("a", "fail"))] == ["", "timeout"]
    assert model.questions == ["fail"]


def test_at_temperature_0_equal_questions_are_one(tmp_path):
    model = Echo()
    assert len({answer.text for answer in Answers(model, None)(talk("a", "a"))}) == 1
    assert model.questions == ["a"]
    sampled = Echo(temperature=1.0)
    assert len({answer.text for answer in Answers(sampled, None)(talk("a", "a"), seed=1)}) == 2


def test_other_settings_are_other_questions(tmp_path):
    path = tmp_path / "answers.jsonl"
    Answers(Echo(), path)(talk("a"))
    warm = Echo(temperature=0.5)
    Answers(warm, path)(talk("a"))
    assert warm.questions == ["a"]


@pytest.mark.parametrize(
    ("text", "cut", "failure", "trouble"),
    [("a", False, "", ""), ("a", True, "", "cut"), (" \n", False, "", "empty"), ("", False, "timeout", "timeout")],
)
def test_trouble(text, cut, failure, trouble):
    assert Answer(text, cut, failure).trouble == trouble


def test_somebody_elses_file_stays(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"mine": 1}\n')
    with pytest.raises(UserError, match="something else"):
        Answers(Echo(), path)(talk("a"))
    assert path.read_text() == '{"mine": 1}\n'


def test_one_run_at_a_time(tmp_path):
    path = tmp_path / "answers.jsonl"
    with path.open("a+b") as file:  # a lock belongs to the open file, not to the process
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another run"):
            Answers(Echo(), path)(talk("a"))
    assert len(Answers(Echo(), path)(talk("a"))) == 1


def test_half_surrogates(tmp_path):
    path = tmp_path / "answers.jsonl"
    first = Answers(Echo(), path)(talk("\ud83d"))
    model = Echo()
    assert Answers(model, path)(talk("\ud83d")) == first
    assert model.questions == []
    assert json.loads(path.read_text())["cut"] is False


@pytest.mark.parametrize("name", ["answers.jsonl", None])
def test_held_open_for_many_calls(tmp_path, name):
    path = name and tmp_path / name
    model = Echo()
    with Answers(model, path) as answers:
        for texts in ("ab", "bc"):
            assert len(answers(talk(*texts))) == 2
        if path:
            with pytest.raises(UserError, match="another run"):
                Answers(Echo(), path)(talk("a"))
    assert model.questions == ["a", "b", "c"]
    again = Echo()
    assert len(Answers(again, path)(talk(*"abc"))) == 3
    assert again.questions == ([] if path else ["a", "b", "c"])


def test_seeds_of_ones_own():
    """For those whose place says nothing: an episode keeps its own when others end."""
    model = Echo(temperature=1.0)
    assert [answer.text for answer in Answers(model)(talk("a", "a"), seeds=[7, 9])] == ["a/7", "a/9"]


@pytest.mark.parametrize("at_once", [1, 2, 256])
def test_what_is_not_settled_is_asked_again(at_once):
    model, last = Echo(temperature=1.0), {}

    def settle(number, answer):
        last[number] = answer.text
        return number == 1 or answer.text.startswith("q3, 1/")

    def question(number, attempt):
        return talk(f"q{number}, {attempt}")[0]

    ask_again(Answers(model), [1, 3, 4], question, settle, tries=3, seed=5, at_once=at_once)
    assert model.questions == ["q1, 0", "q3, 0", "q4, 0", "q3, 1", "q4, 1", "q4, 2"]
    assert {number: text.partition("/")[0] for number, text in last.items()} == {1: "q1, 0", 3: "q3, 1", 4: "q4, 2"}
    beside = last[4]
    ask_again(Answers(Echo(temperature=1.0)), [4], question, settle, tries=3, seed=5)
    assert last[4] == beside  # its seed does not depend on the others


@pytest.mark.parametrize("text", ["one line of mine", '{"mine": 1}', "x" * 5000])
def test_somebody_elses_last_line_stays_too(tmp_path, text):
    """It has no line end, as a line that a kill cut."""
    path = tmp_path / "answers.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match="something else"):
        Answers(Echo(), path)(talk("a"))
    assert path.read_text() == text


@pytest.mark.parametrize("end", [b"{", b'{"key": "ab', b"\0" * 9])
def test_whatever_a_kill_left_of_a_line_is_asked_again(tmp_path, end):
    path = tmp_path / "answers.jsonl"
    Answers(Echo(), path)(talk("a"))
    whole = path.read_bytes()
    path.write_bytes(whole + end)
    again = Echo()
    Answers(again, path)(talk("a"))
    assert (again.questions, path.read_bytes()) == ([], whole)


def test_an_answer_that_is_too_long_to_keep_costs_no_other_one(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LONGEST", 200)
    path, texts = tmp_path / "answers.jsonl", ["a", "x" * 300, "b"]
    Answers(Echo(), path)(talk(*texts))
    again = Echo()
    assert [answer.text for answer in Answers(again, path)(talk(*texts))] == [f"{text}/0" for text in texts]
    assert again.questions == ["x" * 300]
