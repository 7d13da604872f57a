"""What a judge sees of what came before: all of it, or the world's description and the latest turns, with what is left out."""

import pytest

from support.openai_server import OpenAIServer, block, verdict
from wm_plugin.data.render import write_context, write_history
from wm_plugin.data.schema import Action, Context, Observation, Turn
from wm_plugin.errors import UserError
from wm_plugin.rewards import RubricReward
from wm_plugin.rewards.background import as_text, fitted

DESCRIPTION = write_context(Context(task="Predict a shell.", initial_state="~$", simulation_instruction="No network."))


def turn(number, size=20):
    text = f"{number}" * size
    return Turn(action=Action(text=f"run {number}"), observations=(Observation(kind="environment", text=text),))


def history(*turns):
    return write_history([turn(*values) if isinstance(values, tuple) else turn(values) for values in turns])


def joined(*texts):
    return "\n\n".join(texts)


def test_an_integer_that_python_does_not_write_is_shown_by_its_kind():
    assert as_text(10**5000) == "int"
    assert as_text([{"a": 1}]) == '[{"a": 1}]'


@pytest.mark.parametrize("text", ["", "a", "a\n\nb", joined(DESCRIPTION, history(1, 2)), history(1, 2), "\n\n\n"])
def test_what_fits_is_shown_as_it_is(text):
    assert fitted(text, max(len(text), 1)) == (text, 0)


def test_the_oldest_turns_are_left_out_whole_and_the_description_stays():
    whole = joined(DESCRIPTION, history(1, 2, 3))
    first, rest = whole.split("\n\nAgent (turn 2):")
    oldest = first.removeprefix(DESCRIPTION + "\n\n")
    text, left_out = fitted(whole, len(whole) - 10)
    note = f"(left out here: 1 earlier turns, {len(oldest)} characters)"
    assert text == joined(DESCRIPTION, note, f"Agent (turn 2):{rest}")
    assert left_out == len(oldest)


def test_a_latest_turn_that_is_too_long_keeps_its_end_and_the_description_all_of_itself():
    text, left_out = fitted(joined(DESCRIPTION, history(1, (2, 5000))), len(DESCRIPTION) + 300)
    assert text.startswith(f"{DESCRIPTION}\n\n(left out here: 1 earlier turns, ")
    assert text.endswith("characters)\n" + "2" * 300)
    assert left_out > 4700


def test_a_description_that_is_too_long_loses_its_middle_for_the_turns():
    long = write_context(Context(task="first line\n" + "tool\n" * 1000, simulation_instruction="No network."))
    text, _ = fitted(joined(long, history(1)), 400)
    assert text.startswith("# Task description\nfirst line\n")
    assert "characters)\n" in text
    assert joined("# Simulation instruction\nNo network.", history(1)) in text
    assert 200 < len(text) < 460  # its own note is not counted


def test_a_text_without_turns_loses_its_middle_at_ends_of_lines():
    lines = "\n".join(f"line {number:03}" for number in range(100))
    text, left_out = fitted(lines, 100)
    first, note, last = text.partition(f"\n(cut here: {left_out} characters)\n")
    assert note
    assert (first[:8], last[-8:]) == ("line 000", "line 099")
    assert all(len(line) == 8 for line in f"{first}\n{last}".split("\n"))


def test_turns_of_demonstrations_belong_to_the_description():
    shown = Context(task="Be a shell.", demonstrations=(history(1, 2),), simulation_instruction="No network.")
    description = write_context(shown)
    text, _ = fitted(joined(description, history(*range(50))), len(description) + 500)
    assert text.startswith(f"{description}\n\n(left out here: 4")


def test_messages_keep_the_systems_and_the_latest():
    said = [{"role": "user", "content": f"question {number}" * 9} for number in range(9)]
    text, left_out = fitted([{"role": "system", "content": "Be a shell."}, *said], 300)
    assert text.startswith("system: Be a shell.\n\n(left out here: 7 earlier turns, ")
    assert text.endswith(f"user: {said[7]['content']}\n\nuser: {said[8]['content']}")
    assert left_out > 0
    assert fitted(said[:1], 10**6)[0] == f"user: {said[0]['content']}"
    assert fitted([], 5) == fitted(None, 5) == ("", 0)


def test_tokens_are_counted_by_the_counter():
    text, _ = fitted(joined(DESCRIPTION, history(1, 2, 3, (4, 4000))), 60, lambda text: len(text) // 4)
    assert DESCRIPTION.split("\n")[0] in text
    assert len(text) // 4 < 100


def test_a_cut_takes_few_counts():
    """Also of a text of many tokens whose rest has none, where shares of the length come near the limit in tiny steps."""
    asked = []

    def count(text):
        asked.append(text)
        return text.count("a")

    text, _ = fitted("a\n" * 1000 + " " * 100_000, 999, count)
    assert 990 <= text.count("a") <= 1002  # with those of the note
    assert len(asked) < 60


def test_the_judge_is_asked_with_what_fits_and_the_figure_says_so():
    context = joined(DESCRIPTION, history(*range(3000)))
    with OpenAIServer(lambda body: verdict(4)) as server:
        settings = {"base_url": server.base_url, "model": "judge"}
        whole, cut = RubricReward(settings), RubricReward(settings, max_context_chars=1000)
        assert whole(["a"], ["b"], context=[context]) == cut(["a"], ["b"], context=[context]) == [20.0]
        assert len(context) > 100_000
        assert block(server.bodies[0], "context") == context
        assert block(server.bodies[1], "context").startswith(f"{DESCRIPTION}\n\n(left out here: 29")
        assert (whole.figures["context_cut"], cut.figures["context_cut"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_context_chars": 0}, "max_context_chars is 0; write a number >= 1"),
        ({"max_context_tokens": 0, "tokenizer": "t"}, "max_context_tokens is 0"),
        ({"max_context_tokens": 9}, "max_context_tokens and tokenizer go together"),
        ({"tokenizer": "t"}, "max_context_tokens and tokenizer go together"),
    ],
)
def test_invalid_settings(settings, message):
    with pytest.raises(UserError, match=message):
        RubricReward({"base_url": "http://localhost:1/v1", "model": "j"}, **settings)


@pytest.mark.host
def test_tokens_of_the_judges_own_tokenizer(tmp_path):
    from wm_plugin.lab.tiny.policy import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path)
    with OpenAIServer(lambda body: verdict(4)) as server:
        settings = {"base_url": server.base_url, "model": "judge"}
        reward = RubricReward(settings, max_context_tokens=20, tokenizer=str(tmp_path))
        assert reward(["a"], ["b"], context=["up " * 500]) == [20.0]
        assert 20 < len(block(server.bodies[0], "context")) < 200
        assert reward.figures["context_cut"] == 1.0
