import fcntl
import json

import pytest

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


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.jsonl"


def texts_of(model, path, *texts, **options):
    return [answer.text for answer in Answers(model, path)(talk(*texts), **options)]


def test_a_killed_run_asks_nothing_twice(path):
    texts = [f"q{number}" for number in range(7)]
    killed, rest = Echo(last=4), Echo()
    with pytest.raises(KeyboardInterrupt):
        Answers(killed, path)(talk(*texts))
    answers = Answers(rest, path)
    assert [answer.text for answer in answers(talk(*texts))] == [f"{text}/0" for text in texts]
    assert killed.questions + rest.questions == texts
    assert answers.asked == 3


@pytest.mark.parametrize("end", [None, b"{", b'{"key": "ab', b"\0" * 9])
def test_a_line_that_a_kill_cut_is_asked_again(path, end):
    texts_of(Echo(), path, "a", "b")
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] if end is None else whole + end)
    again = Echo()
    assert texts_of(again, path, "a", "b") == ["a/0", "b/0"]
    assert again.questions == (["b"] if end is None else [])
    assert path.read_bytes() == whole


def test_batches_stay_whole(path):
    with pytest.raises(KeyboardInterrupt):
        texts_of(Echo(last=3, batched=True), path, *"abcdef", at_once=2)
    again = Echo(batched=True)
    assert len(texts_of(again, path, *"abcdef", at_once=2)) == 6
    assert again.questions == ["c", "d", "e", "f"]


def test_failures_are_not_kept(path):
    for _ in range(2):
        model = Echo()
        assert [answer.trouble for answer in Answers(model, path)(talk("a", "fail"))] == ["", "timeout"]
    assert model.questions == ["fail"]


def test_which_questions_are_the_same(path):
    """At temperature 0 equal ones, also with half a surrogate pair; other settings and seeds make other questions."""
    model = Echo()
    assert len({*texts_of(model, path, "\ud83d", "\ud83d")}) == 1
    assert model.questions == ["\ud83d"]
    assert texts_of(again := Echo(), path, "\ud83d") == ["\ud83d/0"]
    assert again.questions == []
    warm = Echo(temperature=0.5)
    assert len({*texts_of(warm, path, "\ud83d", "\ud83d", seed=1)}) == 2
    assert texts_of(Echo(temperature=1.0), None, "a", "a", seeds=[7, 9]) == ["a/7", "a/9"]
    assert {json.loads(line)["cut"] for line in path.read_text().splitlines()} == {False}


def test_trouble():
    answers = (Answer("a"), Answer("a", cut=True), Answer(" \n"), Answer("", failure="timeout"))
    assert [answer.trouble for answer in answers] == ["", "cut", "empty", "timeout"]


@pytest.mark.parametrize("text", ['{"mine": 1}\n', "one line of mine", '{"mine": 1}', "x" * 5000])
def test_somebody_elses_file_stays(path, text):
    path.write_text(text)
    with pytest.raises(UserError, match="does not hold answers"):
        texts_of(Echo(), path, "a")
    assert path.read_text() == text


def test_one_run_at_a_time(path):
    with path.open("a+b") as file:  # a lock belongs to the open file, not to the process
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another run"):
            texts_of(Echo(), path, "a")
    assert len(texts_of(Echo(), path, "a")) == 1


@pytest.mark.parametrize("name", ["answers.jsonl", None])
def test_held_open_for_many_calls(tmp_path, name):
    path = name and tmp_path / name
    model, again = Echo(), Echo()
    with Answers(model, path) as answers:
        for texts in ("ab", "bc"):
            assert len(answers(talk(*texts))) == 2
        if path:
            with pytest.raises(UserError, match="another run"):
                texts_of(Echo(), path, "a")
    assert model.questions == ["a", "b", "c"]
    texts_of(again, path, *"abc")
    assert again.questions == ([] if path else ["a", "b", "c"])


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
