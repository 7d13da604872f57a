import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases import CASES
from support.examples import examples
from wm_plugin.worlds import wordle
from wm_plugin.worlds.check import texts


def naive_feedback(guess: str, word: str) -> str:
    """Each mark by counting, without a memory of the marks before it."""
    marks = []
    for i, letter in enumerate(guess):
        right = [j for j in range(5) if guess[j] == word[j] == letter]
        earlier = [j for j in range(i) if guess[j] == letter != word[j]]
        if i in right:
            marks.append("G")
        else:
            marks.append("Y" if len(right) + len(earlier) < word.count(letter) else "-")
    return "".join(marks)


@pytest.mark.parametrize(("guess", "word", "marks"), CASES["letters"])
def test_letters_that_occur_twice(guess: str, word: str, marks: str) -> None:
    assert wordle.feedback(guess, word) == marks


# Few letters, so that they repeat.
FIVE = st.text("abc", min_size=5, max_size=5)


@settings(max_examples=examples(1000), derandomize=True, deadline=None, database=None)
@given(FIVE, FIVE)
def test_feedback_agrees_with_a_naive_reference(guess: str, word: str) -> None:
    assert wordle.feedback(guess, word) == naive_feedback(guess, word)


@settings(max_examples=examples(300), derandomize=True, deadline=None, database=None)
@given(FIVE, st.lists(st.lists(FIVE | st.sampled_from(["abcd", "a1bcd", "äbcde"]), min_size=1, max_size=3), max_size=5))
def test_turns_agree_with_a_naive_reference(word: str, turns: list[list[str]]) -> None:
    environment, guesses_so_far = wordle.WordleEnvironment(), []
    assert environment.reset(word, max_turns=5) == "6 left>"
    counts = {"actions": 0, "effective": 0, "invalid": 0}
    for turn, guesses in enumerate(turns, start=1):
        for guess in guesses:
            counts["actions"] += 1
            if guess.isascii() and guess.isalpha() and len(guess) == 5:
                counts["effective"] += guess not in guesses_so_far
                guesses_so_far.append(guess)
                if guess == word or len(guesses_so_far) == 6:
                    break
            else:
                counts["invalid"] += 1
        lines = environment.act("; ".join(guesses)).split("\n")
        lines = lines[lines[0].startswith("Invalid") :]
        assert [line.replace(" ", "") for line in lines[0:-1:2]] == guesses_so_far
        assert [line.replace(" ", "") for line in lines[1:-1:2]] == [naive_feedback(g, word) for g in guesses_so_far]
        assert environment.metrics == counts
        assert (environment.turns, environment.success) == (turn, word in guesses_so_far)
        over = environment.success or len(guesses_so_far) == 6 or turn == 5
        assert lines[-1] == f"{6 - len(guesses_so_far)} left" + ("!" if over else ">")
        assert environment.over == over
        if over:
            break


def test_an_episode() -> None:
    environment = wordle.WordleEnvironment()
    environment.reset("eagle")
    assert environment.act("<action>Geese; geeses</action>") == "Invalid: 1 of 2\ng e e s e\nY Y - - G\n5 left>"
    assert environment.act("eagle; crane") == "g e e s e\nY Y - - G\ne a g l e\nG G G G G\n4 left!"
    assert (environment.success, environment.get_reward()) == (True, 1.0)
    assert environment.metrics == {"actions": 3, "effective": 2, "invalid": 1}
    with pytest.raises(ValueError, match="over"):
        environment.act("crane")


def test_six_guesses_end_an_episode_and_the_word_stays_hidden() -> None:
    environment = wordle.WordleEnvironment()
    environment.reset("eagle")
    observation = environment.act(";".join(["crane"] * 9))
    assert observation.endswith("0 left!")
    assert "e a g l e" not in observation
    assert environment.get_reward() == 0.0
    assert environment.metrics == {"actions": 6, "effective": 1, "invalid": 0}


def test_the_words() -> None:
    assert len(set(wordle.WORDS)) == len(wordle.WORDS) == 1708
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in wordle.WORDS)
    assert wordle.OPENING in wordle.WORDS
    train = {row["word"] for row in wordle.dataset_rows(2000, seed=1)}
    held_out = [row["word"] for row in wordle.dataset_rows(256, seed=1, held_out=True)]
    assert len(set(held_out)) == 256
    assert train | set(held_out) == set(wordle.WORDS)
    assert not train & set(held_out)
    assert set(held_out) == {row["word"] for row in wordle.dataset_rows(256, seed=2, held_out=True)}
    assert [row["word"] for row in wordle.dataset_rows(2, held_out=True)] == ["aroma", "zebra"]
    assert not any(row["word"] in row["prompt"][0]["content"] for row in wordle.dataset_rows(256, held_out=True))


def test_the_expert_wins_without_looking_at_the_word() -> None:
    for row in [*wordle.dataset_rows(40, seed=5), *wordle.dataset_rows(20, seed=5, held_out=True)]:
        played = wordle.WordleEnvironment()
        texts(played, row, wordle.expert())
        assert played.success
        assert played.metrics["effective"] == played.turns <= 6
    texts(played, {"word": "zzzzz"}, wordle.expert())  # no word of ours: it goes on without an error
    assert played.over
