"""What a judge reads of a simulated episode that is longer than what it is shown."""

import random

import pytest

from support.openai_server import OpenAIServer
from support.timing import too_slow
from wm_plugin.data.schema import Action, Call, Observation, Turn
from wm_plugin.hosting.episode import EpisodePort
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.simulated import simulated
from wm_plugin.worlds.wrappers.simulated_success import as_told

LONG = "The shelf has boots. " * 200  # 4,200 characters


def turn(number, text=LONG, words=""):
    call = Call(name="look", arguments={"shelf": number})
    return Turn(
        action=Action(text=words, calls=(call,)),
        observations=(Observation(kind="tool", text=text, tool="look", call=0),),
    )


@pytest.mark.host
def test_a_verifier_reads_what_happened_in_turn_ten():
    def judged(body):
        text = body["messages"][-1]["content"]
        score = float("is refunded" in text and "I refunded it." in text and "Not all of" not in text)
        return f'<final_evaluation>\n{{"score": {score}}}\n</final_evaluation>'

    def shelf(body):
        return "Order 5 is refunded." if '"D"' in body["messages"][-1]["content"] else LONG

    with OpenAIServer(shelf) as server, OpenAIServer(judged) as judge:
        kwargs = {"server": {"base_url": judge.base_url, "model": "j"}, "prompt": "verifier"}
        verifier = {"path": "judge", "kwargs": kwargs}
        config = {"url": server.base_url, "model": "w", "success": "verifier", "verifier": verifier}
        world = simulated(load("grid").environment, config)()
        world.reset(board="A...\n....\n....\n...G", max_turns=20)
        for direction in "RRRRRRRRRDRR":
            world.move(direction)
        EpisodePort(world).turn({"role": "assistant", "content": "I refunded it."})
        EpisodePort(world).end()
        assert (world.get_reward(), world.success) == (1.0, True)
        shown = judge.bodies[0]["messages"][-1]["content"]
        assert all(f"(turn {n}):" in shown for n in range(1, 13))
        assert shown.count("(cut here: ") > 0


def test_calls_stay_and_the_oldest_texts_go_first():
    turns = [turn(n) for n in range(1, 11)]
    whole = as_told(turns, "Done.", 100_000)
    assert (whole.count(LONG), "cut here" in whole) == (10, False)
    assert whole.endswith("\n\nAgent (at the end):\nDone.")
    text = as_told(turns, "Done.", 20_000)
    assert len(text) <= 20_000
    assert text.count("look({") == 10
    kept = [LONG in block for block in text.split("Agent (turn ")[1:]]
    assert kept == sorted(kept)  # the last ones
    assert 0 < sum(kept) < 10
    assert "(cut here: 3200 characters)" in text


def test_the_oldest_turns_are_left_out_where_nothing_else_helps():
    turns = [turn(n) for n in range(1, 301)]
    text = as_told(turns, "Done.", 20_000)
    assert 15_000 < len(text) <= 20_000
    first = int(text.split("(left out here: turns 1 to ")[1].split(")")[0])
    assert f"Agent (turn {first}):" not in text
    assert all(f"Agent (turn {n}):" in text for n in range(first + 1, 301))
    assert text.endswith("Done.")


def test_any_episode_fits():
    rng = random.Random(0)
    for _ in range(200):
        sizes = [rng.choice([0, 10, 500, 30_000]) for _ in range(rng.randrange(12))]
        turns = [turn("x" * rng.choice([1, 5000]), "y" * size, "z" * rng.choice([0, 9000])) for size in sizes]
        words = "w" * rng.choice([0, 5, 50_000])
        most = rng.choice([1, 100, 1000, 20_000])
        text = as_told(turns, words, most)
        assert 0 < len(text) <= max(most, 100)
        if words and most >= 1000:
            assert text.endswith("w" * len(words[:5]))
    assert as_told([], "", 20_000) == "Nothing was done."
    many = [turn(n, "y" * 100) for n in range(4000)]
    assert too_slow(lambda turns: as_told(turns, "", 20_000), lambda size: many[:size], 60, 4000) is None
