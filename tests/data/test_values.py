"""Values become schemas, and users' facts a part of the context."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.data import read
from wm_plugin.data.chat import chat
from wm_plugin.data.schema import Action, Call, Observation, Trajectory, Turn
from wm_plugin.data.values import mask_values, masked, profile_to_context, schema_of


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        (
            '{"customer_id": "abc123", "full_name": "John Doe"}',  # RWML's own example
            '{"type":"object","properties":{"customer_id":{"type":"string"},"full_name":{"type":"string"}}}',
        ),
        (
            '[{"b": 1, "a": null}, {"b": 2.5}]',  # one schema for all items, in the order of the text
            '{"type":"array","items":{"type":"object","properties":{"b":{"type":"number"},"a":{"type":"null"}}}}',
        ),
        ('{"a": "x", "b": {}}', '{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"object"}}}'),
        ("[]", '{"type":"array"}'),
        ('[1, "one"]', '{"type":"array","items":{"type":["integer","string"]}}'),
        ('{"required": true}', '{"type":"object","properties":{"required":{"type":"boolean"}}}'),
        (
            '{"2024-05-16": {"status": "full"}, "2024-05-17": {"status": "open", "seats": 3}}',  # ids as keys
            '{"type":"object","additionalProperties":{"type":"object","properties":'
            '{"status":{"type":"string"},"seats":{"type":"integer"}}}}',
        ),
        (
            '{"address1": "x", "address2": "y"}',
            '{"type":"object","properties":{"address1":{"type":"string"},"address2":{"type":"string"}}}',
        ),
        (' {"a":\n1}\r\n', '{"type":"object","properties":{"a":{"type":"integer"}}}'),
        *((text, None) for text in ("3.5", '"text"', "null", "", "{'a': 1}", "[" * 300 + "]" * 300)),
    ],
)
def test_schemas(text, schema):
    assert schema_of(text) == schema


SECRET = "s3cret-value"
KEYS = st.sampled_from(["name", "address", "id", "items"])
VALUES = st.recursive(
    st.sampled_from([SECRET, 98765, 0.98765, True, None]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.from_regex("[A-Z]98765", fullmatch=True), inner)
    ),
    max_leaves=10,
).filter(lambda value: isinstance(value, dict | list))


@settings(max_examples=examples(200), deadline=None)
@given(VALUES)
def test_no_value_is_left_and_the_schema_is_deterministic(value):
    schema = schema_of(json.dumps(value))
    assert json.loads(schema)["type"] in ("object", "array")
    assert SECRET not in schema
    assert schema == schema_of(json.dumps(value, indent=2))


def tool(text, call=0, **more):
    return Observation(kind="tool", text=text, tool="get", call=call, **more)


def test_only_tools_results_are_masked():
    turns = (
        Turn(
            action=Action(text='{"say": 1}', calls=(Call(name="get", arguments={"id": "abc123"}),) * 2),
            observations=(
                tool('{"id": "abc123"}', data={"score": 1}),
                tool("not found", call=1, error=True),
                Observation(kind="user", text='{"id": "abc123"}'),
            ),
        ),
        Turn(action=Action(calls=(Call(name="get"),)), observations=(tool('["abc123"]'),), actor="user"),
        Turn(action=Action(text="look"), observations=(Observation(kind="environment", text="[1]"),)),
    )
    before = Trajectory(turns=turns, task_id="t", reward=1.0)
    after = mask_values(before)
    first = after.turns[0].observations
    assert first[0].text == '{"type":"object","properties":{"id":{"type":"string"}}}'
    assert first[0].data == {"score": 1, "schema": True}
    assert first[1:] == turns[0].observations[1:]
    assert after.turns[0].action == turns[0].action
    assert after.turns[1].observations[0].text == '{"type":"array","items":{"type":"string"}}'
    assert after.turns[2] == turns[2]
    assert (masked(before), masked(after)) == (0, 2)
    assert mask_values(after) == after
    assert before.turns[0].observations[0].text == '{"id": "abc123"}'  # the trajectory itself is as it was


TAU = {
    "info": {"environment_info": {"domain_name": "shop", "policy": "Be kind."}},
    "tasks": [
        {
            "id": 0,
            "user_scenario": {
                "persona": "Patient.",
                "instructions": {"known_info": "You are Jo Doe.", "reason_for_call": "Return the kettle."},
            },
        },
        {"id": 1, "user_scenario": {"persona": None, "instructions": "You want a refund."}},
    ],
    "simulations": [
        {
            "id": "a",
            "task_id": task,
            "messages": [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Hm"}],
        }
        for task in (0, 1, 2)
    ],
}


@pytest.mark.parametrize("last", ["simulations", "tasks"])
def test_what_a_user_knows_goes_to_the_world_model_alone(tmp_path, last):
    path = tmp_path / "tau2.json"
    path.write_text(json.dumps({**{key: value for key, value in TAU.items() if key != last}, last: TAU[last]}))
    first, second, third = read(path)
    assert first.metadata["user_profile"] == {"known_info": "You are Jo Doe.", "persona": "Patient."}
    assert "user_profile" not in second.metadata
    assert "user_profile" not in third.metadata
    told = profile_to_context(first)
    assert told.context.simulation_instruction == "What the user was told about themselves:\nYou are Jo Doe."
    assert "kettle" not in told.model_dump_json()
    assert profile_to_context(told) is told
    assert profile_to_context(second) is second
    told = told.context.model_copy(update={"simulation_instruction": "Fail."})
    instruction = profile_to_context(first.model_copy(update={"context": told})).context.simulation_instruction
    assert instruction == "Fail.\n\nWhat the user was told about themselves:\nYou are Jo Doe."
    told = profile_to_context(first)
    assert chat(told.context, told.turns) == chat(first.context, first.turns)
