"""The search for prompts: what it finds, counts and writes, and that a killed one ends as any other."""

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from support.predictions import PROMPTS
from support.said import Said
from wm_plugin.client.answers import Answer
from wm_plugin.data.prompts import Prompts, load, render
from wm_plugin.data.schema import Action, Observation, Transition
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.prompt_search import Candidate, Search, split
from wm_plugin.lab.evaluation.search_prompts import check_family, family_text, write_family
from wm_plugin.rewards import ExactReward

STYLES = {"alpha": "Style alpha.", "beta": "Style beta.", "gamma": "Style gamma.", "delta": "Style delta."}
USER = "$context\n\n$history\n\nOpen: $action\n\n$answer"


def transitions(count=16):
    """Opening box n shows n. Two transitions are of one task."""
    return [
        Transition(
            trajectory=f"t{n}",
            turn=0,
            history=(),
            action=Action(text=f"box {n}"),
            observation=Observation(kind="environment", text=f"It holds {n}."),
            task_id=f"task{n // 2}",
        )
        for n in range(count)
    ]


def template(system, user=USER):
    return f"<system_template>\n{system}\n</system_template>\n<user_template>\n{user}\n</user_template>"


def propose(style, number):
    """Alpha ends perfect, beta is best at first, gamma has nothing to say, delta is malformed but once."""
    quality = {"alpha": ["HALF", "PERFECT"], "beta": ["HALF", "NONE"], "gamma": ["NONE"]}.get(style)
    if quality:
        return template(f"As {style}: {quality[min(number, len(quality)) - 1]}.")
    return template("Late.") if number == 3 else template("It costs $5 {{ 7 * 7 }}")


def world_answer(messages):
    text = messages[-1]["content"]
    number = int(re.search(r"box (\d+)", text)[1])
    quality = messages[0]["content"] if messages[0]["role"] == "system" else ""
    right = "PERFECT" in quality or ("HALF" in quality and number % 2 == 0)
    wrong = "nothing \ud83d" if number == 5 else "nothing"
    return f"<next_state>It holds {number if right else wrong}.</next_state>"


def proposer_answer(messages):
    style = next(style for style in STYLES if f"Style {style}." in messages[0]["content"])
    return propose(style, int(re.search(r"This is round (\d+)", messages[-1]["content"])[1]))


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    path = tmp_path_factory.mktemp("start") / "boxes.yaml"
    path.write_text(PROMPTS)
    return load(str(path))


def search(start, work, *, world=None, proposer=None, rounds=3, held=None, **options):
    return Search(
        start,
        "v0",
        STYLES,
        held or split(transitions(), limit=6),
        world or Said(world_answer),
        proposer or Said(proposer_answer, temperature=1.0),
        ExactReward(),
        work,
        settings={"reward": "exact"},
        rounds=rounds,
        **options,
    )


def value(outcome, name, group="", by="style"):
    (one,) = [m for m in outcome.measures if (m.name, m.by, m.group) == (name, by if group else "", group)]
    return one


def test_the_best_style_comes_out_first_and_the_test_says_how_good_it_is(start, tmp_path):
    held = split(transitions(), limit=6)
    outcome = search(start, tmp_path, held=held).run()
    assert [(one.style, one.round) for one in outcome.chosen] == [("alpha", 2), ("beta", 1), ("gamma", 1), ("delta", 3)]
    assert outcome.prompts.stages == {"rl": ["alpha"], "cpt": ["beta"], "sft": ["gamma", "delta"]}
    assert outcome.prompts.variants["alpha"].system == "As alpha: PERFECT."
    even = sum(int(one.action.text.split()[1]) % 2 == 0 for one in held.test) / len(held.test)
    for style, exact in {"start": 0, "alpha": 1, "beta": even, "gamma": 0, "delta": 0}.items():
        assert value(outcome, "test", style).value == exact
        if style != "start":
            assert value(outcome, "gain", style).value == exact
    assert value(outcome, "test").value == value(outcome, "gain").value == (1 + even) / 4
    assert value(outcome, "test", "alpha").low == 1
    assert value(outcome, "search", "alpha, round 1", by="candidate").value == pytest.approx(
        sum(int(one.action.text.split()[1]) % 2 == 0 for one in held.search) / len(held.search)
    )
    assert [value(outcome, "refused", style).value for style in STYLES] == [0, 0, 0, 2]
    assert value(outcome, "refused", "delta").count == 3
    assert outcome.failures == {"proposal: stray dollar sign": 2}
    assert [row["variant"] for row in outcome.rows[:7]] == ["start"] * 6 + ["alpha"]
    assert outcome.rows[0]["predicted"] == "It holds nothing."
    assert outcome.rows[6]["scores"] == {"score": 1.0}


def test_the_proposer_sees_the_best_template_its_errors_and_what_was_refused_but_not_the_test(start, tmp_path):
    proposer = Said(proposer_answer, temperature=1.0)
    held = split(transitions(), limit=6)
    search(start, tmp_path, proposer=proposer, held=held, examples=2).run()
    by_place = [messages[1]["content"] for messages in proposer.questions]
    beta_3, delta_2 = by_place[9], by_place[7]
    assert "As beta: HALF." in beta_3
    assert "round 2: score 0.0000" in beta_3
    assert beta_3.count("[[begin observed_") == 2
    assert "It holds nothing." in beta_3
    assert "round 1: could not be used: a $ began no placeholder" in delta_2
    assert "{{" not in delta_2
    assert "[[begin observed_" not in by_place[8]  # alpha's best has no errors
    for one in held.test:
        assert not any(re.search(rf"{one.action.text}\b", text) for text in by_place)


def test_a_killed_search_ends_as_any_other_and_asks_nothing_twice(start, tmp_path):
    whole_world, whole_proposer = Said(world_answer), Said(proposer_answer, temperature=1.0)
    whole = search(start, tmp_path / "whole", world=whole_world, proposer=whole_proposer).run()
    text = family_text(whole.prompts, whole.chosen)
    for of_world, of_proposer in ((0, None), (3, None), (20, 1), (40, 5), (len(whole_world.questions) - 1, None)):
        work = tmp_path / f"{of_world}-{of_proposer}"
        questions = {"world": [], "proposer": []}
        limits = [(None, of_proposer), (of_world, None), (None, None)]
        for last_world, last_proposer in limits:
            world = Said(world_answer, last=last_world)
            proposer = Said(proposer_answer, temperature=1.0, last=last_proposer)
            try:
                outcome = search(start, work, world=world, proposer=proposer).run()
            except KeyboardInterrupt:
                outcome = None
            questions["world"] += world.questions
            questions["proposer"] += proposer.questions
        assert family_text(outcome.prompts, outcome.chosen) == text
        assert (outcome.measures, outcome.rows) == (whole.measures, whole.rows)
        assert questions == {"world": whole_world.questions, "proposer": whole_proposer.questions}
        for path in (tmp_path / "whole").iterdir():
            assert (work / path.name).read_bytes() == path.read_bytes()


def test_more_rounds_go_on_from_those_that_are_there(start, tmp_path):
    first = search(start, tmp_path, rounds=1).run()
    assert [one.style for one in first.chosen] == ["alpha", "beta", "gamma"]
    assert first.notes[1] == "No answer could be used in the style delta."
    proposer = Said(proposer_answer, temperature=1.0)
    assert search(start, tmp_path, proposer=proposer).run().chosen == search(start, tmp_path / "b").run().chosen
    assert len(proposer.questions) == 8
    nothing = Said(proposer_answer, temperature=1.0)
    assert search(start, tmp_path, proposer=nothing, rounds=1).run().chosen == first.chosen
    assert nothing.questions == []


HOSTILE = ["", "x" * 100_000, "<system_template>", template("${context.x}"), template("\ud800"), Answer("", failure="refused"),
           Answer(template("cut"), cut=True), Answer("", failure="too large")]  # fmt: skip


def test_answers_that_are_no_templates_are_counted(start, tmp_path):
    left = [*HOSTILE, *HOSTILE[:4]]
    outcome = search(start, tmp_path, proposer=Said(lambda _: left.pop(0), temperature=1.0)).run()
    assert outcome.prompts is None
    assert outcome.chosen == []
    assert sum(outcome.failures.values()) == 12
    assert outcome.failures["proposal: empty"] == 2
    assert outcome.failures["proposal: refused"] == 1
    assert value(outcome, "test", "start").value == 0
    assert outcome.notes[-1] == "There is no family of prompts: its stages need 3 styles with a template."


def test_predictions_without_a_score_count_as_nothing_in_the_choice_and_are_in_both_readings(start, tmp_path):
    def answer(messages):
        text = world_answer(messages)
        number = int(re.search(r"box (\d+)", messages[-1]["content"])[1])
        if "PERFECT" in messages[0]["content"] and number in (1, 3, 5, 7):
            kinds = [Answer(text, cut=True), Answer(" "), Answer("", failure="refused"), Answer("nothing of it")]
            return kinds[number // 2]
        return text

    held, proposer = split(transitions(), limit=8), Said(proposer_answer, temperature=1.0)
    outcome = search(start, tmp_path, world=Said(answer), proposer=proposer, held=held).run()
    tested = value(outcome, "test", "alpha")
    failed = sum(one.action.text in ("box 1", "box 3", "box 5", "box 7") for one in held.test)
    assert (tested.value, tested.failed, tested.with_failed) == (1, failed, 1 - failed / 8)
    assert set(outcome.failures) <= {"cut", "empty", "refused", "no prediction", "proposal: stray dollar sign"}
    assert sum(count for kind, count in outcome.failures.items() if "proposal" not in kind) == failed
    assert any("(none: " in messages[1]["content"] for messages in proposer.questions[8:])  # alpha's best has no others


def test_a_server_that_is_down_stops_the_search_which_goes_on_later(start, tmp_path):
    down = Said(lambda _: Answer("", failure="timeout"))
    with pytest.raises(UserError, match=r"the world model: 6 of 6 calls failed \(6 timeout\); run it again to go on"):
        search(start, tmp_path, world=down).run()
    down = Said(lambda _: Answer("", failure="connection"), temperature=1.0)
    with pytest.raises(UserError, match="the proposer: 4 of 4 calls failed"):
        search(start, tmp_path, proposer=down).run()
    long = Said(lambda _: Answer("", failure="refused"))
    with pytest.raises(UserError, match=r"the world model: 6 of 6 calls failed \(6 refused\)"):
        search(start, tmp_path / "c", world=long).run()
    assert search(start, tmp_path).run().chosen == search(start, tmp_path / "b").run().chosen


def test_the_same_transitions_choose_and_others_measure():
    held = split(transitions(), limit=5, seed=1)
    assert held == split(transitions(), limit=5, seed=1) == split(transitions()[::-1], limit=5, seed=1)
    assert held != split(transitions(), limit=5, seed=2)
    assert (len(held.search), len(held.test)) == (5, 5)
    assert not {one.task_id for one in held.search} & {one.task_id for one in held.test}
    two = split(transitions(4), test_share=0.99)
    assert (len(two.search), len(two.test)) == (2, 2)
    few = split(transitions(), test_share=0.25)
    assert (len(few.search), len(few.test)) == (12, 4)


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (0, {}, "the transitions are of no task"),
        (2, {}, "the transitions are of 1 task"),
        (4, {"limit": 0}, "limit is 0"),
        (4, {"test_share": 1.0}, "the test's share is 1.0"),
        (4, {"test_share": float("nan")}, "the test's share is nan"),
    ],
)
def test_transitions_that_cannot_be_split(count, options, message):
    with pytest.raises(UserError, match=message):
        split(transitions(count), **options)


def test_mistakes(start, tmp_path):
    for options, message in (({"rounds": 0}, "rounds is 0"), ({"examples": 0}, "examples is 0")):
        with pytest.raises(UserError, match=message):
            search(start, tmp_path / "no", **options)
    search(start, tmp_path, rounds=1).run()
    with pytest.raises(UserError, match="a search of other settings .*seed"):
        search(start, tmp_path, seed=1)
    path = tmp_path / "round-001.json"
    whole = path.read_text()
    for text in ("[", "[]", "{}", whole.replace('"alpha"', '"beta"')):
        path.write_text(text)
        with pytest.raises(UserError, match=r"round-001.json: damaged; remove it and the rounds after it"):
            search(start, tmp_path).run()


LINES = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"]) | st.sampled_from(" \n#:-'\"|>&*!%@`{}[],?"), max_size=30
)


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(LINES, min_size=3, max_size=3))
def test_any_template_is_read_as_it_was_written(texts):
    base = load("word2world")
    chosen = [Candidate(style=f"s{n}", round=1, scores=[0.5], failures=[""]) for n in range(3)]
    texts = [text.replace("$", "$$") for text in texts]
    variants = {f"s{n}": {"system": f"{text}\n\n$context", "user": "$action"} for n, text in enumerate(texts)}
    stages = {"rl": ["s0"], "cpt": ["s1"], "sft": ["s2"]}
    prompts = Prompts(**{**base.model_dump(), "name": "mine", "variants": variants, "stages": stages})
    text = family_text(prompts, chosen)
    assert Prompts(**yaml.safe_load(text), name="mine") == prompts


def test_a_family_that_somebody_changed_stays(start, tmp_path):
    outcome = search(start, tmp_path / "work").run()
    path = tmp_path / "boxes.yaml"
    write_family(outcome.prompts, outcome.chosen, path)
    assert load(str(path)) == outcome.prompts
    write_family(outcome.prompts, outcome.chosen, path)
    shown = render(transitions()[0], load(str(path)), stage="rl").messages
    assert shown[0]["content"] == "As alpha: PERFECT."
    for text in (path.read_text() + "# mine\n", "mine", PROMPTS):
        path.write_text(text)
        with pytest.raises(UserError, match="boxes.yaml: holds something else than the prompts that a search wrote"):
            check_family(path)
        with pytest.raises(UserError, match="move it, or name another folder"):
            write_family(outcome.prompts, outcome.chosen, path)
        assert path.read_text() == text
