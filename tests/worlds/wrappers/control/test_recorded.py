"""Recorded trajectories under control: by rule, with the instruction, in the words of a simulated episode."""

import json
import random

import pytest

from wm_plugin.data import Trajectory, expand
from wm_plugin.data.chat import chat
from wm_plugin.data.prompts import dialogue, load, render
from wm_plugin.data.schema import Action, Call, Context, Observation, Turn
from wm_plugin.data.transitions import identity
from wm_plugin.errors import UserError
from wm_plugin.worlds.wrappers.control import ControlConfig, ControlEpisode
from wm_plugin.worlds.wrappers.control.perturbations import ERRORS
from wm_plugin.worlds.wrappers.control.recorded import Figures, control, perturbed
from wm_plugin.worlds.wrappers.simulated_episode import Simulation

FIVE = json.dumps(["Paris is large", "b", "c", "d", "e"])


def turn(*calls, texts=(), **data):
    made = tuple(Call(name=name, arguments=arguments) for name, arguments in calls)
    observations = tuple(
        Observation(kind="tool", text=text, tool=calls[n][0], call=n, data=data) for n, text in enumerate(texts)
    )
    return Turn(action=Action(calls=made), observations=observations)


def recorded(number=0, *turns):
    usual = (
        turn(("search", {"q": "capital"}), texts=[FIVE], verifier="x"),
        turn(("open", {"n": 1}), ("open", {"n": 2}), texts=["It is Paris.", "Nothing."]),
        turn(("finish", {"answer": "Paris"}), texts=["The answer is right."]),
    )
    context = Context(task="Answer.", initial_state="What is the capital?", simulation_instruction="Be slow.")
    return Trajectory(turns=turns or usual, context=context, task_id=f"t{number}", success=True, reward=1.0)


def config(*entries, **settings):
    return ControlConfig.read({"perturbations": list(entries), **settings}, "control")


def test_a_failed_call_is_made_again_and_answered_as_it_was():
    before = recorded()
    after = perturbed(before, config({"name": "error", "turns": [1], "kinds": ["timeout"]}))
    failed, again, *rest = after.turns
    assert failed.action == again.action == before.turns[0].action
    (observation,) = failed.observations
    assert (observation.text, observation.error) == (ERRORS["timeout"][0], True)
    assert observation.data["control"]["names"] == ["error"]
    assert "verifier" not in observation.data
    assert again == before.turns[0]
    assert rest == list(before.turns[1:])
    assert after.context.simulation_instruction.startswith("Be slow.\n\nSome calls fail, in turn 1")


def test_of_several_calls_only_the_failed_one_is_made_again():
    before = recorded()
    after = perturbed(before, config({"name": "partial", "of": "calls", "rate": 0.999}))
    assert [len(one.action.calls) for one in after.turns] == [1, 2, 1, 1]
    parallel, again = after.turns[1:3]
    assert [one.text for one in parallel.observations] == ["It is Paris.", ERRORS["unavailable"][0]]
    assert again.action.calls == before.turns[1].action.calls[1:]
    assert [(one.text, one.call) for one in again.observations] == [("Nothing.", 0)]


def test_pages_are_asked_for_until_the_last():
    after = perturbed(recorded(), config({"name": "paginate", "tools": ["search"], "size": 2}))
    pages = [one for one in after.turns if one.action.calls[0].name == "search"]
    assert [json.loads(one.observations[0].text)["items"] for one in pages] == [
        ["Paris is large", "b"],
        ["c", "d"],
        ["e"],
    ]
    assert all(one.action == pages[0].action for one in pages)


@pytest.mark.parametrize("column", ["answer", "capital"])
def test_the_answer_is_withheld_and_the_world_model_knows_it(column):
    before = recorded()
    if column == "capital":
        before = before.model_copy(update={"success": False, "metadata": {"reset": {"capital": "Paris"}}})
    entry = {"name": "withhold", "column": column, "query": "question", "tools": ["search", "open"]}
    figures = Figures()
    after = perturbed(before, config(entry), figures)
    told = after.context.simulation_instruction
    assert "What is the capital?" in told
    assert "Paris" in told
    for one in after.turns[:2]:
        assert all("Paris" not in each.text for each in one.observations)
    assert after.turns[0].observations[0].text == json.dumps(["… is large", "b", "c", "d", "e"], ensure_ascii=False)
    assert figures.as_dict(["withhold"])["perturbations"] == {"withhold": {"trajectories": 1, "observations": 2}}
    agent = json.dumps(chat(after.context, after.turns[:1]))
    assert "out, whatever" not in agent  # no instruction is the agent's to see
    unknown = before.model_copy(update={"success": False, "metadata": {}})
    assert perturbed(unknown, config(entry)) is unknown


def test_a_share_of_the_trajectories():
    rows = [recorded(number) for number in range(400)]
    style = config({"name": "style"}, seed=4)
    chosen = []
    for share in (0.2, 0.6):
        pairs = zip(control(rows, style, share=share), rows, strict=True)
        chosen.append([one is not row for one, row in pairs])
    assert 40 < sum(chosen[0]) < 120 < sum(chosen[1]) < 300
    assert all(one <= other for one, other in zip(*chosen, strict=True))  # a larger share has the smaller one's
    backwards = list(control(reversed(rows), style, share=0.2))[::-1]
    assert [one.to_bytes() for one in backwards] == [one.to_bytes() for one in control(rows, style, share=0.2)]
    with pytest.raises(UserError, match="share is 1.5"):
        list(control(rows, style, share=1.5))


MANY = config(
    {"name": "error", "rate": 0.3},
    {"name": "partial", "rate": 0.5},
    {"name": "latency", "rate": 0.5},
    {"name": "tease", "column": "answer", "words": 3, "rate": 0.5},
)


def test_a_simulated_episode_is_asked_in_the_words_of_the_training():
    """The instructions of a simulated episode make each question of the recorded trajectory's dialogue, byte by byte."""
    prompts, asked = load("word2world"), 0
    for number in range(30):
        made = perturbed(recorded(number), MANY)
        start = made.model_copy(update={"turns": ()})
        simulation = Simulation(prompts)
        simulation.reset(start)
        for place, told in enumerate(made.turns):
            upto = made.model_copy(update={"turns": made.turns[: place + 1], "success": False})
            row = dialogue(upto, prompts, variant=simulation._variant, world_context=True).messages
            simulation.take(told.action, told.observations, False)
            simulated = dialogue(
                simulation.trajectory, prompts, variant=simulation._variant, world_context=True
            ).messages
            assert simulated == row
            instructions = [one.data["control"]["instruction"] for one in told.observations if "control" in one.data]
            for text in filter(None, instructions):
                assert text in row[-2]["content"]
                asked += 1
    assert asked > 30


def test_a_plan_and_the_rule_say_the_same():
    """What `plan` tells a world model before there is a text is what the rule tells of the text."""
    draw = random.Random(3)
    for number in range(200):
        first, second = (ControlEpisode(MANY, f"t{number}", columns={"answer": "Paris"}) for _ in range(2))
        plan = first.plan("search")
        other = second.plan("search")
        assert plan == other
        if second.failure(other) is None:
            text = json.dumps([draw.choice("abc") for _ in range(6)])
            second.perturbed(other, text)
            told = second.data.get("control", {}).get("instruction", "")
            assert told == plan.instruction


def test_prompts_show_the_instructions():
    prompts = load("search")
    made = perturbed(recorded(), config({"name": "error", "turns": [1]}))
    first, second, *_ = expand([made])
    told = first.observation.data["control"]["instruction"]
    system, user = (message["content"] for message in render(first, prompts).messages)
    assert "# Simulation instruction\nBe slow.\n\nSome calls fail" in system + user
    assert f"# Simulation instruction for this turn\n{told}" in user
    later = "\n".join(message["content"] for message in render(second, prompts).messages)
    assert later.count(told) == 1  # in the history: what came then is not to be explained otherwise
    assert identity(made) == first.trajectory


def test_what_a_source_says_of_control_is_only_read_as_text():
    for value in (3, [], {"instruction": 3}, {"instruction": " "}, {"names": ["error"]}):
        observation = Observation(kind="tool", text="x", tool="f", call=0, data={"control": value})
        made = recorded(0, Turn(action=Action(calls=(Call(name="f"),)), observations=(observation,)))
        assert "for this turn" not in json.dumps(dialogue(made, load("word2world")).messages)


def test_users_and_text_actions():
    user = Observation(kind="user", text="Paris, please", tool="message_user", call=0)
    world = Observation(kind="environment", text="You see Paris.")
    made = recorded(
        0,
        Turn(action=Action(calls=(Call(name="message_user"),)), observations=(user,)),
        Turn(action=Action(text="look"), observations=(world,)),
    )
    after = perturbed(made, config({"name": "error", "turns": [1, 2]}, {"name": "withhold", "texts": ["Paris"]}))
    assert [[one.text for one in each.observations] for each in after.turns] == [
        ["Paris, please"],
        [next(text for text, _ in ERRORS.values() if text == after.turns[1].observations[0].text)],
        ["You see …."],
    ]
    assert after.turns[2].action == made.turns[1].action


def test_a_call_that_is_made_again_has_its_pages_too():
    before = recorded(0, turn(("open", {"n": 1}), ("search", {"q": "x"}), texts=["It.", FIVE]))
    entries = {"name": "partial", "of": "calls", "rate": 0.999}, {"name": "paginate", "tools": ["search"], "size": 2}
    after = perturbed(before, config(*entries))
    assert [[call.name for call in one.action.calls] for one in after.turns] == [["open", "search"], *[["search"]] * 3]
    pages = [json.loads(one.observations[0].text) for one in after.turns[1:]]
    assert [item for page in pages for item in page["items"]] == json.loads(FIVE)


def test_of_several_observations_those_of_no_call_do_not_fail():
    """They could not be asked for again: the turn would be an action of nothing."""
    seen = tuple(Observation(kind="environment", text=text) for text in ("A door opens.", "It is dark."))
    before = recorded(0, Turn(action=Action(text="open the door"), observations=seen))
    after = perturbed(before, config({"name": "error", "rate": 0.999}))
    assert after.turns == before.turns
