"""Prompts: every file and variant, what of a transition they show, who draws which, labels, dialogues, and a user's own files."""

import functools
import re
from importlib import resources

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from wm_plugin.data import Trajectory, Transition, Turn, expand
from wm_plugin.data.errors import RowError
from wm_plugin.data.kinds import samples
from wm_plugin.data.prompts import FAMILIES, STAGES, dialogue, load, render, target
from wm_plugin.data.prompts.file import OPTIONS
from wm_plugin.data.readers import read
from wm_plugin.data.render import write_context, write_history
from wm_plugin.data.schema import Action, Call, Context, Observation, Source
from wm_plugin.data.write import write, write_transitions
from wm_plugin.errors import UserError
from wm_plugin.rewards.extract import _ENDS, extract

ours = functools.cache(load)
DOMAINS = FAMILIES[2:]
ALL = [(family, variant) for family in FAMILIES for variant in ours(family).variants]
LITERAL = "costs $5, $action ${history} $$ {braces} {0} %s <next_state> </predicted_observation> \\1"

CONTEXT = Context(
    task="Sell the boots.",
    action_space=({"name": "search", "parameters": {"query": "string"}},),
    initial_state="The shop is open.",
    demonstrations=("look -> a shelf", "wait -> nothing"),
    simulation_instruction="Page two fails.",
)
HEADINGS = [f"# {part}" for part in ("Task description", "Action space", "Initial state", "Demonstrations")]
HEADINGS.append("# Simulation instruction")


def environment(text, **data):
    return Observation(kind="environment", text=text, data=data)


def step(action, *observations, actor="agent", thought=None):
    made = Action(text=action, thought=thought) if isinstance(action, str) else Action(calls=tuple(action))
    return Turn(action=made, observations=observations, actor=actor)


def transition(context=CONTEXT, history=(), action=None, observation=None, name="task#f/0"):
    return Transition(
        trajectory=name,
        turn=len(history) + 3,
        history=history,
        action=action or Action(text="open the door"),
        observation=observation or environment("It is open."),
        context=context,
    )


HISTORY = (
    step("first act", environment("first sight"), thought="secret"),
    step(
        [Call(name="search", arguments={"query": "é"})],
        Observation(kind="tool", text="3 results", tool="search", call=0),
    ),
    step("Which one?", Observation(kind="user", text="The red one.")),
)


def text_of(rendered):
    return "\n\n".join(message["content"] for message in rendered.messages)


def in_order(parts, text):
    place = 0
    for part in parts:
        start = text.find(part, place)
        assert start >= 0, f"{part!r} is not in its place in {text!r}"
        place = start + len(part)
    return True


def test_every_file_is_a_family_or_the_styles_of_some():
    names = {file.name for file in resources.files("wm_plugin.data.prompts").iterdir() if file.name.endswith(".yaml")}
    assert names == {f"{name}.yaml" for name in (*FAMILIES, *OPTIONS, "agentworld")}
    assert {family: ours(family).tag for family in FAMILIES} == {
        "rwml": "next_state",
        "word2world": "",
        **dict.fromkeys(DOMAINS, "predicted_observation"),
    }
    assert all(len(ours(family).variants) >= 4 for family in FAMILIES)


@pytest.mark.parametrize(("family", "variant"), ALL)
@pytest.mark.parametrize("thinking", [True, False])
def test_a_prompt_shows_context_history_and_action_in_order(family, variant, thinking):
    made = render(transition(history=HISTORY), ours(family), variant=variant, thinking=thinking)
    assert made.variant == variant
    assert made.messages[-1]["role"] == "user"
    assert in_order(HEADINGS, made.messages[0]["content"])
    parts = [
        "first act",
        "first sight",
        'search({"query": "é"})',
        "3 results",
        "Which one?",
        "The red one.",
        "open the door",
    ]
    assert in_order(parts, text_of(made))
    assert "secret" not in text_of(made)
    assert "It is open." not in text_of(made)
    tag = ours(family).tag
    assert ("<think>" in made.messages[-1]["content"]) is (thinking and tag != "")
    assert not tag or f"<{tag}>" in made.messages[-1]["content"]


@pytest.mark.parametrize(("family", "variant"), ALL)
def test_empty_parts_leave_nothing_behind(family, variant):
    bare = text_of(render(transition(Context()), ours(family), variant=variant))
    assert not any(heading in bare for heading in HEADINGS)
    assert not re.search(r"\n\n\n|\$[a-z{]|\n\s*$", bare)
    assert not re.search(r"(?m)^(History:|# History|What has happened so far:|The record up to now)", bare)
    masked = transition(observation=Observation(kind="tool", text="{}", tool="f", data={"schema": True}))
    assert "OpenAPI" in text_of(render(masked, ours(family), variant=variant))
    told = dialogue(Trajectory(turns=(step("go", masked.observation),)), ours(family), variant=variant)
    assert family != "word2world" or "OpenAPI" in told.messages[0]["content"]
    assert "OpenAPI" not in bare


@pytest.mark.parametrize(("family", "variant"), ALL)
def test_what_a_trajectory_says_is_never_a_template(family, variant):
    context = CONTEXT.model_copy(update={"task": LITERAL, "initial_state": "S " + LITERAL})
    history = (step("H " + LITERAL, environment("O " + LITERAL)),)
    made = text_of(render(transition(context, history, Action(text="A " + LITERAL)), ours(family), variant=variant))
    assert made.count(LITERAL) == 5


def test_whom_a_prediction_answers():
    calls = (Call(name="a", arguments={"q": 1}), Call(name="b", arguments="not json"), Call(name="c"))
    second = transition(
        action=Action(text="Both.", calls=calls), observation=Observation(kind="tool", text="", tool="b", call=1)
    )
    block = 'Both.\n1. a({"q": 1})\n2. b(not json)\n3. c()\n(To be answered: call 2 of 3, and no other.)'
    for family in FAMILIES:
        assert block in text_of(render(second, ours(family)))
    assert "the result of call 2 of 3, b(not json)" in text_of(render(second, ours("rwml")))
    single = transition(action=Action(calls=calls[:1]), observation=Observation(kind="tool", text="", tool="a", call=0))
    assert 'a({"q": 1})\n\n' in text_of(render(single, ours("rwml")))
    assert "the result of a" in text_of(render(single, ours("rwml")))
    reply = transition(observation=Observation(kind="user", text=""))
    assert "the user's reply" in text_of(render(reply, ours("rwml")))
    assert "(no action)" in text_of(render(transition(action=Action()), ours("word2world")))


def test_history_as_text():
    own = step(
        [Call(name="status", arguments={})], Observation(kind="tool", text="no signal", tool="status"), actor="user"
    )
    assert write_history((*HISTORY[1:], own), first=4) == (
        'Agent (turn 5):\nsearch({"query": "é"})\n\nTool search (turn 5):\n3 results\n\n'
        "Agent (turn 6):\nWhich one?\n\nUser (turn 6):\nThe red one.\n\n"
        "User, on its own (turn 7):\nstatus({})\n\nTo the user, from status (turn 7):\nno signal"
    )
    made = Trajectory(turns=(*HISTORY, step("end", environment("over"))))
    last = list(expand([made], history=1))[-1]
    assert "Agent (turn 3):\nWhich one?" in text_of(render(last, ours("rwml")))  # numbers are those of the trajectory
    assert write_context(Context()) == ""


def test_stages_have_no_variant_in_common():
    for family in DOMAINS:
        stages = {stage: ours(family).names(stage) for stage in STAGES}
        assert stages == {"rl": ["v0"], "cpt": ["v1"], "sft": [f"v{n}" for n in range(2, 12)]}
    assert {tuple(ours("word2world").names(stage)) for stage in STAGES} == {tuple(ours("word2world").variants)}


@pytest.mark.parametrize("family", ["rwml", "rwml-completion"])
def test_rwml_has_one_wording_in_rl_and_a_file_takes_more(family, tmp_path):
    assert ours(family).names("rl") == ["v0"]
    assert ours(family).names("sft") == [f"v{n}" for n in range(5)]
    (tmp_path / "five.yaml").write_text("styles: rwml\nstages: {rl: [v0, v1, v2, v3, v4]}\n")
    assert load(f"{tmp_path}/five.yaml").names("rl") == list(ours("rwml").variants)


def test_a_variant_is_drawn_for_a_trajectory_and_not_for_a_turn():
    prompts = ours("terminal")
    made = Trajectory(turns=HISTORY, source=Source(format="wm", file="f.jsonl", row=5), task_id="t")
    drawn = {render(one, prompts, stage="sft").variant for one in expand([made])}
    assert drawn == {dialogue(made, prompts).variant}
    assert [prompts.choose(f"t#f.jsonl/{row}", "sft", 0) for row in range(6)] == ["v10", "v9", "v3", "v2", "v7", "v10"]
    many = [prompts.choose(f"t#f.jsonl/{row}", "sft", 0) for row in range(2000)]
    counts = [many.count(name) for name in prompts.names("sft")]
    assert min(counts) > 140
    assert max(counts) < 260
    assert [prompts.choose(f"t#f.jsonl/{row}", "sft", 1) for row in range(2000)] != many
    with pytest.raises(UserError, match="rwml: there is no variant 'v'; "):
        render(transition(), ours("rwml"), variant="v")
    with pytest.raises(UserError, match="stage is 'rll'; did you mean 'rl'"):
        render(transition(), ours("rwml"), stage="rll")


# -- labels ----------------------------------------------------------------------------------------------------------------


@given(text=st.text(st.sampled_from("<>/think next_sae\n\t$"), max_size=60) | st.text())
@example(text="")
@example(text="</next_state")
@example(text="\n<next_state\n")
@example(text="a </next_state> b")
@example(text="<|return|>")
@pytest.mark.parametrize("family", ["rwml", "word2world", "os"])
def test_a_label_gives_its_observation_back(family, text):
    prompts = ours(family)
    marks = ("<think>", "</think>", *([f"<{prompts.tag}>", f"</{prompts.tag}>"] if prompts.tag else []))
    for thinking in (True, False):
        if any(mark in text for mark in marks):
            with pytest.raises(RowError, match="the observation holds"):
                target(environment(text), prompts, thinking=thinking)
        else:
            assume(prompts.tag or not text.rstrip().endswith(_ENDS))  # without a tag, the end of a turn
            label = target(environment(text), prompts, thinking=thinking)
            assert extract(label, prompts.tag) == ("", text.strip())  # which strips what it finds
            assert text in label


def test_labels():
    assert target(environment("a\nb"), ours("rwml")) == "<think>\n\n</think>\n\n<next_state>\na\nb\n</next_state>"
    assert (
        target(environment("ab"), ours("os"), thinking=True) == "<predicted_observation>\nab\n</predicted_observation>"
    )
    assert target(environment(" <next_state>"), ours("word2world")) == " <next_state>"
    assert target(environment("done", success=True), ours("word2world")) == "done [SUCCESS]"
    assert "[SUCCESS]" not in target(environment("done", success=True), ours("terminal"))
    assert target(environment("a </next_state>"), ours("os"), thinking=True).count("</next_state>") == 1


# -- dialogues -------------------------------------------------------------------------------------------------------------

GAPS = (
    step([Call(name="peek")], Observation(kind="tool", text="mine", tool="peek"), actor="user"),
    *HISTORY,
    step("nobody answers"),
    step(
        [Call(name="a"), Call(name="b")],
        Observation(kind="tool", text="one", tool="a", call=0),
        Observation(kind="tool", text="two", tool="b", call=1),
    ),
    step([Call(name="peek")], Observation(kind="tool", text="mine too", tool="peek"), actor="user"),
    step("goodbye"),
)


def test_user_and_assistant_alternate_in_every_family():
    made = Trajectory(turns=GAPS, context=CONTEXT, success=True)
    for family in FAMILIES:
        system, *rest = dialogue(made, ours(family)).messages
        assert in_order(HEADINGS, system["content"])
        assert [message["role"] for message in rest] == ["user", "assistant"] * 4
        contents = [message["content"] for message in rest]
        assert contents[0] == "User, on its own:\npeek()\n\nTo the user, from peek:\nmine\n\nfirst act"
        assert contents[1:6] == ["first sight", 'search({"query": "é"})', "3 results", "Which one?", "The red one."]
        assert contents[6] == "nobody answers\n\na()\nb()"
        mark = " [SUCCESS]" if family == "word2world" else ""
        assert contents[7] == f"Tool a:\none\n\nTool b:\ntwo{mark}"
        assert not re.search(r"\$[a-z{]", system["content"])


def test_success_is_marked_once():
    prompts = ours("word2world")
    won = Trajectory(turns=(step("go", environment("there")), step("take", environment("taken"))), success=True)
    contents = [m["content"] for m in dialogue(won, prompts).messages[1:]]
    assert contents == ["go", "there", "take", "taken [SUCCESS]"]
    turns = (step("go", environment("there", success=True)), step("take", environment("taken")))
    contents = [m["content"] for m in dialogue(Trajectory(turns=turns, success=True), prompts).messages[1:]]
    assert contents == ["go", "there [SUCCESS]", "take", "taken"]
    lost = dialogue(won.model_copy(update={"success": False}), prompts)
    assert "[SUCCESS]" not in lost.messages[-1]["content"]
    nothing = dialogue(Trajectory(turns=(step("go"),), context=CONTEXT, success=True), prompts)
    assert [message["role"] for message in nothing.messages] == ["system"]


@pytest.mark.parametrize("variant", load("word2world").variants)
def test_the_mark_of_success_is_not_promised_where_nobody_knows_of_one(variant):
    def system(success, /, **data):
        turns = (step("go", environment("there", **data)), step("take", environment("taken")))
        made = dialogue(Trajectory(turns=turns, context=CONTEXT, success=success), ours("word2world"), variant=variant)
        return made.messages[0]["content"]

    known = system(True)
    assert known.count('" [SUCCESS]"') == 1
    assert system(False) == system(None, success=True) == known
    unknown = system(None)
    assert not re.search("success|task is done|Goal|completes the task|finishes the task", unknown, re.I)
    kept = [paragraph for paragraph in known.split("\n\n") if "[SUCCESS]" not in paragraph]
    assert unknown.split("\n\n") == kept


def test_a_prompt_is_the_beginning_of_the_dialogue():
    prompts = ours("word2world")
    made = Trajectory(turns=HISTORY, context=CONTEXT, success=True)
    whole = dialogue(made, prompts).messages
    for number, transition in enumerate(expand([made])):
        prompt = render(transition, prompts).messages
        assert prompt == whole[: len(prompt)]
        assert target(transition.observation, prompts) == whole[len(prompt)]["content"]
        assert len(prompt) == 2 + 2 * number


# -- a user's own ----------------------------------------------------------------------------------------------------------

OWN = {
    "tag": "obs",
    "think": "Think, then <obs>.",
    "direct": "Only <obs>.",
    "fields": {"price": "$5 for $action", "rules": ["one", "two"]},
    "variants": {"mine": {"system": "$context", "user": "$history\n\n$price $$\n$rules\n\n$action\n\n$answer"}},
}


def written(tmp_path, values):
    path = tmp_path / "mine.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return str(path)


def changed(**values):
    return {**OWN, **values}


def variant(**texts):
    return changed(variants={"mine": {**OWN["variants"]["mine"], **texts}})


def test_a_users_own_file(tmp_path):
    prompts = load(written(tmp_path, OWN))
    assert (prompts.name, prompts.tag) == ("mine", "obs")
    made = render(transition(Context()), prompts, thinking=False)
    assert made.messages == [
        {"role": "user", "content": "$5 for $action $\n- one\n- two\n\nopen the door\n\nOnly <obs>."}
    ]
    assert target(environment("x"), prompts, thinking=True) == "<obs>\nx\n</obs>"


def test_a_file_may_do_without_the_context_and_the_history(tmp_path):
    short = {"omits": ["context", "history"], "variants": {"mine": {"user": "$action $answer"}}}
    prompts = load(written(tmp_path, {**OWN, **short}))
    made = render(transition(), prompts, thinking=False)
    assert [message["content"] for message in made.messages] == ["open the door Only <obs>."]


def test_a_domain_of_ones_own_in_our_styles(tmp_path):
    fields = dict(load("mcp").fields) | {"domain": "a lighthouse"}
    prompts = load(written(tmp_path, {"styles": "agentworld", "fields": fields, "stages": {"rl": ["v3"]}}))
    assert "a lighthouse" in text_of(render(transition(), prompts))
    assert prompts.names("rl") == ["v3"]
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(OWN))
    assert load(written(tmp_path, {"styles": "base.yaml", "tag": "obs", "think": "<obs>?"})).think == "<obs>?"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            variant(user="$actoin $answer $history"),
            ".variant mine, user: unknown placeholder $actoin; did you mean 'action'",
        ),
        (variant(user="$history $answer"), ".variant mine, user: the placeholder $action is missing"),
        (
            variant(user="$action $answer"),
            ".variant mine: the placeholder $history is missing; or write omits: [history]",
        ),
        (variant(user="$action $history"), ".variant mine: the placeholder $answer is missing"),
        (changed(completion="Done?"), ".variant mine: the placeholder $completion is missing"),
        (variant(system="$context for 5 $"), ".variant mine, system: a $ that begins no placeholder; write $$"),
        (variant(think="Think."), ".variant mine, think: does not say that the prediction goes into <obs>"),
        (variant(usr="x"), ".variants['mine'] has no field 'usr'; did you mean 'user'?"),
        (changed(tga="x"), " has no field 'tga'; did you mean 'tag'?"),
        (changed(name="x"), ": name: the file's own name is taken"),
        (changed(tag="<obs>"), ".tag is '<obs>'; write letters, digits and _"),
        (changed(history="none"), ".history is 'none'; there is 'messages', 'text'"),
        (changed(variants={}), ".variants is {}; write a mapping with at least one"),
        (changed(stages={"rl": ["v0"]}), ".stages, rl: there is no variant 'v0'; there is 'mine'"),
        (changed(stages={"rl": []}), ".stages, rl: names no variant"),
        (changed(fields={"action": "x"}), ".fields: 'action' cannot be a placeholder of your own"),
        (changed(styles="mcp"), ": styles: mcp has styles itself; name those"),
        (changed(styles=3), ": styles is 3; write one of our names, or a path"),
        ("- a\n- b\n", ": the file is no mapping"),
        ("a: [", " is not YAML: "),
        ("a: 2001-99-99", " is not YAML: "),
    ],
)
def test_mistakes_in_it_are_one_line_with_the_file_in_front(tmp_path, values, message):
    path = written(tmp_path, values)
    with pytest.raises(UserError) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}{message}")
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path):
    for name, message in (("rwlm", "'rwlm'; did you mean 'rwml'?"), ("agentworld", "'agentworld'")):
        with pytest.raises(UserError, match=f"there are no prompts {message}"):
            load(name)
    with pytest.raises(UserError, match="agentwrold.yaml: cannot be read .No such file"):
        load(written(tmp_path, changed(styles="agentwrold")))
    (tmp_path / "latin.yaml").write_bytes(b"tag: \xe9\xe8x")
    with pytest.raises(UserError, match="latin.yaml: not UTF-8 at byte 5"):
        load(str(tmp_path / "latin.yaml"))


@pytest.mark.parametrize("variant", load("rwml").variants)
def test_the_completion_of_the_task_is_predicted_where_the_prompts_ask_for_it(variant):
    asking, plain = load("rwml-completion"), load("rwml")
    assert asking.tag == plain.tag
    assert list(asking.variants) == list(plain.variants)
    asked = transition()
    question = text_of(render(asked, asking, variant=variant))
    assert question.replace(f"\n\n{asking.completion}", "") == text_of(render(asked, plain, variant=variant))
    assert '"Task completed: no"' in question


def test_only_the_last_observation_of_a_success_completes_the_task(tmp_path):
    turns = tuple(
        Turn(action=Action(text=f"act {n}"), observations=(Observation(kind="user", text=f"seen {n}"),))
        for n in range(3)
    )
    source = tmp_path / "x.jsonl"
    write([Trajectory(turns=turns, success=success, task_id=str(success)) for success in (True, False, None)], source)
    for kind, prompts, lines in (("rwml", "rwml-completion", True), ("rwml", "rwml", False)):
        made = list(samples(source, kind, prompts=prompts))
        states = ["no", "no", "yes"] + ["no"] * 6
        expected = [f"seen {n % 3}" + f"\nTask completed: {states[n]}" * lines for n in range(9)]
        assert [sample.columns["target"] for sample in made] == expected
    labels = [sample.messages[-1]["content"] for sample in samples(source, "rwml-sft", prompts="rwml-completion")]
    assert labels[2] == "<think>\n\n</think>\n\n<next_state>\nseen 2\nTask completed: yes\n</next_state>"
    # a file of transitions keeps the mark
    transitions = tmp_path / "t.jsonl"
    write_transitions(expand(read(source)), transitions)
    made = list(samples(transitions, "rwml", prompts="rwml-completion"))
    assert [sample.columns["target"] for sample in made] == [
        f"seen {n % 3}\nTask completed: {states[n]}" for n in range(9)
    ]
