"""Predictions inside an episode without a host: what is cut from an answer, which turns are scored, and by what."""

import asyncio

import pytest

from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.hosting.episode import EpisodePort, end_together
from wm_plugin.hosting.predictions import acting, predicted, prediction_reward, turn_scores


@pytest.mark.parametrize(
    ("answer", "kept", "cut"),
    [
        ("go", "go", ""),
        ("<next>a</next>go", "go", "<next>a</next>"),
        ("x<next>a</next>y<next>b</next>z", "xyz", "<next>a</next><next>b</next>"),
        ("x<next>a", "x", "<next>a"),  # it was cut
        ("<next><next>a</next>go", "go", "<next><next>a</next>"),
        ("<next><think></next>go", "go", "<next><think></next>"),
        ("<think><next>a</next></think>go", "<think><next>a</next></think>go", ""),
        ("<think>a<think></think><next>b</next>go", "<think>a<think></think>go", "<next>b</next>"),
        ("<next>a</next></think><next>b</next>go", "<next>a</next></think>go", "<next>b</next>"),
        ("</next>go", "</next>go", ""),
        ("<nextt>a</nextt>", "<nextt>a</nextt>", ""),
    ],
)
def test_a_prediction_is_cut_from_an_answer(answer, kept, cut):
    assert acting(answer, "next") == (kept, cut)


def test_an_answer_whose_thinking_the_prompt_began():
    assert acting("<next>a</next>go", "next", thinking=True) == ("<next>a</next>go", "")
    text = "<next>a</next></think><next>b</next>go"
    assert acting(text, "next", thinking=True) == ("<next>a</next></think>go", "<next>b</next>")


class World:
    """Says what it is told; its tools hear from different observers."""

    observer = {"ask": "user"}  # noqa: RUF012

    def __init__(self):
        self.over = False

    def reset(self, first="begun", prompt=None):
        return first

    def say(self, text: str) -> str:
        self.over = text == "over"
        return text

    async def ask(self, text: str) -> str:
        return text

    def get_reward(self) -> float:
        return 1.0


class Awaited(World):
    async def reset(self, first="begun"):
        return first

    async def get_reward(self):
        return 1.0


seen: list = []


def reward(predictions, targets, observer, action, context, first):
    """Gives 1 for a prediction that comes true, and notes its columns."""
    seen.append(list(zip(predictions, targets, observer, action, context, first, strict=True)))
    return [float(one == target) for one, target in zip(predictions, targets, strict=True)]


def turn(text, *calls, tool="say"):
    return Action(text=text, calls=tuple(Call(name=tool, arguments={"text": one}) for one in calls))


def play(environment, turns, columns=None, **start):
    """Play turns of (action, whether the host runs its calls), and read what was observed after each but the last."""
    port, results, read = EpisodePort(environment()), [], []
    first = port.begin(columns or {}, **start)
    first = asyncio.run(first) if asyncio.iscoroutine(first) else first
    for action, runs in turns:
        port.turn(action, results)
        results = []
        for call in action.calls:
            found = getattr(port.environment, call.name)(**call.arguments) if runs else "there is no such tool"
            results.append(asyncio.run(found) if asyncio.iscoroutine(found) else found)
        read += results
    return port, first, read


def scored(*turns, environment=World, **settings):
    port, first, _ = play(predicted(environment, {"reward": "exact", "ask": False} | settings), turns)
    port.end()
    return turn_scores(port.environment), port, first


A, END = "<prediction>a</prediction>", (Action(text="Done."), True)


def test_a_turn_is_scored_by_what_the_policy_read_after_it():
    assert scored((turn(A, "a"), True), (turn("", "b"), True), (turn(A, "c"), True), END)[0] == [1, 0, 0, None]
    assert scored((turn("<prediction>a\nb</prediction>", "a", "b"), True), END)[0] == [1, None]
    assert scored((turn(A, "a", tool="ask"), True), END)[0] == [1, None]
    assert scored((turn("<prediction>there is no such tool</prediction>", "a"), False), END)[0] == [0, None]
    assert scored((turn(A, "a"), True))[0] == [None]  # nobody read what followed
    assert scored((turn("", "over"), True), (turn(A, "a"), True), END)[0] == [0, None, None]  # after the end
    assert scored((Action(text=A), True), (turn(A, "a"), True), END)[0] == [None, 1, None]
    assert turn_scores(World()) == turn_scores(predicted(World)()) == []


def test_figures_are_of_the_turns_that_were_scored():
    _, port, _ = scored((turn(A, "a"), True), (turn("", "b"), True), (turn(A, "c"), True), END)
    assert port.report() == pytest.approx(
        {
            "prediction/turns": 3,
            "prediction/written": 2,
            "prediction/total": 1,
            "prediction/score": 1 / 3,
            "prediction/share": 2 / 3,
        }
    )
    assert set(scored(END)[1].report().values()) == {0.0}


def test_a_reward_sees_who_was_heard_the_action_and_what_was_said_before():
    kind = predicted(World, reward=reward, ask=False)
    prompt = [{"role": "user", "content": "Play."}]
    turns = [(turn(A, "a"), True), (turn(A, "b", tool="ask"), True), END]
    ports = [
        play(kind, turns, {"first": "x"}, prompt=prompt)[0],
        play(kind, turns, {"first": "y", "prompt": prompt})[0],
        play(kind, turns, {"first": "z"}, prompt="Play.")[0],
    ]
    seen.clear()
    end_together(ports, [0, 0, 0])
    (rows,) = seen  # asked once about all of them
    say, ask = 'say({"text": "a"})', 'ask({"text": "b"})'
    assert [(*row[:4], len(row[4]), row[5]) for row in rows] == [
        *(("a", "a", "tool", say, 2, "x"), ("a", "b", "user", ask, 4, "x")),
        *(("a", "a", "tool", say, 2, "y"), ("a", "b", "user", ask, 4, "y")),
        *(("a", "a", "tool", say, 1, "z"), ("a", "b", "user", ask, 3, "z")),
    ]
    assert rows[1][4] == [
        *prompt,
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": say},
        {"role": "user", "content": "a"},
    ]
    assert [turn_scores(port.environment) for port in ports] == [[1, 0, None]] * 3
    assert prompt == [{"role": "user", "content": "Play."}]


def test_an_observer_of_all_tools():
    class Dialogue(World):
        observer = "environment"

    port, *_ = play(predicted(Dialogue, reward=reward), [(turn(A, "a"), True), END], {"first": "x"})
    seen.clear()
    port.end()
    assert [row[2] for row in seen[0]] == ["environment"]


@pytest.mark.parametrize(
    ("settings", "first", "shown"),
    [
        ({}, "begun", "begun\n\nBefore you act in a turn, and after your thoughts, predict"),
        ({}, None, "\n\nBefore you act"),
        ({"tag": "next"}, "begun", "write it between <next> and </next>.\n"),
        ({"ask": False}, "begun", "begun"),
        ({"coeff": 0}, "begun", "begun"),
        ({"ask": False}, None, None),
    ],
)
@pytest.mark.parametrize("environment", [World, Awaited])
def test_predictions_are_asked_for_after_the_first_observation(environment, settings, first, shown):
    found = play(predicted(environment, settings), [], {"first": first})[1]
    assert found == shown if shown in ("begun", None) else shown in found


def test_predictions_are_asked_for_in_a_part_of_its_own_after_parts():
    image = {"type": "image"}
    first, request = play(predicted(World), [], {"first": [image]})[1]
    assert (first, request["type"]) == (image, "text")
    assert request["text"].startswith("\nBefore you act")


@pytest.mark.parametrize("environment", [World, Awaited])
def test_sums_of_scores_are_the_rewards_of_trainings(environment):
    turns = [(turn(A, "a"), True), (turn(A, "a"), True), END]
    for level, expected in (("turn", 1.0), ("sum", 2.0), ("mean", 1.5)):
        kind = predicted(environment, coeff=0.5, level=level)
        for training, outcome in ((True, expected), (False, 1.0)):
            port, *_ = play(kind, turns, training=training)
            port.end()
            found = port.environment.get_reward()
            assert (asyncio.run(found) if asyncio.iscoroutine(found) else found) == outcome


def test_options_are_read_from_a_class_or_an_instance():
    kind = predicted(World, {"coeff": 0.5})
    assert kind is predicted(World, coeff=0.5)
    assert prediction_reward(kind) is prediction_reward(kind())
    assert (prediction_reward(kind).coeff, prediction_reward(World)) == (0.5, None)

    class NoReward:
        def reset(self): ...

    assert predicted(NoReward)
    with pytest.raises(UserError, match=r"NoReward has no get_reward, to which prediction_reward\.level: sum adds"):
        predicted(NoReward, level="sum")
