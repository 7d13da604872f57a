"""Messages to trajectories and back."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.data.chat import PROMPT, chat, conversation
from wm_plugin.data.readers import trl
from wm_plugin.data.readers.openai import convert
from wm_plugin.data.schema import Action, Call, Context, Observation, Source, Trajectory, Turn

SOURCE = Source(format="openai", file="f", row=0)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
WORDS = TEXT.filter(str.strip)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=3).map(lambda v: json.dumps(v, ensure_ascii=False)) | st.just('{"x')


@st.composite
def conversations(draw):
    """Well-formed ones: calls with ids of their own, answered in order (the last ones perhaps not), then replies."""
    messages = [{"role": role, "content": draw(WORDS)} for role in ("system", "user") if draw(st.booleans())]
    for turn in range(draw(st.integers(0, 5))):
        calls = [
            {"id": f"{turn}-{n}", "type": "function", "function": {"name": draw(WORDS), "arguments": draw(ARGUMENTS)}}
            for n in range(draw(st.integers(0, 4)))
        ]
        message = {"role": "assistant", "content": draw(TEXT)}
        if thought := draw(TEXT.filter(lambda text: "think>" not in text)):
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
        for c in calls[: draw(st.integers(0, len(calls)))]:
            name = c["function"]["name"]
            messages.append({"role": "tool", "tool_call_id": c["id"], "name": name, "content": draw(TEXT)})
        roles = draw(st.lists(st.sampled_from(["user", "system"]), max_size=2))
        messages += [{"role": role, "content": draw(TEXT)} for role in roles]
    return messages


@settings(max_examples=examples(300), deadline=None)
@given(conversations())
def test_messages_come_back_as_they_were(messages):
    (read,) = map(Trajectory.model_validate, convert({"messages": messages}, SOURCE))
    assert chat(read.context, read.turns) == messages


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.lists(st.none() | JSON | st.just("{'no json'}"), max_size=4), max_size=4))
def test_arguments_of_every_kind_come_back(turns):
    made = tuple(
        Turn(
            action=Action(
                text="go", calls=tuple(Call(name="f", arguments=arguments, id="same") for arguments in calls)
            ),
            observations=tuple(Observation(kind="tool", text="", tool="f", call=n) for n in range(len(calls))),
        )
        for calls in turns
    )
    (read,) = map(Trajectory.model_validate, convert({"messages": chat(Context(), made)}, SOURCE))
    assert [[{} if c.arguments is None else c.arguments for c in t.action.calls] for t in made] == [
        [c.arguments for c in turn.action.calls] for turn in read.turns
    ]
    assert [turn.observations for turn in read.turns] == [turn.observations for turn in made]


def test_ids_are_made_where_there_is_none_of_its_own():
    calls = (Call(name="f", id="a"), Call(name="g", id="a"), Call(name="h"))
    observations = tuple(Observation(kind="tool", text=str(n), call=n) for n in (2, 0))
    messages = chat(Context(), [Turn(action=Action()), Turn(action=Action(calls=calls), observations=observations)])
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["a", "call_1_1", "call_1_2"]
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "call_1_2", "name": "h", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "0"},
    ]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_what_the_agent_never_saw_is_left_out():
    result = Observation(kind="tool", text="no service", tool="bars", call=0)
    looked = Turn(action=Action(text="(looks)", calls=(Call(name="bars"),)), observations=(result,), actor="user")
    asked = Turn(action=Action(text="Any bars?"), observations=(Observation(kind="user", text="None."),))
    context = Context(task="Help.", demonstrations=("So it goes.",), simulation_instruction="Fail now and then.")
    assert chat(context, [asked, looked]) == [
        {"role": "system", "content": "Help.\n\nSo it goes."},
        {"role": "assistant", "content": "Any bars?"},
        {"role": "user", "content": "None."},
    ]


def test_prompts_of_every_form_come_back_from_a_dump():
    """Those that a context cannot hold: of two messages of one role, an empty one, another order, another role."""
    called = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    completion = [
        {"role": "assistant", "content": "hm", "tool_calls": [called]},
        {"role": "tool", "content": "res", "name": "f", "tool_call_id": "a"},
    ]
    forms = ["u", "su", "s", "uu", "ssu", "us", "s-", "-", "du"]
    roles = {"u": "user", "s": "system", "-": "user", "d": "developer"}
    for form in forms:
        prompt = [{"role": roles[one], "content": "" if one == "-" else f"{n}"} for n, one in enumerate(form)]
        row = {"prompt": prompt, "completion": completion, "advantage": 0.5}
        (fields,) = trl.convert(row, SOURCE)
        assert (PROMPT in fields["metadata"]) == (form not in ("u", "su", "s"))
        trajectory = Trajectory.model_validate_json(Trajectory.model_validate(fields).to_bytes())
        assert conversation(trajectory) == [*prompt, *completion]
    for nonsense in ("x", [1], [{"role": "user"}], [{"role": 1, "content": ""}]):
        changed = trajectory.model_copy(update={"metadata": {PROMPT: nonsense}})
        assert conversation(changed) == chat(changed.context, changed.turns)
