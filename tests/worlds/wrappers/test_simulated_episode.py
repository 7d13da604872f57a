"""An episode in a world model: it is asked as it was trained, byte for byte, and its answers are read as they were written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.client.answers import Answer
from wm_plugin.data.kinds import samples
from wm_plugin.data.prompts import dialogue, load
from wm_plugin.data.render import separated, sides
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.data.write import write
from wm_plugin.errors import UserError
from wm_plugin.worlds.wrappers.simulated_episode import Simulation

PROMPTS = load("word2world")
TOOL = {"type": "function", "function": {"name": "open", "parameters": {}}}
CONTEXT = Context(
    task="Find the $key.", action_space=(TOOL,), initial_state="A hall.", world_context="It is in the drawer."
)
OBSERVERS = {"open": "tool", "go": "environment", "ask": "user"}


def call(name, **arguments):
    return Call(name=name, arguments=arguments or None)


def turn(*pairs, text="", thought=None):
    """A turn of calls with the text that each is answered with."""
    observations = [
        Observation(kind=OBSERVERS.get(one.name, "tool"), text=seen, tool=one.name, call=n)
        for n, (one, seen) in enumerate(pairs)
    ]
    action = Action(text=text, calls=tuple(one for one, _ in pairs), thought=thought)
    return Turn(action=action, observations=tuple(observations))


REAL = Trajectory(
    turns=(
        turn((call("go", where="in"), "A hall.\n"), text="I go.", thought="Where?"),
        turn(
            (call("open", what="drawer"), "\tIt holds a key. "),
            (call("ask", what="whose?"), "Mine.\n\nTool go:\nYours."),
        ),
        turn((call("fly"), "{'error': 'Tool fly not found.'}")),
        turn((call("go"), "Out."), (call("go"), "And in."), (call("open"), "You have it.")),
    ),
    context=CONTEXT,
    task_id="hall",
    success=True,
)


def simulation(**options):
    made = Simulation(PROMPTS, observers=OBSERVERS, **options)
    made.reset(REAL.model_copy(update={"turns": (), "success": None}))  # as an episode begins
    return made


@pytest.mark.parametrize("world_context", [True, False])
@pytest.mark.parametrize("variant", list(PROMPTS.variants))
def test_the_questions_are_the_dialogue_of_the_training_byte_for_byte(variant, world_context):
    trained = dialogue(REAL, PROMPTS, variant=variant, world_context=world_context).messages
    played = simulation(world_context=world_context)
    played._variant = variant
    for number, one in enumerate(REAL.turns, 1):
        assert played.question(one.action) == trained[: 2 * number]
        played.step(one.action, Answer(trained[2 * number]["content"]))
    assert played.success
    assert [turn.observations for turn in played.trajectory.turns] == [turn.observations for turn in REAL.turns]


@pytest.mark.parametrize("success", [True, False])
def test_they_are_the_rows_that_the_world_model_is_trained_on(tmp_path, success):
    """Those that `wm data build --as word2world` makes of a file, with the variant that it drew."""
    real = REAL.model_copy(update={"success": success})
    write([real], tmp_path / "x.jsonl")
    for seed in range(4):
        (sample,) = samples(tmp_path / "x.jsonl", "word2world", seed=seed)
        drawn = [name for name in PROMPTS.variants if _system(real, name) == sample.messages[0]]
        played = simulation()
        (played._variant,) = drawn
        for number, one in enumerate(real.turns, 1):
            assert played.question(one.action) == sample.messages[: 2 * number]
            played.step(one.action, Answer(sample.messages[2 * number]["content"]))
        assert played.success is success


def _system(trajectory, variant):
    return dialogue(trajectory, PROMPTS, variant=variant, world_context=True).messages[0]


def test_a_task_has_one_variant_and_the_seed_draws_it():
    def system(seed):
        played = simulation(seed=seed)
        first = played.question(REAL.turns[0].action)[0]
        played.step(REAL.turns[0].action, Answer("A hall."))
        assert played.question(REAL.turns[1].action)[0] == first
        return first["content"]

    assert len({system(seed) for seed in range(9)}) > 1
    assert all("[SUCCESS]" in system(seed) for seed in range(9))  # though nobody knows yet whether it will be one


@pytest.mark.parametrize(
    ("answer", "text", "success", "over", "trouble"),
    [
        (Answer("You have it. [SUCCESS]"), "You have it.", True, True, ""),
        (Answer("You have it.[SUCCESS]\n"), "You have it.", True, True, ""),
        (Answer(" [SUCCESS]"), "", True, True, ""),
        (Answer("No [SUCCESS] yet.\n"), "No [SUCCESS] yet.\n", False, False, ""),
        (Answer("<think>\nHm.\n</think>\n\nA hall.<|im_end|>"), "A hall.", False, False, ""),
        (Answer("A hal", cut=True), "A hal", False, False, "cut"),
        (Answer(" \n"), " \n", False, False, "empty"),
        (Answer("<think>Hm."), "", False, False, "no prediction"),
        (Answer("", failure="server error"), "", False, True, "server error"),
    ],
)
def test_what_an_answer_does(answer, text, success, over, trouble):
    played = simulation()
    played.step(REAL.turns[0].action, answer)
    (one,) = played.trajectory.turns
    assert [observation.text for observation in one.observations] == [text]
    assert (played.success, played.over, played.trouble) == (success, over, trouble)
    assert (played.trajectory.success, played.turns) == (success, 1)


def test_the_first_trouble_stays_but_a_cut_and_a_new_episode_has_none():
    """A cut alone says that there is nothing else: Word2World's own script takes such an episode."""
    played = simulation()
    played.step(REAL.turns[0].action, Answer("A", cut=True))
    assert played.trouble == "cut"
    played.step(REAL.turns[0].action, Answer(""))
    played.fail("agent, timeout")
    assert (played.trouble, played.over) == ("empty", True)
    assert played.reset(REAL) == "A hall."
    assert (played.trouble, played.over, played.turns) == ("", False, 0)


def test_episodes_end():
    played = simulation(max_turns=2)
    for expected in (False, True):
        played.step(REAL.turns[0].action, Answer("A hall."))
        assert played.over is expected
    spoken = simulation()
    spoken.leave(Action(text="I give up."))
    assert (spoken.over, spoken.turns, spoken.success) == (True, 1, False)


def test_prompts_without_a_success_mark_are_refused():
    with pytest.raises(UserError, match="rwml has no success mark, which ends an episode"):
        Simulation(load("rwml"))


TEXTS = st.lists(st.text("ab:\n Tol", max_size=12), min_size=1, max_size=4)


@settings(max_examples=examples(40))
@given(TEXTS)
def test_observations_are_told_apart_as_they_were_joined(texts):
    one = turn(*((call("open"), text) for text in texts))
    ((_, _), (_, joined)) = sides([one], [texts])
    parted = separated(joined, one.observations)
    assert len(parted) == len(texts)
    if not any("\n\nTool open:\n" in f"{text}\n\n" for text in texts):
        assert parted == texts
    ((_, _), (_, again)) = sides([one], [parted])
    assert again == joined


@pytest.mark.parametrize(
    "text", ["", "Nothing.", "Tool open:\nA", "Tool open:\nA\n\nTool go:\nB", "x\n\nTool open:\nA"]
)
def test_without_headings_everything_is_the_first_ones(text):
    one = turn((call("open"), ""), (call("open"), ""))
    assert separated(text, one.observations) == [text, ""]
